"""Pages of keys and values to frames and back, in memory that the caller has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isfinite, prod
from numbers import Real
from typing import TYPE_CHECKING, get_args

from .._ground.text import in_a_line
from ..codec import (
    DEFAULT_ALIGNMENT,
    FrameReader,
    Profile,
    blocks_of,
    byte_view,
    check_dtype_name,
    checked_shape,
    compress_bound,
    compress_bytes,
    dtype_bits,
    is_labelled,
    num_threads,
    shape_sizes,
    torch_dtype,
)
from ..errors import CorruptDataError, DoesNotFit
from .transposed import MARK, read_transposed, swapped, transpose

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..torch.device import DevicePages

_ADVICE = "leave the page out of the cache, keep it as it is, or promise less: a larger max_ratio, or none"


class KVCodec:
    """Encode pages of a key-value cache, and decode them.

    A page is any C-contiguous buffer: bytes, a memoryview, a NumPy array, or a tensor of torch on the CPU. What
    `encode` writes is a frame (docs/format.md), with a mark of 32 bytes before it if the page was transposed. It says
    all that is needed to decode it, so the settings of the codec that decodes do not matter. Blocks that do not shrink
    are stored, so a page that cannot be compressed takes its own size and a header.

    Immutable, and safe in any number of threads; the GIL is released while pages are encoded and decoded. A process
    may fork between calls. No memory is allocated for a page, except for a copy of a transposed one.

    Attributes:
        profile, max_ratio, transposed: as they were given.
        threads: how many one call takes.
    """

    def __init__(
        self,
        profile: Profile = "fast",
        *,
        max_ratio: float | None = None,
        transposed: bool = False,
        threads: int | None = 1,
    ) -> None:
        """
        Args:
            profile: "fast" for most uses; "compact" for slow links, smaller and several times slower to encode;
                "resident", whose pages hardly differ in size: it takes 12 bits of a BF16 element.
            max_ratio: the part of its own size that a page may take at most, such as 0.7: for slots of a fixed size.
                What takes more is refused.
            transposed: whether the elements of a channel are coded one after the other, those of all tokens, and not
                those of a token. The last two dimensions of shapes are tokens and channels then. Pages are copied, so
                that is slower.
            threads: how many one call takes; None for all usable cores. A thread takes 512 KiB of a page at a time.

        Raises:
            ValueError: there is no such profile, `max_ratio` is not above 0 and at most 1, or `threads` is no number of
                threads.
            TypeError: an option is of another type, such as the text of a configuration.
        """
        if profile not in get_args(Profile):
            raise ValueError(f"expected one of the profiles {', '.join(get_args(Profile))}, got {profile!r:.60}")
        # The text "false" of a configuration would be true, and turn on what it turns off.
        if not isinstance(transposed, bool):
            raise TypeError(f"expected true or false as transposed, got {transposed!r:.60}")
        for name, value in (("max_ratio", max_ratio), ("threads", threads)):
            if isinstance(value, bool) or not isinstance(value, Real | None):
                raise TypeError(f"expected a number as {name}, got {value!r:.60}")
        if max_ratio is not None and not (isfinite(max_ratio) and 0 < max_ratio <= 1):
            raise ValueError(f"expected a max_ratio above 0 and at most 1, the part of a page's size, got {max_ratio}")
        self.profile: Profile = profile
        self.max_ratio = max_ratio
        self.transposed = transposed
        self.threads = num_threads(threads)

    def __repr__(self) -> str:
        ratio = None if self.max_ratio is None else f"at most {self.max_ratio} of a page"
        return in_a_line(self, self.profile, ratio, "transposed" if self.transposed else None)

    def nbytes(self, dtype: str, shape: Sequence[int]) -> int:
        """The size of a slot for a page: of what `encode` writes at most.

        With `max_ratio` that is this part of the page's own size, rounded down. Without, every page fits: it is the
        page's size and a header.

        Args:
            dtype: name of the elements as in safetensors, e.g. "BF16" or "F8_E4M3".
            shape: sizes of the dimensions.

        Raises:
            ValueError: there is no such dtype, or no such shape.
            TypeError: `dtype` is no name, or `shape` no sequence of whole numbers.
        """
        sizes = shape_sizes(shape)
        dense = _page_nbytes(dtype, sizes, self.transposed)
        if self.max_ratio is not None:
            return int(dense * self.max_ratio)
        bound = compress_bound(dtype=dtype, shape=sizes, profile=self.profile)
        return bound + len(MARK) if self.transposed else bound

    def encode(self, src: Buffer, out: Buffer, dtype: str, shape: Sequence[int]) -> int:
        """Put a page at the front of `out`; return the number of bytes it takes there. What `out` holds behind is
        undefined.

        Args:
            src: the page, of exactly the size that follows from `dtype` and `shape`.
            out: writable and C-contiguous, apart from `src`. `nbytes(dtype, shape)` bytes are always enough.

        Raises:
            DoesNotFit: the page takes more than `out` has, or than `max_ratio` allows. `out` holds anything then.
            ValueError: dtype, shape and the size of `src` do not go together; or a buffer is not contiguous, or `out`
                is read-only or overlaps `src`.
            TypeError: as `nbytes`.
            UnsupportedTensorError: something is no buffer of the CPU.
        """
        sizes = shape_sizes(shape)
        dense = _page_nbytes(dtype, sizes, self.transposed)
        page, target = byte_view(src).data, byte_view(out, writable=True).data
        if len(page) != dense:
            raise ValueError(f"expected a page of {dense} bytes, as {dtype} and {sizes} have, got {len(page)}")
        if self.max_ratio is not None:
            target = target[: int(dense * self.max_ratio)]
        if not self.transposed:
            return self._compress(page, target, dtype, sizes)
        if len(target) < len(MARK):
            raise DoesNotFit(f"expected a page of at most {len(target)} bytes, got a larger one", advice=_ADVICE)
        content = transpose(page, dtype_bits(dtype) // 8, sizes)
        nbytes = self._compress(content, target[len(MARK) :], dtype, swapped(sizes))
        target[: len(MARK)] = MARK
        return len(MARK) + nbytes

    def decode(self, frame: Buffer, out: Buffer, dtype: str | None = None, shape: Sequence[int] | None = None) -> None:
        """Decode a page that any KVCodec has encoded: a trusting reader (docs/format.md).

        Args:
            frame: a buffer that begins with what `encode` wrote: a slot, for example. What is behind is not read.
            out: what to decode into: writable, C-contiguous, exactly the page's size, and apart from `frame`. After an
                error it holds anything.
            dtype, shape: what the page has to be, if they are given.

        Raises:
            CorruptDataError, TruncatedDataError: the bytes are damaged, or not those of a page.
            UnsupportedVersionError, LimitExceededError: this release cannot decode the frame.
            BaseMismatchError: the frame is relative to a base: no page is.
            ValueError: the page has another dtype or shape; or `out` has not its size, is read-only, not contiguous or
                overlaps `frame`.
            UnsupportedTensorError: something is no buffer of the CPU.
        """
        slot, target = byte_view(frame).data, byte_view(out, writable=True).data
        is_transposed = slot[: len(MARK)] == MARK
        if is_transposed:
            slot = slot[len(MARK) :]
        reader = FrameReader(slot)
        blocks = blocks_of(reader, slot)
        if is_transposed:
            _check_page(reader, dtype, shape, transposed=True)
            read_transposed(reader, blocks, target, self.threads)
            return
        if dtype is None or shape is None or not is_labelled(reader, dtype, shape_sizes(shape)):
            _check_page(reader, dtype, shape, transposed=False)
        reader.decode(blocks, target, threads=self.threads)

    def pages(self, dtype: str, shape: Sequence[int]) -> DevicePages:
        """What encodes pages of a cache where the cache is, on a GPU say, and decodes them into it: a frame each, as
        `encode` makes it, all of one size that is known before. `decode` takes these frames, too; their label has one
        dimension, the number of elements.

        Args:
            dtype: of the elements: "BF16", "F16", "F8_E4M3" or "F8_E5M2".
            shape: of a page, of at most 65,536 elements.

        Raises:
            ValueError: the codec has another profile than "resident", or transposes; there is no such dtype or shape;
                or `max_ratio` is less than such frames take.
            UnsupportedTensorError: the dtype is another one.
            ImportError: torch is missing, or older than 2.5.
        """
        if self.profile != "resident" or self.transposed:
            raise ValueError(f'expected a KVCodec("resident") that does not transpose, got {self!r}')
        sizes = shape_sizes(shape)
        dense = _page_nbytes(dtype, sizes, transposed=False)
        from ..torch.device import DevicePages

        words, element = prod(sizes), torch_dtype(dtype, dtype_bits(dtype))
        if self.max_ratio is None:
            return DevicePages(words, element)
        limit, least = int(dense * self.max_ratio), DevicePages(words, element, room=0).frame_nbytes
        if limit < least:
            raise ValueError(
                f"expected a max_ratio of {least / dense:.4f} at least, what frames of {words} elements of {dtype} "
                f"take, got {self.max_ratio}"
            )
        room = (limit - least) // DEFAULT_ALIGNMENT * DEFAULT_ALIGNMENT  # an element that escapes takes a byte
        return DevicePages(words, element, room=min(1.0, room / words))

    def _compress(self, content: memoryview, out: memoryview, dtype: str, sizes: tuple[int, ...]) -> int:
        try:
            return compress_bytes(content, out, dtype=dtype, shape=sizes, profile=self.profile, threads=self.threads)
        except DoesNotFit as error:
            error.advice = _ADVICE
            raise


@lru_cache(256)
def _page_nbytes(dtype: str, sizes: tuple[int, ...], transposed: bool) -> int:
    """The size of a page, if there are such ones."""
    bits = dtype_bits(check_dtype_name(dtype))
    if not bits:
        raise ValueError(f"expected a dtype of safetensors, got {dtype!r}")
    checked_shape(sizes)
    if transposed and (len(sizes) < 2 or bits % 8):
        raise ValueError(f"expected tokens and channels of whole bytes to transpose, got {dtype} and {sizes}")
    return -(-prod(sizes) * bits // 8)


def _check_page(reader: FrameReader, dtype: str | None, shape: Sequence[int] | None, *, transposed: bool) -> None:
    """Check that a page is one, and the one that is asked for."""
    info = reader.info
    if transposed and (len(info.shape) < 2 or info.bits % 8):
        raise CorruptDataError(f"expected a transposed page, got {info.bits} bits and shape {info.shape}", byte=0)
    found = swapped(info.shape) if transposed else info.shape
    wanted = None if shape is None else shape_sizes(shape)
    if dtype not in (None, info.dtype) or wanted not in (None, found):
        asked = f"{dtype or 'any dtype'} and {'any shape' if wanted is None else wanted}"
        raise ValueError(f"expected a page of {asked}, got one of {info.dtype} and {found}")
