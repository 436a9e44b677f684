"""A delta that is applied in place by processes that are killed at random moments.

``python -m tests.support.killed_application DELTA OLD NEW DIRECTORY ROUNDS SEED`` prints a line of JSON for each round:
which files were neither old nor new after the kill, how many were new, and whether the same call finished the rest.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from tensorwire.checkpoint import apply_checkpoint
from tests.support.checkpoint_models import tree_hashes


def start(delta: Path, base: Path) -> int:
    """A process that applies the delta; its id."""
    child = os.fork()
    if child == 0:
        try:
            apply_checkpoint(delta, base, threads=2)
        except BaseException as error:
            print(json.dumps({"error": str(error)}), flush=True)
            os._exit(1)
        os._exit(0)
    return child


def state(base: Path, old: dict[str, str], new: dict[str, str]) -> tuple[list[str], int]:
    """The files that are neither old nor new, and how many are new that were another before."""
    found = {path: digest for path, digest in tree_hashes(base).items() if ".partial/" not in path}
    odd = [path for path in sorted({*found, *old, *new}) if found.get(path) not in (old.get(path), new.get(path))]
    return odd, sum(found.get(path) == digest != old.get(path) for path, digest in new.items())


def main(delta: Path, old_root: Path, new_root: Path, directory: Path, rounds: int, seed: int) -> None:
    old, new = tree_hashes(old_root), tree_hashes(new_root)
    generator = random.Random(seed)
    base = directory / "base"
    seconds = 0.0
    for number in range(rounds + 1):
        shutil.copytree(old_root, base)
        began = time.monotonic()
        child = start(delta, base)
        if number == 0:  # undisturbed, for its time
            assert os.waitpid(child, 0)[1] == 0
            seconds = time.monotonic() - began
            shutil.rmtree(base)
            continue
        time.sleep(generator.uniform(0, 1.1 * seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        odd, num_new = state(base, old, new)
        finished = [os.waitpid(start(delta, base), 0)[1] == 0 for _ in range(2)]  # the second one does nothing
        paths = (path.relative_to(base) for path in base.rglob("*"))
        left = sorted(path.as_posix() for path in paths if not (new_root / path).exists())
        done = all(finished) and tree_hashes(base) == new and not left
        print(json.dumps({"odd": odd, "num_new": num_new, "done": done, "left": left}), flush=True)
        shutil.rmtree(base)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]), int(sys.argv[5]), int(sys.argv[6]))  # type: ignore[misc]
