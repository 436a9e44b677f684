"""The kernel that takes rows by numbers: every kind of block, rows across blocks, bad numbers, damaged digits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import tensorwire
from reference.tensorwire_reference import Cascade, Constant, Enec, Plain, Stored, Trimmed, encode
from tensorwire.torch.device.plan import CascadeLaunch, field_nbytes
from tests.support.cases import floats
from tests.support.frame_surgery import Surgery
from tests.support.registry import FLOATS, weights

from .opened import BY_HOST, CASCADE, CONSTANT, ENEC, STORED, Opened, Rows, cascade_cases, enec_cases, enec_of, of_kind
from .stand_in import StandIn

BUILDS = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
AROUND = 64


def check(rows: Rows, data: bytes, columns: int, ids: torch.Tensor, parts: int = 1) -> None:
    """Rows are those of the content, or have all bits set if there is no such row; nothing beside them is written."""
    size = rows.opened.info.layout.word_nbytes
    row_nbytes = columns * size
    num_rows = len(data) // row_nbytes
    memory = torch.full((len(ids) * row_nbytes + 2 * AROUND,), 0x55, dtype=torch.uint8)
    rows.take(ids, memory[AROUND:-AROUND], num_rows, columns, parts)
    content = np.frombuffer(data, np.uint8)[: num_rows * row_nbytes].reshape(num_rows, row_nbytes)
    expected = np.full((len(ids), row_nbytes), 0xFF, np.uint8)
    for place, number in enumerate(ids.tolist()):
        if -num_rows <= number < num_rows:
            expected[place] = content[number]
    np.testing.assert_array_equal(memory[AROUND:-AROUND].numpy().reshape(len(ids), row_nbytes), expected)
    assert (memory[:AROUND] == 0x55).all()
    assert (memory[-AROUND:] == 0x55).all()


def some_ids(num_rows: int, count: int = 5) -> torch.Tensor:
    return torch.tensor([0, num_rows - 1, *(i * 7919 % num_rows for i in range(1, count - 1))])


@BUILDS
def test_cascades(checked: bool) -> None:
    """Every tier shape; rows begin and end within groups, runs and blocks."""
    columns = itertools.cycle([100, 37, 256, 1, 500, 768])
    met = set()
    for dtype, kind, n, block_words, trimmed in cascade_cases():
        data, frame = of_kind(dtype, n, kind, block_words, trimmed)
        rows = Rows(Opened(StandIn(checked=checked, seed=checked), frame), data)
        met |= {(row[0] & 255, row[1]) for row in rows.codings.tolist()}
        width = min(next(columns), n)
        check(rows, data, width, some_ids(n // width))
    assert len([1 for kind, _ in met if kind == CASCADE]) == 14


@BUILDS
def test_enec(checked: bool) -> None:
    columns = itertools.cycle([100, 37, 256, 1, 500, 768])
    for case in enec_cases():
        data, frame = enec_of(*case)
        rows = Rows(Opened(StandIn(checked=checked, seed=checked), frame), data)
        assert ENEC in (rows.codings[:, 0] & 255).tolist()
        width = next(columns)
        check(rows, data, width, some_ids(case[4] // width, 4))


@BUILDS
@pytest.mark.parametrize("parts", [1, 3])
def test_rows_of_many_blocks_and_pieces(checked: bool, parts: int) -> None:
    """Rows of 5000 words: pieces of at most 16 runs, some of which begin in the middle of one."""
    for dtype, kind in (("BF16", Cascade(variant=3)), ("F32", Cascade(variant=4))):
        data, frame = of_kind(dtype, 15 * 1024, kind, 10 * 1024)
        check(Rows(Opened(StandIn(checked=checked), frame), data), data, 5000, torch.tensor([1, 2, 0]), parts)


def test_many_escapes() -> None:
    """Nearly all words escape from all tiers, so that a piece needs a run more of each tier than of the one before."""
    n = 12 * 1024
    in_turn = np.arange(n) % 50
    exponents = np.where(in_turn < 4, 118 + in_turn, 200 + in_turn % 3)
    data = floats("BF16", n, "many escapes", exponents=exponents, zero_bits=7)
    kind = Cascade(variant=4, table=2, lo=118, below=(0, 0, 0, 0))
    frame = encode(data, "BF16", (n,), kind=kind, rest=Trimmed(), profile="fast", block_words=n)
    rows = Rows(Opened(StandIn(checked=True, seed=3), frame), data)
    assert (rows.codings[:, 0] & 255).tolist() == [CASCADE]
    check(rows, data, n, torch.tensor([0]))
    check(rows, data, 4096 - 77, torch.tensor([0, 1, 2]))


def mixed(dtype: str) -> tuple[bytes, bytes]:
    """Blocks of every kind, of which the host decodes one."""
    kinds = [Cascade(variant=0), Stored(), Constant(), Plain(), Enec(group=8), Cascade(variant=0, table=2)]
    size = np.dtype(FLOATS[dtype].word).itemsize
    parts = [floats(dtype, 768, f"{dtype} {k}", zero_bits=2) for k in range(len(kinds))]
    parts[2] = parts[2][:size] * 768
    data = b"".join(parts)
    shape = (len(data) // size,)
    return data, encode(data, dtype, shape, kind=kinds, rest=None, profile="fast", block_words=768)


@BUILDS
@pytest.mark.parametrize("ids", [torch.int64, torch.int32])
def test_kinds_side_by_side(checked: bool, ids: torch.dtype) -> None:
    """One launch takes rows of all of them, also rows that lie in several; negative numbers count from the end."""
    for dtype in ("BF16", "F32", "F8_E5M2"):
        data, frame = mixed(dtype)
        rows = Rows(Opened(StandIn(checked=checked, seed=5), frame), data)
        kinds = (rows.codings[:, 0] & 255).tolist()
        assert {STORED, BY_HOST, CONSTANT} < set(kinds)
        check(rows, data, 96, torch.tensor([0, 47, 9, 17, 25, 33, 41, -1, -48], dtype=ids))
        check(rows, data, 700, torch.tensor([5, 0, 1, 2, 3, 4], dtype=ids))
        check(rows, data, 4608, torch.tensor([0, -1], dtype=ids), parts=2)


@BUILDS
@pytest.mark.parametrize("dtype", ["F64", "U8", "I32"])
def test_words_without_exponent(checked: bool, dtype: str) -> None:
    words = weights(dtype, 1500)
    words[700:1300] = words[700]
    frame = tensorwire.compress(words.tobytes(), dtype=dtype, profile="fast")
    rows = Rows(Opened(StandIn(checked=checked), bytes(frame)), words.tobytes())
    check(rows, words.tobytes(), 75, torch.tensor([19, 3, -3, 0]))


@BUILDS
@pytest.mark.parametrize("ids", [torch.int64, torch.int32])
def test_numbers_that_no_row_has(checked: bool, ids: torch.dtype) -> None:
    """Their rows are NaN, and nothing outside is read."""
    data, frame = of_kind("BF16", 1500, Cascade(variant=0), 768)
    rows = Rows(Opened(StandIn(checked=checked, seed=4), frame), data)
    far = torch.iinfo(ids)
    numbers = torch.tensor([3, 14, -15, 15, -16, far.max, far.min, 0], dtype=ids)
    check(rows, data, 100, numbers, parts=2)


def test_damaged_digits_stay_in_their_block() -> None:
    """Rests are noise, and the digits of tier 1 stand in another order: there are as many escapes, in other places."""
    driver = StandIn(checked=True)
    for dtype, kind, n, block_words, trimmed in list(cascade_cases())[::4]:
        data, frame = of_kind(dtype, n, kind, block_words, trimmed)
        opened = Opened(driver, frame)
        for key, rows in opened.rows.items():
            for row in rows.tolist() if isinstance(key, CascadeLaunch) else ():
                rest = opened.frame[row[0] * 32 :][: field_nbytes(row[2], key.rest_bits)]
                rest ^= torch.from_numpy(np.random.default_rng(n).integers(0, 256, len(rest)).astype(np.uint8))
                if key.widths[0] != 3:
                    digits = opened.frame[row[0] * 32 + len(rest) :][: row[2] // 256 * 32 * key.widths[0]]
                    digits.copy_(digits.sort().values)
        rows = Rows(Opened(driver, opened.frame.numpy().tobytes()), data)
        assert rows.opened.error is None
        for columns in (100, n):
            out = torch.zeros(n // columns * columns * opened.info.layout.word_nbytes, dtype=torch.uint8)
            rows.take(torch.arange(n // columns), out, n // columns, columns)


def test_other_frames_of_the_same_counts() -> None:
    """A frame that opens without an error is decoded, whatever else its checksums would tell."""
    data, frame = of_kind("BF16", 1024, Cascade(variant=3), 512)
    surgery = Surgery(frame)
    start, _ = surgery.block_span(1)
    surgery.bytes[start] ^= 1
    rows = Rows(Opened(StandIn(checked=True), surgery.close()), data)
    out = torch.zeros(2048, dtype=torch.uint8)
    rows.take(torch.tensor([1, 0]), out, 2, 512)
    assert out.numpy().tobytes()[1024:] == data[:1024]
    assert out.numpy().tobytes()[1:1024] == data[1025:]
    assert out[0] == data[1024] ^ 1
