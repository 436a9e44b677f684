"""A frame on a device, opened: it decodes itself there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from ..._ground.copies import twin_of
from ..products.slabs import slab_rows, takes_slabs
from .cuda_kernels import CudaKernels
from .library import allows_slabs, library_order
from .nvidia import driver_for
from .planned import PlannedFrame
from .product import DeviceProduct
from .product_rows import rows_of

if TYPE_CHECKING:
    from ..products.joint import Member
    from .driver import Driver

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_STORE_NBYTES = 16


class Kernels(Protocol):
    """The kernels of a planned frame.

    Attributes:
        rows: takes rows by numbers that lie on the device, in one launch; None if no kernel does.
    """

    @property
    def rows(self) -> Callable[[torch.Tensor, torch.Tensor], None] | None: ...

    def decode(self, begin: int, end: int, words: torch.Tensor) -> None:
        """Decode the blocks [begin, end) to `words`, at a multiple of 16 bytes; their number is rounded up to a
        multiple of four."""

    def at(self, held: PlannedFrame) -> Kernels:
        """The same kernels for a copy of the frame."""


def _of_the_device(device: torch.device) -> Driver | None:
    return driver_for(device)


class DeviceFrame:
    """A plain frame in the memory of a device, ready to be decoded. Immutable: serves many threads at once.

    Attributes:
        info: FrameInfo.
        dtype: torch's dtype of the tensor.
        shape: its shape.
        held: what the host has planned.
        kernels: those that decode it.
        member: its weight as one of a group that is multiplied together; None until `prepare` makes a group.
        rows: ``rows(ids, out)`` writes ``tensor[ids]`` to `out`, contiguous, in one launch, without waiting for ids;
            None if no kernel does that here.
    """

    def __init__(
        self, frame: torch.Tensor, driver: Driver | Callable[[torch.device], Driver | None] | None = _of_the_device
    ) -> None:
        """Check header, index, descriptors and counts of escapes. The checksums of blocks are not checked: damaged ones
        may decode to wrong values, but nothing is read outside the frame or written outside the result.

        Args:
            frame: exactly one plain frame: a contiguous one-dimensional tensor of uint8, on the current device (on the
                CPU only for tests), at an address that is a multiple of 16.
            driver: what compiles and launches kernels in CUDA C++; None: Triton decodes.

        Raises:
            UnsupportedTensorError: the frame needs a base, or torch lacks its dtype.
            CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError: the frame is not valid.
            ValueError: `frame` is not a tensor of that kind.
            ImportError: kernels are to be Triton's, which cannot be imported.
        """
        if frame.dtype != torch.uint8 or frame.dim() != 1 or not frame.is_contiguous() or frame.data_ptr() % 16:
            raise ValueError(
                "expected a contiguous tensor of uint8 with one dimension, at a multiple of 16 bytes, got "
                f"{frame.dtype}, shape {tuple(frame.shape)}, strides {frame.stride()}, address {frame.data_ptr():#x}"
            )
        found = driver(frame.device) if callable(driver) else driver
        self.kernels: Kernels
        if found is None:
            from .triton.decode import TritonKernels  # imports Triton, which is not needed before

            self.held = PlannedFrame(frame, *TritonKernels.limits(frame.device))
            self.kernels = TritonKernels(self.held)
        else:
            self.held = PlannedFrame(frame)
            self.kernels = CudaKernels(self.held, found)
        self.info = self.held.info
        self.dtype = self.held.dtype
        self.shape = self.info.shape
        self.member: Member | None = None
        self.rows = self.kernels.rows
        self._driver = found
        self._word_nbytes = self.held.word_nbytes
        self._word = _WORDS[self._word_nbytes]

    def at(self, frame: torch.Tensor) -> DeviceFrame:
        """The same for a copy of the frame on the same device, whose bytes may come there later. All that was made of
        the frame is shared."""
        if frame.numel() != self.held.frame.numel() * 4 or frame.data_ptr() % 16:
            raise ValueError(f"expected {self.held.frame.numel() * 4} bytes at a multiple of 16, got {frame.numel()}")
        twin = twin_of(self)
        twin.held = self.held.at(frame)
        twin.kernels = self.kernels.at(twin.held)
        twin.rows = twin.kernels.rows
        product = vars(self).get("product")
        if product is not None:
            vars(twin)["product"] = product.at(self.held.frame, twin.held.frame)
        return twin

    @functools.cached_property
    def product(self) -> DeviceProduct | None:
        """Its rows, ready to be multiplied; None if no kernel does that with such a frame (product_rows.py)."""
        if self._driver is None or not isinstance(self.kernels, CudaKernels):
            return None
        rows = rows_of(self.held, self.kernels, self._driver)
        return None if rows is None else DeviceProduct(self._driver, rows)

    def product_for(self, x: torch.Tensor, bias: torch.Tensor | None, mode: str) -> DeviceProduct | None:
        """What multiplies inputs like `x`, (..., columns), adds `bias` and rounds to their dtype; None: decode the
        weight, and let torch do that. In mode "exact" results have torch's own bits, as far as a trial can tell."""
        product = self.product
        if product is None or not product.takes(x, bias):
            return None
        if mode == "fused":
            return product
        order = library_order(product, x, bias)
        return None if order is None else product.in_order(order)

    def slab_for(self, x: torch.Tensor, bias: torch.Tensor | None, mode: str) -> int:
        """How many rows are decoded and multiplied at a time, where `product_for` has nothing; 0: all at once. In mode
        "exact" results have the bits of torch's own, as far as a trial can tell."""
        slab = self._slab
        if slab == 0 or not takes_slabs(x, self, bias):
            return 0
        return slab if mode == "fused" or allows_slabs(x, self.shape[0], slab, bias) else 0

    @functools.cached_property
    def _slab(self) -> int:
        """Rows of a slab; 0 for none."""
        if self._driver is None or len(self.shape) != 2:
            return 0
        return slab_rows(*self.shape, self._word_nbytes, self.info.block_words, self._driver.cache_nbytes)

    def decode_all(self) -> torch.Tensor:
        """The tensor, new memory on the same device. The kernels run on the current stream and are not waited for."""
        words = self._decode_blocks(0, self.info.num_blocks)[: self.info.uncompressed_nbytes // self._word_nbytes]
        return words.view(self.dtype).reshape(self.shape)

    def decode(self, first: int, out: torch.Tensor) -> None:
        """Decode ``out.numel()`` elements from element `first` on into `out`, contiguous, on the same device.

        Only their blocks are decoded: into `out` itself if these are whole blocks, else into memory of their own.
        """
        size = out.element_size()
        start, stop = first * size, (first + out.numel()) * size
        if start == stop:
            return
        block_nbytes = self.info.block_words * self._word_nbytes
        begin, end = start // block_nbytes, -(-stop // block_nbytes)
        whole = start % block_nbytes == 0 and (stop % block_nbytes == 0 or stop == self.info.uncompressed_nbytes)
        target = out.reshape(-1).view(torch.uint8)
        if whole and len(target) % (4 * self._word_nbytes) == 0 and target.data_ptr() % _STORE_NBYTES == 0:
            self.kernels.decode(begin, end, target.view(self._word))
            return
        words = self._decode_blocks(begin, end)
        offset = start - begin * block_nbytes
        target.copy_(words.view(torch.uint8)[offset : offset + stop - start])

    def _decode_blocks(self, begin: int, end: int) -> torch.Tensor:
        """Words of the blocks [begin, end), to a multiple of four."""
        last = self.info.uncompressed_nbytes // self._word_nbytes
        count = min(end * self.info.block_words, last) - begin * self.info.block_words
        words = torch.empty(-(-max(count, 0) // 4) * 4, dtype=self._word, device=self.held.frame.device)
        self.kernels.decode(begin, end, words)
        return words


def decode_frame(frame: torch.Tensor) -> torch.Tensor:
    """Decode one frame on the device that holds it: a trusting reader (docs/format.md); as
    `DeviceFrame(frame).decode_all()`."""
    return DeviceFrame(frame).decode_all()
