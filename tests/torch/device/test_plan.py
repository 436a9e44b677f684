"""The host's reading of a frame: launches and launch data by arrays, and every error with the first wrong block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from reference.tensorwire_reference import Cascade, Constant, Enec, Stored, Trimmed, Verbatim, encode
from tensorwire import CorruptDataError, TruncatedDataError, UnsupportedTensorError, compress
from tensorwire.torch.device import plan as device_plan
from tensorwire.torch.device.plan import CascadeLaunch, ConstantLaunch, EnecLaunch, StoredLaunch, counts_of, plan
from tests.support import registry
from tests.support.cases import floats
from tests.support.frame_surgery import Surgery

if TYPE_CHECKING:
    from reference.tensorwire_reference import Kind

BLOCK = 512
BLOCKS = 5


def frame_of(kind: Kind, rest: Verbatim | Trimmed | None = None, blocks: int = BLOCKS) -> Surgery:
    n = blocks * BLOCK
    data = floats("BF16", n, f"plan {kind}", zero_bits=0 if rest is None else 3)
    options = {"kind": kind, "rest": rest or Verbatim(), "profile": "fast", "block_words": BLOCK}
    return Surgery(encode(data, "BF16", (n,), **options))


def planned(frame: bytes | Surgery, full_runs: int = 0, overread: int = 0) -> device_plan.Plan:
    data = frame.close() if isinstance(frame, Surgery) else frame
    memory = torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)
    return plan(memory[: len(data)], full_runs, overread)


def test_launch_data() -> None:
    """There are two launches: full blocks, and the last one."""
    words = registry.weights("BF16", 3 * BLOCK - 100)
    frame = encode(words.tobytes(), "BF16", words.shape, kind=Cascade(variant=0), rest=Verbatim(), block_words=BLOCK)
    found = planned(frame)
    whole, short = CascadeLaunch(8, 0, (2, 2, 3), True), CascadeLaunch(8, 0, (2, 2, 3), False)
    assert set(found.rows) == {whole, short}
    rows = np.concatenate([found.rows[whole], found.rows[short]])
    surgery = Surgery(frame)
    assert [[32 * int(row[0]), *map(int, row[1:3])] for row in rows] == [
        [surgery.block_span(k)[0], k, min(BLOCK, len(words) - k * BLOCK)] for k in range(3)
    ]
    runs = (counts_of(rows)[:, :2] + 255) // 256
    assert rows[:, 7].tolist() == [0, *runs.sum(1).cumsum().tolist()[:-1]]
    assert found.later_runs == runs.sum()
    assert found.listed == 0
    assert not found.host_blocks


def test_the_list_of_escapes_of_tier_shape_4() -> None:
    found = planned(frame_of(Cascade(variant=0, table=2)))
    rows = found.rows[CascadeLaunch(8, 0, (4,), True)]
    escaped = counts_of(rows)[:, 0]
    assert rows[:, 7].tolist() == [0, *escaped.cumsum().tolist()[:-1]]
    assert found.listed == escaped.sum() > 0
    assert found.later_runs == 0


def test_blocks_of_one_launch_have_one_table() -> None:
    """Their tags may differ, or one may be short."""
    data = np.full(2 * BLOCK + 7, 0x3F80, "<u2").tobytes()
    frame = encode(data, "BF16", (2 * BLOCK + 7,), kind=Constant(), block_words=BLOCK)
    assert {launch: rows[:, 1:5].tolist() for launch, rows in planned(frame).rows.items()} == {
        ConstantLaunch(): [[k, n, 0x3F803F80, 0x3F803F80] for k, n in enumerate((BLOCK, BLOCK, 7))]
    }
    mixed = [Cascade(variant=0), Enec(group=4), Cascade(variant=0), Enec(group=4), Cascade(variant=1)]
    found = planned(frame_of(mixed)).rows
    assert {launch: rows[:, 1].tolist() for launch, rows in found.items() if isinstance(launch, CascadeLaunch)} == {
        CascadeLaunch(8, 0, (2, 2, 3), True): [0, 2],
        CascadeLaunch(8, 0, (2, 2, 2, 3), True): [4],
    }
    enec = {launch: rows[:, 1].tolist() for launch, rows in found.items() if isinstance(launch, EnecLaunch)}
    assert sorted(k for ordinals in enec.values() for k in ordinals) == [1, 3]


def test_kernels_that_need_full_runs_or_read_behind_a_block() -> None:
    """The host decodes short blocks, and such as end too near to the frame's end."""
    words = registry.weights("BF16", 4 * BLOCK - 100).tobytes()
    frame = encode(words, "BF16", (4 * BLOCK - 100,), kind=Cascade(variant=0), rest=Verbatim(), block_words=BLOCK)
    assert planned(frame).host_blocks == []
    assert planned(frame, full_runs=2).host_blocks == [3]
    assert planned(frame, full_runs=3).host_blocks == [0, 1, 2, 3]
    last = Surgery(frame).block_span(3)
    found = planned(frame, 1, last[1] - last[0] + 32)
    assert found.host_blocks == [2, 3]
    rows = found.rows[StoredLaunch(True)]
    assert rows[:, :3].tolist() == [[0, 2, BLOCK], [2 * BLOCK // 32, 3, BLOCK - 100]]


def test_later_runs_that_no_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of(Cascade(variant=0))
    most = planned(frame).later_runs // 2
    monkeypatch.setattr(device_plan, "_MOST_LATER_RUNS", most)
    found = planned(frame)
    assert found.host_blocks
    assert 0 < found.later_runs <= most


def test_escapes_that_no_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of(Cascade(variant=0, table=2))
    right = planned(frame)
    monkeypatch.setattr(device_plan, "_MOST_LISTED", right.listed - 1)
    found = planned(frame)
    assert found.host_blocks == [right.reader.info.num_blocks - 1]
    assert found.listed < right.listed


def test_places_of_the_hosts_blocks_that_no_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place is a number of 32 bytes."""
    words = registry.weights("BF16", 300_000)
    frame = bytes(compress(words.tobytes(), dtype="BF16", shape=words.shape, profile="compact"))
    last = planned(frame).reader.block_nbytes // 32
    monkeypatch.setattr(device_plan, "_MOST_UNITS", last)
    assert planned(frame).host_blocks == [0, 1]
    monkeypatch.setattr(device_plan, "_MOST_UNITS", last - 1)
    with pytest.raises(UnsupportedTensorError, match="at most 128 GiB of blocks that no kernel decodes, got 2"):
        planned(frame)


# Where parameters stand, counted from a block's end: cascade, of a variant with tiers of 2, 2 and 3 bits; enec.
ERRORS = {
    "lo": (Cascade(variant=0), 14, 0xFF, "expected tiers that name exponents of the dtype alone"),
    "a2": (Cascade(variant=0), 13, 0x04, "expected a_k of at most the digits of its tier"),
    "a3": (Cascade(variant=0), 13, 0x80, "expected a_k of at most the digits of its tier"),
    "a4": (Cascade(variant=0), 12, 0x01, "expected a_k of at most the digits of its tier"),
    "a5": (Cascade(variant=0), 12, 0x10, "expected a_k of at most the digits of its tier"),
    "n2": (Cascade(variant=0), 11, 0xFF, "expected streams that end within the block"),
    "n4": (Cascade(variant=0), 6, 0x10, "expected tiers no larger than the one before"),
    "n6": (Cascade(variant=0), 2, 0x01, "expected count 0 for a tier that the variant lacks"),
    "variant": (Cascade(variant=0, table=2), 1, 0xE0, "expected a variant of cascade that has tiers"),
    "m": (Enec(group=4), 4, 0xF0, "expected enec parameters with 1 <= m < nb <= E and num_high <= n"),
    "group": (Enec(group=4), 1, 0x80, "expected a kind, rest and variant that the profile and the dtype allow"),
    "num_high": (Enec(group=4), 2, 0x20, "expected enec parameters with 1 <= m < nb <= E and num_high <= n"),
    "constant": (Constant(), 1, 0x00, "expected less padding than a block is aligned to"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_first_wrong_block_is_named(name: str) -> None:
    """Also if a later one is wrong in a way that is looked for before."""
    kind, back, bits, message = ERRORS[name]
    surgery = frame_of(Cascade(variant=0) if name == "constant" else kind)
    for block in (2, 3):
        _, stop = surgery.block_span(block)
        surgery.bytes[stop - back] |= bits
        if name == "constant":
            surgery.bytes[stop - 1] = 1
    _, stop = surgery.block_span(4)
    surgery.bytes[stop - 1] = 1  # a constant one, whose size is wrong
    with pytest.raises(CorruptDataError, match=message) as caught:
        planned(surgery)
    assert (caught.value.block, caught.value.byte) == (2, surgery.block_span(2)[0])


def test_trimmed_bits_that_a_rest_does_not_have() -> None:
    surgery = frame_of(Cascade(variant=0), Trimmed())
    for block in (1, 3):
        _, stop = surgery.block_span(block)
        surgery.bytes[stop - 16] += 7  # bits above; three are below
    with pytest.raises(CorruptDataError, match="expected no more bits to trim than sign_mantissa has") as caught:
        planned(surgery)
    assert caught.value.block == 1


def test_what_is_wrong_with_a_whole_frame() -> None:
    frame = bytes(compress(bytes(4096), dtype="BF16"))
    for size in (0, 127, 128, 150, len(frame) - 1):
        with pytest.raises(TruncatedDataError):
            planned(frame[:size])
    with pytest.raises(CorruptDataError, match="expected a frame of"):
        planned(frame + bytes(64))
    padded = bytearray(encode(bytes(4096), "BF16", (2048,), padding_nbytes=32))
    padded[-1] = 1
    with pytest.raises(CorruptDataError, match="expected zeros behind the blocks"):
        planned(bytes(padded))
    data = registry.weights("BF16", 1000).tobytes()
    for numel in (1000, 2**46):  # 160 bytes can claim any number of blocks of the base: none is gone through
        surgery = Surgery(encode(data, "BF16", (1000,), base=data))
        surgery.set_shape(numel)
        surgery.set("uncompressed_nbytes", 2 * numel)
        with pytest.raises(UnsupportedTensorError, match="relative to a base"):
            planned(surgery)


def test_a_header_that_does_not_come_with_the_first_bytes() -> None:
    n = 3000 * 256
    data = floats("BF16", 256, "one block") * 3000
    kinds = [Cascade(variant=0), *[Stored()] * 2999]
    found = planned(encode(data, "BF16", (n,), kind=kinds, rest=Verbatim(), block_words=256))
    assert sum(map(len, found.rows.values())) == 3000
