"""A decoder for frames of version 1, written from docs/format.md. It checks every rule of that page."""

from dataclasses import dataclass

import numpy as np

from . import cascade, enec, entropy, modal, parts, relative, rests, scaled, zeros
from .errors import BaseMismatchError, FormatError, TruncatedDataError, require
from .hashes import content_hash, h128
from .header import LEAST_ALIGNMENT, Header
from .index import Entry, parse_header
from .layouts import Layout
from .planes import U64, Reader
from .tags import Tag, check_tag, parse_tag
from .words import from_words, join, to_words


@dataclass(frozen=True)
class Frame:
    """A decoded frame. `codings` names the coding of each block, for tests and for people."""

    header: Header
    data: bytes
    codings: tuple[str, ...]


def decode(frame: bytes, base: bytes | None = None) -> Frame:
    """Decode exactly one frame, which may be relative to `base`. Raises one of the errors in `errors`."""
    header, index = parse_header(frame)
    if len(frame) < header.frame_nbytes:
        raise TruncatedDataError(f"the frame has {header.frame_nbytes} bytes, of which {len(frame)} are here")
    blocks_end = header.header_nbytes + header.data_nbytes
    require(not any(frame[blocks_end : header.frame_nbytes]), "the padding behind the blocks is set")
    require(len(frame) == header.frame_nbytes, f"{len(frame) - header.frame_nbytes} bytes follow the frame")
    if header.base_hash is not None:
        _check_base(base, header)
    data, codings = decode_blocks(frame[header.header_nbytes : blocks_end], header, index, base)
    require(content_hash(data) == header.content_hash, "the content hash does not match")
    return Frame(header, data, codings)


def _check_base(base: bytes | None, header: Header) -> None:
    """A reader of a relative frame trusts the base before it trusts the sizes that the frame claims."""
    if base is None or len(base) != header.uncompressed_nbytes or content_hash(base) != header.base_hash:
        raise BaseMismatchError("the base is not the tensor that the frame names by base_hash")


def decode_blocks(
    blocks: bytes, header: Header, index: list[Entry], base: bytes | None
) -> tuple[bytes, tuple[str, ...]]:
    """The content, and the names of the codings; its content hash is not compared."""
    if header.base_hash is None:
        base = None
    elif base is not None and not index:
        return base, ("same",) * header.num_blocks
    all_of_base = None if base is None else to_words(base, header.layout)
    contents, codings = [], []
    for i, entry in enumerate(index):
        words = header.words_of(i)
        of_base = None if all_of_base is None else all_of_base[words]
        try:
            decoded, coding = _decode_entry(blocks, entry, words.stop - words.start, header, of_base)
        except FormatError as error:
            raise type(error)(f"block {i}: {error}") from None
        contents.append(from_words(decoded, header.layout))
        codings.append(coding)
    return b"".join(contents), tuple(codings)


def _decode_entry(blocks: bytes, entry: Entry, n: int, header: Header, base: U64 | None) -> tuple[U64, str]:
    if base is not None and entry.start == entry.end:
        return base, "same"
    block = blocks[entry.start : entry.end]
    require(h128(block)[:4] == entry.checksum.to_bytes(4, "little"), "the checksum does not match")
    layout, profile, alignment = header.layout, header.profile, header.block_alignment
    return decode_block(block, n, layout, profile, base, stored=entry.stored, alignment=alignment)


def decode_block(
    block: bytes,
    n: int,
    layout: Layout,
    profile: str,
    base: U64 | None = None,
    *,
    stored: bool = False,
    alignment: int = LEAST_ALIGNMENT,
    without: tuple[str, ...] = (),
) -> tuple[U64, str]:
    """The `n` words of a block, and the name of its coding. `without`: kinds that it must not be of."""
    if stored:
        require(not any(block[n * layout.word_nbytes :]), "padding of a stored block is set")
        return to_words(block[: n * layout.word_nbytes], layout), "stored"

    tag = parse_tag(block)
    check_tag(tag, layout, profile, base is not None)
    require(tag.rule.name not in without, f"kind {tag.rule.name} within another block")
    end = len(block) - len(tag.pack())
    rest_nbytes, kind_nbytes = _params_nbytes(tag, layout, block[:end], n)
    streams_end = end - kind_nbytes - rest_nbytes
    require(streams_end >= 0, f"a block of {len(block)} bytes is shorter than its descriptor")
    rest_params, kind_params = block[streams_end : end - kind_nbytes], block[end - kind_nbytes : end]
    reader = Reader(block[:streams_end])
    words, coding = _decode_coded(tag, rest_params, kind_params, reader, n, layout, profile, base)
    padding = reader.rest()
    require(len(padding) < alignment and not any(padding), f"{len(padding)} bytes of padding, or some of them set")
    return words, coding


