"""Blocks of several tiers, encoded on a device: read by the reference and by the core, and in bytes as the reference
writes them with the same parameters."""

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
from tests.support.registry import FLOATS, random_words, rng, weights

from .cascades import NAMES
from .opened import bytes_tensor, launch
from .stand_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Sequence

KERNELS = Path(__file__).parent / "kernels"
DTYPES = ("BF16", "F16", "F8_E4M3", "F8_E5M2")
UNTOUCHED = 0x77
FAST = Cascade(variant=0)


class Encoded(NamedTuple):
    """What a kernel made of a block."""

    nbytes: int
    stored: bool
    slot: bytes


def encoded(
    dtype: str, blocks: Sequence[np.ndarray], *, kind: Cascade = FAST, align: int = 32, capacity: int | None = None,
    whole: bool = False, checked: bool = True,
) -> list[Encoded]:  # fmt: skip
    """The blocks by the kernel, each into a slot that holds it stored, of which `capacity` bytes may be written."""
    most = max(map(len, blocks))
    nbytes = most * blocks[0].itemsize
    slot = -(-nbytes // align) * align
    starts = np.cumsum([0, *map(len, blocks)]).astype(np.uint32)
    words, out = bytes_tensor(np.concatenate(blocks)), torch.full((len(blocks) * slot,), UNTOUCHED, dtype=torch.uint8)
    sizes = torch.zeros(2 * len(blocks), dtype=torch.int32)
    launched = CascadeLaunch(0, 0, widths_of(kind.table)[kind.variant or 0], whole)
    expression = f"tiers_alone<{NAMES[dtype]}, {launched.packed_widths:#x}, {str(whole).lower()}>"
    driver = StandIn(checked=checked, seed=1, headers=KERNELS)
    launch(
        driver, "tiers_alone.cuh", expression, (len(blocks),), 256, words, bytes_tensor(starts), align, slot,
        slot if capacity is None else capacity, out, sizes, shared_nbytes=_room_nbytes(most),
    )  # fmt: skip
    return [
        Encoded(size, bool(stored), at.tobytes())
        for (size, stored), at in zip(sizes.view(-1, 2).tolist(), out.numpy().reshape(-1, slot), strict=True)
    ]


def _room_nbytes(n: int) -> int:
    """tiers_room_nbytes of encode_tiers.cuh."""
    return 4 * (300 + 256 + 16 + 64) + -(-n // 256) * 256 + 16


def frame_of(dtype: str, words: np.ndarray, block: Block, align: int) -> bytes:
    """A frame of one block."""
    bits, layout = label_of(dtype, None, None)
    header = Header(
        profile="fast", dtype=dtype, bits=bits, layout=layout, block_words=max(256, -(-len(words) // 256) * 256),
        shape=words.shape, content_hash=content_hash(words.tobytes()), base_hash=None, block_alignment=align,
        frame_alignment=align, optional_features=0, padding_nbytes=0, extensions={},
    )  # fmt: skip
    return pack_frame(header, [block])


def check(dtype: str, words: np.ndarray, found: Encoded, kind: Cascade = FAST, align: int = 32) -> Cascade | None:
    """That both decoders read the block, and that the reference writes the same; with these parameters."""
    block = Block(found.slot[: found.nbytes], found.stored)
    assert set(found.slot[found.nbytes :]) <= {UNTOUCHED}
    frame = frame_of(dtype, words, block, align)
    assert bytes(tensorwire.decompress(frame, framework="bytes")) == words.tobytes()
    assert decode(frame).data == words.tobytes()
    _, layout = label_of(dtype, None, None)
    numbers = words.astype(np.uint64)
    tag = block.content[-1]
    coded: Cascade | Constant | Stored
    if found.stored:
        coded = Stored()
    elif tag & 7 == 1:
        coded = Constant()
    else:
        assert tag >> 5 == kind.variant
        assert tag & 7 == (3 if kind.table == 1 else 7)
        at = found.nbytes - 14 - (kind.table == 2)
        later = len(widths_of(kind.table)[kind.variant or 0]) - 1
        packed = int.from_bytes(block.content[at + 1 : at + 3], "little")
        below = tuple(packed >> 4 * k & 15 for k in range(later))
        coded = Cascade(kind.variant, block.content[at], below, kind.table)
    assert block == encode_block(numbers, layout, "fast", coded, Verbatim(), alignment=align)
    return coded if isinstance(coded, Cascade) else None


def with_exponents(dtype: str, exponents: np.ndarray, name: str) -> np.ndarray:
    """Words with these exponents, and anything as their rest."""
    of = FLOATS[dtype]
    words = random_words(dtype, len(exponents)).astype(np.uint32)
    mask = ((1 << of.exponent_bits) - 1) << of.mantissa_bits
    return (words & ~np.uint32(mask) | exponents.astype(np.uint32) << of.mantissa_bits).astype(of.word)


def spread(dtype: str, n: int, centre: int, name: str) -> np.ndarray:
    """Words whose exponents lie about this one, most near, and some anywhere."""
    generator, most = rng(f"{name} {dtype} {n} {centre}"), (1 << FLOATS[dtype].exponent_bits) - 1
    exponents = np.clip(centre - generator.geometric(0.5, n) + generator.geometric(0.7, n), 0, most)
    anywhere = generator.random(n) < 0.02
    exponents[anywhere] = generator.integers(0, most + 1, anywhere.sum())
    return with_exponents(dtype, exponents, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_any_number_of_words(dtype: str) -> None:
    """Short runs in the words, and in every later tier."""
    middle = 1 << FLOATS[dtype].exponent_bits >> 1
    sizes = [1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 300, 511, 512, 900, 1024, 1500, 2047]
    blocks = [spread(dtype, n, middle, "any") for n in sizes]
    for words, found in zip(blocks, encoded(dtype, blocks), strict=True):
        check(dtype, words, found)
    assert not found.stored
