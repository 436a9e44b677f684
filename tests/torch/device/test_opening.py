"""Kernels that open a frame: what escapes before each run, wrong counts, the list of escapes. Held against what the
reference reads of the same streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from reference.tensorwire_reference import Cascade
from reference.tensorwire_reference.planes import Reader
from tensorwire.torch.device.plan import RUN, CascadeLaunch, EnecLaunch, counts_of, field_nbytes
from tests.support.cases import floats
from tests.support.frame_surgery import Surgery

from .cascades import coded, tables_of
from .opened import CASCADES, THREADS_TO_OPEN, Opened, bytes_tensor, cascade_cases, enec_cases, enec_of, launch, of_kind
from .stand_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Iterator

BUILDS = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])


def before_runs(escaped: np.ndarray) -> np.ndarray:
    """How many escape before each run."""
    return np.concatenate([[0], escaped.astype(np.int64).cumsum()])[: len(escaped) : RUN]


def streams(opened: Opened, row: list[int]) -> Reader:
    return Reader(opened.frame[row[0] * 32 :].numpy().tobytes())


def check_cascade(opened: Opened, launch: CascadeLaunch, row: list[int]) -> None:
    reader = streams(opened, row)
    reader.field(row[2], launch.rest_bits)
    table, first = opened.before, row[1] * opened.runs_per_block
    for w, count in zip(launch.widths, (row[2], *counts_of(np.array(row))), strict=False):
        expected = before_runs(reader.field(count, w) == (1 << w) - 1)
        np.testing.assert_array_equal(table[first : first + len(expected)].numpy().view(np.uint16), expected)
        if table is opened.before:
            table, first = opened.before_later, row[7]
        else:
            first += len(expected)


def check_enec(opened: Opened, launch: EnecLaunch, row: list[int]) -> None:
    reader = streams(opened, row)
    reader.field(row[2], launch.rest_bits)
    reader.field(row[2], launch.m)
    group = 4 << launch.quads_log2
    mask = reader.field(-(-row[2] // group), 1)
    starts = np.zeros(row[2], bool)
    starts[::group] = mask == 1
    expected = before_runs(starts)
    first = row[1] * opened.runs_per_block
    np.testing.assert_array_equal(opened.before[first : first + len(expected)].numpy(), expected)


@BUILDS
def test_escapes_before_each_run(checked: bool) -> None:
    """No entry but those of the blocks is written."""
    driver, met = StandIn(checked=checked, seed=checked), set()
    for dtype, kind, n, block_words, trimmed in cascade_cases():
        opened = Opened(driver, of_kind(dtype, n, kind, block_words, trimmed)[1])
        assert opened.error is None
        written = 0
        for key, rows in opened.rows.items():
            for row in rows.tolist() if isinstance(key, CascadeLaunch) else ():
                check_cascade(opened, key, row)
                written += -(-row[2] // RUN)
                met.add((key.widths, row[2] % RUN == 0))
        assert int((opened.before == -1).sum()) == len(opened.before) - written
        assert (opened.before_later != -1).all()
    assert len(met) == 2 * 14


@BUILDS
def test_groups_before_each_run(checked: bool) -> None:
    driver, met = StandIn(checked=checked, seed=checked), set()
    for case in enec_cases():
        opened = Opened(driver, enec_of(*case)[1])
        assert opened.error is None
        for key, rows in opened.rows.items():
            for row in rows.tolist() if isinstance(key, EnecLaunch) else ():
                check_enec(opened, key, row)
                met.add((key.quads_log2, key.whole))
    assert len(met) == 2 * 4


@BUILDS
def test_more_runs_than_threads(checked: bool) -> None:
    n = 200 * RUN + 77
    for kind in (Cascade(variant=0), Cascade(variant=0, table=2)):
        opened = Opened(StandIn(checked=checked), of_kind("BF16", n, kind, 256 * RUN)[1])
        assert opened.error is None
        ((key, rows),) = opened.rows.items()
        assert isinstance(key, CascadeLaunch)
        check_cascade(opened, key, rows.tolist()[0])
    opened = Opened(StandIn(checked=checked), enec_of("BF16", 8, 3, 6, n, 256 * RUN)[1])
    assert opened.error is None
    ((enec, rows),) = opened.rows.items()
    assert isinstance(enec, EnecLaunch)
    check_enec(opened, enec, rows.tolist()[0])


def set_missing_digits(frame: torch.Tensor, rows: list[list[int]], w: int) -> None:
    """Make escapes of what has the place of digits behind the last one of a block."""
    for row in rows:
        full, count = divmod(row[2], RUN)
        start = row[0] * 32 + field_nbytes(row[2], 8) + 32 * w * full
        size = field_nbytes(count, w)
        for i in range(count, size * 8 // w):
            frame[start + i % size] |= (1 << w) - 1 << w * (i // size)


@pytest.mark.parametrize("kind", CASCADES, ids=str)
def test_blocks_of_any_size(kind: Cascade) -> None:
    """Also such as a frame would store. Bits behind the last number of a run belong to no digit."""
    content = [floats("BF16", n, f"any size {n}") for n in (1, 3, 4, 5, 31, 33, 255, 257, 1023)]
    blocks = coded([np.frombuffer(data, np.uint16) for data in content], "BF16", kind, 4)
    tables = tables_of(blocks)
    before, later = torch.zeros_like(tables.before), torch.zeros_like(tables.before_later)
    wrong = torch.full((1,), -1, dtype=torch.int64)
    rows = torch.tensor(blocks.rows).to(torch.int32)
    frame = bytes_tensor(blocks.frame)
    if blocks.launch.widths in ((1,), (4,)):
        set_missing_digits(frame, blocks.rows, *blocks.launch.widths)
    launch(
        StandIn(checked=True), "open.cuh", "count_escapes", (len(rows),), THREADS_TO_OPEN, frame, rows, before, later,
        wrong, 4, 8, blocks.launch.packed_widths,
    )  # fmt: skip
    assert int(wrong) == -1
    assert torch.equal(before, tables.before)
    assert torch.equal(later, tables.before_later)


def damaged(frame: bytes, block: int, value: int) -> bytes:
    """All streams of a block are `value`."""
    surgery = Surgery(frame)
    start, stop = surgery.block_span(block)
    surgery.bytes[start : stop - 16] = bytes([value]) * (stop - 16 - start)
    return surgery.close()


@BUILDS
@pytest.mark.parametrize("value", [0, 255])
def test_wrong_counts_are_told(checked: bool, value: int) -> None:
    """The first of several blocks is named, its first tier, and what was counted there."""
    driver = StandIn(checked=checked, seed=1)
    for kind in (Cascade(variant=0), Cascade(variant=5), Cascade(variant=0, table=2), Cascade(variant=1, table=2)):
        frame = of_kind("BF16", 4 * 512 + 300, kind, 512)[1]
        opened = Opened(driver, damaged(damaged(frame, 2, value), 4, value))
        assert opened.error == (2, 1, 512 if value else 0)
    frame = enec_of("BF16", 8, 3, 6, 4 * 512 + 301, 512)[1]
    assert Opened(driver, damaged(frame, 3, value)).error == (3, 0, 512 if value else 0)
    assert Opened(driver, damaged(frame, 4, value)).error == (4, 0, 301 if value else 0)


def test_a_later_tier_is_told() -> None:
    _, frame = of_kind("BF16", 1024, Cascade(variant=0), 1024)
    surgery = Surgery(frame)
    opened = Opened(StandIn(), frame)
    ((key, rows),) = opened.rows.items()
    assert isinstance(key, CascadeLaunch)
    row = rows.tolist()[0]
    reader = streams(opened, row)
    for count, w in ((row[2], key.rest_bits), (row[2], key.widths[0])):
        reader.field(count, w)
    place = row[0] * 32 + reader.position
    digits = reader.field(int(counts_of(np.array(row))[0]), key.widths[1])
    first = int(np.flatnonzero(digits != 3)[0])
    assert first < 64
    surgery.bytes[place + first] |= 3  # number i of a run is in byte i, as far as these go
    assert Opened(StandIn(), surgery.close()).error == (0, 2, counts_of(np.array(row))[1] + 1)


def rows_of_all(opened: Opened) -> torch.Tensor:
    """The launch data of all blocks, which are of tier shape (4)."""
    assert {key.widths for key in opened.rows if isinstance(key, CascadeLaunch)} == {(4,)}
    rows = torch.cat(list(opened.rows.values()))
    assert len(rows) == opened.info.num_blocks
    return rows[rows[:, 1].argsort()]


def listed(opened: Opened, *, exponents: bool) -> torch.Tensor:
    """The list of escapes of all blocks."""
    rows = rows_of_all(opened)
    counts = rows[:, 4] & 0xFFFF
    table = rows.clone()
    table[:, 7] = counts.cumsum(0) - counts
    found = torch.full((int(counts.sum()),), -1, dtype=torch.int16)
    launch(
        opened.driver, "open.cuh", "list_escapes", (len(rows),), THREADS_TO_OPEN, opened.frame, table.to(torch.int32),
        opened.before, found, opened.runs_per_block, opened.info.layout.rest_bits, int(exponents),
    )  # fmt: skip
    return found


def true_escapes(opened: Opened) -> Iterator[tuple[int, int]]:
    """The place in the tensor and the exponent of each word that escapes."""
    for row in rows_of_all(opened).tolist():
        reader = streams(opened, row)
        reader.field(row[2], opened.info.layout.rest_bits)
        escaped = np.flatnonzero(reader.field(row[2], 4) == 15)
        exponents = reader.field(len(escaped), 8)
        yield from zip((escaped + row[1] * opened.info.block_words).tolist(), exponents.tolist(), strict=True)


@BUILDS
@pytest.mark.parametrize(
    ("dtype", "block_words", "n"),
    [("BF16", 1024, 2560), ("BF16", 768, 1900), ("F16", 256, 256 + 251), ("BF16", 768, 3000)],
)
def test_list_of_escapes(checked: bool, dtype: str, block_words: int, n: int) -> None:
    _, frame = of_kind(dtype, n, Cascade(variant=0, table=2), block_words)
    opened = Opened(StandIn(checked=checked, seed=2), frame)
    true = list(true_escapes(opened))
    assert len(true) > n // 100
    places = listed(opened, exponents=False).numpy().view(np.uint16)
    assert places.tolist() == [place % block_words for place, _ in true]
    entries = listed(opened, exponents=True).numpy().view(np.uint16)
    assert entries.tolist() == [place % RUN << 8 | exponent for place, exponent in true]


@pytest.mark.parametrize("value", [0, 0xF0, 255])
def test_list_of_a_damaged_block_stays_in_its_memory(value: int) -> None:
    """A thread that lists does not know yet that a count is wrong. The lists of other blocks are whole."""
    _, frame = of_kind("BF16", 2048 + 90, Cascade(variant=0, table=2), 1024)
    driver = StandIn(checked=True)
    sound, opened = Opened(driver, frame), Opened(driver, damaged(frame, 1, value))
    assert opened.error is not None
    expected, found = listed(sound, exponents=True), listed(opened, exponents=True)
    first, second, _ = (rows_of_all(sound)[:, 4] & 0xFFFF).tolist()
    assert torch.equal(found[:first], expected[:first])
    assert torch.equal(found[first + second :], expected[first + second :])
