"""Takes turns at running cases, several jobs at a time; and keeps recordings of runs."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from tensorwire_job.service.recording import RecordingWriter

from .watch import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from .cases import Case
    from .results import Results
    from .verdicts import Judgement
    from .watch import Record

Turn = list[tuple["Case", int]]  # runs that one job may have, one after another: a case, and the rank to befall
_BATCH = 4  # runs of a case of the matrix in a row: once at each rank


def turns(cases: list[Case], results: Results, num_runs: int | None) -> list[Turn]:
    """What is due. Every case has a few runs before any has all; cases that can share a job come together."""
    due = {case.name: results.due(case, num_runs) for case in cases}
    groups: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.job if case.mends else case.name].append(case)
    batch = 1 if any(case.program for case in cases) else _BATCH
    found = [
        [(case, rank) for case in group for rank in due[case.name][first : first + batch]]
        for first in range(0, max(map(len, due.values()), default=0), batch)
        for group in sorted(groups.values(), key=len, reverse=True)
    ]
    return [turn for turn in found if turn]


def take(
    due: list[Turn], num_jobs: int, new_stage: Callable[[], AbstractContextManager[Any]], results: Results
) -> None:
    """Take all turns, so many at a time."""
    queue: SimpleQueue[Turn] = SimpleQueue()
    for turn in due:
        queue.put(turn)
    progress = _Progress(sum(map(len, due)))

    def work() -> None:
        """Whatever befalls one run, the others go on."""
        with new_stage() as stage:
            while True:
                try:
                    turn = queue.get_nowait()
                except Empty:
                    return
                for case, rank in turn:
                    progress.say(_attempt(stage, case, rank, results))

    with ThreadPoolExecutor(num_jobs) as pool:
        workers = [pool.submit(work) for _ in range(num_jobs)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            interrupted.set()
            raise


def _attempt(stage: Any, case: Case, rank: int, results: Results) -> str:
    """One run; says what came of it."""
    try:
        judged = stage.run(case, rank)
    except Exception as error:
        stage.reset()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        results.add_failed(case, rank, reason)
        return f"{case.name} at rank {rank}: FAILED: {reason}"
    results.add(case, rank, judged)
    return show(case, rank, judged)


def show(case: Case, rank: int, judged: Judgement) -> str:
    """A run in a line."""
    seconds = "" if judged.seconds is None else f" after {judged.seconds:.1f} s"
    verdict = "right" if judged.right else "WRONG: " + " / ".join(judged.wrong)
    return f"{case.name} at rank {rank}{seconds}: {judged.said}: {verdict}"


class _Progress:
    """Says what was done and how long the rest will take. For any thread."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            self._done += 1
            left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
            print(f"[{self._done} of {self._total}, {left / 60:.0f} min left] {text}", file=sys.stderr, flush=True)


@contextmanager
def recording(folder: Path, case: Case, rank: int) -> Iterator[Record]:
    """Keep what is seen of a run there; the rank that it befell is in the name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.name}-{rank}.jsonl.gz"
    path.unlink(missing_ok=True)
    with RecordingWriter(path, case.thresholds) as recorder:
        yield recorder.write
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=0))  # without the flushes
