"""Help, version and completion of every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tensorwire_job.version import __version__
from tests.support.command_line import Ran

if TYPE_CHECKING:
    from tests.support.command_line import Run

COMMANDS = ("watch", "diagnose", "report", "agent", "analyzer", "completion")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_every_help_has_an_example(run: Run, command: tuple[str, ...]) -> None:
    ran = run(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"tensorwire-job {' '.join(command)}" in ran.out.partition("Example:\n")[2]
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    if command and command[-1] not in ("agent", "completion"):
        assert "--json" in ran.out


def test_no_arguments_is_a_usage_error_that_lists_the_commands(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    listed = re.findall(r"^  ([a-z]+)  +\S", ran.err.partition("Commands:\n")[2], re.MULTILINE)
    assert listed == list(COMMANDS)


def test_version(run: Run) -> None:
    assert run("--version") == Ran(0, f"tensorwire-job {__version__}\n", "")


def test_errors_have_the_name_of_the_program(run: Run) -> None:
    ran = run("nothing")
    assert ran.code == 2
    assert ran.err.startswith("tensorwire-job: No such command 'nothing'")


def test_completion_offers_commands_and_options() -> None:
    def complete(words: str, index: int, program: str) -> str:
        variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
        environment = {**os.environ, variable: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        module = program.replace("-", "_")
        code = f"import sys; from {module}.cli import main; sys.exit(main())"
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout

    assert "diagnose" in complete("tensorwire-job d", 1, "tensorwire-job")
    assert "--hang-seconds" in complete("tensorwire-job diagnose --ha", 2, "tensorwire-job")
    assert "diagnose" in complete("tensorwire job d", 2, "tensorwire")
    assert "--hang-seconds" in complete("tensorwire job diagnose --ha", 3, "tensorwire")
