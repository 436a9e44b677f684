"""Help, version and completion of every command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import Ran

if TYPE_CHECKING:
    from tests.support.command_line import Run

COMMANDS = ("compress", "decompress", "run", "transcode", "verify", "diff", "inspect", "fit", "doctor",
            "bench", "sync", "job", "completion")  # fmt: skip
JOB_COMMANDS = ("watch", "diagnose", "report", "agent", "analyzer")
SYNC_COMMANDS = ("publish", "follow", "status")


@pytest.mark.parametrize(
    "command",
    [
        (),
        *((name,) for name in COMMANDS),
        *(("job", name) for name in JOB_COMMANDS),
        *(("sync", name) for name in SYNC_COMMANDS),
    ],
    ids=" ".join,
)
def test_every_help_has_an_example(run: Run, command: tuple[str, ...]) -> None:
    ran = run(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "Example:\n" in ran.out
    assert f"tensorwire {' '.join(command)}" in ran.out.partition("Example:\n")[2]
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert "  --force" not in ran.out, "its short form, -f, is missing"
    if command and command[-1] not in ("agent", "completion", "job", "sync"):
        assert "--json" in ran.out


def test_no_arguments_is_a_usage_error(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    assert all(name in ran.err for name in COMMANDS)


def listed(text: str) -> list[str]:
    """The names in the list of commands of a help text, one to a line."""
    return re.findall(r"^  ([a-z]+)  +\S", text.partition("Commands:\n")[2], re.MULTILINE)


def test_diagnosis_is_one_line_of_the_first_screen(run: Run) -> None:
    first = run("--help").out
    assert listed(first) == list(COMMANDS)
    assert len(first.splitlines()) <= 40
    ran = run("job")
    assert (ran.code, ran.out) == (2, "")
    assert listed(ran.err) == list(JOB_COMMANDS)
    assert listed(run("sync").err) == list(SYNC_COMMANDS)


def test_version(run: Run) -> None:
    from tensorwire import __version__

    assert run("--version") == Ran(0, f"tensorwire {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(run: Run, shell: str) -> None:
    ran = run("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "_TENSORWIRE_COMPLETE" in ran.out
