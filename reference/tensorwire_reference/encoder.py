"""A plain encoder: it makes any coding on request, and by default tries a few and keeps the smallest."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from . import cascade, enec, entropy, modal, relative, rests, zeros
from .cascade import Cascade
from .enec import Enec
from .entropy import Entropy
from .errors import UnfitError
from .hashes import content_hash, h128
from .header import UNIT, Header, ceil_to, pack_header
from .kinds import Constant, InnerKind, Kind, Plain, Stored, Zeros
from .layouts import Dtype, dtype_of
from .modal import Modal
from .planes import U64
from .relative import Dense, Same, Sparse
from .rests import Bytes, Rest, Trimmed, Verbatim
from .tags import EXTENDED, Tag
from .words import from_words, is_zero, split, to_words


def encode(
    data: bytes,
    dtype: str,
    shape: tuple[int, ...],
    *,
    bits: int | None = None,
    profile: str = "compact",
    block_words: int = 65536,
    kind: Kind | Sequence[Kind] | None = None,
    rest: Rest | None = None,
    base: bytes | None = None,
) -> bytes:
    """Encode one tensor as a frame.

    data: the elements in row-major order, little-endian. bits: needed for a dtype that the page's table lacks.
    kind, rest: the coding of every block, or a kind for each block; None takes the smallest of a few. A block that the
    requested coding cannot represent or does not shrink is stored. That the profile allows the coding is not checked.
    base: the tensor that the frame is to be relative to.
    Raises ValueError for arguments that do not fit together.
    """
    row = dtype_of(dtype, bits)
    words, of_base = _words(data, row), None
    if base is not None:
        if len(base) != len(data):
            raise ValueError(f"a base of {len(base)} bytes for {len(data)} bytes")
        of_base = _words(base, row)
    parts = [slice(i, i + block_words) for i in range(0, len(words), block_words)]
    kinds = list(kind) if isinstance(kind, Sequence) else [kind] * len(parts)
    blocks = [
        encode_block(words[part], row, profile, k, rest, None if of_base is None else of_base[part])
        for part, k in zip(parts, kinds, strict=True)
    ]
    base_hash = None if base is None else content_hash(base)
    header = Header(profile, row, block_words, tuple(shape), sum(map(len, blocks)), content_hash(data), base_hash)
    if header.uncompressed_nbytes != len(data):
        raise ValueError(f"{shape} of {row.bits} bits each is {header.uncompressed_nbytes} bytes, not {len(data)}")
    return pack_frame(header, blocks)


def _words(data: bytes, dtype: Dtype) -> U64:
    return to_words(data, dtype) if len(data) % dtype.word_nbytes == 0 else np.empty(0, np.uint64)


def pack_frame(header: Header, blocks: list[bytes]) -> bytes:
    """A frame of finished blocks, with all checksums. `header.data_nbytes` is taken from the blocks."""
    entries, offset = [], 0
    for block in blocks:
        entries.append((offset // UNIT, int.from_bytes(h128(block)[:4], "little") if block else 0))
        offset += len(block)
    return pack_header(replace(header, data_nbytes=offset), entries) + b"".join(blocks)


def encode_block(
    words: U64, dtype: Dtype, profile: str, kind: Kind | None, rest: Rest | None, base: U64 | None = None
) -> bytes:
    """The bytes of one block, stored if the coding does not apply or does not shrink it."""
    stored = from_words(words, dtype)
    stored += bytes(-len(stored) % UNIT)
    candidates = _candidates(words, dtype, profile, base) if kind is None else (kind,)
    coders = _default_rests(profile) if rest is None else (rest,)
    blocks = [
        _try_encode(candidate, coder, words, dtype, profile, base) for candidate in candidates for coder in coders
    ]
    return min((block for block in blocks if block is not None and len(block) < len(stored)), key=len, default=stored)


def _try_encode(kind: Kind, rest: Rest, words: U64, dtype: Dtype, profile: str, base: U64 | None) -> bytes | None:
    try:
        return _encode_as(kind, rest, words, dtype, profile, base)
    except UnfitError:
        return None


def _candidates(words: U64, dtype: Dtype, profile: str, base: U64 | None) -> tuple[Kind, ...]:
    if base is not None and (words == base).all():
        return (Same(),)
    if (words == words[0]).all():
        return (Constant(),)
    kinds: tuple[InnerKind, ...] = () if profile == "resident" else (Plain(),)
    if dtype.exponent_bits:
        by_profile: dict[str, InnerKind] = {
            "enec": Enec(),
            "fast": Cascade(),
            "compact": Entropy(),
            "resident": Cascade(table=2),
        }
        kinds = (by_profile[profile], *kinds)
    has_zeros = profile in ("fast", "compact") and bool(is_zero(words, dtype).any())
    of_zeros = tuple(Zeros(kind) for kind in kinds) if has_zeros else ()
    return (*kinds, *of_zeros, *(() if base is None else (Sparse(), Dense())))


def _default_rests(profile: str) -> tuple[Rest, ...]:
    if profile == "resident":
        return (Verbatim(),)
    trimmed = (Trimmed(), Trimmed(per_run=True))
    return (*trimmed, Bytes()) if profile == "compact" else trimmed


def _encode_as(kind: Kind, rest: Rest, words: U64, dtype: Dtype, profile: str, base: U64 | None) -> bytes:
    if isinstance(kind, Stored):
        raise UnfitError("stored is what remains")
    if isinstance(kind, Constant):
        if (words != words[0]).any():
            raise UnfitError("the words are not equal")
        return pack_block(b"", from_words(words[:1], dtype), kind.code, 0, 0)
    if isinstance(kind, Zeros):
        return _encode_zeros(kind, rest, words, dtype, profile)
    if isinstance(kind, Same | Sparse | Dense):
        return _encode_relative(kind, words, base, dtype)
    if isinstance(kind, Plain):
        streams, rest_params = rests.encode_rest(rest, words, dtype.word_bits)
        return pack_block(streams, rest_params, kind.code, rest.code, 0)
    return _encode_split(kind, rest, words, dtype)


def _encode_split(kind: Enec | Cascade | Entropy | Modal, rest: Rest, words: U64, dtype: Dtype) -> bytes:
    if not dtype.exponent_bits:
        raise ValueError(f"{kind} needs exponents, not {dtype.name}")
    k = kind.k if isinstance(kind, Entropy) else 0
    x, rest_values = split(words, dtype, k)
    code, extended = kind.code, 0
    if isinstance(kind, Enec):
        variant = kind.variant
        streams, params = enec.encode(kind, x, dtype.exponent_bits)
    elif isinstance(kind, Cascade):
        if kind.table == 2:
            code, extended = EXTENDED, 1
        streams, params, variant = cascade.encode(kind, x, dtype.exponent_bits)
    elif isinstance(kind, Modal):
        variant, extended = kind.variant, kind.extended
        streams, params = modal.encode(kind, x, dtype.exponent_bits)
    else:
        variant = k
        streams, params = entropy.encode(kind, x, dtype.exponent_bits + k)
    rest_stream, rest_params = rests.encode_rest(rest, rest_values, dtype.rest_bits - k)
    return pack_block(rest_stream + streams, rest_params + params, code, rest.code, variant, extended)


def _encode_zeros(kind: Zeros, rest: Rest, words: U64, dtype: Dtype, profile: str) -> bytes:
    kept, streams, signs = zeros.encode(words, kind.variant, kind.signs, dtype)
    inner = encode_block(kept, dtype, profile, kind.inner, rest) if len(kept) else b""
    params = zeros.pack_params(len(kept), len(inner), signs)
    return pack_block(inner + streams, params, kind.code, 0, kind.variant)


def _encode_relative(kind: Same | Sparse | Dense, words: U64, base: U64 | None, dtype: Dtype) -> bytes:
    if base is None:
        raise ValueError(f"{kind} needs a base")
    if isinstance(kind, Same):
        if (words != base).any():
            raise UnfitError("the words are not those of the base")
        return b""
    streams, params = relative.encode(kind, words, base, dtype)
    return pack_block(streams, params, kind.code, 0, len(kind.thresholds), kind.extended)


def pack_block(streams: bytes, params: bytes, kind: int, rest: int, variant: int, extended: int = 0) -> bytes:
    """A coded block: streams, padding, parameters, extended kind, tag."""
    end = params + Tag(kind, rest, variant, extended).pack()
    return streams + bytes(ceil_to(len(streams) + len(end), UNIT) - len(streams) - len(end)) + end
