"""All work on a node: it samples its ranks, has them time their operations, and asks for their stacks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tensorwire._ground.copies import not_copied

from . import stacks, timing
from .observer import Observer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..model import Observation


class LocalNode:
    """The ranks of this node, as far as their pages are in one directory. For one thread.

    Args:
        directory: where the probes of a job write.
        name: of the node, for the reader.
    """

    __reduce_ex__ = not_copied("a thread and sockets", "make another one of the same directory")

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._directory = directory
        self._observer = Observer(directory, name)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="stacks")  # a stack may take seconds
        self._pending: dict[int, Future[str]] = {}
        self._process_groups: set[str] = set()  # that ranks of this node were seen in

    def observe(self) -> Observation:
        observation = self._observer.observe()
        self._process_groups = {group.id for rank in observation.ranks.values() for group in rank.process_groups}
        return observation

    def enable_timing(self, first: dict[str, int], num_rounds: int) -> None:
        """See :func:`timing.enable`; with no sequence numbers the ranks stop timing."""
        if first:
            own_first = sorted(first.items(), key=lambda item: item[0] not in self._process_groups)
            timing.enable(self._directory, dict(own_first), num_rounds)
        else:
            timing.disable(self._directory)

    def request_stack(self, rank: int) -> None:
        """Fetch the stack of a rank, if it is of this node, for a later call of `stacks`."""
        target = self._observer.target(rank)
        if target is not None and rank not in self._pending:
            self._pending[rank] = self._worker.submit(stacks.fetch, target)

    def stacks(self) -> dict[int, str]:
        """The stacks that came since the last call, by rank."""
        ready = {rank: future.result() for rank, future in self._pending.items() if future.done()}
        for rank in ready:
            del self._pending[rank]
        return ready

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._observer.close()
