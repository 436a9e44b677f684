"""ctypes binding of core/include/tensorwire.h, which documents the calls, and nothing else.

Arguments become C values, a status becomes an exception. Buffers go by address through the buffer protocol, so no copy
is made and NumPy is not needed. ctypes.CDLL releases the GIL for the length of a call.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Sequence

from ..._ground.library import find_library
from ...errors import (
    CorruptDataError,
    DoesNotFit,
    FormatError,
    LimitExceededError,
    TruncatedDataError,
    UnsupportedVersionError,
)
from ..view.arrays import MAX_NDIM
from ..view.buffers import Pin, pin_if_given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Buffer

PROFILES = ("enec", "fast", "compact", "resident")
FIXED_HEADER_NBYTES = 128
SHAPED_HEADER_NBYTES = 640  # with the longest shape
_HEADER_NBYTES_FIELD = slice(56, 64)
LEAF_NBYTES = 131072
BASE_RELATIVE = 1

_OK = 0
_TRUNCATED = 2
_INVALID_ARGUMENT = 5
_NO_MEMORY = 6
_BUFFER_TOO_SMALL = 7
_FORMAT_ERRORS: dict[int, type[FormatError]] = {
    1: CorruptDataError,
    _TRUNCATED: TruncatedDataError,
    3: UnsupportedVersionError,
    4: LimitExceededError,
}
_NO_BLOCK = 2**64 - 1
_HASH_NBYTES = 16
VERIFY = 1
_KNOWN_BASE, _REPLACE_BASE = 2, 4


class Error(ctypes.Structure):
    """tw_error"""

    _fields_ = [("block", ctypes.c_uint64), ("byte", ctypes.c_uint64), ("message", ctypes.c_char * 240)]


class Layout(ctypes.Structure):
    """tw_layout"""

    _fields_ = [(name, ctypes.c_uint8) for name in ("word_nbytes", "exponent_bits", "rest_bits", "split", "ordered")]


class Form(ctypes.Structure):
    """tw_form"""

    _fields_ = [
        ("layout", Layout),
        ("block_words", ctypes.c_uint32),
        ("block_alignment", ctypes.c_uint32),
        ("frame_alignment", ctypes.c_uint32),
        ("padding_nbytes", ctypes.c_uint32),
        ("extensions_nbytes", ctypes.c_uint64),
    ]


class Frame(ctypes.Structure):
    """tw_frame"""

    _fields_ = [
        ("shape", ctypes.c_uint64 * MAX_NDIM),
        ("uncompressed_nbytes", ctypes.c_uint64),
        ("num_words", ctypes.c_uint64),
        ("num_blocks", ctypes.c_uint64),
        ("extensions_nbytes", ctypes.c_uint64),
        ("header_nbytes", ctypes.c_uint64),
        ("data_nbytes", ctypes.c_uint64),
        ("frame_nbytes", ctypes.c_uint64),
        ("content_hash", ctypes.c_uint8 * 16),
        ("base_hash", ctypes.c_uint8 * 16),
        ("padding_nbytes", ctypes.c_uint32),
        ("bits", ctypes.c_uint32),
        ("block_words", ctypes.c_uint32),
        ("ndim", ctypes.c_uint32),
        ("profile", ctypes.c_uint32),
        ("features", ctypes.c_uint32),
        ("block_alignment", ctypes.c_uint32),
        ("frame_alignment", ctypes.c_uint32),
        ("layout", Layout),
        ("dtype", ctypes.c_char * 20),
    ]


class BlockInfo(ctypes.Structure):
    """tw_block_info"""

    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("rest_nbytes", ctypes.c_uint64),
        ("kind_nbytes", ctypes.c_uint64),
        ("num_words", ctypes.c_uint32),
        ("kind", ctypes.c_uint8),
        ("rest", ctypes.c_uint8),
        ("variant", ctypes.c_uint8),
        ("extended", ctypes.c_uint8),
    ]


class Leaves(ctypes.Structure):
    """tw_leaves of content of `nbytes` bytes; `hashes` has 16 bytes for each leaf once all is encoded."""

    _fields_ = [("_hashes", ctypes.c_void_p), ("_state", ctypes.c_uint64 * 48)]

    def __init__(self, nbytes: int) -> None:
        self.hashes = ctypes.create_string_buffer(16 * -(-nbytes // LEAF_NBYTES))
        super().__init__(_hashes=ctypes.addressof(self.hashes))


_library = ctypes.CDLL(str(find_library("tensorwire", "_tensorwire.so")))


def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A call of the C ABI. Given a tw_error as its last argument, it raises the exception that its status means."""
    function = _library[name]
    function.restype = result
    function.argtypes = arguments
    if arguments and arguments[-1] is _error:
        function.errcheck = _check
    return function


