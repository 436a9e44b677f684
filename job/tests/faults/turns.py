"""Takes turns at running cases, several jobs at a time; and keeps recordings of runs."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from tensorwire_job.service.recording import RecordingWriter

from .watch import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tensorwire_job.model import Observation, Thresholds


class Named(Protocol):
    """A case, or a variant."""

    @property
    def name(self) -> str: ...


class Stage(Protocol):
    """Runs cases, one at a time."""

    def run(self, case: Any, rank: int) -> Any:
        """What came of it; whatever it raises says nothing about the case."""

    def reset(self) -> None:
        """End whatever runs."""

    def __enter__(self) -> Stage: ...

    def __exit__(self, *_: object) -> None: ...


class Keeper(Protocol):
    """Where what came of runs goes."""

    def keep(self, case: Any, rank: int, outcome: Any) -> str:
        """Add it to the results; says it in a line."""

    def add_failed(self, case: Any, rank: int, reason: str) -> None:
        """A run that could not be judged."""


Turn = list[tuple[Any, int]]  # runs that one job may have, one after another: a case, and the rank to befall


def take(due: list[Turn], num_jobs: int, new_stage: Callable[[], Stage], keeper: Keeper) -> None:
    """Take all turns, so many at a time."""
    queue: SimpleQueue[Turn] = SimpleQueue()
    for turn in due:
        queue.put(turn)
    progress = Progress(sum(map(len, due)))
    with ThreadPoolExecutor(num_jobs) as pool:
        workers = [pool.submit(_work, queue, new_stage, keeper, progress) for _ in range(num_jobs)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            interrupted.set()
            raise


def _work(queue: SimpleQueue[Turn], new_stage: Callable[[], Stage], keeper: Keeper, progress: Progress) -> None:
    """Take turns until there are no more. Whatever befalls one run, the others go on."""
    with new_stage() as stage:
        while True:
            try:
                turn = queue.get_nowait()
            except Empty:
                return
            for case, rank in turn:
                progress.say(_attempt(stage, case, rank, keeper))


def _attempt(stage: Stage, case: Named, rank: int, keeper: Keeper) -> str:
    """One run; says what came of it."""
    try:
        outcome = stage.run(case, rank)
    except Exception as error:
        stage.reset()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        keeper.add_failed(case, rank, reason)
        return f"{case.name} at rank {rank}: FAILED: {reason}"
    return keeper.keep(case, rank, outcome)


class Progress:
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
def recording(folder: Path, case: Named, rank: int, thresholds: Thresholds) -> Iterator[Callable[[Observation], None]]:
    """Keep what is seen of a run there; the rank that it befell is in the name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.name}-{rank}.jsonl.gz"
    path.unlink(missing_ok=True)
    with RecordingWriter(path, thresholds) as recorder:
        yield recorder.write
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=0))  # without the flushes
