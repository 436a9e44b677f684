"""Followed directories under this code and under older code: python -m benchmarks.sync.against FOLDER, into which pip
has installed the older one: `pip install --no-deps --target FOLDER CHECKOUT`.

Both follow the same versions by turns, each in processes of its own on one thread. CPU seconds of `stage`, wall seconds
of `commit`: medians of all versions but the first three.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import ml_dtypes
import numpy as np

from benchmarks import environment
from tensorwire import __file__ as package_file
from tensorwire.sync import Follower, Publisher

HERE = Path(package_file).parents[1]
TENSORS, WORDS, VERSIONS, ROUNDS, WARM_UP = 40, 4 << 20, 7, 5, 3
CHANGES = {"all tensors change": 1, "one tensor of ten changes": 10}


def publish(store: Path, every: int) -> None:
    """Versions in which 1.8 % of the words differ of each tensor of so many."""
    random = np.random.default_rng(0)
    tensors = {
        f"layers.{number}": random.normal(0, 0.02, WORDS).astype(ml_dtypes.bfloat16) for number in range(TENSORS)
    }
    publisher = Publisher(store, anchor_every=100, threads=1)
    for _ in range(VERSIONS):
        publisher.publish(tensors)
        for array in list(tensors.values())[::every]:
            words = array.view(np.uint16)
            words[random.integers(0, WORDS, WORDS // 55)] ^= 1


def work(store: str, folder: str) -> list[tuple[float, float]]:
    """Follow all versions; seconds of `stage` and `commit`."""
    follower, seconds = Follower(store, folder, threads=1), []
    for version in range(VERSIONS):
        cpu = time.process_time()
        follower.stage(version=version)
        cpu = time.process_time() - cpu
        began = time.perf_counter()
        follower.commit()
        seconds.append((cpu, time.perf_counter() - began))
    return seconds[WARM_UP:]


def _measured(package: Path, store: Path) -> list[tuple[float, float]]:
    paths = os.pathsep.join([str(package), str(environment.ROOT)])
    with tempfile.TemporaryDirectory(prefix="tensorwire-", dir=store.parent) as folder:
        found: list[tuple[float, float]] = environment.asked(work, str(store), f"{folder}/served", PYTHONPATH=paths)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the older package is")
    given = parser.parse_args()
    for name, every in CHANGES.items():
        with tempfile.TemporaryDirectory(prefix="tensorwire-") as place:
            store = Path(place) / "store"
            publish(store, every)
            found: dict[Path, list[tuple[float, float]]] = {HERE: [], given.folder: []}
            for turn in range(ROUNDS):
                for package in (HERE, given.folder) if turn % 2 else (given.folder, HERE):
                    found[package] += _measured(package, store)
        (stage, commit), (old_stage, old_commit) = (
            [median(each) for each in zip(*found[package], strict=True)] for package in (HERE, given.folder)
        )
        print(
            f"{name}: stage {stage:.3f} CPU s, older {old_stage:.3f}: {stage / old_stage:.2f} times; "
            f"commit {1e3 * commit:.1f} ms, older {1e3 * old_commit:.1f} ms"
        )


if __name__ == "__main__":
    main()
