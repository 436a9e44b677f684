"""Commands that are killed at random moments while they replace what stands there.

``python -m tests.support.killed_runs DIRECTORY ROUNDS SEED`` takes turns among the commands, and prints a line of JSON
for each kill: what was neither old nor new, and whether the same command finished the work and left nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from itertools import cycle
from pathlib import Path

import numpy  # noqa: F401 - imports are not what is killed

from tensorwire.cli import main as command_line
from tests.support.rewriting_cases import CASES, build, problems, tree, write_kit

_NAMES = [
    name for name, case in CASES.items() if any(f"--{how}" in case.command for how in ("force", "in-place", "replace"))
]


def start(place: Path, command: str) -> int:
    """A process that runs a command line; its id."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.chdir(place)
            code = command_line([*command.split(), "--quiet"])
        finally:
            os._exit(code)
    return child


def succeeds(place: Path, command: str) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(start(place, command), 0)[1]) == 0


def main(root: Path, rounds: int, seed: int) -> None:
    write_kit(root / "kit")
    place = root / "place"
    generator = random.Random(seed)
    undisturbed: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    seconds: dict[str, float] = {}
    for name in _NAMES:
        build(place, root / "kit", CASES[name])
        old, began = tree(place), time.monotonic()
        assert succeeds(place, CASES[name].command)
        seconds[name] = time.monotonic() - began
        undisturbed[name] = old, tree(place)
    num_kills = 0
    for name in cycle(_NAMES):
        if num_kills == rounds:
            break
        case, (old, new) = CASES[name], undisturbed[name]
        build(place, root / "kit", case)
        child = start(place, case.command)
        time.sleep(generator.uniform(0, seconds[name]))
        os.kill(child, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            seconds[name] *= 0.9  # it was done before
            continue
        num_kills += 1
        found = tree(place)
        state = "old" if found == old else "new" if found == new else "between"
        odd = problems(case, found, old, new)
        again = [succeeds(place, case.command) for _ in range(2)]  # the second one has nothing, or the same, to do
        left = sorted(set(tree(place).items()) ^ set(new.items()))
        line = {"case": name, "state": state, "odd": odd, "again": again, "left": left}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
