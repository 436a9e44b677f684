"""The command that is run for each new finding: real programs, and findings whose words want to be commands."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shlex
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.hung_job import not_entered
from tensorwire_job.service import on_finding
from tensorwire_job.service.on_finding import FindingCommand, variables
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorwire_job.model import Finding

NO_STACKS = dataclasses.replace(not_entered(), stacks={})
HOSTILE = "rank 2 left\n$(touch {0}); `touch {0}`; ' \" | touch {0} & \x1b[2J\x00\udcff \u202e --config=/etc/passwd"
VARIABLES = ("CODE", "SUSPECTS", "CONFIDENCE", "HEADLINE", "JOB")


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[tuple[FindingCommand, list[str]]]:
    """And what it complains of."""
    troubles: list[str] = []
    with contextlib.closing(FindingCommand(command, troubles.append)) as one:
        yield one, troubles


@pytest.fixture
def keeping(tmp_path: Path) -> list[str]:
    """A command that keeps what it is given: a line of JSON for each run."""
    program = tmp_path / "keep.py"
    program.write_text(
        "import json, os, sys\n"
        "told = {name: value for name, value in os.environ.items() if name.startswith('TENSORWIRE_FINDING_')}\n"
        "with open(sys.argv[1], 'a') as file:\n"
        "    print(json.dumps([json.load(sys.stdin), told]), file=file)\n"
    )
    return [sys.executable, "-S", str(program), str(tmp_path / "kept")]


def kept(command: list[str]) -> list[Any]:
    path = Path(command[-1])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def state(pid: int) -> tuple[str, int]:
    """The state of a process and its parent; one that is gone is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0


def children() -> set[int]:
    """The children of this process, dead ones too."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return {pid for pid in pids if state(pid)[1] == os.getpid()}


def test_finding_reaches_the_command(keeping: list[str]) -> None:
    finding = dataclasses.replace(not_entered(), suspects=[2, 5])
    with running(keeping) as (command, troubles):
        command.take("run-1", [finding])
    ((told, environment),) = kept(keeping)
    assert told.pop("at").startswith("20")
    assert told == {"job": "run-1", **json.loads(json.dumps(dataclasses.asdict(finding)))}
    assert environment == {
        "TENSORWIRE_FINDING_CODE": "TW-H1",
        "TENSORWIRE_FINDING_SUSPECTS": "2,5",
        "TENSORWIRE_FINDING_CONFIDENCE": "high",
        "TENSORWIRE_FINDING_HEADLINE": finding.summary,
        "TENSORWIRE_FINDING_JOB": "run-1",
    }
    assert troubles == []


def test_place_is_the_name_of_the_job(keeping: list[str]) -> None:
    with contextlib.closing(FindingCommand(keeping, print, place="some/where")) as command:
        command.take("run-1", [not_entered()])
        command.take("run-2", [not_entered()])
    told = [(one["job"], environment["TENSORWIRE_FINDING_JOB"]) for one, environment in kept(keeping)]
    assert told == [("some/where", "some/where")] * 2, "of either run"


def others(finding: Finding) -> list[tuple[str, Finding]]:
    return [
        ("run-1", dataclasses.replace(finding, suspects=[3])),
        ("run-1", dataclasses.replace(finding, code="TW-H3")),
        ("run-2", finding),
    ]


def test_new_is_another_code_or_suspect_or_job_of_a_finding(keeping: list[str]) -> None:
    finding = not_entered()
    with running(keeping) as (command, _):
        for _ in range(3):
            command.take("run-1", [finding, finding])
        command.take("run-1", [dataclasses.replace(finding, level="notice", suspects=[7])])
        command.take("run-1", [dataclasses.replace(finding, summary="told otherwise", process_group="tp", time=2000.0)])
        for run_id, other in others(finding):
            command.take(run_id, [other])
    told = [(one["job"], one["code"], one["suspects"]) for one, _ in kept(keeping)]
    assert told == [("run-1", "TW-H1", [2]), *((job, one.code, one.suspects) for job, one in others(finding))]


def test_finding_that_was_away_for_long_is_new(keeping: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_finding, "_FORGET_SECONDS", 0.2)
    with running(keeping) as (command, _):
        for _ in range(10):  # it stands all the time
            command.take("run-1", [not_entered()])
            time.sleep(0.05)
        time.sleep(0.3)
        command.take("run-1", [not_entered()])
    assert len(kept(keeping)) == 2


def test_stacks_are_waited_for(keeping: list[str]) -> None:
    with running(keeping) as (command, _):
        command.take("run-1", [NO_STACKS])
        command.take("run-1", [not_entered()])
        command.take("run-1", [not_entered()])
    ((told, _),) = kept(keeping)
    assert set(told["stacks"]) == {"2"}


def test_finding_that_waits_for_stacks_is_not_forgotten(keeping: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a watch was stopped for long: its finding is over, and was not told yet."""
    monkeypatch.setattr(on_finding, "_FORGET_SECONDS", 0.0)
    with running(keeping) as (command, _):
        command.take("run", [NO_STACKS])
        monkeypatch.setattr(on_finding, "_STACK_SECONDS", 0.0)
        command.take("run", [])
    assert len(kept(keeping)) == 1


def test_stacks_that_do_not_come_are_not_waited_for_long(keeping: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_finding, "_STACK_SECONDS", 0.1)
    with running(keeping) as (command, _):
        command.take("run-1", [NO_STACKS])
        time.sleep(0.15)
        command.take("run-1", [NO_STACKS])
        wait_for(lambda: len(kept(keeping)) == 1)  # while the watch goes on


