"""A decoder for frames of version 0, written from docs/format.md. It checks every rule of that page."""

from dataclasses import dataclass

import numpy as np

from . import cascade, enec, entropy, rests
from .errors import CorruptDataError, TruncatedDataError, require
from .hashes import content_hash, h128
from .header import ALIGNMENT, UNIT, Dtype, ceil_to, parse_header
from .planes import U64, Reader
from .words import from_words, join, rest_width, to_words

PLAIN = 5
ZERO_GROUPS = 6
CONSTANT = 1
# Profiles in which a kind is allowed, and its rest coders there: (in enec and fast, in compact).
_RESTS = {
    CONSTANT: ((0,), (0,)),
    enec.Enec.code: ((0, 1), (0, 1, 2)),
    cascade.Cascade.code: ((0, 1), (0, 1, 2)),
    entropy.Entropy.code: ((), (0, 1, 2)),
    PLAIN: ((1,), (1, 2)),
    ZERO_GROUPS: ((0,), (0,)),
}
_NOT_IN_ENEC = (cascade.Cascade.code, ZERO_GROUPS)


@dataclass(frozen=True)
class Frame:
    """A decoded frame. `codings` names the coding of each block, for tests and for people."""

    dtype: str
    shape: tuple[int, ...]
    bits: int
    data: bytes
    profile: str
    block_log2: int
    codings: tuple[str, ...]


def decode(frame: bytes) -> Frame:
    """Decode exactly one frame. Raises one of the errors in `errors`."""
    header, index = parse_header(frame)
    blocks_end = header.header_nbytes + header.data_nbytes
    frame_end = ceil_to(blocks_end, ALIGNMENT)
    if len(frame) < frame_end:
        raise TruncatedDataError(f"the frame has {frame_end} bytes, of which {len(frame)} are here")
    require(len(frame) == frame_end, f"{len(frame) - frame_end} bytes follow the frame")
    require(not any(frame[blocks_end:]), "padding behind the blocks is set")

    starts = [header.header_nbytes + UNIT * offset for offset, _ in index] + [blocks_end]
    parts, codings = [], []
    for i, (_, checksum) in enumerate(index):
        block = frame[starts[i] : starts[i + 1]]
        require(h128(block)[:4] == checksum.to_bytes(4, "little"), f"the checksum of block {i} does not match")
        try:
            words, coding = decode_block(block, header.block_words(i), header.dtype, header.profile)
        except CorruptDataError as error:
            raise CorruptDataError(f"block {i}: {error}") from None
        parts.append(words)
        codings.append(coding)
    data = b"".join(from_words(words, header.dtype) for words in parts)
    require(content_hash(data) == header.content_hash, "the content hash does not match")
    return Frame(
        header.dtype.name, header.shape, header.dtype.bits, data, header.profile, header.block_log2, tuple(codings)
    )


def decode_block(block: bytes, n: int, dtype: Dtype, profile: str, inner: bool = False) -> tuple[U64, str]:
    """The `n` words of a block, and the name of its coding. `inner` says that it stands in a zero_groups block."""
    raw = ceil_to(n * dtype.word_nbytes, UNIT)
    require(len(block) <= raw, f"a block of {n} words has at most {raw} bytes, not {len(block)}")
    if len(block) == raw:
        require(not any(block[n * dtype.word_nbytes :]), "padding of a stored block is set")
        return to_words(block[: n * dtype.word_nbytes], dtype), "stored"

    tag = block[-1]
    kind, rest, variant = tag & 7, tag >> 3 & 3, tag >> 5
    _check_tag(kind, rest, variant, dtype, profile, inner)
    k = variant if kind == entropy.Entropy.code else 0
    width = 8 * dtype.word_nbytes if kind == PLAIN else rest_width(dtype, k)
    kind_nbytes = {
        CONSTANT: dtype.word_nbytes,
        enec.Enec.code: enec.PARAMS_NBYTES,
        cascade.Cascade.code: cascade.PARAMS_NBYTES,
        entropy.Entropy.code: entropy.PARAMS_NBYTES,
        PLAIN: 0,
        ZERO_GROUPS: 6,
    }[kind]
    rest_nbytes = rests.params_nbytes(rest, width)
    descriptor_nbytes = rest_nbytes + kind_nbytes + 1
    require(descriptor_nbytes <= len(block), f"a block of {len(block)} bytes, its descriptor {descriptor_nbytes}")
    descriptor = block[len(block) - descriptor_nbytes : -1]
    rest_params, kind_params = descriptor[:rest_nbytes], descriptor[rest_nbytes:]
    reader = Reader(block[: len(block) - descriptor_nbytes])

    if kind == CONSTANT:
        words = np.full(n, to_words(kind_params, dtype)[0], np.uint64)
        coding = "constant"
    elif kind == ZERO_GROUPS:
        words, coding = _decode_zero_groups(kind_params, variant, reader, n, dtype, profile)
    else:
        rest_values, rest_coding = rests.decode_rest(rest, rest_params, reader, n, width)
        if kind == PLAIN:
            words, coding = rest_values, "plain"
        else:
            module = {enec.Enec.code: enec, cascade.Cascade.code: cascade, entropy.Entropy.code: entropy}[kind]
            x, coding = module.decode(kind_params, variant, reader, n, dtype.exponent_bits + k)
            words = join(x, rest_values, dtype, k)
        coding = f"{coding}+{rest_coding}"
    padding = reader.rest()
    require(len(padding) < UNIT and not any(padding), f"{len(padding)} bytes of padding, or some of them set")
    return words, coding


def _check_tag(kind: int, rest: int, variant: int, dtype: Dtype, profile: str, inner: bool) -> None:
    require(kind in _RESTS, f"kind {kind}")
    require(rest in _RESTS[kind][profile == "compact"], f"kind {kind} with rest {rest} in profile {profile}")
    require(profile != "enec" or kind not in _NOT_IN_ENEC, f"kind {kind} in profile enec")
    if kind in (CONSTANT, PLAIN):
        require(variant == 0, f"kind {kind}: variant {variant}")
    elif kind == ZERO_GROUPS:
        require(not inner, "zero_groups inside zero_groups")
    else:
        require(dtype.exponent_bits > 0, f"kind {kind} needs floats, not {dtype.name}")
        if kind == entropy.Entropy.code:
            require(variant <= min(3, dtype.mantissa_bits), f"entropy: k {variant}")


def _decode_zero_groups(
    params: bytes, variant: int, reader: Reader, n: int, dtype: Dtype, profile: str
) -> tuple[U64, str]:
    num_words, inner_units = int.from_bytes(params[:4], "little"), int.from_bytes(params[4:], "little")
    require(1 <= num_words <= n, f"zero_groups: num_words {num_words} of {n}")
    inner = reader.take(UNIT * inner_units)
    present = np.repeat(reader.field(-(-n >> variant), 1), 1 << variant)[:n] == 1
    require(int(present.sum()) == num_words, f"zero_groups: num_words {num_words}, the mask says {int(present.sum())}")
    require(inner_units > 0, "zero_groups: no inner block")
    inner_words, coding = decode_block(inner, num_words, dtype, profile, inner=True)
    words = np.zeros(n, np.uint64)
    words[present] = inner_words
    return words, f"zero_groups/{1 << variant}({coding})"
