"""Decode frames where they will be used: a small decoder in Triton, to prove that the format suits devices.

The host reads the header, the index and the last 32 bytes of each block, where the descriptor stands, and checks that
the streams they announce fill the block. Blocks of one coding, its parameters included, share a launch of a kernel
compiled for these constants, one program for each block.

docs/devices.md says what was proven, and on what. With TRITON_INTERPRET=1 in the environment, before Triton is first
imported, the kernels run on tensors in CPU memory.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch

from ..codec import FloatFields, FrameReader, float_fields, torch_name
from ..errors import CorruptDataError, TruncatedDataError, UnsupportedTensorError
from .triton_kernels import cascade_kernel, constant_kernel, enec_kernel, stored_kernel

__all__ = ["decode_frame"]

_SEGMENT = 1024  # words that a program decodes at a time: 8 for each thread of 4 warps
_DESCRIPTOR_NBYTES = 32  # blocks are multiples of this, and no descriptor of the kinds below is longer
_CONSTANT, _ENEC, _CASCADE, _EXTENDED = 1, 2, 3, 7
_EXTENDED_CASCADE = 1
_OTHER_KINDS = {4: "entropy", 5: "plain", 6: "zeros"}
_OTHER_EXTENDED_KINDS = {2: "modal"}
_TIER_WIDTHS = (
    (2, 2, 3), (2, 2, 2, 3), (2, 1, 2, 2, 2), (2, 1, 1, 2, 3), (1, 2, 3), (1, 1, 1, 3), (3, 3), (1,)
)  # fmt: skip
_EXTENDED_TIER_WIDTHS = ((4,), (3,), (4, 3, 3, 3), (3, 2, 2, 2), (1, 1, 1, 2, 2), (2, 1, 1, 1, 2))
_MOST_TIERS = 5
_PER_RUN = 255


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class _Block(NamedTuple):
    """A block. `position` and `nbytes` are those of its bytes in the frame, `tail` is the last 32 of them."""

    ordinal: int
    first_word: int
    num_words: int
    position: int
    nbytes: int
    tail: bytes

    def corrupt(self, message: str) -> CorruptDataError:
        return CorruptDataError(message, block=self.ordinal, byte=self.position)

    def unsupported(self, what: str) -> UnsupportedTensorError:
        return UnsupportedTensorError(
            f"expected blocks stored, constant, enec or cascade with sign_mantissa in one field, got {what}",
            block=self.ordinal,
            byte=self.position,
            advice="decode it on the CPU with tensorwire.decompress",
        )

    def place(self, stream_nbytes: list[int], params_nbytes: int) -> list[int]:
        """Positions in the frame of streams of these sizes, which together must fill the block."""
        positions, end = [], self.position
        for nbytes in stream_nbytes:
            positions.append(end)
            end += nbytes
        needed = -(-(end - self.position + params_nbytes + 1) // 32) * 32
        if needed != self.nbytes:
            raise self.corrupt(f"expected a block of {needed} bytes by its descriptor, got {self.nbytes}")
        return positions


class _Launch(NamedTuple):
    """What blocks have in common that are decoded together: a kernel, and its constants but for the last."""

    kernel: Any
    constants: tuple[int, ...]


def decode_frame(frame: torch.Tensor) -> torch.Tensor:
    """Decode one frame on the device that holds it.

    The checksum of header and index is checked, those of the blocks are not: damaged blocks may decode to wrong values,
    but nothing is read outside the frame or written outside the result. The kernels are launched on the current stream
    and not waited for. Thread-safe.

    Args:
        frame: exactly one plain frame: a contiguous one-dimensional tensor of uint8, on the current device (on the CPU
            only with TRITON_INTERPRET=1), at an address that is a multiple of 4. Its dtype is BF16, F16, F32, F8_E4M3
            or F8_E5M2; its blocks are stored, constant, enec or cascade, with sign_mantissa verbatim or trimmed alike
            in the whole block.

    Returns:
        A new tensor on the same device.

    Raises:
        UnsupportedTensorError: the frame has another dtype, needs a base, or has a block of another kind; the message
            names it.
        CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError: the frame is not valid.
        ValueError: `frame` is not a tensor of that kind.
    """
    if frame.dtype != torch.uint8 or frame.dim() != 1 or not frame.is_contiguous() or frame.data_ptr() % 4:
        raise ValueError(
            "expected a contiguous tensor of uint8 with one dimension, at a multiple of 4 bytes, "
            f"got {frame.dtype}, shape {tuple(frame.shape)}, strides {frame.stride()}, address {frame.data_ptr():#x}"
        )
    reader = _open(frame)
    info = reader.info
    fields = float_fields(info.dtype)
    name = torch_name(info.dtype)
    if fields is None or name is None:
        raise UnsupportedTensorError(f"expected dtype BF16, F16, F32, F8_E4M3 or F8_E5M2, got {info.dtype}")
    if info.base_hash is not None:
        raise UnsupportedTensorError(
            "expected a plain frame, got one that is relative to a base",
            advice="decode it on the CPU: tensorwire.decompress(frame, base=...)",
        )
    word = _WORDS[info.bits // 8]
    launches: dict[_Launch, list[list[int]]] = {}
    for block in _blocks(frame, reader, word.itemsize):
        launch, row = _plan(block, word.itemsize, fields)
        launches.setdefault(launch, []).append(row)

    words = torch.empty(info.uncompressed_nbytes // word.itemsize, dtype=word, device=frame.device)
    for (kernel, constants), rows in launches.items():
        table = torch.tensor(rows, dtype=torch.int64, device=frame.device)
        kernel[(len(rows),)](frame, table, words, *constants, _SEGMENT)
    result: torch.Tensor = words.view(getattr(torch, name)).reshape(info.shape)
    return result


def _host(part: torch.Tensor) -> bytes:
    data: bytes = part.cpu().numpy().tobytes()
    return data


def _open(frame: torch.Tensor) -> FrameReader:
    """Check header, index and size."""
    header_nbytes = FrameReader.header_size(_host(frame[: FrameReader.MIN_HEADER_NBYTES]))
    reader = FrameReader(_host(frame[:header_nbytes]))
    expected, got = reader.info.frame_nbytes, len(frame)
    if got < expected:
        raise TruncatedDataError(f"expected a frame of {expected} bytes, got {got}", byte=got)
    if got > expected:
        raise CorruptDataError(f"expected a frame of {expected} bytes, got {got}", byte=expected)
    return reader


def _blocks(frame: torch.Tensor, reader: FrameReader, word_nbytes: int) -> list[_Block]:
    info = reader.info
    content_nbytes = info.block_words * word_nbytes
    spans = []
    for start in range(0, info.uncompressed_nbytes, content_nbytes):
        stop = min(start + content_nbytes, info.uncompressed_nbytes)
        lo, hi = reader.data_range(start, stop)
        spans.append((start // word_nbytes, (stop - start) // word_nbytes, info.header_nbytes + lo, hi - lo))
    ends = torch.tensor([position + nbytes for _, _, position, nbytes in spans], dtype=torch.int64, device=frame.device)
    steps = torch.arange(-_DESCRIPTOR_NBYTES, 0, device=frame.device)
    tails = _host(frame[ends[:, None] + steps[None, :]])
    return [
        _Block(k, *span, tails[k * _DESCRIPTOR_NBYTES : (k + 1) * _DESCRIPTOR_NBYTES]) for k, span in enumerate(spans)
    ]


def _plan(block: _Block, word_nbytes: int, fields: FloatFields) -> tuple[_Launch, list[int]]:
    """The launch that decodes a block, and the block's row of its table."""
    stored_nbytes = -(-block.num_words * word_nbytes // 32) * 32
    head = [block.first_word, block.num_words]
    if block.nbytes > stored_nbytes:
        raise block.corrupt(f"expected a block of at most {stored_nbytes} bytes, got {block.nbytes}")
    if block.nbytes == stored_nbytes:
        return _Launch(stored_kernel, ()), [*head, block.position]

    kind, rest, variant = block.tail[-1] & 7, block.tail[-1] >> 3 & 3, block.tail[-1] >> 5
    if kind in _OTHER_KINDS:
        raise block.unsupported(f"one of kind {_OTHER_KINDS[kind]}")
    if kind == 0 or (kind == _EXTENDED and block.tail[-2] != _EXTENDED_CASCADE):
        name = _OTHER_EXTENDED_KINDS.get(block.tail[-2]) if kind == _EXTENDED else None
        raise block.unsupported(
            "one of a kind that this version does not know" if name is None else f"one of kind {name}"
        )
    if kind == _CONSTANT:
        block.place([], word_nbytes)
        word = int.from_bytes(block.tail[-1 - word_nbytes : -1], "little")
        return _Launch(constant_kernel, ()), [*head, word]
    if kind == _ENEC:
        name, params = "enec", block.tail[-5:-1]
    else:
        name, end = ("cascade2", -2) if kind == _EXTENDED else ("cascade", -1)
        params = block.tail[end - 13 : end]
    params_nbytes = len(params) + (kind == _EXTENDED)
    sign_mantissa_bits, trail, rest_params_nbytes = _plan_rest(block, name, rest, params_nbytes, fields)
    shared = (fields.exponent_bits, fields.mantissa_bits, sign_mantissa_bits, trail)
    params_nbytes += rest_params_nbytes
    sign_mantissa_nbytes = _field_size(block.num_words, sign_mantissa_bits)
    if kind == _ENEC:
        return _plan_enec(block, params, variant, shared, sign_mantissa_nbytes, params_nbytes)
    shapes = _EXTENDED_TIER_WIDTHS if kind == _EXTENDED else _TIER_WIDTHS
    if variant >= len(shapes):
        raise block.corrupt(f"expected a variant of cascade below {len(shapes)}, got {variant}")
    return _plan_cascade(block, params, shapes[variant], shared, sign_mantissa_nbytes, params_nbytes)


def _plan_rest(block: _Block, kind: str, rest: int, end: int, fields: FloatFields) -> tuple[int, int, int]:
    """Bits of sign_mantissa that are stored, zeros below them, size of the parameters, `end` bytes before the tag."""
    bits = fields.mantissa_bits + 1
    if rest == 0:
        return bits, 0, 0
    if rest > 1:
        raise block.unsupported(f"one of kind {kind} with sign_mantissa in bytes")
    lead, trail = block.tail[-3 - end : -1 - end]
    if trail == _PER_RUN:
        raise block.unsupported(f"one of kind {kind} with sign_mantissa trimmed run by run")
    if lead + trail > bits:
        raise block.corrupt(f"expected sign_mantissa of {bits} bits, got {lead} and {trail} to trim")
    return bits - lead - trail, trail, 2


def _plan_enec(
    block: _Block, params: bytes, variant: int, shared: tuple[int, ...], sign_mantissa_nbytes: int, params_nbytes: int
) -> tuple[_Launch, list[int]]:
    b, m, nb, num_high = params[0], params[1] >> 4, params[1] & 15, int.from_bytes(params[2:], "little")
    if not (2 <= variant <= 5 and 1 <= m < nb <= shared[0]):
        raise block.corrupt(f"expected parameters of enec for {shared[0]} bits, got m {m}, nb {nb}, variant {variant}")
    n, group = block.num_words, 1 << variant
    sizes = [sign_mantissa_nbytes, _field_size(n, m), _field_size(-(-n // group), 1), _field_size(num_high, nb - m)]
    positions = block.place(sizes, params_nbytes)
    return _Launch(enec_kernel, (*shared, group, m, nb)), [block.first_word, n, *positions, num_high, b]


def _plan_cascade(
    block: _Block,
    params: bytes,
    widths: tuple[int, ...],
    shared: tuple[int, ...],
    sign_mantissa_nbytes: int,
    params_nbytes: int,
) -> tuple[_Launch, list[int]]:
    lo, packed, *counts = struct.unpack(f"<BH{_MOST_TIERS}H", params)
    below = [packed >> 4 * k & 15 for k in range(_MOST_TIERS - 1)]
    begin, end, tiers = lo, lo, []  # the tiers so far name [begin, end)
    for w, a in zip(widths, (0, *below), strict=False):
        c = (1 << w) - 1
        if a > c:
            raise block.corrupt(f"expected a tier with at most {c} exponents below the others, got {a}")
        tiers.append((begin - a, a, end - begin))
        begin, end = begin - a, end + c - a
    if begin < 0 or end > 1 << shared[0]:
        raise block.corrupt(f"expected tiers that name exponents of {shared[0]} bits, got {begin} to {end - 1}")
    if any(below[len(widths) - 1 :]) or any(counts[len(widths) :]):
        raise block.corrupt(f"expected zeros where a cascade of {widths} has no parameters")

    n, widths, tiers = block.num_words, (*widths, 8), [*tiers, (0, 0, 0)]  # bytes name exponents 0 to 255
    numbers = [n, *counts[: len(widths) - 1]]
    sizes = [sign_mantissa_nbytes, *(_field_size(count, w) for count, w in zip(numbers, widths, strict=True))]
    sign_mantissa, *positions = block.place(sizes, params_nbytes)
    row = [block.first_word, n, sign_mantissa]
    for position, count, tier in zip(positions, numbers, tiers, strict=True):
        row += [position, count, *tier]
    packed_widths = sum(w << 4 * k for k, w in enumerate(widths))
    return _Launch(cascade_kernel, (*shared, packed_widths, len(widths))), row


def _field_size(count: int, w: int) -> int:
    """Bytes of a field of `count` numbers of `w` bits."""
    return sum((count * p + 31) // 32 * 4 for p in (16, 8, 4, 2, 1) if w & p)
