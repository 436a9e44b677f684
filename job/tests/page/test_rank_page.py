"""A slot of a page becomes a process group of the model: every number in its own unit, and what is unknown as such."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tensorwire_job.members import MAX_DIMENSIONS
from tensorwire_job.model import Operation, ProcessGroup, Timing
from tensorwire_job.page import native
from tensorwire_job.page.rank_page import RankPage

NOW = 100.0
NAMES = b"default_pg\0tp\0"
EMPTY = {
    "id": 0xC0FFEE, "name": native.NO_NAME, "root": native.NO_ROOT, "numel": -1,
    "sent_nbytes": native.UNKNOWN_NBYTES, "received_nbytes": native.UNKNOWN_NBYTES,
}  # fmt: skip
WINDOW = {
    "first_sequence": 2, "num_rounds": 10, "sum_ns": 3 * 10**9, "min_us": 200_000, "max_us": 400_000,
    "num_nbytes": 4096, "rooted_or_pairwise": 9,
}  # fmt: skip


def groups(*slots: dict[str, Any], page_flags: int = 0) -> list[ProcessGroup]:
    page = native.Page()
    page.header.flags = page_flags
    ctypes.memmove(ctypes.addressof(page.header) + native.Header.names.offset, NAMES, len(NAMES))
    for slot, values in zip(page.slots, slots, strict=False):
        for name, value in (EMPTY | values).items():
            setattr(slot, name, value)
    return RankPage(page).process_groups(NOW)


def test_a_page_has_room_for_the_dimensions_of_a_grid() -> None:
    assert native.MAX_DIMENSIONS == MAX_DIMENSIONS  # a rank that loads the page loads little, and not members.py


def test_slot_of_which_all_is_known() -> None:
    broadcast, bfloat16 = native.OPERATIONS.index("broadcast"), native.DTYPES.index("bfloat16")
    described = {"operation": broadcast, "dtype": bfloat16, "signature": 5, "root": 3, "numel": 6}
    counts = {"size": 4, "enqueued": 12, "completed": 11, "sequence": 12, "sent_nbytes": 7, "received_nbytes": 8}
    times = {"enter_ns": 97 * 10**9, "completed_ns": 96 * 10**9, "baseline_rate": 2.5}
    flags = native.OPEN | native.TIMED
    assert groups({"name": 11, "flags": flags, **described, **counts, **times, **WINDOW}) == [
        ProcessGroup(
            id="0000000000c0ffee",
            name="tp",
            size=4,
            enqueued=12,
            completed=11,
            open_seconds=3.0,
            idle_seconds=4.0,
            operation=Operation(12, "broadcast", "bfloat16", 6, 3, 5),
            timing=Timing(2, 10, 3.0, 0.2, 0.4, 4096, 9),
            sent_bytes=7,
            received_bytes=8,
            baseline_rate=2.5,
        )
    ]


def test_messages_of_a_pair_and_the_time_waited_for_them() -> None:
    recv = native.OPERATIONS.index("recv")
    flags = native.PAIR | native.WAITS
    counts = {"size": 2, "enqueued": 70_000, "completed": 70_000, "sequence": 70_000, "operation": recv, "root": 3}
    (group,) = groups({"flags": flags, "sum_ns": 5 * 10**9, **counts})
    assert group.timing == Timing(1, 70_000, 5.0, 0.0, 0.0, 0, 70_000)
    assert group.is_pairwise
    (unused,) = groups({"flags": flags})
    assert unused.timing is None


def test_slot_of_which_nothing_is_known() -> None:
    assert groups({}) == [ProcessGroup("0000000000c0ffee", "", 0, 0, 0, None, None, None)]


def test_low_halves_of_numbers_are_completed_across_the_boundary() -> None:
    enqueued = (5 << 32) + 1
    (group,) = groups({"enqueued": enqueued, "completed": 0xFFFFFFFF, "sequence": 0, "flags": native.TIMED, **WINDOW})
    assert group.completed == enqueued - 2
    assert group.operation == Operation(enqueued - 1)
    assert group.timing is not None
    assert group.timing.first_sequence == (4 << 32) + 2, "the last one with these low bits that is not beyond enqueued"


@pytest.mark.parametrize(
    ("page_flags", "slot_flags", "signature"),
    [(0, 0, 5), (native.TIMING_ENABLED, native.ACTIVE, 5), (native.TIMING_ENABLED, 0, 0)],
)
def test_signature_of_a_rank_that_has_entered_nothing_since_timing_began_counts_as_unknown(
    page_flags: int, slot_flags: int, signature: int
) -> None:
    slot = {"enqueued": 1, "completed": 1, "sequence": 1, "signature": 5, "flags": slot_flags}
    assert groups(slot, page_flags=page_flags)[0].operation == Operation(1, signature=signature)


@pytest.mark.parametrize("flags", [0, native.TIMED])
def test_no_timing_without_a_whole_window(flags: int) -> None:
    window = WINDOW if flags == 0 else {**WINDOW, "num_rounds": 0}
    assert groups({"flags": flags, **window})[0].timing is None


@pytest.mark.parametrize(
    "damage",
    [
        {"enqueued": 1 << 63}, {"sent_nbytes": 1 << 63}, {"received_nbytes": 1 << 62}, {"num_nbytes": 1 << 62},
        {"baseline_rate": float("nan")}, {"baseline_rate": -1.0}, {"baseline_rate": float("inf")},
        {"sequence": 7}, {"completed": 7},
    ],
)  # fmt: skip
def test_slot_with_impossible_numbers_is_left_out(damage: dict[str, Any]) -> None:
    assert [group.id for group in groups(damage, {"id": 2})] == ["0000000000000002"]


def test_slot_that_was_being_written_is_left_out() -> None:
    assert groups({"lock": 7}, {"id": 0}) == []


def test_codes_and_names_of_a_later_layout_read_as_unknown() -> None:
    (group,) = groups({"enqueued": 1, "sequence": 1, "operation": 200, "dtype": 200})
    assert group.operation == Operation(1)
