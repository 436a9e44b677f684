"""A rank's page as its readers see it: job/core/page.h is the layout, and the model has the words.

Any process may read, from any thread.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..members import ranks_of
from ..model import EXIT_KINDS, SETUPS, Operation, ProcessGroup, Timing
from . import native, process

if TYPE_CHECKING:
    from ..model import ExitKind, Setup

_MAX_COUNT: Final = 1 << 62  # a larger count is damage
_MAX_RATE: Final = 1e12
_MAX_SIZE: Final = 65535  # a group of this size may be larger


class RankPage:
    """A copy of a page: what a rank is doing, or did when it died.

    Attributes:
        header: of the page. A field that needs decoding has a property of the same name here.
        slots: those in use, except slots that were being written all the time.
    """

    def __init__(self, copy: native.Page) -> None:
        self.header = header = copy.header
        self.slots: list[native.Slot] = [slot for slot in copy.slots if slot.id and not slot.lock & 1]
        if header.lock & 1:  # a process that died while it wrote a text
            header.phase = header.exit_reason = header.activity = b""

    @property
    def boot_id(self) -> bytes:
        return bytes(self.header.boot_id)

    @property
    def timed(self) -> bool:
        return bool(self.header.flags & native.TIMING_ENABLED)

    @property
    def overflow(self) -> bool:
        """More process groups than slots."""
        return bool(self.header.flags & native.OVERFLOW)

    @property
    def has_socket(self) -> bool:
        return bool(self.header.flags & native.SOCKET)

    @property
    def phase(self) -> str:
        return _text(self.header.phase)

    @property
    def exit_reason(self) -> str:
        """The reason that it told, or the signal that ended it."""
        how = {native.INTERRUPTION: "", native.CRASH: "killed by "}.get(self.header.exit_kind)
        by_signal = "" if how is None else how + _signal_name(self.header.exit_signal)
        return _text(self.header.exit_reason) or by_signal

    @property
    def exit_kind(self) -> ExitKind:
        code = self.header.exit_kind
        return EXIT_KINDS[code] if code < len(EXIT_KINDS) else ""

    @property
    def signal(self) -> str:
        """The last signal that asked it to end, of several within 10 s the first."""
        return _signal_name(self.header.signal)

    @property
    def setup(self) -> Setup:
        code = self.header.setup
        return SETUPS[code] if code < len(SETUPS) else ""

    @property
    def activity(self) -> str:
        return _text(self.header.activity)

    @property
    def is_alive(self) -> bool:
        """Whether the same process runs, on this machine since this boot."""
        if self.boot_id != process.boot_id():
            return False
        stat = process.read_stat(self.header.pid)
        return stat is not None and stat.is_alive and stat.start_ticks == self.header.start_time

    def process_groups(self, now: float) -> list[ProcessGroup]:
        """The rank's process groups at this time of the monotonic clock; those with impossible numbers are left out."""
        names = bytes(self.header)[native.Header.names.offset :]
        return [_process_group(slot, names, now, self.timed) for slot in self.slots if _is_sound(slot)]


def read_page(path: Path) -> RankPage | None:
    """None where there is no page, or none that can be believed."""
    try:
        return RankPage(native.read_page(str(path)))
    except OSError:
        return None


def _process_group(slot: native.Slot, names: bytes, now: float, timed: bool) -> ProcessGroup:
    sequence = _whole(slot.enqueued, slot.sequence)
    return ProcessGroup(
        id=f"{slot.id:016x}",
        name="" if slot.name == native.NO_NAME else _text(names[slot.name :].split(b"\0")[0]),
        size=slot.size,
        enqueued=slot.enqueued,
        completed=_whole(slot.enqueued, slot.completed),
        open_seconds=age(now, slot.enter_ns) if slot.flags & native.OPEN else None,
        idle_seconds=age(now, slot.completed_ns),
        operation=_operation(slot, sequence, timed) if sequence > 0 else None,
        timing=_timing(slot),
        sent_bytes=_known(slot.sent_nbytes),
        received_bytes=_known(slot.received_nbytes),
        baseline_rate=slot.baseline_rate or None,
        members=_members(slot.members, slot.size),
    )


def _members(members: native.Members, size: int) -> Sequence[int]:
    dimensions = tuple(zip(members.extents, members.strides, strict=True))
    ranks = ranks_of((members.first, dimensions)) if dimensions[-1][0] else ()
    return ranks if min(len(ranks), _MAX_SIZE) == size else ()


def _operation(slot: native.Slot, sequence: int, timed: bool) -> Operation:
    # A rank that has begun to time shows a signature of the other kind until it enters its next operation.
    is_comparable = slot.flags & native.ACTIVE or not timed
    return Operation(
        sequence=sequence,
        name=_name(native.OPERATIONS, slot.operation),
        dtype=_name(native.DTYPES, slot.dtype),
        numel=slot.numel,
        root=-1 if slot.root == native.NO_ROOT else slot.root,
        signature=slot.signature if is_comparable else 0,
    )


def _timing(slot: native.Slot) -> Timing | None:
    if slot.flags & native.WAITS and slot.enqueued:
        return Timing(
            first_sequence=1,
            num_rounds=slot.enqueued,
            sum_seconds=slot.sum_ns / 1e9,
            min_seconds=0.0,
            max_seconds=0.0,
            num_bytes=0,
            rooted_or_pairwise=slot.enqueued,
        )
    if not (slot.flags & native.TIMED and slot.num_rounds):
        return None
    return Timing(
        first_sequence=_whole(slot.enqueued, slot.first_sequence),
        num_rounds=slot.num_rounds,
        sum_seconds=slot.sum_ns / 1e9,
        min_seconds=slot.min_us / 1e6,
        max_seconds=slot.max_us / 1e6,
        num_bytes=slot.num_nbytes,
        rooted_or_pairwise=slot.rooted_or_pairwise,
    )


def _is_sound(slot: native.Slot) -> bool:
    """Whether the numbers fit into a report: a damaged page may hold anything."""
    counts = slot.enqueued, _known(slot.sent_nbytes), _known(slot.received_nbytes), slot.num_nbytes, slot.numel
    low = _whole(slot.enqueued, slot.sequence), _whole(slot.enqueued, slot.completed)
    return all(-1 <= count < _MAX_COUNT for count in counts + low) and 0.0 <= slot.baseline_rate < _MAX_RATE


def _whole(enqueued: int, low: int) -> int:
    """The number at most 2**32 - 1 below `enqueued` with these low bits."""
    return enqueued - ((enqueued - low) & 0xFFFFFFFF)


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return ""


def _known(nbytes: int) -> int:
    return -1 if nbytes == native.UNKNOWN_NBYTES else nbytes


def _name(names: tuple[str, ...], code: int) -> str:
    return names[code] if code < len(names) else ""


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def age(now: float, time_ns: int) -> float | None:
    """Seconds since a time of the page; None where it has none."""
    return max(0.0, now - time_ns / 1e9) if time_ns else None