def _check(status: Any, _: object, arguments: Any) -> Any:
    error: Error | None = arguments[-1]
    if status == _OK or error is None:
        return status
    message = error.message.decode("utf-8", "replace")
    if status in _FORMAT_ERRORS:
        raise _FORMAT_ERRORS[status](message, block=None if error.block == _NO_BLOCK else error.block, byte=error.byte)
    if status == _NO_MEMORY:
        raise MemoryError(message)
    if status == _BUFFER_TOO_SMALL:
        raise DoesNotFit(message)
    if status == _INVALID_ARGUMENT:
        raise ValueError(message)
    raise SystemError(f"the core returned status {status}, which this binding does not know: {message}")


_u32, _u64, _address, _text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
_frame, _error, _form = ctypes.POINTER(Frame), ctypes.POINTER(Error), ctypes.POINTER(Form)
_u64_out = ctypes.POINTER(_u64)

_version = function("tw_version", _text)
_cpu_target = function("tw_cpu_target", _text)
_frame_init = function(
    "tw_frame_init", ctypes.c_int, _frame, _text, _u32, _address, _u32, _u32, _form, _text, _error,
)  # fmt: skip
frame_bound: Callable[[Frame], int] = function("tw_frame_bound", _u64, _frame)
"""The most bytes that a whole frame can take."""
data_bound: Callable[[Frame, int], int] = function("tw_data_bound", _u64, _frame, _u64)
"""The most bytes that the blocks of so many bytes of content, from the start of a block on, can take."""
_compress = function("tw_compress", ctypes.c_int, _frame, _address, _u64, _address, _address, _u64, _u32, _u32, _error)
_encode_blocks = function(
    "tw_encode_blocks", ctypes.c_int, _frame, _u64, _address, _u64, _address, _u64, _address, _u64, _u64_out, _address,
    ctypes.POINTER(Leaves), ctypes.POINTER(Leaves), _u32, _error,
)  # fmt: skip
_encode_header = function("tw_encode_header", ctypes.c_int, _frame, _u64, *4 * [_address], _error)
_decode_fixed = function("tw_decode_fixed", ctypes.c_int, _address, _u64, _frame, _error)
_decode_header = function("tw_decode_header", ctypes.c_int, _address, _u64, _frame, _error)
_block_range = function("tw_block_range", ctypes.c_int, _frame, _address, _u64, _u64, _u64_out, _u64_out, _error)
decode_at = function(
    "tw_decode", ctypes.c_int, _frame, _address, _address, _u64, _u64, _address, _u64, _u64, _u64, _u64, _address,
    _u32, _address, _u32, _address, _error,
)  # fmt: skip
_decode_and_hash = function(
    "tw_decode_and_hash", ctypes.c_int, _frame, *2 * [_address], *2 * [_u64, _address], _u32, *2 * [_address], _error
)  # fmt: skip
_hash_leaves = function("tw_hash_leaves", None, _address, _u64, _address, _u32)
_hash_root = function("tw_hash_root", None, _u64, _address, _address)
_find_dtype = function("tw_find_dtype", ctypes.c_int, _text, ctypes.POINTER(_u32), ctypes.POINTER(Layout))
_exponent_histogram = function("tw_exponent_histogram", ctypes.c_int, _text, _address, _u64, _u64_out)
_block_infos = function(
    "tw_block_infos", ctypes.c_int, _frame, _address, _address, _u64, _u64, _u64, _u64, ctypes.POINTER(BlockInfo),
    _error,
)  # fmt: skip


def version() -> str:
    """Version of the library."""
    return str(_version(), "ascii")


def cpu_target() -> str:
    """ "scalar", "avx2", "avx512" or "neon": what runs here."""
    return str(_cpu_target(), "ascii")


def _check_forced_target() -> None:
    """Warn of a TENSORWIRE_CPU that the library ignores: a name that is unknown, or a target that this CPU lacks."""
    forced = os.environ.get("TENSORWIRE_CPU")
    if forced and forced != cpu_target():
        warnings.warn(
            f"TENSORWIRE_CPU is {forced!r}, which is not a target of this CPU: {cpu_target()} runs; "
            "expected scalar, avx2, avx512 or neon",
            RuntimeWarning,
            stacklevel=2,
        )


_check_forced_target()


def claimed_header_size(src: memoryview) -> int:
    """What a header says of its own size, if it says so; nothing is checked."""
    return int.from_bytes(src[_HEADER_NBYTES_FIELD], "little")


