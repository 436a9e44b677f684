"""Commands of which one call of the system fails, every one in its turn.

``python -m tests.support.failing_runs DIRECTORY STEP``, with failing_calls.cpp preloaded, counts for each command the
calls by which it changes local, then lets every STEP-th of them fail with EIO. It prints a line of JSON for each run.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import numpy  # noqa: F401 - before the calls are counted

from tensorwire.cli import main as command_line
from tensorwire.storage import local
from tests.support.rewriting_cases import CASES, build, problems, tree, write_kit


class Ran(NamedTuple):
    """What a run did: its exit code, what it wrote to standard error, how many calls there were, and which failed."""

    code: int
    err: str
    num_calls: int
    failed: str


def run(place: Path, command: str, fail_at: int) -> Ran:
    """A command line in a process of its own, of which the call of this number fails; none with -1."""
    report = place.with_name("report")
    child = os.fork()
    if child == 0:
        code = 99
        try:
            calls = ctypes.CDLL(None)
            calls.failing_calls_failed.restype = ctypes.c_char_p
            os.chdir(place)
            with report.open("w") as err:
                os.dup2(err.fileno(), 2)
                calls.failing_calls_begin(str(place).encode(), fail_at)
                code = command_line([*command.split(), "--quiet"])
                found = {"num_calls": calls.failing_calls_count(), "failed": calls.failing_calls_failed().decode()}
                calls.failing_calls_begin(b"", -1)
                sys.stderr.flush()
            place.with_name("calls").write_text(json.dumps(found))
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ran(code, report.read_text(), **json.loads(place.with_name("calls").read_text()))


def try_all(kit: Path, place: Path, name: str, step: int) -> None:
    """Let one call after the other fail, and repeat the command after each."""
    case = CASES[name]
    build(place, kit, case)
    old = tree(place)
    first = run(place, case.command, -1)
    new = tree(place)
    assert (first.code, first.err) == (0, ""), first
    for number in range(0, first.num_calls, step):
        build(place, kit, case)
        ran = run(place, case.command, number)
        found = tree(place)
        again = run(place, case.command, -1)
        line = {
            "case": name,
            **ran._asdict(),
            "odd": problems(case, found, old, new),
            "done": found == new,
            "again": [again.code, again.err],
            "left": sorted(set(tree(place).items()) ^ set(new.items())),
        }
        print(json.dumps(line), flush=True)


def main(root: Path, step: int) -> None:
    local._FLUSH_NBYTES = 4000  # so that data is written back ahead
    write_kit(root / "kit")
    for name in CASES:
        try_all(root / "kit", root / "place", name, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
