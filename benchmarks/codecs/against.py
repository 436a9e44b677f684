"""This code against older code: python -m benchmarks.codecs.against FOLDER, into which pip has installed the older one:
`pip install --no-deps --target FOLDER CHECKOUT`.

Both compress and decompress the large synthetic data sets in turn, each in a process of its own on one thread. A figure
is the median over rounds of how many times as fast this code is, and by how much its frames are larger.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data, environment
from benchmarks.timing import pinned, timed
from benchmarks.verdicts import Verdict, render
from tensorwire import __file__ as package_file

HERE = Path(package_file).parents[1]
PROFILES = ("fast", "compact", "enec")
OPERATIONS = ("compress", "decompress", "decompress unverified")
MOST_LARGER, LEAST_SPEED = 1.001, 0.97
"""Shares of the older code's size and speed. The median of a few rounds scatters by less than they allow."""


class Worker:
    """A process that has one of the two codes, and some data."""

    def __init__(self, package: Path, content: Path, dtype: str, cpu: str) -> None:
        paths = [str(package), str(environment.ROOT)]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "TENSORWIRE_CPU": cpu, "PYTHONWARNINGS": "ignore"}
        line = [sys.executable, "-m", "benchmarks.codecs.against", "--work", content, dtype]
        self._process = subprocess.Popen(
            line, env={**os.environ, **variables}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, question: str) -> list[str]:
        """The words of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(question, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"{question}: the worker ended with {self._process.wait()}")
        return answer

    def close(self) -> None:
        self._process.communicate()


def work(content: Path, dtype: str) -> None:
    """Answer each line, `operation/profile`, with the seconds and the frame's size; the line `cpu` with the target."""
    from tensorwire._ground.allocation import new_buffer
    from tensorwire.codec import compress, compress_bound, decompress
    from tensorwire.codec.frame import core

    nbytes = content.stat().st_size
    source, out = new_buffer(nbytes), new_buffer(nbytes)
    with content.open("rb") as file:
        file.readinto(source)
    room = new_buffer(max(compress_bound(source, dtype=dtype, profile=profile) for profile in PROFILES))
    frames: dict[str, Any] = {}
    for line in sys.stdin:
        operation, _, profile = line.strip().partition("/")
        if operation == "cpu":
            print(core.cpu_target(), flush=True)
            continue
        with pinned(1):
            if operation == "compress":
                seconds, made = timed(lambda p=profile: compress(source, dtype=dtype, profile=p, out=room, threads=1))
                frames = {profile: made}
            else:
                verify = operation == "decompress"
                frame = frames[profile]
                seconds = timed(lambda f=frame, v=verify: decompress(f, out=out, threads=1, verify=v))[0]
                if out != source:
                    raise RuntimeError(f"{profile}: the result differs from the input")
        print(seconds, len(frames[profile]), flush=True)


def measure(older: Path, dataset: data.Dataset, cpu: str, rounds: int) -> list[Verdict]:
    """Verdicts on one data set; none if this CPU lacks the target."""
    with ExitStack() as stack:
        content = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tensorwire-"))) / "content"
        content.write_bytes(dataset.data)
        workers = [Worker(package, content, dataset.dtype, cpu) for package in (HERE, older)]
        for worker in workers:
            stack.callback(worker.close)
        if workers[0].ask("cpu") != [cpu]:
            return []
        return [verdict for profile in PROFILES for verdict in _profile(workers, dataset.name, profile, cpu, rounds)]


def _profile(workers: list[Worker], name: str, profile: str, cpu: str, rounds: int) -> list[Verdict]:
    quotients: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
    for current in range(rounds + 1):  # the first one is the warm-up
        for operation, values in quotients.items():
            # Each code goes first in every other round.
            order = workers if current % 2 else workers[::-1]
            answers = {id(worker): worker.ask(f"{operation}/{profile}") for worker in order}
            mine, older = (answers[id(worker)] for worker in workers)
            values += [float(older[0]) / float(mine[0])] if current else []
    verdicts = [
        Verdict(f"{profile} {operation}, times the older", name, median(values), LEAST_SPEED, cpu=cpu)
        for operation, values in quotients.items()
    ]
    share, size = int(mine[1]) / int(older[1]), f"{profile} size, of the older"
    return [*verdicts, Verdict(size, name, share, MOST_LARGER, at_most=True, cpu=cpu)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where the older package is")
    parser.add_argument("--datasets", nargs="+", default=data.LARGE, choices=data.NAMES)
    parser.add_argument("--cpus", nargs="+", default=["avx2", "avx512"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", nargs=2, metavar=("CONTENT", "DTYPE"), help="be one of the two processes")
    options = parser.parse_args()
    if options.work:
        work(Path(options.work[0]), options.work[1])
        return
    if options.folder is None:
        parser.error("expected the folder of the older package")
    verdicts = []
    for name in options.datasets:
        dataset = data.load(name)
        for cpu in options.cpus:
            verdicts += measure(options.folder, dataset, cpu, options.rounds)
    print(render(verdicts))


if __name__ == "__main__":
    main()
