"""Arrays of the frameworks as bytes, and bytes as arrays.

NumPy, ml_dtypes and torch are imported only when an array of theirs is asked for; one that is given is recognised by
what its framework has already loaded.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ..._ground.packages import require
from ...errors import UnsupportedTensorError
from .buffers import Pin, view_of_memory
from .dtypes import FROM_NUMPY, FROM_TORCH, buffer_dtype, check_dtype_name, dtype_bits, numpy_name, torch_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BITS = 1024
MAX_NDIM = 64
FRAMEWORKS = ("np", "pt", "bytes")
_LONG_NAMES = {"numpy": "np", "torch": "pt", "pytorch": "pt", "buffer": "bytes"}
_TITLES = {"np": "NumPy", "pt": "torch"}
AS_BYTES = 'framework="bytes" gives its bytes'
"""What to do with a dtype that a framework does not have, where a caller may choose one."""


class TensorView(NamedTuple):
    """The bytes of a tensor, and what they mean.

    Attributes:
        dtype: name of the elements, as in safetensors.
        bits: bits per element.
        shape: sizes of the dimensions.
        data: the bytes, row-major and little-endian: a C-contiguous view of format "B", which keeps the memory alive.
            It is writable if the array is. That of a copy is not, since what is written to it would be lost.
        owner: what the memory belongs to: the array, or a copy.
    """

    dtype: str
    bits: int
    shape: tuple[int, ...]
    data: memoryview
    owner: Any

    def check_memory(self) -> None:
        """Raise BufferError if the owner has freed, moved or cut the memory since: FSDP frees storages, for one. An
        exporter of buffers cannot do that; NumPy and torch let it happen."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        nbytes = len(self.data)
        if not nbytes:
            return
        if torch is not None and isinstance(self.owner, torch.Tensor):
            room = self.owner.untyped_storage().nbytes() - self.owner.storage_offset() * self.owner.element_size()
            with Pin(self.data) as pin:
                moved = pin.address != self.owner.data_ptr()
        elif numpy is not None and isinstance(self.owner, numpy.ndarray):
            room, viewed = self.owner.nbytes, numpy.asarray(self.data.obj)
            # One byte of each: they share it, or nothing. NumPy takes longer to tell an address.
            moved = not numpy.may_share_memory(_bytes_of(numpy, self.owner)[:1], viewed[:1])
        else:
            return
        if moved or nbytes > room:
            raise BufferError(
                "the memory of the array was freed, moved or cut while it was read; "
                "leave arrays their memory until the call returns"
            )


def shape_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple, or TypeError."""
    try:
        return tuple(map(operator.index, shape))
    except TypeError as error:
        raise TypeError(f"expected a shape as a sequence of whole numbers, got {shape!r}: {error}") from None


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple of sizes that fit 64 bits, or ValueError; TypeError as `shape_sizes`."""
    sizes = shape_sizes(shape)
    if len(sizes) > MAX_NDIM or any(not 0 <= size < 2**64 for size in sizes):
        raise ValueError(f"expected a shape of at most {MAX_NDIM} sizes from 0 to 2**64 - 1, got {sizes}")
    return sizes


