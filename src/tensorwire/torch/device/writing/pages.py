"""Pages of a key-value cache as frames of one size, where the cache is."""

from __future__ import annotations

import torch

from ....errors import UnsupportedTensorError
from ..nvidia import required_driver
from .given import check_tensor
from .operands import CODINGS
from .page_reading import decode_pages
from .page_writing import MOST_WORDS, encode_pages, frame_nbytes, slot_nbytes

_ROOM = (0.05, 0.02)


class DevicePages:
    """Frames of pages, a page each: encoded from a pool of pages, and decoded into one, on its device.

    The size of a frame is known before any page is encoded, so that a transfer of frames needs no sizes. A frame is one
    block of profile `resident`, with header, index, checksums and the content hash, which any reader of frames takes.
    On a CUDA device one kernel encodes all pages of a call, or decodes them, on the current stream; the host waits for
    nothing, and no memory is allocated. On the CPU the core does. The frames of both have the same content and the same
    size; their bytes may differ. Immutable: serves many threads at once.

    In a graph, make a call once before one is captured, so that the kernel is compiled. Replays take what pool,
    page_ids and slots hold by then.

    Attributes:
        page_words: elements of a page.
        dtype: of the elements.
        frame_nbytes: bytes of the frame of any page of which at most `room` of the elements escape, by padding.
        slot_nbytes: the most bytes that a frame takes.
    """

    def __init__(self, page_words: int, dtype: torch.dtype = torch.bfloat16, *, room: float | None = None) -> None:
        """
        Args:
            page_words: 1 to 65,536.
            dtype: torch.bfloat16, torch.float16, torch.float8_e4m3fn or torch.float8_e5m2.
            room: for which part of the elements a frame has room whose exponents are not among the common ones, 15 in
                BF16 and 7 in the other dtypes. By default one in 50, and one in 20, which normally distributed numbers
                never need.

        Raises:
            UnsupportedTensorError: the dtype is another one.
            TypeError: page_words is no whole number, such as the shape of a page.
            ValueError: page_words or room is out of range.
        """
        if dtype not in CODINGS:
            raise UnsupportedTensorError(
                f"expected pages of {', '.join(map(str, CODINGS))}, got {dtype}", advice="send such pages as they are"
            )
        if not isinstance(page_words, int):
            raise TypeError(f"expected the number of elements as page_words, got {page_words!r:.60}")
        if not 1 <= page_words <= MOST_WORDS:
            larger = "; a larger page is several, as pool.view(-1, ELEMENTS) has them" if page_words > 0 else ""
            raise ValueError(f"expected pages of 1 to {MOST_WORDS} elements, got {page_words}{larger}")
        room = _ROOM[dtype == torch.bfloat16] if room is None else room
        if not 0 <= room <= 1:
            raise ValueError(f"expected room for a part of the elements, from 0 to 1, got {room}")
        self.page_words = page_words
        self.dtype = dtype
        self.frame_nbytes = frame_nbytes(page_words, dtype, room)
        self.slot_nbytes = slot_nbytes(page_words, dtype)

    def __repr__(self) -> str:
        return f"DevicePages({self.page_words}, {self.dtype}: frames of {self.frame_nbytes} bytes)"

    def encode(self, pool: torch.Tensor, page_ids: torch.Tensor, out: torch.Tensor, sizes: torch.Tensor) -> None:
        """Encode pages of the pool, the frame of each into a slot of its own.

        Args:
            pool: (num_pages, ...), contiguous, of `dtype`, `page_words` elements a page. It is only read. Others
                may not write to these pages meanwhile: the frame of a page that changes may be damaged.
            page_ids: int32 or int64, (count,), on the pool's device: which page goes into each slot.
            out: uint8, (count, slot), on that device: slots of `frame_nbytes` bytes or more, at multiples of 16 bytes
                on a CUDA device. What a slot holds behind its frame is undefined, and what it holds at all where its
                size is 0.
            sizes: int32, (count,), on that device: gets the bytes of each frame. It is `frame_nbytes`, or more for a
                page with more escapes, if the slot is long enough: one of `slot_nbytes` always is. Else it is 0, and so
                it is where the pool has no such page.

        Raises:
            TypeError: something is no tensor.
            ValueError: dtypes, shapes, places or devices are not so. Nothing is launched then, here and below.
            UnsupportedTensorError: the pool has no memory of its own, as a compressed tensor.
            RuntimeError: the device is no CPU and has no NVRTC.
        """
        check_tensor("pool", pool)
        encode_pages(
            pool, page_ids, out, sizes, self.page_words, self.dtype, self.frame_nbytes, required_driver(pool.device)
        )

    def decode(self, frames: torch.Tensor, pool: torch.Tensor, page_ids: torch.Tensor, status: torch.Tensor) -> None:
        """Decode the frame of each slot into a page of the pool, in place.

        All of a frame is checked first: header, index and blocks, with their checksums. A page whose frame is refused
        is left as it is. This is a trusting reader (docs/format.md): it does not compare the content hash.
        Any frame of such a page is taken, also one of the host: with other alignments, or of several blocks. On a CUDA
        device its blocks must be stored, constant, or as profile `resident` has them; the status of other frames is
        HOST_ONLY. The core decodes all of them.

        Args:
            frames: uint8, (count, slot), on the pool's device, at multiples of 16 bytes on a CUDA device. A frame
                begins where its slot does; bytes may follow it. They are only read.
            pool: (num_pages, ...), contiguous, of `dtype`, `page_words` elements a page.
            page_ids: int32 or int64, (count,), on that device: which page each slot goes to. No two are the same.
            status: int32, (count,), on that device: gets a `Status` for each slot, which `raise_for` makes an error of.
                It is ANOTHER_TENSOR where the frame is one of another dtype or size, or where the pool has no such
                page.

        Raises:
            TypeError: something is no tensor.
            ValueError: dtypes, shapes, places or devices are not so. Nothing is launched then, here and below.
            UnsupportedTensorError: the pool has no memory of its own, as a compressed tensor.
            RuntimeError: the device is no CPU and has no NVRTC.
        """
        check_tensor("pool", pool)
        decode_pages(frames, pool, page_ids, status, self.page_words, self.dtype, required_driver(pool.device))
