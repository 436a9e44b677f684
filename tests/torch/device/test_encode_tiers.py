"""Blocks of several tiers, encoded on a device: both decoders read them, and the reference writes the same bytes with
the same parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import torch

import tensorwire
from reference.tensorwire_reference import Cascade, Constant, Stored, Verbatim, decode
from reference.tensorwire_reference.cascade import widths_of
from reference.tensorwire_reference.encoder import Block, encode_block, pack_frame
from reference.tensorwire_reference.hashes import content_hash
from reference.tensorwire_reference.header import Header
from reference.tensorwire_reference.layouts import label_of
from tensorwire.torch.device.plan import CascadeLaunch
from tensorwire.torch.device.writing.new_frames import tiers_room_nbytes
from tests.support.registry import FLOATS, random_words, rng, weights

from .cascades import NAMES
from .opened import CASCADES, bytes_tensor, launch
from .stand_in import StandIn, missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reference.tensorwire_reference import Kind

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

KERNELS = Path(__file__).parent / "kernels"
DTYPES = ("BF16", "F16", "F8_E4M3", "F8_E5M2")
UNTOUCHED = 0x77
FAST = Cascade(variant=0)
SIZES = [1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 300, 511, 512, 900, 1024, 1500, 2047]
BLOCK_WORDS = 32768


class Encoded(NamedTuple):
    """What the kernel made of a block: the slot, of which `nbytes` are the block's."""

    nbytes: int
    stored: bool
    slot: bytes


