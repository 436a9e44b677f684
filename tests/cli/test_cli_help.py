"""Help, version and completion of every command."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click
import pytest

from tensorwire.cli import failures, group
from tests.support.command_line import Ran

if TYPE_CHECKING:
    from tests.support.command_line import Run

SECTIONS = {
    "Checkpoints": ["compress", "decompress", "transcode", "convert", "verify", "diff", "inspect"],
    "Models": ["run", "fit"],
    "Training": ["sync", "job"],
    "This machine": ["doctor", "bench", "completion"],
}
COMMANDS = [name for names in SECTIONS.values() for name in names if name != "job"]
SYNC_COMMANDS = ("publish", "follow", "status")


@pytest.mark.parametrize(
    "command",
    [
        (),
        *((name,) for name in COMMANDS),
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
    if command and command[-1] not in ("completion", "sync"):
        assert "--json" in ran.out


def test_help_has_every_exit_code(run: Run) -> None:
    said = run("--help").out.partition("Exit codes:")[2].partition("Options:")[0]
    codes = {code for name, code in vars(failures).items() if name.isupper() and type(code) is int}
    assert {int(code) for code in re.findall(r"\d+", said)} == {0, *codes}


def test_no_arguments_is_a_usage_error(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    assert all(name in ran.err for name in COMMANDS)


def listed(text: str) -> dict[str, list[str]]:
    """The names in the lists of commands of a help text, one to a line, by the title of the list."""
    sections = re.findall(r"^(\S[^\n]*):\n((?:  \S[^\n]*\n?)+)", text.partition("\nOptions:\n")[2], re.MULTILINE)
    return {title: re.findall(r"^  ([a-z]+)  +\S", lines, re.MULTILINE) for title, lines in sections}


def test_the_first_screen_lists_all_commands(run: Run) -> None:
    first = run("--help").out
    assert listed(first) == SECTIONS
    assert len(first.splitlines()) <= 44
    assert listed(run("sync").err) == {"Commands": list(SYNC_COMMANDS)}


class Point:
    """An entry point that gives a command."""

    def __init__(self, distribution: str | None, error: Exception | None = None) -> None:
        self.dist = SimpleNamespace(name=distribution)
        self._error = error

    def load(self) -> click.Command:
        if self._error is not None:
            raise self._error
        return click.Command("job", callback=lambda: print("found"), help="Another distribution's.")


def test_a_command_of_another_distribution_is_found_by_its_entry_point(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def entry_points(**which: str) -> list[Point]:
        asked.append(which)
        return [Point(None), Point("foreign", ImportError("no such module")), Point("tensorwire_job")]

    monkeypatch.setattr(group, "entry_points", entry_points)
    assert run("job") == Ran(0, "found\n", "")
    assert asked == [{"group": "tensorwire.commands", "name": "job"}]
    assert "Another distribution's." in run("--help").out


@pytest.mark.parametrize("arguments", [(), ("diagnose",), ("diagnose", "--json"), ("--help",)])
def test_a_command_of_a_distribution_that_is_missing_says_how_to_get_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(group, "entry_points", lambda **_: [])
    ran = run("job", *arguments)
    expected = "job is a command of tensorwire-job, which is not installed: in a clone, pip install ./job"
    assert (ran.code, ran.err.splitlines()[0]) == (2, f"tensorwire: {expected}")
    if "--json" in arguments:
        assert ran.json["error"]["message"] == expected
    assert "Is not installed: in a clone, pip install ./job." in run("--help").out


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("No module named 'jinja2'"), "No module named 'jinja2'"),
        (AttributeError("module 'os' has no attribute 'nosuch'"), "module 'os' has no attribute 'nosuch'"),
        (AssertionError(), "AssertionError"),
    ],
    ids=["ImportError", "AttributeError", "AssertionError"],
)
def test_a_distribution_that_cannot_be_loaded_says_so_and_leaves_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    broken = Point("tensorwire-job", error)
    monkeypatch.setattr(group, "entry_points", lambda **_: [broken])
    expected = f"job is a command of tensorwire-job, which cannot be loaded: {reason}"
    assert run("job", "diagnose") == Ran(2, "", f"tensorwire: {expected}\n")
    assert run("--help").code == 0


def test_version(run: Run) -> None:
    from tensorwire import __version__

    assert run("--version") == Ran(0, f"tensorwire {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(run: Run, shell: str) -> None:
    ran = run("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "_TENSORWIRE_COMPLETE" in ran.out