def header_size(src: Buffer) -> int:
    """Size of the header, of which `src` may hold only the first FIXED_HEADER_NBYTES."""
    frame = Frame()
    with Pin(src) as source:
        status = _decode_fixed(source.address, source.nbytes, frame, None)
    if status not in (_OK, _TRUNCATED) or frame.header_nbytes == 0:
        frame = decode_fixed(src)  # which raises what is wrong
    # The shape stands in the header, even behind the size that this claims: decoding then finds that it is too small.
    return int(max(frame.header_nbytes, FIXED_HEADER_NBYTES + 8 * frame.ndim))


def frame_init(
    dtype: str, bits: int, shape: Sequence[int], profile: int, form: Form | None = None, base_hash: bytes | None = None
) -> Frame:
    """The frame of a tensor that is still to be encoded. All numbers must fit their C types."""
    if base_hash is not None and len(base_hash) != _HASH_NBYTES:
        raise ValueError(f"expected a base's hash of {_HASH_NBYTES} bytes, got {len(base_hash)}")
    if not dtype.isascii() or "\0" in dtype:
        raise ValueError(f"expected a dtype of 1 to 16 characters A-Z, 0-9 and _, got {dtype!r}")
    frame = Frame()
    sizes = (_u64 * len(shape))(*shape)
    _frame_init(frame, dtype.encode(), bits, sizes, len(shape), profile, form, base_hash, Error())
    return frame


def _check_apart(source: Pin, target: Pin, name: str) -> None:
    if target.overlaps(source):
        raise ValueError(f"the output overlaps {name}: put it into other memory")


def _check_base(base: Buffer | None, origin: Pin, nbytes: int) -> None:
    if base is not None and origin.nbytes != nbytes:
        raise ValueError(f"expected a base of {nbytes} bytes, got {origin.nbytes}")


def compress(
    frame: Frame,
    src: Buffer,
    dst: Buffer,
    threads: int,
    base: Buffer | None = None,
    *,
    known_base: bool = False,
    replace_base: bool = False,
) -> None:
    """The whole frame to `dst`, which must be apart from `src` and `base`; completes `frame`. DoesNotFit if it is
    larger, and `dst` may then hold anything. With `known_base` it has
    the base's hash. With `replace_base` that is writable memory, apart from `src` too, and becomes the content."""
    flags = (_KNOWN_BASE if known_base else 0) | (_REPLACE_BASE if replace_base else 0)
    with (
        Pin(src) as source,
        pin_if_given(base, writable=replace_base) as origin,
        Pin(dst, writable=True) as target,
    ):
        _check_apart(source, target, "the array")
        _check_apart(origin, target, "the base")
        _check_base(base, origin, source.nbytes)
        _compress(
            frame, source.address, source.nbytes, origin.address, target.address, target.nbytes, threads, flags,
            Error(),
        )  # fmt: skip


def check_apart(output: Buffer, *others: tuple[Buffer | None, str]) -> None:
    """Raise ValueError if the output shares memory with another buffer; each has a name for the message."""
    with Pin(output, writable=True) as target:
        for other, name in others:
            with pin_if_given(other) as origin:
                _check_apart(origin, target, name)


def encode_blocks(
    frame: Frame,
    first_byte: int,
    src: Buffer,
    data_offset: int,
    dst: Buffer,
    index: Buffer,
    leaves: Leaves,
    threads: int,
    base: Buffer | None = None,
    base_leaves: Leaves | None = None,
) -> int:
    """The next chunk of content to blocks; returns their size. `base` has the same bytes of the base."""
    written = _u64()
    with (
        Pin(src) as source,
        pin_if_given(base) as origin,
        Pin(dst, writable=True) as target,
        Pin(index, writable=True) as entries,
    ):
        _check_base(base, origin, source.nbytes)
        _encode_blocks(
            frame, first_byte, source.address, source.nbytes, origin.address, data_offset, target.address,
            target.nbytes, written, entries.address, leaves, base_leaves, threads, Error(),
        )  # fmt: skip
    return written.value


def encode_header(
    frame: Frame, data_nbytes: int, index: Buffer, leaves: Buffer, extensions: Buffer, dst: Buffer
) -> None:
    """The header to `dst`, at most `frame.header_nbytes` bytes; completes `frame`, which then says how many."""
    with (
        Pin(index) as entries,
        Pin(leaves) as hashes,
        Pin(extensions) as records,
        Pin(dst, writable=True) as target,
    ):
        if target.nbytes < frame.header_nbytes or records.nbytes != frame.extensions_nbytes:
            raise ValueError(
                f"expected room for {frame.header_nbytes} bytes of header and {frame.extensions_nbytes} bytes of "
                f"extensions, got {target.nbytes} and {records.nbytes}"
            )
        _encode_header(frame, data_nbytes, entries.address, hashes.address, records.address, target.address, Error())


