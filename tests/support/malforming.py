"""How a frame that breaks one rule is made: of the reference's frames, with bytes changed and all checksums right."""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from reference.tensorwire_reference import Kind, Rest, Stored, Verbatim
from reference.tensorwire_reference.encoder import Block, encode_block, pack_block, pack_frame
from reference.tensorwire_reference.hashes import content_hash
from reference.tensorwire_reference.header import LEAST_ALIGNMENT, Header
from reference.tensorwire_reference.layouts import Layout, label_of
from reference.tensorwire_reference.planes import pack_plane
from reference.tensorwire_reference.tags import Tag
from reference.tensorwire_reference.words import to_words

CORRUPT, TRUNCATED = "CorruptDataError", "TruncatedDataError"
VERSION, LIMIT, MISMATCH = "UnsupportedVersionError", "LimitExceededError", "BaseMismatchError"

Edit = Callable[[bytes], bytes]


class Malformed(NamedTuple):
    """One frame. `error` is the name that the page uses; `base` is what the decoder is given."""

    name: str
    build: Callable[[], bytes]
    error: str
    base: bytes | None = None


def patch(data: bytes, changes: dict[int, int]) -> bytes:
    """`data` with bytes replaced; negative offsets count from the end."""
    out = bytearray(data)
    for offset, value in changes.items():
        out[offset] = value
    return bytes(out)


def bf16(n: int = 300) -> bytes:
    """Words with exponents 120 to 127, a zero lowest bit and positive sign."""
    i = np.arange(n)
    exponents = 127 - np.minimum(i * i % 19, 7) // 2
    return (exponents << 7 | i * 37 % 64 << 1).astype("<u2").tobytes()


def one_block(
    data: bytes,
    edit: Edit,
    *,
    dtype: str = "BF16",
    profile: str = "compact",
    kind: Kind | None = None,
    rest: Rest | None = None,
    base: bytes | None = None,
    layout: Layout | None = None,
    alignment: int = LEAST_ALIGNMENT,
    block_words: int = 1024,
    stored: bool = False,
) -> bytes:
    """A frame of content `data` whose only block is `edit(block)`, `block` being made as requested.

    stored: what the index says of it.
    """
    bits, layout = label_of(dtype, layout and layout.word_bits, layout)
    words = to_words(data, layout)
    of_base = None if base is None else to_words(base, layout)
    block = encode_block(words, layout, profile, kind or Stored(), rest or Verbatim(), of_base, alignment)
    header = Header(
        profile=profile,
        dtype=dtype,
        bits=bits,
        layout=layout,
        block_words=block_words,
        shape=(len(words),),
        content_hash=content_hash(data),
        base_hash=None if base is None else content_hash(base),
        block_alignment=alignment,
        frame_alignment=alignment,
    )
    return pack_frame(header, [Block(edit(block.content), stored)])


def make(name: str, edit: Edit, data: bytes, *, error: str = CORRUPT, **options: Any) -> Malformed:
    return Malformed(f"block-{name}", partial(one_block, data, edit, **options), error, options.get("base"))


def unchanged(block: bytes) -> bytes:
    return block


def replace(changes: dict[int, int]) -> Edit:
    return lambda block: patch(block, changes)


def retag(mask: int) -> Edit:
    return lambda block: patch(block, {-1: block[-1] ^ mask})


def insert_unit(tail: int, unit: int = LEAST_ALIGNMENT) -> Edit:
    """One unit of padding too much, before a descriptor of `tail` bytes."""
    return lambda block: block[:-tail] + bytes(unit) + block[-tail:]


def instead(streams: bytes, params: bytes, kind: int, rest: int = 0, variant: int = 0, extended: int = 0) -> Edit:
    """A block made by hand, in place of the encoder's."""
    return lambda _: pack_block(streams, params, Tag(kind, rest, variant, extended))


def digits(n: int, *first: int) -> bytes:
    """A tier of `n` digits of 2 bits, zeros behind the first ones."""
    return pack_plane(np.array([*first, *bytes(n - len(first))], np.uint64), 2)


def mask(num_groups: int, present: int) -> bytes:
    """A plane of bits, of which the first `present` are set."""
    return pack_plane((np.arange(num_groups) < present).astype(np.uint64), 1)


def level(bits: str) -> bytes:
    """A bit string of these bits, in reading order."""
    packed = bit_string(bits)
    return packed + bytes(-len(packed) % 4)


def bit_string(bits: str) -> bytes:
    """Bits in reading order, filled into bytes from the lowest."""
    return np.packbits([int(bit) for bit in bits], bitorder="little").tobytes()


def rans_zeros(
    n: int,
    *,
    table: bytes = bytes([0, 1, 0, 0b100]),
    frequency: int = 4095,
    first_state: int | None = None,
    last_state: int = 1 << 16,
    num_units: int = 0,
    padding: int = 0,
) -> bytes:
    """An entropy stream of `n` <= 5000 symbols 0, by hand: so few of this frequency need no units.

    The default table gives symbol 1 the frequency 1. first_state, last_state: of state 31.
    """
    states = [1 << 16] * 31 + [last_state]
    for i in range(n):
        x = states[i % 32]
        states[i % 32] = x // frequency * 4096 + x % frequency
    if first_state is not None:
        states[31] = first_state
    head = struct.pack("<I", num_units) + table
    head += bytes([padding] * (-len(head) % 4))
    return head + struct.pack("<32I", *states) + bytes(4 * -(-num_units // 2))
