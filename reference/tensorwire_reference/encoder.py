"""A plain encoder: it makes any coding on request, and by default tries a few and keeps the smallest."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from . import cascade, enec, entropy, rests
from .cascade import Cascade
from .enec import Enec
from .entropy import Entropy
from .errors import UnfitError
from .hashes import content_hash, h128
from .header import ALIGNMENT, UNIT, Dtype, Header, ceil_to, dtype_of, pack_header
from .planes import U64, pack_field
from .rests import Bytes, Rest, Trimmed
from .words import from_words, rest_width, split, to_words


@dataclass(frozen=True)
class Stored:
    """Words as they are."""


@dataclass(frozen=True)
class Constant:
    """One word, for blocks of equal words."""

    code: ClassVar[int] = 1


@dataclass(frozen=True)
class Plain:
    """Words without an exponent: the rest is all."""

    code: ClassVar[int] = 5


InnerKind = Stored | Constant | Enec | Cascade | Entropy | Plain


@dataclass(frozen=True)
class ZeroGroups:
    """Groups of `group` words (1, 2, 4, ..., 128) that are all zero are left out; `inner` codes the others."""

    inner: InnerKind
    group: int = 8
    code: ClassVar[int] = 6


Kind = InnerKind | ZeroGroups


def encode(
    data: bytes,
    dtype: str,
    shape: tuple[int, ...],
    *,
    bits: int | None = None,
    profile: str = "compact",
    block_log2: int = 16,
    kind: Kind | None = None,
    rest: Rest | None = None,
) -> bytes:
    """Encode one tensor as a frame.

    data: the elements in row-major order, little-endian. bits: needed for a dtype that the page's table lacks.
    kind, rest: the coding of every block; None takes the smallest of a few. A block that the requested coding
    cannot represent or does not shrink is stored. That the profile allows the coding is not checked.
    Raises ValueError for arguments that do not fit together.
    """
    row = dtype_of(dtype, bits)
    words = to_words(data, row) if len(data) % row.word_nbytes == 0 else np.empty(0, np.uint64)
    size = 1 << block_log2
    parts = [words[i : i + size] for i in range(0, len(words), size)]
    blocks = [encode_block(part, row, profile, kind, rest) for part in parts]
    header = Header(profile, row, block_log2, tuple(shape), sum(map(len, blocks)), content_hash(data))
    if header.uncompressed_nbytes != len(data):
        raise ValueError(f"{shape} of {row.bits} bits each is {header.uncompressed_nbytes} bytes, not {len(data)}")
    return pack_frame(header, blocks)


def pack_frame(header: Header, blocks: list[bytes]) -> bytes:
    """A frame of finished blocks, with all checksums. `header.data_nbytes` is taken from the blocks."""
    entries, offset = [], 0
    for block in blocks:
        entries.append((offset // UNIT, int.from_bytes(h128(block)[:4], "little")))
        offset += len(block)
    frame = pack_header(replace(header, data_nbytes=offset), entries) + b"".join(blocks)
    return frame + bytes(-len(frame) % ALIGNMENT)


def encode_block(words: U64, dtype: Dtype, profile: str, kind: Kind | None, rest: Rest | None) -> bytes:
    """The bytes of one block, stored if the coding does not apply or does not shrink it."""
    stored = from_words(words, dtype)
    stored += bytes(-len(stored) % UNIT)
    candidates = _candidates(words, dtype, profile) if kind is None else (kind,)
    coders = _default_rests(profile) if rest is None else (rest,)
    blocks = [_try_encode(candidate, coder, words, dtype, profile) for candidate in candidates for coder in coders]
    return min((block for block in blocks if block is not None and len(block) < len(stored)), key=len, default=stored)


def _try_encode(kind: Kind, rest: Rest, words: U64, dtype: Dtype, profile: str) -> bytes | None:
    try:
        return _encode_as(kind, rest, words, dtype, profile)
    except UnfitError:
        return None


def _candidates(words: U64, dtype: Dtype, profile: str) -> tuple[Kind, ...]:
    if (words == words[0]).all():
        return (Constant(),)
    kinds: tuple[InnerKind, ...] = (Plain(),)
    if dtype.exponent_bits:
        by_profile: dict[str, InnerKind] = {"enec": Enec(), "fast": Cascade(), "compact": Entropy()}
        kinds = (by_profile[profile], *kinds)
    groups = () if profile == "enec" or words.all() else tuple(ZeroGroups(kind) for kind in kinds)
    return kinds + groups


def _default_rests(profile: str) -> tuple[Rest, ...]:
    trimmed = (Trimmed(), Trimmed(per_run=True))
    return (*trimmed, Bytes()) if profile == "compact" else trimmed


def _encode_as(kind: Kind, rest: Rest, words: U64, dtype: Dtype, profile: str) -> bytes:
    if isinstance(kind, Stored):
        raise UnfitError("stored is what remains")
    if isinstance(kind, Constant):
        if (words != words[0]).any():
            raise UnfitError("the words are not equal")
        return pack_block(b"", from_words(words[:1], dtype), kind.code, 0, 0)
    if isinstance(kind, ZeroGroups):
        return _encode_zero_groups(kind, rest, words, dtype, profile)
    if isinstance(kind, Plain):
        streams, rest_params = rests.encode_rest(rest, words, 8 * dtype.word_nbytes)
        return pack_block(streams, rest_params, kind.code, rest.code, 0)
    if not dtype.exponent_bits:
        raise ValueError(f"{kind} needs floats, not {dtype.name}")
    k = kind.k if isinstance(kind, Entropy) else 0
    x, rest_values = split(words, dtype, k)
    if isinstance(kind, Enec):
        variant = kind.variant
        streams, params = enec.encode(kind, x, dtype.exponent_bits)
    elif isinstance(kind, Cascade):
        streams, params, variant = cascade.encode(kind, x, dtype.exponent_bits)
    else:
        variant = k
        streams, params = entropy.encode(kind, x, dtype.exponent_bits + k)
    rest_stream, rest_params = rests.encode_rest(rest, rest_values, rest_width(dtype, k))
    return pack_block(rest_stream + streams, rest_params + params, kind.code, rest.code, variant)


def _encode_zero_groups(kind: ZeroGroups, rest: Rest, words: U64, dtype: Dtype, profile: str) -> bytes:
    mask = np.logical_or.reduceat(words != 0, np.arange(0, len(words), kind.group))
    present = words[np.repeat(mask, kind.group)[: len(words)]]
    if len(present) == 0:
        raise UnfitError("all words are zero")
    inner = encode_block(present, dtype, profile, kind.inner, rest)
    if len(inner) > 0xFFFF * UNIT:
        raise UnfitError("zero_groups: inner_units does not fit two bytes")
    params = len(present).to_bytes(4, "little") + (len(inner) // UNIT).to_bytes(2, "little")
    streams = inner + pack_field(mask.astype(np.uint64), 1)
    return pack_block(streams, params, kind.code, 0, kind.group.bit_length() - 1)


def pack_block(streams: bytes, params: bytes, kind: int, rest: int, variant: int) -> bytes:
    """A coded block: streams, padding, parameters, tag."""
    length = ceil_to(len(streams) + len(params) + 1, UNIT)
    padding = bytes(length - len(streams) - len(params) - 1)
    return streams + padding + params + bytes([kind | rest << 3 | variant << 5])