def _rest_width(tag: Tag, layout: Layout) -> int:
    """Bits of a rest; 0 for a kind that has none."""
    if tag.rule.name == "plain":
        return layout.word_bits
    k = tag.variant if tag.rule.name == "entropy" else 0
    return layout.rest_bits - k if tag.rule.has_exponent else 0


def _params_nbytes(tag: Tag, layout: Layout, before_tag: bytes, n: int) -> tuple[int, int]:
    """Sizes of the parameters of rest and kind."""
    width = _rest_width(tag, layout)
    if tag.rule.name == "constant":
        return 0, layout.word_nbytes
    if tag.rule.name == "parts":
        return 0, parts.params_nbytes(before_tag, n)
    return rests.params_nbytes(tag.rest, width), tag.rule.params_nbytes + (tag.variant if tag.rule.relative else 0)


def _decode_coded(
    tag: Tag,
    rest_params: bytes,
    kind_params: bytes,
    reader: Reader,
    n: int,
    layout: Layout,
    profile: str,
    base: U64 | None,
) -> tuple[U64, str]:
    name = tag.rule.name
    if name == "constant":
        return np.repeat(to_words(kind_params, layout), n), "constant"
    if name == "zeros":
        return _decode_zeros(tag, kind_params, reader, n, layout, profile)
    if name == "scaled":
        return _decode_scaled(tag, kind_params, reader, n, profile)
    if name == "parts":
        return _decode_parts(kind_params, reader, n, layout, profile, base)
    if base is not None and tag.rule.relative:
        words, params = relative.decode(name, kind_params, reader, base, layout)
        return words, f"{name}{params}"
    rest_values, rest_coding = rests.decode_rest(tag.rest, rest_params, reader, n, _rest_width(tag, layout))
    if name == "plain":
        return rest_values, f"plain+{rest_coding}"
    x, coding = _decode_exponents(tag, kind_params, reader, n, layout)
    k = tag.variant if name == "entropy" else 0
    return join(x, rest_values, layout, k), f"{coding}+{rest_coding}"


def _decode_exponents(tag: Tag, params: bytes, reader: Reader, n: int, layout: Layout) -> tuple[U64, str]:
    name, bits = tag.rule.name, layout.exponent_bits
    if name == "enec":
        x, found = enec.decode(params, tag.variant, reader, n, bits)
        return x, f"enec/{1 << tag.variant}{found}"
    if name == "cascade":
        table = 2 if tag.extended else 1
        x, found = cascade.decode(params, cascade.widths_of(table)[tag.variant], reader, n, bits)
        return x, f"cascade{'2' if tag.extended else ''}/{tag.variant}{found}"
    if name == "entropy":
        x, found = entropy.decode(params, reader, n, bits + tag.variant)
    else:
        x, found = modal.decode(params, tag.variant, reader, n, bits)
    return x, f"{name}/{tag.variant}{found}"


def _decode_zeros(
    tag: Tag, kind_params: bytes, reader: Reader, n: int, layout: Layout, profile: str
) -> tuple[U64, str]:
    params = zeros.parse(kind_params, n, layout)
    kept, coding = np.empty(0, np.uint64), "none"
    if params.num_kept:
        inner = reader.take(params.inner_nbytes)
        without, stored = ("zeros", "parts", "scaled"), params.inner_stored
        kept, coding = decode_block(inner, params.num_kept, layout, profile, stored=stored, without=without)
    words = zeros.decode(params, tag.variant, reader, n, kept, layout)
    return words, f"zeros/{tag.variant}(signs={params.signs},{coding})"


def _decode_scaled(tag: Tag, kind_params: bytes, reader: Reader, n: int, profile: str) -> tuple[U64, str]:
    params = scaled.parse(kind_params, n)
    layout, inner = scaled.LAYOUTS_OF_CODES[tag.variant], reader.take(params.inner_nbytes)
    codes, coding = decode_block(
        inner, n, layout, profile, stored=params.inner_stored, without=("zeros", "parts", "scaled")
    )
    words = scaled.decode(params, tag.variant, reader, codes)
    return words, f"scaled/{tag.variant}(width={params.width},num_scales={params.num_scales},{coding})"


def _decode_parts(
    params: bytes, reader: Reader, n: int, layout: Layout, profile: str, base: U64 | None
) -> tuple[U64, str]:
    words, codings = np.empty(n, np.uint64), []
    for part in parts.parse(params, n, len(reader.rest()), layout, relative=base is not None):
        of_base = None if base is None else base[part.words]
        if of_base is not None and part.nbytes == 0:
            words[part.words], coding = of_base, "same"
        else:
            size, block = part.words.stop - part.words.start, reader.take(part.nbytes)
            words[part.words], coding = decode_block(
                block, size, layout, profile, of_base, stored=part.stored, without=("parts",)
            )
        codings.append(coding)
    return words, f"parts({';'.join(codings)})"
