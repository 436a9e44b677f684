"""The last calls of this rank over all of its groups, in the order that it made them, each with its line.

Nothing is written while the rank goes on. Collectives and their stacks are in torch's Flight Recorder, which is read
once the rank stands still, or is to end. What the recorder does not have passes a kernel of the dispatcher: messages
(messages.py), roots and the counts of an all_to_all (arguments.py).
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensorwire._ground.copies import not_copied

from ..model import IN_THREAD, MAX_CALLS, Call, Operation
from ..page import call_file, native
from ..page.recorder_entries import operation_info
from .lines import is_torch
from .process_groups import TORCH_FUNCTIONS

if TYPE_CHECKING:
    from .arguments import Arguments
    from .messages import Messages
    from .process_groups import BackendGroups

STILL_SECONDS: Final = 1.5  # a rank that makes and completes nothing for so long stands still
SHARE: Final = 0.002  # of the time that reading may take
_ALL_TO_ALL: Final = ("all_to_all", "all_to_all_single")


def _other_threads() -> set[str]:
    """Threads that Python started, as the recorder names them: what torch's own threads call has its place in the main
    thread's order."""
    others = (each for each in threading.enumerate() if not isinstance(each, threading._DummyThread))
    return {str(each.ident) for each in others if each is not threading.main_thread()}


class Calls:
    """Writes the file of calls. For one thread at a time.

    Args:
        page: beside which the file is.
        dumps: gives the ring of each recorder with stacks, pickled.
        messages: of this rank.
        arguments: of its collectives.
    """

    __reduce_ex__ = not_copied("the page of this process", "attach in the other process")

    def __init__(
        self,
        page: Path,
        groups: BackendGroups,
        dumps: list[Callable[[], bytes]],
        messages: Messages,
        arguments: Arguments,
    ) -> None:
        self._page = page
        self._groups = groups
        self._dumps = dumps
        self._messages = messages
        self._arguments = arguments
        self._counts: tuple[int, ...] = ()
        self._since = 0.0
        self._not_before = 0.0
        self._is_written = True

    def follow(self, counts: tuple[int, ...]) -> None:
        """Write the file once these counts, of all that the rank makes and completes, stand still."""
        now = time.monotonic()
        if counts != self._counts:
            self._counts, self._since, self._is_written = counts, now, False
        elif not self._is_written and now - self._since >= STILL_SECONDS and now >= self._not_before:
            self.write()

    def write(self) -> None:
        """Write the file now."""
        begin = time.monotonic()
        calls = sorted((*self._collectives(), *self._messages.last_calls()), key=lambda timed: timed[0])
        with suppress(OSError):
            call_file.write(self._page, [call for _, call in calls])
        self._is_written = True
        self._not_before = begin + (time.monotonic() - begin) / SHARE

    def _collectives(self) -> list[tuple[int, Call]]:
        """The last ones of the recorders, each with its time on the monotonic clock."""
        found = []
        wall_ns = time.time_ns() - native.now()
        for dump in self._dumps:
            named = [(self._groups.name_of(e)[0], e) for e in pickle.loads(dump())["entries"] if not e["is_p2p"]]
            entries = [(torch_name, entry) for torch_name, entry in named if torch_name]
            before: dict[str, int] = {}  # the time of each group's entry before
            for index, (torch_name, entry) in enumerate(entries):
                with suppress(ValueError, KeyError, TypeError, IndexError):
                    created_ns = int(entry["time_created_ns"])
                    since_ns, before[torch_name] = before.get(torch_name, 0), created_ns
                    if index >= len(entries) - MAX_CALLS:
                        call = self._call(torch_name, entry, range(since_ns, created_ns))
                        found.append((created_ns - wall_ns, call))
        return found

    def _call(self, torch_name: str, entry: dict[str, Any], called_ns: range) -> Call:
        """Args:
        torch_name: of the group.
        called_ns: since the entry of the group before this one, and until this one.
        """
        backend, _, _ = entry["profiling_name"].partition(":")
        stack = entry.get("frames", ())  # a Python frame each, the innermost first
        function = next((at["name"] for at in stack if at["filename"].endswith(TORCH_FUNCTIONS)), "")
        info = operation_info(entry, self._arguments.root(torch_name, called_ns), function)
        name = native.OPERATIONS[info.operation]
        group = self._groups.known(torch_name, backend)
        if group is None:
            raise KeyError(torch_name)  # it is no more
        counts: tuple[int, ...] = ()
        if name in _ALL_TO_ALL:
            taken = sum(map(prod, entry["output_sizes"]))
            counts = self._arguments.exchanged(torch_name, called_ns, info.numel, taken, len(group.ranks))
        root = -1 if info.root == native.NO_ROOT else info.root
        operation = Operation(info.sequence, name, native.DTYPES[info.dtype], info.numel, root, info.signature)
        lines = ((at["filename"], at["name"], at["line"]) for at in stack)
        line = next((native.line_hash(*at) for at in lines if not is_torch(at[0])), 0)
        if str(entry.get("thread_id", "")) in _other_threads():
            line |= IN_THREAD
        return Call(f"{group.id:016x}", operation, line, counts)
