"""Arrays of the frameworks as bytes, and bytes as arrays; and the memory that we allocate.

NumPy, ml_dtypes and torch are imported only when an array of theirs is asked for; one that is given is recognised by
what its framework has already loaded.
"""

from __future__ import annotations

import mmap
import operator
import sys
from contextlib import suppress
from math import prod

from . import _core
from .errors import UnsupportedTensorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PAGE_NBYTES = mmap.PAGESIZE

# name: (bits per element, NumPy or ml_dtypes name, torch name). The names of safetensors.
_DTYPES: dict[str, tuple[int, str | None, str | None]] = {
    "BOOL": (8, "bool", "bool"),
    "U8": (8, "uint8", "uint8"),
    "I8": (8, "int8", "int8"),
    "U16": (16, "uint16", "uint16"),
    "I16": (16, "int16", "int16"),
    "U32": (32, "uint32", "uint32"),
    "I32": (32, "int32", "int32"),
    "U64": (64, "uint64", "uint64"),
    "I64": (64, "int64", "int64"),
    "F16": (16, "float16", "float16"),
    "BF16": (16, "bfloat16", "bfloat16"),
    "F32": (32, "float32", "float32"),
    "F64": (64, "float64", "float64"),
    "C64": (64, "complex64", "complex64"),
    "F8_E4M3": (8, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2", "float8_e5m2"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "F8_E8M0": (8, "float8_e8m0fnu", "float8_e8m0fnu"),
    # Narrower than a byte: packed, as safetensors has them. Only buffers carry these.
    "F6_E2M3": (6, None, None),
    "F6_E3M2": (6, None, None),
    "F4": (4, None, None),
}
_FROM_NUMPY = {numpy_name: name for name, (_, numpy_name, _) in _DTYPES.items() if numpy_name}
_FROM_TORCH = {torch_name: name for name, (_, _, torch_name) in _DTYPES.items() if torch_name}
_MAX_BITS = 1024
_OTHER_WAYS = 'take framework="buffer" and reinterpret its bytes'


class TensorView:
    """The bytes of a tensor, and what they mean.

    Attributes:
        dtype: name of the elements, as in safetensors.
        bits: bits per element.
        shape: sizes of the dimensions.
        data: the bytes, row-major and little-endian: a C-contiguous view of format "B", writable if the array is.
        owner: keeps the memory of `data` alive; hold on to the TensorView while `data` is in use.
    """

    __slots__ = ("bits", "data", "dtype", "owner", "shape")

    def __init__(self, dtype: str, bits: int, shape: tuple[int, ...], data: memoryview, owner: object) -> None:
        self.dtype = dtype
        self.bits = bits
        self.shape = shape
        self.data = data
        self.owner = owner


def dtype_bits(dtype: str) -> int:
    """Bits per element of a dtype of safetensors; 0 for any other."""
    return _DTYPES[dtype][0] if dtype in _DTYPES else 0


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple of sizes that fit 64 bits, or ValueError."""
    sizes = tuple(operator.index(size) for size in shape)
    if len(sizes) > _core.MAX_NDIM or any(not 0 <= size < 2**64 for size in sizes):
        raise ValueError(f"expected a shape of at most {_core.MAX_NDIM} sizes from 0 to 2**64 - 1, got {sizes}")
    return sizes


def tensor_view(array: Any, dtype: str | None = None, shape: Sequence[int] | None = None) -> TensorView:
    """The bytes of an array or buffer; `dtype` and `shape` as for `codec.compress`.

    A copy is made only of what is not C-contiguous and little-endian.

    Raises:
        UnsupportedTensorError: dtype, device or layout have no such bytes.
        ValueError: dtype and shape do not fit the size.
    """
    source = _Source(array, copy=True)
    name = source.dtype if dtype is None else dtype
    if name is None:
        raise UnsupportedTensorError(
            f"expected a dtype that safetensors names, got {source.native_dtype}",
            advice='say with dtype=, e.g. dtype="BF16", what the bytes are',
        )
    bits = dtype_bits(name)
    if shape is not None:
        sizes = checked_shape(shape)
    elif source.shape is not None:
        sizes = source.shape
    else:
        sizes = (len(source.data) * 8 // (bits or 8),)
    numel, num_bits = prod(sizes), 8 * len(source.data)
    if not bits:  # of no dtype that we know: what there is, if it comes out whole
        bits = num_bits // numel if numel and num_bits % numel == 0 else 8
    if not 1 <= bits <= _MAX_BITS or -(-numel * bits // 8) != len(source.data):
        raise ValueError(f"dtype {name!r} and shape {sizes} do not fit an array of {len(source.data)} bytes")
    return TensorView(name, bits, sizes, source.data, source.owner)


def byte_view(buffer: Any, *, writable: bool = False) -> TensorView:
    """The bytes of an array or buffer whose dtype does not matter; never a copy.

    Raises:
        UnsupportedTensorError: no buffer, or a tensor that is not in CPU memory.
        ValueError: not C-contiguous and little-endian, or read-only where `writable` is asked for.
    """
    source = _Source(buffer, copy=False)
    if writable and source.data.readonly:
        raise ValueError("expected a writable buffer, got a read-only one")
    return TensorView("U8", 8, (len(source.data),), source.data, source.owner)


def new_buffer(nbytes: int) -> memoryview:
    """New writable memory, page-aligned from one page on. Its content is unspecified."""
    if nbytes < PAGE_NBYTES:
        return memoryview(bytearray(nbytes))
    try:
        if sys.platform == "win32":
            return memoryview(mmap.mmap(-1, nbytes))
        # Private: the default of the mmap module is shared memory, which has no huge pages and is shared after a fork.
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for {nbytes} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # twice as fast to touch for the first time
    return memoryview(pages)


def check_framework(dtype: str, framework: str) -> None:
    """Raise what `as_array` would, before there is any data."""
    if framework == "numpy":
        _numpy_dtype(dtype)
    elif framework == "torch":
        _torch_dtype(dtype)
    elif framework != "buffer":
        raise ValueError(f'expected framework "numpy", "torch" or "buffer", got {framework!r}')


def as_array(data: memoryview, dtype: str, shape: tuple[int, ...], framework: str) -> Any:
    """An array of `framework` ("numpy", "torch" or "buffer") over writable `data`, without a copy.

    Raises:
        UnsupportedTensorError: the framework, or the release of it at hand, has no such dtype or shape.
        ImportError: the framework is not installed.
        ValueError: unknown framework.
    """
    check_framework(dtype, framework)
    if framework == "buffer":
        return data
    # An empty tensor may have any sizes; these have limits on the product of those that are not 0.
    if prod(size or 1 for size in shape) * dtype_bits(dtype) // 8 > sys.maxsize:
        raise UnsupportedTensorError(f"{framework} has no arrays of shape {shape}", advice=_OTHER_WAYS)
    if framework == "numpy":
        import numpy

        return numpy.ndarray(shape, _numpy_dtype(dtype), buffer=data)
    import torch

    if not data:  # torch.frombuffer refuses empty buffers
        return torch.empty(shape, dtype=_torch_dtype(dtype))
    return torch.frombuffer(data, dtype=_torch_dtype(dtype)).reshape(shape)


def _numpy_dtype(dtype: str) -> Any:
    import numpy

    name = _DTYPES[dtype][1] if dtype in _DTYPES else None
    if name is None:
        raise UnsupportedTensorError(f"NumPy has no dtype {dtype}", advice=_OTHER_WAYS)
    try:
        return numpy.dtype(name)
    except TypeError:
        pass  # one of ml_dtypes, which is not loaded yet
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise UnsupportedTensorError(
            f"NumPy has no dtype {dtype} without ml_dtypes.{name}", advice=f"pip install -U ml_dtypes, or {_OTHER_WAYS}"
        ) from None


def _torch_dtype(dtype: str) -> Any:
    import torch

    name = _DTYPES[dtype][2] if dtype in _DTYPES else None
    if name is None or not hasattr(torch, name):
        raise UnsupportedTensorError(f"torch {torch.__version__} has no dtype {dtype}", advice=_OTHER_WAYS)
    return getattr(torch, name)


class _Source:
    """What an array tells about itself.

    Attributes:
        dtype: its name in safetensors, or None.
        native_dtype: its dtype in the words of its framework.
        shape: None for a plain buffer.
        data, owner: as in TensorView.
    """

    dtype: str | None
    native_dtype: str
    shape: tuple[int, ...] | None
    data: memoryview
    owner: object

    def __init__(self, array: Any, *, copy: bool) -> None:
        """`copy`: whether what is not C-contiguous and little-endian is copied, or refused with ValueError."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(array, (numpy.ndarray, numpy.generic)):
            self._from_numpy(numpy, array, copy)
        elif torch is not None and isinstance(array, torch.Tensor):
            self._from_torch(torch, array, copy)
        else:
            self._from_buffer(array, copy)

    def _from_numpy(self, numpy: Any, array: Any, copy: bool) -> None:
        if array.dtype.hasobject or array.dtype.names is not None:
            raise UnsupportedTensorError(
                f"expected an array of numbers, got dtype {array.dtype}", advice="compress its fields one by one"
            )
        if isinstance(array, numpy.ma.MaskedArray):
            raise UnsupportedTensorError(
                "expected a plain array, got a masked one", advice="compress its data and its mask one by one"
            )
        array = numpy.asarray(array)
        self.native_dtype = str(array.dtype)
        self.dtype = _FROM_NUMPY.get(array.dtype.name)
        self.shape = array.shape
        swapped = array.dtype.byteorder == ">"
        if swapped or not array.flags.c_contiguous:
            _refuse_copy(copy)
            array = numpy.ascontiguousarray(array.byteswap() if swapped else array)
        # Through uint8, because NumPy exports no buffer of an ml_dtypes dtype.
        self.data = memoryview(array.reshape(-1).view(numpy.uint8))
        self.owner = array

    def _from_torch(self, torch: Any, tensor: Any, copy: bool) -> None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            raise UnsupportedTensorError(
                f"expected a dense tensor on the CPU, got {tensor.dtype}, {tensor.layout}, on {tensor.device}",
                advice="convert it first, e.g. with tensor.cpu()",
            )
        self.native_dtype = str(tensor.dtype)
        self.dtype = _FROM_TORCH.get(self.native_dtype.removeprefix("torch."))
        self.shape = tuple(tensor.shape)
        tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
            _refuse_copy(copy)
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
        nbytes = tensor.numel() * tensor.element_size()
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            address = 0
        if nbytes and not address:
            raise UnsupportedTensorError(
                f"expected a tensor with memory of its own, got {type(tensor).__name__}",
                advice="convert it to a plain tensor first",
            )
        self.data = _core.view_of_memory(address, nbytes, writable=True)
        self.owner = tensor

    def _from_buffer(self, buffer: Any, copy: bool) -> None:
        try:
            view = memoryview(buffer)
        except TypeError:
            raise UnsupportedTensorError(
                f"expected a NumPy array, a torch tensor or a buffer, got {type(buffer).__name__}",
                advice="convert it first, e.g. with numpy.asarray",
            ) from None
        self.native_dtype = f"a buffer of format {view.format!r}"
        self.dtype = "U8" if view.format == "B" else None
        self.shape = None
        if not view.c_contiguous:
            _refuse_copy(copy)
            view = memoryview(view.tobytes())
        with _core.Pin(view) as pin:  # memoryview.cast refuses views of no bytes and of non-native formats
            self.data = _core.view_of_memory(pin.address, pin.nbytes, writable=not view.readonly)
        self.owner = view


def _refuse_copy(copy: bool) -> None:
    if not copy:
        raise ValueError("expected a C-contiguous, little-endian buffer, got one that would have to be copied")