def encoded(
    dtype: str, blocks: Sequence[np.ndarray], *, kind: Cascade = FAST, align: int = 32, capacity: int | None = None,
    checked: bool = True,
) -> list[Encoded]:  # fmt: skip
    """The blocks by the kernel, each into a slot that holds it stored, of which `capacity` bytes may be written."""
    most = max(map(len, blocks))
    slot = -(-most * blocks[0].itemsize // align) * align
    starts = np.cumsum([0, *map(len, blocks)]).astype(np.uint32)
    words, out = bytes_tensor(np.concatenate(blocks)), torch.full((len(blocks) * slot,), UNTOUCHED, dtype=torch.uint8)
    sizes = torch.zeros(2 * len(blocks), dtype=torch.int32)
    widths = CascadeLaunch(0, 0, widths_of(kind.table)[kind.variant or 0], whole=True).packed_widths
    driver = StandIn(checked=checked, seed=1, headers=KERNELS)
    launch(
        driver, "tiers_alone.cuh", f"tiers_alone<{NAMES[dtype]}, {widths:#x}>", (len(blocks),), 256, words,
        bytes_tensor(starts), align, slot, slot if capacity is None else capacity, out, sizes,
        shared_nbytes=tiers_room_nbytes(most),
    )  # fmt: skip
    return [
        Encoded(size, bool(stored), at.tobytes())
        for (size, stored), at in zip(sizes.view(-1, 2).tolist(), out.numpy().reshape(-1, slot), strict=True)
    ]


def frame_of(dtype: str, words: np.ndarray, block: Block, align: int) -> bytes:
    """A frame of one block."""
    bits, layout = label_of(dtype, None, None)
    header = Header(
        "fast", dtype, bits, layout, max(256, -(-len(words) // 256) * 256), words.shape, content_hash(words.tobytes()),
        block_alignment=align, frame_alignment=align,
    )  # fmt: skip
    return pack_frame(header, [block])


def check(dtype: str, words: np.ndarray, found: Encoded, kind: Cascade = FAST, align: int = 32) -> Kind:
    """That both decoders read the block, and that the reference writes the same. What it is coded as."""
    block = Block(found.slot[: found.nbytes], found.stored)
    assert set(found.slot[found.nbytes :]) <= {UNTOUCHED}
    frame = frame_of(dtype, words, block, align)
    assert tensorwire.decompress(frame, framework="bytes") == words.tobytes()
    assert decode(frame).data == words.tobytes()
    coded = Stored() if found.stored else _kind_of(block.content, kind)
    _, layout = label_of(dtype, None, None)
    assert block == encode_block(words.astype(np.uint64), layout, "fast", coded, Verbatim(), alignment=align)
    return coded


def _kind_of(block: bytes, kind: Cascade) -> Kind:
    if block[-1] & 7 == 1:
        return Constant()
    assert block[-1] >> 5 == kind.variant
    assert block[-1] & 7 == (3 if kind.table == 1 else 7)
    at = len(block) - 14 - (kind.table == 2)
    packed = int.from_bytes(block[at + 1 : at + 3], "little")
    later = len(widths_of(kind.table)[kind.variant or 0]) - 1
    return Cascade(kind.variant, block[at], tuple(packed >> 4 * k & 15 for k in range(later)), kind.table)


def with_exponents(dtype: str, exponents: np.ndarray) -> np.ndarray:
    """Words with these exponents, and anything as their rest."""
    of = FLOATS[dtype]
    mask = ((1 << of.exponent_bits) - 1) << of.mantissa_bits
    words = random_words(dtype, len(exponents)).astype(np.uint32) & ~np.uint32(mask)
    return (words | exponents.astype(np.uint32) << np.uint32(of.mantissa_bits)).astype(of.word)


def spread(dtype: str, n: int, centre: int) -> np.ndarray:
    """Words whose exponents lie about this one, most near, and some anywhere."""
    generator, most = rng(f"spread {dtype} {n} {centre}"), (1 << FLOATS[dtype].exponent_bits) - 1
    exponents = np.clip(centre - generator.geometric(0.5, n) + generator.geometric(0.7, n), 0, most)
    anywhere = generator.random(n) < 0.02
    exponents[anywhere] = generator.integers(0, most + 1, anywhere.sum())
    return with_exponents(dtype, exponents)


def check_all(dtype: str, kind: Cascade = FAST) -> None:
    """Any number of words; exponents about the middle, and at both ends, where no tier may name more than there are."""
    most = (1 << FLOATS[dtype].exponent_bits) - 1
    blocks = [spread(dtype, n, most // 2) for n in SIZES]
    blocks += [spread(dtype, 1280, centre) for centre in (0, 1, 3, most - 3, most - 1, most)]
    found = encoded(dtype, blocks, kind=kind)
    coded = [check(dtype, words, each, kind) for words, each in zip(blocks, found, strict=True)]
    assert isinstance(coded[-1], Cascade)


def test_blocks_of_any_number_of_words() -> None:
    """Short runs in the words and in every later tier, at addresses that are multiples of a word."""
    check_all("BF16")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_blocks_of_other_dtypes(dtype: str) -> None:
    check_all(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASCADES, ids=str)
def test_any_tier_shape(kind: Cascade) -> None:
    check_all("BF16", kind)


def odd_blocks(dtype: str, n: int) -> dict[str, np.ndarray]:
    """Words of other sorts than weights."""
    of = FLOATS[dtype]
    nan = np.full(n, ((1 << of.exponent_bits) - 1) << of.mantissa_bits | 1, of.word)
    nan[1::2] |= of.word(1 << (of.exponent_bits + of.mantissa_bits))
    nearly = np.full(n, 1 << of.mantissa_bits, of.word)
    nearly[n // 2] ^= 1
    flat = with_exponents(dtype, rng(f"flat {n}").integers(4, 15, n))  # more escape from tier 1 than do not
    far = with_exponents(dtype, np.where(np.arange(n) % 4, 1, (1 << of.exponent_bits) - 1))
    return {
        "zeros": np.zeros(n, of.word), "one value": np.full(n, nan[1]), "two values": nearly, "NaN": nan,
        "random bits": random_words(dtype, n), "flat": flat, "far apart": far,
        "no escapes": with_exponents(dtype, np.arange(n) % 3),
    }  # fmt: skip


def check_odd(dtype: str) -> None:
    """Constant, stored and lopsided blocks, of whole runs and not."""
    for n in (777, 2048):
        blocks = odd_blocks(dtype, n)
        for align in (32, 1024):
            found = encoded(dtype, list(blocks.values()), align=align)
            coded = {
                name: check(dtype, words, each, align=align)
                for (name, words), each in zip(blocks.items(), found, strict=True)
            }
            if align == 32:
                assert coded["zeros"] == coded["one value"] == Constant()
                assert isinstance(coded["NaN"], Cascade)
                assert coded["random bits"] == Stored()


def test_words_of_other_sorts_than_weights() -> None:
    check_odd("BF16")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_such_words_of_other_dtypes(dtype: str) -> None:
    check_odd(dtype)


def test_nothing_is_written_behind_the_capacity() -> None:
    """The size is told all the same. Streams in front of it may be there."""
    words = [weights("BF16", n) for n in (2048, 1999)]
    enough = encoded("BF16", words)
    for capacity in (0, 16, 32, 100, 2048, 2600, *(each.nbytes + more for each in enough for more in (-32, -1, 0))):
        for full, found in zip(enough, encoded("BF16", words, capacity=capacity), strict=True):
            assert found[:2] == full[:2]
            assert set(found.slot[capacity:]) <= {UNTOUCHED}
            if capacity >= full.nbytes:
                assert found.slot[: full.nbytes] == full.slot[: full.nbytes]


def test_weights_take_what_the_host_makes_of_them() -> None:
    """Within 1 %, though intervals follow from samples."""
    values = weights("BF16", 2 * BLOCK_WORDS)
    found = encoded("BF16", [values[:BLOCK_WORDS], values[BLOCK_WORDS:]], checked=False)
    tensor = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    host = tensorwire.frame_info(tensorwire.compress(tensor, profile="fast")).data_nbytes
    assert sum(each.nbytes for each in found) <= 1.01 * host
    check("BF16", values[:BLOCK_WORDS], found[0])