def decode_fixed(src: Buffer) -> Frame:
    """What the fixed part of a header and the shape say, once checked."""
    frame = Frame()
    with Pin(src) as source:
        _decode_fixed(source.address, source.nbytes, frame, Error())
    return frame


def decode_header(src: bytes) -> Frame:
    """The same, once index and extensions are checked as well."""
    frame = Frame()
    _decode_header(src, len(src), frame, Error())
    return frame


def block_range(frame: Frame, header: bytes, start: int, stop: int) -> tuple[int, int]:
    """The bytes of the blocks that content bytes [start, stop) need, counted from the first block."""
    data_start, data_stop = _u64(), _u64()
    _block_range(frame, header, start, stop, data_start, data_stop, Error())
    return data_start.value, data_stop.value


def decode(
    frame: Frame, header: bytes, data: Buffer, data_offset: int, start: int, stop: int, dst: Buffer, threads: int,
    verify: bool, base: Buffer | None = None, base_offset: int = 0, parallel: int | None = None,
) -> None:  # fmt: skip
    """Content bytes [start, stop) to `dst`, which must be apart from `data`.

    `base` has the content of the base from `base_offset` on. `dst` may be its memory for [start, stop) if those are
    whole blocks. `parallel` is the address of a tw_parallel.
    """
    with Pin(data) as source, pin_if_given(base) as origin, Pin(dst, writable=True) as target:
        if target.nbytes != stop - start:
            raise ValueError(f"expected an output of {stop - start} bytes, got {target.nbytes}")
        _check_apart(source, target, "the compressed data")
        decode_at(
            frame, header, source.address, data_offset, source.nbytes, origin.address, base_offset, origin.nbytes,
            start, stop, target.address, threads, parallel, VERIFY if verify else 0, None, Error(),
        )  # fmt: skip


def decode_and_hash(
    frame: Frame, header: bytes, data: Buffer, dst: Buffer, threads: int, base: Buffer, *, hash_base: bool
) -> tuple[bytes, bytes | None]:
    """All content of a relative frame to `dst`; the content hashes of what was written and, on request, of `base`."""
    content_hash = ctypes.create_string_buffer(_HASH_NBYTES)
    base_hash = ctypes.create_string_buffer(_HASH_NBYTES) if hash_base else None
    with Pin(data) as source, Pin(base) as origin, Pin(dst, writable=True) as target:
        if target.nbytes != frame.uncompressed_nbytes:
            raise ValueError(f"expected an output of {frame.uncompressed_nbytes} bytes, got {target.nbytes}")
        _check_apart(source, target, "the compressed data")
        _decode_and_hash(
            frame, header, source.address, source.nbytes, origin.address, origin.nbytes, target.address, threads,
            content_hash, base_hash, Error(),
        )  # fmt: skip
    return content_hash.raw, None if base_hash is None else base_hash.raw


def hash_leaves(src: Buffer, threads: int) -> ctypes.Array[ctypes.c_char]:
    """Leaf hashes of content that begins at a multiple of LEAF_NBYTES."""
    with Pin(src) as source:
        leaves = ctypes.create_string_buffer(_HASH_NBYTES * -(-source.nbytes // LEAF_NBYTES))
        _hash_leaves(source.address, source.nbytes, leaves, threads)
    return leaves


def hash_root(nbytes: int, leaves: ctypes.Array[ctypes.c_char] | bytes) -> bytes:
    """Content hash of `nbytes` of content from its leaf hashes."""
    root = ctypes.create_string_buffer(_HASH_NBYTES)
    _hash_root(nbytes, leaves, root)
    return root.raw


def find_dtype(name: str) -> tuple[int, Layout] | None:
    """Bits per element and layout of a dtype of the format's table; None for any other name."""
    bits, layout = _u32(), Layout()
    return (bits.value, layout) if _find_dtype(name.encode(), bits, layout) == _OK else None


def exponent_histogram(dtype: str, src: Buffer, counts: Sequence[int]) -> list[int]:
    """`counts` (256 numbers) plus the exponents of `src`."""
    numbers = (_u64 * 256)(*counts)
    with Pin(src) as source:
        status = _exponent_histogram(dtype.encode(), source.address, source.nbytes, numbers)
    if status != _OK:
        raise ValueError(f"expected a dtype with an exponent and whole elements, got {dtype!r}")
    return list(numbers)


def block_infos(frame: Frame, header: bytes, data: Buffer, data_offset: int, first: int, count: int) -> list[BlockInfo]:
    """Facts of blocks [first, first + count)."""
    infos = (BlockInfo * max(count, 1))()
    with Pin(data) as source:
        _block_infos(frame, header, source.address, data_offset, source.nbytes, first, count, infos, Error())
    return list(infos[:count])