def test_hostile_words_are_data(keeping: list[str], tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    words = HOSTILE.format(trap)
    finding = dataclasses.replace(
        not_entered(), summary=words, evidence=[words], process_group=words, stacks={2: words * 3000}
    )
    with running(keeping) as (command, troubles):
        command.take(words, [finding])
    ((told, environment),) = kept(keeping)
    assert (told["job"], told["summary"], told["evidence"]) == (words, words, [words])
    assert len(told["stacks"]["2"]) == 3000 * len(words), "more than a pipe holds"
    for name in ("JOB", "HEADLINE"):
        value = environment[f"TENSORWIRE_FINDING_{name}"]
        assert value.isprintable()
        assert value.startswith("rank 2 left\\n$(touch ")
    assert troubles == []
    assert not trap.exists()


def test_shell_that_the_user_asks_for_expands_nothing_twice(tmp_path: Path) -> None:
    """Its own quoted variable gives the words, and does not run them."""
    trap, out = tmp_path / "trap", tmp_path / "out"
    finding = dataclasses.replace(not_entered(), summary=HOSTILE.format(trap))
    script = f'echo "$TENSORWIRE_FINDING_HEADLINE" $TENSORWIRE_FINDING_HEADLINE > {shlex.quote(str(out))}'
    with running(["sh", "-c", script]) as (command, troubles):
        command.take("run-1", [finding])
    assert troubles == []
    assert out.read_text().count("$(touch") == 2
    assert not trap.exists()


def test_values_are_one_printable_line_of_bounded_length() -> None:
    words = "\n\x00\x7f\udc80\u2028" * 10_000
    values = variables(words, dataclasses.replace(not_entered(), summary=words))
    assert set(values) == {f"TENSORWIRE_FINDING_{name}" for name in VARIABLES}
    for value in values.values():
        assert value.isprintable()
        assert len(value) <= 4096


def test_words_that_the_locale_lacks_end_nothing(keeping: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def latin(text: str | bytes) -> bytes:
        return text.encode("latin-1") if isinstance(text, str) else text

    monkeypatch.setattr(os, "fsencode", latin)
    with running(keeping) as (command, troubles):
        command.take("run-1", [dataclasses.replace(not_entered(), summary="rank 2: \U0001f600")])
        command.take("run-2", [not_entered()])
    assert troubles == []
    assert [one["job"] for one, _ in kept(keeping)] == ["run-1", "run-2"]


def test_take_does_not_wait(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with running(["sh", "-c", f"sleep 0.7; : > {shlex.quote(str(mark))}"]) as (command, troubles):
        start = time.monotonic()
        command.take("run-1", [not_entered()])
        assert time.monotonic() - start < 0.5
        assert not mark.exists()
    assert mark.exists(), "the end waits for a message that is on its way"
    assert troubles == []


def test_command_that_takes_too_long_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, before = tmp_path / "pid", children()
    looks = itertools.count()

    def monotonic() -> float:
        """The time is up once the child has begun: not before `take` and the deadline have looked, one time each."""
        is_up = next(looks) > 1 and pid.exists() and pid.read_text()
        return time.monotonic() + (on_finding.LIMIT_SECONDS if is_up else 0)

    monkeypatch.setattr(on_finding, "time", SimpleNamespace(monotonic=monotonic, strftime=time.strftime))
    with running(["sh", "-c", f"sleep 61 & echo $! > {shlex.quote(str(pid))}; wait"]) as (command, troubles):
        command.take("run-1", [not_entered()])
        wait_for(lambda: bool(troubles))
        assert troubles == ["the command of --on-finding failed: it took longer than 30 s and was killed"]
        assert children() == before
    wait_for(lambda: state(int(pid.read_text()))[0] in "ZX")  # its parent is dead: init waits for it


def test_no_zombie_is_left(tmp_path: Path) -> None:
    runs, before = tmp_path / "runs", children()
    with running(["sh", "-c", f"echo >> {shlex.quote(str(runs))}"]) as (command, _):
        for number in range(5):
            command.take(f"run-{number}", [not_entered()])
        wait_for(lambda: runs.exists() and runs.read_text().count("\n") == 5)
        wait_for(lambda: children() == before)  # they are waited for while the watch goes on


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("exit 7", "exit code 7"),
        ("echo one >&2; printf 'two\\033[2J words\\n\\n' >&2; exit 1", "exit code 1: two\\x1b[2J words"),
        ("yes | head -c 1000000 >&2; exit 2", "exit code 2: y"),
        ("kill -9 $$", "signal 9"),
        ("exec 2>&-; exit 3", "exit code 3"),
        ("", "No such file or directory"),  # of the program, which is gone
    ],
)
def test_failure_is_told_once(script: str, trouble: str) -> None:
    with running(["sh", "-c", script] if script else ["/nowhere/gone"]) as (command, troubles):
        for number in range(3):
            command.take(f"run-{number}", [not_entered()])
    assert troubles == [f"the command of --on-finding failed: {trouble}"]


def test_command_that_is_too_slow_is_not_run_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_finding, "LIMIT_SECONDS", 0.2)
    with running(["sleep", "61"]) as (command, troubles):
        for number in range(40):
            command.take(f"run-{number}", [not_entered()])
    assert troubles[0] == "the command of --on-finding failed: it is too slow; not run for TW-H1"