def tensor_view(
    array: Any, dtype: str | None = None, shape: Sequence[int] | None = None, word_bits: int = 8
) -> TensorView:
    """The bytes of an array or buffer; `dtype` and `shape` as for `codec.compress`, `word_bits` of its layout.

    A copy, which is read-only, is made of what is not C-contiguous and little-endian, and of scalars of NumPy.

    Raises:
        UnsupportedTensorError: dtype, device or layout have no such bytes.
        ValueError: dtype and shape do not fit the size.
    """
    source = _Source(array, copy=True)
    name = source.dtype if dtype is None else check_dtype_name(dtype)
    if name is None:
        raise UnsupportedTensorError(
            f"expected a dtype that safetensors names, got {source.told_dtype}",
            advice='say with dtype=, e.g. dtype="BF16", what the bytes are'
            if source.is_buffer
            else "give its bytes: array.flatten().view(numpy.uint8) or tensor.contiguous().flatten().view(torch.uint8)",
        )
    bits = dtype_bits(name)
    if shape is not None:
        sizes = checked_shape(shape)
    elif dtype is None or not source.is_buffer:
        sizes = source.shape
    else:
        bits = bits or word_bits
        sizes = (8 * len(source.data) // bits,)
    numel, num_bits = prod(sizes), 8 * len(source.data)
    if not bits:  # of no dtype that we know: what there is, if it comes out whole
        bits = num_bits // numel if numel and num_bits % numel == 0 else word_bits
    if not 1 <= bits <= MAX_BITS or -(-numel * bits // 8) != len(source.data):
        raise ValueError(f"dtype {name!r} and shape {sizes} do not fit an array of {len(source.data)} bytes")
    return TensorView(name, bits, sizes, source.data, source.owner)


def empty_view(dtype: str, shape: Sequence[int], word_bits: int) -> TensorView:
    """What `tensor_view` says of an array with this dtype and shape, without its bytes.

    Raises:
        ValueError, TypeError: as `tensor_view`.
    """
    name = check_dtype_name(dtype)
    return TensorView(name, dtype_bits(name) or word_bits, checked_shape(shape), memoryview(b""), None)


def array_layout(array: Any) -> tuple[str | None, tuple[int, ...]]:
    """The dtype and the shape of an array, as `tensor_view` gives them; None for a dtype that it refuses."""
    source = _Source(array, copy=None)
    return source.dtype, source.shape


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


def check_label(dtype: str, bits: int) -> None:
    """Raise UnsupportedTensorError for a frame whose dtype has other bits than its elements: what it decodes to is
    nothing that the name says."""
    if dtype_bits(dtype) not in (0, bits):
        raise UnsupportedTensorError(
            f"expected {dtype_bits(dtype)} bits per element of a frame of {dtype}, got {bits}", advice=AS_BYTES
        )


def check_framework_name(framework: str) -> None:
    """Raise ValueError for what is not one of FRAMEWORKS, with the one that was meant; ImportError where torch is
    needed and cannot be imported."""
    if framework not in FRAMEWORKS:
        hint = f'; write "{_LONG_NAMES[framework]}"' if framework in _LONG_NAMES else ""
        raise ValueError(f'expected framework "np", "pt" or "bytes", got {framework!r}{hint}')
    if framework == "pt":
        require("torch", (2, 5), 'framework "pt" needs PyTorch')


def check_framework(dtype: str, framework: str) -> None:
    """Raise what `as_array` would, before there is any data."""
    check_framework_name(framework)
    if framework == "np":
        _numpy_dtype(dtype)
    elif framework == "pt":
        _torch_dtype(dtype)


def array_shape(dtype: str, shape: tuple[int, ...], framework: str) -> tuple[int, ...]:
    """The shape that an array of `framework` has: that of the tensor, but for elements of torch that hold two.

    Raises:
        UnsupportedTensorError: the framework has no arrays of this shape.
    """
    if framework == "pt" and dtype == "F4":
        if not shape or shape[-1] % 2:
            raise UnsupportedTensorError(
                f"torch holds two elements of F4 in one, expected an even last dimension, got shape {shape}",
                advice=AS_BYTES,
            )
        return (*shape[:-1], shape[-1] // 2)
    # An empty tensor may have any sizes; these have limits on the product of those that are not 0.
    if framework != "bytes" and prod(filter(None, shape)) * dtype_bits(dtype) // 8 > sys.maxsize:
        raise UnsupportedTensorError(f"{_TITLES[framework]} has no arrays of shape {shape}", advice=AS_BYTES)
    return shape


def as_array(data: memoryview, dtype: str, shape: tuple[int, ...], framework: str) -> Any:
    """An array of `framework` over writable `data`, without a copy; or, with framework "bytes", a copy of the bytes.

    Raises:
        UnsupportedTensorError: the framework, or the release of it at hand, has no such dtype or shape.
        ImportError: the framework is not installed.
        ValueError: unknown framework.
    """
    check_framework(dtype, framework)
    if framework == "bytes":
        return bytes(data)
    shape = array_shape(dtype, shape, framework)
    if framework == "np":
        import numpy

        return numpy.ndarray(shape, _numpy_dtype(dtype), buffer=data)
    import torch

    if not data:  # torch.frombuffer refuses empty buffers
        return torch.empty(shape, dtype=_torch_dtype(dtype))
    return torch.frombuffer(data, dtype=_torch_dtype(dtype)).reshape(shape)


@lru_cache(64)  # to find one takes longer than to decode a small frame
def _numpy_dtype(dtype: str) -> Any:
    import numpy

    name, of_torch = numpy_name(dtype), torch_name(dtype)
    others = f'{AS_BYTES}, framework="pt" a tensor of torch.{of_torch}' if of_torch else AS_BYTES
    if name is None:
        raise UnsupportedTensorError(f"NumPy has no dtype {dtype}", advice=others)
    try:
        return numpy.dtype(name)
    except TypeError:
        pass  # one of ml_dtypes, which is not loaded yet
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise UnsupportedTensorError(
            f"NumPy has no dtype {dtype} without ml_dtypes.{name}", advice=f"pip install -U ml_dtypes; {others}"
        ) from None


def torch_dtype(dtype: str, bits: int) -> Any:
    """torch's dtype of which each element is one of `bits` bits of a frame.

    Raises:
        UnsupportedTensorError: the frame's label contradicts itself, or torch has no such elements.
    """
    check_label(dtype, bits)
    if bits % 8:
        raise UnsupportedTensorError(f"torch has no dtype for {dtype}, of {bits} bits an element", advice=AS_BYTES)
    return _torch_dtype(dtype)


def _torch_dtype(dtype: str) -> Any:
    import torch

    name = torch_name(dtype)
    if name is None or not hasattr(torch, name):
        advice = f"pip install -U torch; {AS_BYTES}" if name else AS_BYTES
        raise UnsupportedTensorError(f"torch {torch.__version__} has no dtype {dtype}", advice=advice)
    return getattr(torch, name)


class _Source:
    """The facts that an array tells about itself.

    Attributes:
        dtype: its name in safetensors, or None.
        native_dtype: its dtype in its framework, or the format of a buffer.
        shape: sizes of the dimensions, in elements of `dtype`.
        is_buffer: whether it is a plain buffer, whose shape means nothing in another dtype.
        data, owner: as in TensorView.
    """

    def __init__(self, array: Any, *, copy: bool | None) -> None:
        """`copy`: whether what is not C-contiguous and little-endian is copied, or refused with ValueError. With None
        there is no `data` of it."""
        self.is_buffer = False
        if type(array) in (bytes, bytearray, memoryview):
            self._from_buffer(array, copy)
            return
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(array, (numpy.ndarray, numpy.generic)):
            self._from_numpy(numpy, array, copy)
        elif torch is not None and isinstance(array, torch.Tensor):
            self._from_torch(torch, array, copy)
        else:
            self._from_buffer(array, copy)

    @property
    def told_dtype(self) -> str:
        """`native_dtype` in a message."""
        return f"a buffer of format {self.native_dtype!r}" if self.is_buffer else str(self.native_dtype)

    def _from_numpy(self, numpy: Any, array: Any, copy: bool | None) -> None:
        self.native_dtype = array.dtype
        self.dtype = _name_of_numpy(array.dtype)
        is_copy = isinstance(array, numpy.generic)
        array = plain_array(numpy, array)
        self.shape = array.shape
        swapped = array.dtype.byteorder == ">"
        if swapped or not array.flags.c_contiguous:
            if copy is None:
                return
            _refuse_copy(copy)
            array, is_copy = numpy.ascontiguousarray(array.byteswap() if swapped else array), True
        data = memoryview(_bytes_of(numpy, array))
        self.data = data.toreadonly() if is_copy else data
        self.owner = array

    def _from_torch(self, torch: Any, tensor: Any, copy: bool | None) -> None:
        check_dense(torch, tensor)
        self.native_dtype = tensor.dtype
        self.dtype = FROM_TORCH.get(str(tensor.dtype).removeprefix("torch."))
        self.shape = tuple(tensor.shape)
        if self.dtype == "F4":
            if not self.shape:
                raise UnsupportedTensorError(
                    "expected a tensor of float4_e2m1fn_x2 with a dimension, got one without",
                    advice="reshape it to (1,)",
                )
            self.shape = (*self.shape[:-1], 2 * self.shape[-1])  # an element of torch's holds two
        tensor = tensor.detach()
        is_copy = tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous()
        if is_copy:
            if copy is None:
                return
            _refuse_copy(copy)
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
        nbytes = tensor.numel() * tensor.element_size()
        self.data = view_of_memory(address_of(tensor), nbytes, tensor, writable=not is_copy)
        self.owner = tensor

    def _from_buffer(self, buffer: Any, copy: bool | None) -> None:
        try:
            view = memoryview(buffer)
        except TypeError:
            raise UnsupportedTensorError(
                f"expected a NumPy array, a torch tensor or a buffer, got {type(buffer).__name__}",
                advice=_advice_for_other(buffer),
            ) from None
        self.is_buffer = True
        self.native_dtype = view.format
        if view.format == "B" and view.ndim == 1 and view.c_contiguous:  # bytes, at the least cost
            self.dtype, self.shape, self.data, self.owner = "U8", (len(view),), view, view
            return
        self.dtype = buffer_dtype(view)
        self.shape = view.shape or ()
        if not view.c_contiguous:
            if copy is None:
                return
            _refuse_copy(copy)
            view = memoryview(view.tobytes())
        with Pin(view) as pin:  # memoryview.cast refuses views of no bytes and of non-native formats
            self.data = view_of_memory(pin.address, pin.nbytes, view, writable=not view.readonly)
        self.owner = view


def _bytes_of(numpy: Any, array: Any) -> Any:
    """A contiguous array as bytes, because NumPy exports no buffer of an ml_dtypes dtype."""
    return array.reshape(-1).view(numpy.uint8)


@lru_cache(64)  # NumPy makes the name anew each time
def _name_of_numpy(dtype: Any) -> str | None:
    """The name in safetensors of a NumPy or ml_dtypes dtype.

    Raises:
        UnsupportedTensorError: its elements are no numbers.
    """
    if dtype.hasobject or dtype.names is not None:
        fields = dtype.names is not None and not dtype.hasobject
        advice = "give its fields one by one: array[name]" if fields else "leave it out, or make numbers of it"
        raise UnsupportedTensorError(f"expected an array of numbers, got dtype {dtype}", advice=advice)
    return FROM_NUMPY.get(dtype.name)


def plain_array(numpy: Any, array: Any) -> Any:
    """An array of NumPy as an instance of no derived class; UnsupportedTensorError for a masked one."""
    if type(array) is numpy.ndarray:
        return array
    if isinstance(array, numpy.ma.MaskedArray):
        raise UnsupportedTensorError(
            "expected a plain array, got a masked one", advice="give array.data and array.mask one by one"
        )
    return numpy.asarray(array)


def check_dense(torch: Any, tensor: Any) -> None:
    """Raise UnsupportedTensorError for a tensor of torch whose values do not lie in memory of this machine's CPU."""
    advice = _advice_for_torch(torch, tensor)
    if advice is not None:
        found = "a nested one" if tensor.is_nested else f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise UnsupportedTensorError(f"expected a dense tensor on the CPU, got {found}", advice=advice)


def address_of(tensor: Any) -> int:
    """Where the first element of a tensor of torch lies; UnsupportedTensorError if others have its memory."""
    try:
        address: int = tensor.data_ptr()
    except RuntimeError:
        address = 0
    if tensor.numel() and (not address or address >> 62):  # a compressed tensor tells a number that is no address
        raise UnsupportedTensorError(
            f"expected a tensor with memory of its own, got {type(tensor).__name__}",
            advice="give tensor.full_tensor(): it is sharded"
            if hasattr(tensor, "full_tensor")
            else "convert it to a plain tensor first",
        )
    return address


def _advice_for_torch(torch: Any, tensor: Any) -> str | None:
    """What to do with a tensor whose values are not one after the other in memory; None for one whose values are."""
    if tensor.device.type == "meta":
        return "one on meta has no values: load them first, or leave it out"
    if tensor.is_nested:
        return "give its parts one by one: tensor.unbind()"
    if tensor.layout != torch.strided:
        return "make it dense: tensor.to_dense()"
    if tensor.is_quantized:
        return "give its integers, tensor.int_repr(), and what scales them one by one"
    return None if tensor.device.type == "cpu" else "copy it to the CPU: tensor.cpu()"


def _advice_for_other(value: object) -> str:
    """What to do with a value that is no array."""
    if isinstance(value, Mapping):
        return 'give the tensors in it one by one, each under a name of its own, such as "model.weight"'
    if isinstance(value, (list, tuple)):
        return "give the tensors in it one by one; or make one array of its numbers: numpy.asarray(value)"
    if isinstance(value, (int, float, complex)):
        return "make an array of it: numpy.asarray(value)"
    return "it holds no numbers to compress: leave it out"


def _refuse_copy(copy: bool) -> None:
    if not copy:
        raise ValueError("expected a C-contiguous, little-endian buffer, got one that would have to be copied")
