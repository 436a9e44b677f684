"""A plain encoder: it makes any coding on request, and by default tries a few and keeps the smallest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from . import cascade, enec, entropy, modal, parts, relative, rests, scaled, zeros
from .cascade import Cascade
from .enec import Enec
from .entropy import Entropy
from .errors import CorruptDataError, UnfitError
from .hashes import content_hash
from .header import LEAST_ALIGNMENT, Header, ceil_to, pack_header
from .index import pack_extensions, pack_index
from .kinds import CodedKind, Constant, InnerKind, Kind, Parts, Plain, Scaled, Stored, Zeros
from .layouts import Layout, check_layout, label_of
from .modal import Modal
from .planes import U64
from .relative import Dense, Same, Sparse
from .rests import Bytes, Rest, Trimmed, Verbatim
from .tags import EXTENDED, Tag
from .words import from_words, is_zero, split, to_words


class Block(NamedTuple):
    """What stands in the frame, and what the index says of it."""

    content: bytes
    stored: bool = False


class Coded(NamedTuple):
    """A block before it is padded."""

    streams: bytes
    params: bytes
    tag: Tag


def encode(
    data: bytes,
    dtype: str,
    shape: tuple[int, ...],
    *,
    bits: int | None = None,
    layout: Layout | None = None,
    profile: str = "compact",
    block_words: int = 65536,
    kind: Kind | Sequence[Kind] | None = None,
    rest: Rest | None = None,
    base: bytes | None = None,
    block_alignment: int = LEAST_ALIGNMENT,
    frame_alignment: int | None = None,
    padding_nbytes: int = 0,
    extensions: Mapping[int, bytes] | None = None,
    optional_features: int = 0,
) -> bytes:
    """Encode one tensor as a frame.

    data: the elements in row-major order, little-endian. bits: needed for a dtype that the page's table lacks.
    layout: of the words; None takes that of the table.
    kind, rest: the coding of every block, or a kind for each block; None takes the smallest of a few. A block that the
    requested coding cannot represent or makes longer is stored. That the profile allows the coding is not checked.
    base: the tensor that the frame is to be relative to.
    block_alignment, frame_alignment: in bytes; None is as for blocks. padding_nbytes: at least so many at the end.
    extensions: contents by tag.
    Raises ValueError for arguments that do not fit together.
    """
    bits, layout = label_of(dtype, bits, layout)
    _check_label(bits, layout)
    header = Header(
        profile=profile,
        dtype=dtype,
        bits=bits,
        layout=layout,
        block_words=block_words,
        shape=tuple(shape),
        content_hash=content_hash(data),
        base_hash=None if base is None else content_hash(base),
        block_alignment=block_alignment,
        frame_alignment=frame_alignment or block_alignment,
        optional_features=optional_features,
        padding_nbytes=padding_nbytes,
        extensions=dict(extensions or {}),
    )
    if header.uncompressed_nbytes != len(data):
        raise ValueError(f"{shape} of {bits} bits each is {header.uncompressed_nbytes} bytes, not {len(data)}")
    if base is not None and len(base) != len(data):
        raise ValueError(f"a base of {len(base)} bytes for {len(data)} bytes")
    words, of_base = to_words(data, layout), None if base is None else to_words(base, layout)
    slices = [header.words_of(block) for block in range(header.num_blocks)]
    kinds = list(kind) if isinstance(kind, Sequence) else [kind] * len(slices)
    blocks = [
        encode_block(words[part], layout, profile, k, rest, None if of_base is None else of_base[part], block_alignment)
        for part, k in zip(slices, kinds, strict=True)
    ]
    return pack_frame(header, blocks)


def _check_label(bits: int, layout: Layout) -> None:
    try:
        check_layout(layout)
    except CorruptDataError as error:
        raise ValueError(str(error)) from None
    if layout.word_nbytes > 1 and bits % layout.word_bits:
        raise ValueError(f"{bits} bits per element in words of {layout.word_bits}")


def pack_frame(header: Header, blocks: Sequence[Block]) -> bytes:
    """A frame of finished blocks, with all checksums. The sizes of the parts follow from the blocks."""
    content = b"".join(block.content for block in blocks)
    header = replace(header, data_nbytes=len(content))
    index = pack_index(blocks, header.block_alignment) if header.index_end > header.index_start else b""
    behind_shape = index + pack_extensions(header.extensions)
    header_nbytes = ceil_to(header.index_start + len(behind_shape), header.frame_alignment)
    end = ceil_to(header_nbytes + len(content) + header.padding_nbytes, header.frame_alignment)
    header = replace(header, header_nbytes=header_nbytes, padding_nbytes=end - header_nbytes - len(content))
    return pack_header(header, behind_shape) + content + bytes(header.padding_nbytes)


def encode_block(
    words: U64,
    layout: Layout,
    profile: str,
    kind: Kind | None,
    rest: Rest | None,
    base: U64 | None = None,
    alignment: int = LEAST_ALIGNMENT,
) -> Block:
    """One block, stored if the coding does not apply or makes it longer."""
    content = from_words(words, layout)
    stored = Block(content.ljust(ceil_to(len(content), alignment), b"\0"), stored=True)
    candidates = _candidates(words, layout, profile, base) if kind is None else (kind,)
    coders = _default_rests(profile) if rest is None else (rest,)
    blocks = [
        _try_encode(candidate, coder, words, layout, profile, base, alignment)
        for candidate in candidates
        for coder in coders
    ]
    fitting = [block for block in blocks if block is not None and len(block.content) <= len(stored.content)]
    return min(fitting, key=lambda block: len(block.content), default=stored)


def _try_encode(
    kind: Kind, rest: Rest, words: U64, layout: Layout, profile: str, base: U64 | None, alignment: int
) -> Block | None:
    if isinstance(kind, Same):
        return Block(b"") if base is not None and (words == base).all() else None
    try:
        coded = _encode_as(kind, rest, words, layout, profile, base)
    except UnfitError:
        return None
    return Block(pack_block(*coded, alignment=alignment))


def _candidates(words: U64, layout: Layout, profile: str, base: U64 | None) -> tuple[Kind, ...]:
    if base is not None and (words == base).all():
        return (Same(),)
    if (words == words[0]).all():
        return (Constant(),)
    kinds: tuple[InnerKind, ...] = () if profile == "resident" else (Plain(),)
    if layout.exponent_bits:
        by_profile: dict[str, InnerKind] = {
            "enec": Enec(),
            "fast": Cascade(),
            "compact": Entropy(),
            "resident": Cascade(table=2),
        }
        kinds = (by_profile[profile], *kinds)
    has_zeros = profile in ("fast", "compact") and bool(is_zero(words, layout).any())
    of_zeros = tuple(Zeros(kind) for kind in kinds) if has_zeros else ()
    return (*kinds, *of_zeros, *(() if base is None else (Sparse(), Dense())))


def _default_rests(profile: str) -> tuple[Rest, ...]:
    if profile == "resident":
        return (Verbatim(),)
    trimmed = (Trimmed(), Trimmed(per_run=True))
    return (*trimmed, Bytes()) if profile == "compact" else trimmed


def _encode_as(kind: CodedKind, rest: Rest, words: U64, layout: Layout, profile: str, base: U64 | None) -> Coded:
    if isinstance(kind, Stored):
        raise UnfitError("stored is what remains")
    if isinstance(kind, Constant):
        if (words != words[0]).any():
            raise UnfitError("the words are not equal")
        return Coded(b"", from_words(words[:1], layout), Tag(kind.code, 0, 0))
    if isinstance(kind, Zeros):
        return _encode_zeros(kind, rest, words, layout, profile)
    if isinstance(kind, Scaled):
        return _encode_scaled(kind, rest, words, profile)
    if isinstance(kind, Parts):
        return _encode_parts(kind, rest, words, layout, profile, base)
    if isinstance(kind, Sparse | Dense):
        return _encode_relative(kind, words, base, layout)
    if isinstance(kind, Plain):
        streams, rest_params = rests.encode_rest(rest, words, layout.word_bits)
        return Coded(streams, rest_params, Tag(kind.code, rest.code, 0))
    return _encode_split(kind, rest, words, layout)


def _encode_split(kind: Enec | Cascade | Entropy | Modal, rest: Rest, words: U64, layout: Layout) -> Coded:
    if not layout.exponent_bits:
        raise ValueError(f"{kind} needs exponents")
    k = kind.k if isinstance(kind, Entropy) else 0
    x, rest_values = split(words, layout, k)
    code, extended = kind.code, 0
    if isinstance(kind, Enec):
        variant = kind.variant
        streams, params = enec.encode(kind, x, layout.exponent_bits)
    elif isinstance(kind, Cascade):
        if kind.table == 2:
            code, extended = EXTENDED, 1
        streams, params, variant = cascade.encode(kind, x, layout.exponent_bits)
    elif isinstance(kind, Modal):
        variant, extended = kind.variant, kind.extended
        streams, params = modal.encode(kind, x, layout.exponent_bits)
    else:
        variant = k
        streams, params = entropy.encode(kind, x, layout.exponent_bits + k)
    rest_stream, rest_params = rests.encode_rest(rest, rest_values, layout.rest_bits - k)
    return Coded(rest_stream + streams, rest_params + params, Tag(code, rest.code, variant, extended))


def _encode_zeros(kind: Zeros, rest: Rest, words: U64, layout: Layout, profile: str) -> Coded:
    kept, streams, signs = zeros.encode(words, kind.variant, kind.signs, layout)
    inner = encode_block(kept, layout, profile, kind.inner, rest) if len(kept) else Block(b"")
    params = zeros.pack_params(zeros.Params(len(kept), len(inner.content), inner.stored, signs))
    return Coded(inner.content + streams, params, Tag(kind.code, 0, kind.variant))


def _encode_scaled(kind: Scaled, rest: Rest, words: U64, profile: str) -> Coded:
    codes, streams = scaled.encode(words, kind.variant, kind.width, kind.scales)
    inner = encode_block(codes, scaled.LAYOUTS_OF_CODES[kind.variant], profile, kind.inner, rest)
    params = scaled.Params(kind.width, len(kind.scales), len(inner.content), inner.stored)
    return Coded(inner.content + streams, scaled.pack_params(params), Tag(kind.code, 0, kind.variant, kind.extended))


def _encode_parts(kind: Parts, rest: Rest, words: U64, layout: Layout, profile: str, base: U64 | None) -> Coded:
    slices = parts.split_words(len(words), kind.part_runs)
    if not slices:
        raise UnfitError("parts: fewer or more than there may be")
    blocks = [
        encode_block(words[part], layout, profile, of_part, rest, None if base is None else base[part])
        for part, of_part in zip(slices, kind.kinds, strict=True)
    ]
    lengths = [parts.Part(part, len(block.content), block.stored) for part, block in zip(slices, blocks, strict=True)]
    streams = b"".join(block.content for block in blocks)
    return Coded(streams, parts.pack_params(lengths, kind.part_runs), Tag(kind.code, 0, 0, kind.extended))


def _encode_relative(kind: Sparse | Dense, words: U64, base: U64 | None, layout: Layout) -> Coded:
    if base is None:
        raise ValueError(f"{kind} needs a base")
    streams, params = relative.encode(kind, words, base, layout)
    return Coded(streams, params, Tag(kind.code, 0, len(kind.thresholds), kind.extended))


def pack_block(streams: bytes, params: bytes, tag: Tag, *, alignment: int = LEAST_ALIGNMENT) -> bytes:
    """A coded block: streams, padding, parameters, extended kind, tag."""
    end = params + tag.pack()
    return streams.ljust(ceil_to(len(streams) + len(end), alignment) - len(end), b"\0") + end
