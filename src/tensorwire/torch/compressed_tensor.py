"""A tensor whose values stay compressed until an operation needs them."""

from __future__ import annotations

import copy
import itertools
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._pytree import tree_map_only

from ..codec import compress
from ..errors import UnsupportedTensorError
from . import _ops
from ._frames import Origin, attach, check_unchanged, copy_of, opened, opened_anywhere, sendable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from ..codec import Profile

aten = torch.ops.aten
tensorwire = torch.ops.tensorwire


class CompressedTensor(torch.Tensor):  # type: ignore[misc] # the checker does not see torch
    """A tensor that holds a frame, with dtype, shape and device of the tensor that was compressed.

    It stands wherever a frozen weight stands: as a parameter of a module, in a state dict, under an adapter, in a
    compiled graph. `torch.nn.functional.linear` and `embedding` and slices of rows decode what they need of it, any
    other operation all of it; results are bit-identical to those of the dense tensor. It never requires a gradient.
    What writes to the whole tensor, such as `copy_` or `add_`, compresses anew.

    Safe to be read by several threads at once, but not while another one writes to it or calls `set_linear_mode`.

    Attributes:
        linear_mode: "exact" or "fused": how `torch.nn.functional.linear` multiplies with it.
    """

    linear_mode: str
    _asked_to_train: bool = False
    """Whether it was last asked to require a gradient: then a dense parameter in its place would train."""
    _held: list[Tensor]
    """The frame. All that pass for views of one tensor, such as its `detach()`, hold it together, so that all see what
    is written to one of them. A list: it can be unpickled with `weights_only=True`."""

    @staticmethod
    def __new__(cls, frame: Tensor, requires_grad: bool = False, *, linear_mode: str = "exact") -> CompressedTensor:
        """Wrap a frame, whose bytes must not change from now on. Loaders that build parameters call it as
        ``cls(tensor, requires_grad=...)`` with a tensor that is compressed already, and get one that shares its frame.

        Raises:
            FormatError: `frame` is not a frame.
            UnsupportedTensorError: it is no uint8 tensor of one dimension, or relative, or torch lacks its dtype.
            ValueError: there is no such mode, or `requires_grad` is true.
        """
        if requires_grad:
            raise ValueError("expected requires_grad=False: a compressed tensor is frozen; train an adapter beside it")
        if isinstance(frame, CompressedTensor):
            return _like(frame, frame.frame)  # whose bytes may be nowhere: on the device "meta"
        _ops.check_linear_mode(linear_mode)
        if not isinstance(frame, torch.Tensor) or frame.dtype != torch.uint8 or frame.dim() != 1:
            raise UnsupportedTensorError(
                f"expected a frame in a uint8 tensor of one dimension, got {_kind_of(frame)}",
                advice="CompressedTensor.from_dense compresses a tensor",
            )
        head = opened_anywhere(frame)
        return _wrap(frame, head.dtype, head.shape, linear_mode)

    @property
    def frame(self) -> Tensor:
        """One plain frame (docs/format.md), a uint8 tensor of one dimension on the same device."""
        return self._held[0]

    @classmethod
    def from_dense(cls, tensor: Tensor, profile: Profile = "fast", *, linear_mode: str = "exact") -> CompressedTensor:
        """Compress a tensor, on the CPU; the result is on the tensor's device.

        Args:
            tensor: of any dtype that both torch and safetensors have; one that is not contiguous is copied first.

        Raises:
            UnsupportedTensorError: its dtype or layout is not supported.
            ValueError: there is no such profile or mode.
        """
        if isinstance(tensor, CompressedTensor):
            tensor = tensor.decode()
        # One copy, into memory of exactly this size that torch owns.
        frame = torch.frombuffer(bytearray(compress(tensor.detach().cpu(), profile=profile)), dtype=torch.uint8)
        compressed = cls(attach(frame, Origin(verify=False)), linear_mode=linear_mode)
        return cast("CompressedTensor", compressed.to(tensor.device))

    def decode(self) -> Tensor:
        """The dense tensor, new memory on the same device.

        Raises:
            FormatError: a block is damaged.
        """
        return cast("Tensor", tensorwire.decode(self.frame, self.dtype, self.shape))

    def set_linear_mode(self, mode: str) -> None:
        """How `torch.nn.functional.linear` multiplies with it from now on: "exact" or "fused"; else ValueError."""
        self.linear_mode = _ops.check_linear_mode(mode)

    def _stable_hash_for_caching(self) -> str:
        """What compiled code depends on."""
        return f"CompressedTensor {self.dtype} {tuple(self.shape)} {self.frame.shape} {self.device} {self.linear_mode}"

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return (
            f"CompressedTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}, "
            f"{self.frame.numel():,} of {self.numel() * self.dtype.itemsize:,} bytes)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedTensor:
        """A frame that two tensors share stays shared."""
        if id(self) not in memo:
            if id(self.frame) not in memo:
                memo[id(self.frame)] = copy_of(self.frame)
            twin = memo[id(self)] = _like(self, memo[id(self.frame)])
            for name, value in vars(self).items():  # what others have set: a parameter is one by an attribute
                if name not in ("_held", "linear_mode"):
                    setattr(twin, name, copy.deepcopy(value, memo))
        return cast("CompressedTensor", memo[id(self)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Whoever pickles reads a frame in a file as memory, and is killed if the file was cut meanwhile."""
        check_unchanged(self.frame)
        return super().__reduce_ex__(protocol)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["frame"], (self.dtype, self.linear_mode)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], context: Any, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> CompressedTensor:
        dtype, linear_mode = context
        return _wrap(inner["frame"], dtype, outer_size, linear_mode)

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = _FUNCTIONS.get(func)
        if handler is not None:
            result = handler(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        with torch._C.DisableTorchFunctionSubclass():  # results that are dense stay so
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view and torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # torch wants to track views, which tensors of that mode do not allow
                return _run(func, args, kwargs or {})
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    handler = _OPERATIONS.get(func)
    result = NotImplemented if handler is None else handler(*args, **kwargs)
    if result is NotImplemented:
        result = func.decompose(*args, **kwargs)  # under inference_mode composite operations come whole
    if result is NotImplemented and func._schema.is_mutable:
        return _write(func, args, kwargs)
    if result is NotImplemented:
        args, kwargs = tree_map_only(CompressedTensor, CompressedTensor.decode, (args, kwargs))
        result = func(*args, **kwargs)
    return result


def _wrap(
    frame: Tensor, dtype: torch.dtype, shape: Sequence[int], linear_mode: str, held: list[Tensor] | None = None
) -> CompressedTensor:
    tensor = torch.Tensor._make_wrapper_subclass(
        CompressedTensor, shape, dtype=dtype, device=frame.device, requires_grad=False
    )
    tensor._held, tensor.linear_mode = [frame] if held is None else held, linear_mode
    return cast("CompressedTensor", tensor)


def _kind_of(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _like(tensor: CompressedTensor, frame: Tensor, held: list[Tensor] | None = None) -> CompressedTensor:
    twin = _wrap(frame, tensor.dtype, tensor.shape, tensor.linear_mode, held)
    if tensor._asked_to_train:
        twin._asked_to_train = True
    return twin


def _for_another_process(tensor: CompressedTensor) -> Any:
    """How multiprocessing pickles it: its frame moves into shared memory, as a dense tensor does."""
    tensor._held[0] = sendable(tensor.frame)
    return tensor.__reduce_ex__(2)


# Functions, which see the arguments as the caller gave them ----------------------------------------------------------


def _linear(input: Tensor, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - as torch calls it
    if not isinstance(weight, CompressedTensor) or isinstance(input, CompressedTensor) or weight.dim() != 2:
        return NotImplemented
    if weight.requires_grad:  # something that does was written to it: torch decodes and differentiates
        return NotImplemented
    if torch.is_autocast_enabled(input.device.type):
        return torch.nn.functional.linear(input, weight.decode(), bias)  # which casts as autocast has it
    if isinstance(bias, CompressedTensor):
        bias = bias.decode()
    return tensorwire.linear(input, weight.frame, weight.dtype, weight.shape, bias, weight.linear_mode)


def _set_item(tensor: Any, key: Any, value: Any) -> Any:
    """Through a slice, which is a dense copy, the write would be lost."""
    if isinstance(tensor, CompressedTensor):
        raise RuntimeError(_refused_write("item assignment", tensor))
    return NotImplemented


def _set_data(tensor: Any, value: Any) -> Any:
    """Torch changes what the tensor shows: dtype, shape and device. A dense value is compressed anew."""
    if not isinstance(tensor, CompressedTensor):
        return NotImplemented
    compressed = value if isinstance(value, CompressedTensor) else _compressed_as(tensor, value)
    with torch._C.DisableTorchFunctionSubclass():
        torch.Tensor.data.__set__(tensor, compressed.detach())
    tensor._held = compressed._held
    return None


def _takes_data(tensor: Any, value: Any) -> Any:
    """Of a dense value, too: so modules that are converted set it. On the device "meta" nothing can be compressed."""
    return value.device.type != "meta" if isinstance(tensor, CompressedTensor) else NotImplemented


def _share_memory(tensor: CompressedTensor) -> CompressedTensor:
    """A copy takes the place of the frame: torch moves the memory of what it shares from under those who read it."""
    if not tensor.frame.is_shared():
        tensor._held[0] = sendable(tensor.frame)
    return tensor


def _is_shared(tensor: CompressedTensor) -> bool:
    return bool(tensor.frame.is_shared())


def _to_dlpack(tensor: CompressedTensor, **options: Any) -> Any:
    return tensor.decode().__dlpack__(**options)


def _no_storage(tensor: Any) -> Any:
    """Who asks wants the bytes of the values: safetensors does."""
    if isinstance(tensor, CompressedTensor):
        raise RuntimeError(
            f"expected a dense tensor, got a compressed one of shape {tuple(tensor.shape)}, which has no memory with "
            "its values; give tensor.decode(), or make the module dense first with tensorwire.torch.decompress_module"
        )
    return NotImplemented


def _stay_frozen(tensor: Any, requires_grad: bool = True) -> Any:
    """``load_state_dict(assign=True)`` asks for what the dense parameter had.

    To become a parameter again is not to be asked: `nn.Module.to` makes one that requires what the old one did.
    """
    if not isinstance(tensor, CompressedTensor):
        return NotImplemented
    if requires_grad or isinstance(tensor, torch.nn.Parameter):
        tensor._asked_to_train = requires_grad
    return tensor


def _set_requires_grad(tensor: Any, requires_grad: bool) -> Any:
    return NotImplemented if _stay_frozen(tensor, requires_grad) is NotImplemented else None


def _embedding(
    input: Tensor,  # noqa: A002 - as torch calls it
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """All but `max_norm` is about gradients, which a frozen tensor has not; that one writes to the tensor."""
    if not isinstance(weight, CompressedTensor) or weight.requires_grad or max_norm is not None:
        return NotImplemented
    return tensorwire.rows(weight.frame, weight.dtype, weight.shape, input)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.linear: _linear,
    torch.nn.functional.embedding: _embedding,
    torch.Tensor.__setitem__: _set_item,
    torch.Tensor.requires_grad_: _stay_frozen,
    torch.Tensor.requires_grad.__set__: _set_requires_grad,
    torch.Tensor.data.__set__: _set_data,
    torch._has_compatible_shallow_copy_type: _takes_data,
    torch.Tensor.storage: _no_storage,
    torch.Tensor.share_memory_: _share_memory,
    torch.Tensor.is_shared: _is_shared,
    torch.Tensor.__dlpack__: _to_dlpack,
}

# Operations of aten ---------------------------------------------------------------------------------------------------


def _detach(tensor: CompressedTensor) -> CompressedTensor:
    return _like(tensor, tensor.frame, tensor._held)


def _clone(tensor: CompressedTensor, *, memory_format: Any = None) -> CompressedTensor:
    return _like(tensor, copy_of(tensor.frame))


def _to_copy(
    tensor: CompressedTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """To another device the frame travels. In another dtype it is dense: a model that converts a weight does so at
    every call, and for the call alone."""
    if dtype is None or dtype == tensor.dtype:
        return _like(tensor, copy_of(tensor.frame, device, non_blocking))
    return tensor.decode().to(dtype=dtype, device=device, non_blocking=non_blocking)


def _copy_(target: Any, source: Tensor, non_blocking: bool = False) -> Any:
    """What `load_state_dict` does: all values are replaced."""
    if not isinstance(target, CompressedTensor):
        return NotImplemented
    if source.shape != target.shape:
        raise UnsupportedTensorError(f"expected a tensor of shape {tuple(target.shape)}, got {tuple(source.shape)}")
    if isinstance(source, CompressedTensor) and source.dtype == target.dtype:
        target._held[0] = source.frame.to(target.device)
    else:
        dense = source.decode() if isinstance(source, CompressedTensor) else source
        target._held[0] = _compressed_as(target, dense.to(target.dtype)).frame.to(target.device)
    return target


def _compressed_as(tensor: CompressedTensor, values: Tensor) -> CompressedTensor:
    """Other values, compressed with what the tensor was compressed with."""
    profile = opened(tensor.frame.cpu()).info.profile
    return CompressedTensor.from_dense(values, profile, linear_mode=tensor.linear_mode)


def _rows_of(tensor: CompressedTensor, start: int, stop: int) -> Tensor:
    """Dense rows; only their blocks are decoded."""
    size = tensor.shape[1:]
    return cast("Tensor", tensorwire.decode(tensor.frame, tensor.dtype, (stop - start, *size), start * size.numel()))


def _slice(
    tensor: CompressedTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    if dim % tensor.dim() != 0 or step != 1:
        return NotImplemented
    first, last, _ = slice(start, end).indices(tensor.shape[0])
    if first == 0 and last == tensor.shape[0]:
        return _detach(tensor)
    return _rows_of(tensor, first, max(first, last))


def _select(tensor: CompressedTensor, dim: int, index: int) -> Any:
    if dim % tensor.dim() != 0 or not -tensor.shape[0] <= index < tensor.shape[0]:
        return NotImplemented
    row = index % tensor.shape[0]
    return _rows_of(tensor, row, row + 1)[0]


def _split(tensor: CompressedTensor, size: int, dim: int = 0) -> Any:
    if size <= 0:
        return NotImplemented
    rows = tensor.shape[dim]
    return _split_with_sizes(tensor, [min(size, rows - start) for start in range(0, rows, size)], dim)


def _split_with_sizes(tensor: CompressedTensor, sizes: Sequence[int], dim: int = 0) -> Any:
    """Each part is memory of its own, of which the others are not kept alive."""
    if dim % tensor.dim() != 0 or not sizes or min(sizes) < 0 or sum(sizes) != tensor.shape[0]:
        return NotImplemented
    stops = list(itertools.accumulate(sizes))
    return [_rows_of(tensor, stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def _index(tensor: Any, indices: list[Tensor | None]) -> Any:
    first = indices[0]
    if not isinstance(tensor, CompressedTensor) or len(indices) != 1 or first is None or first.dtype == torch.bool:
        return NotImplemented
    return tensorwire.rows(tensor.frame, tensor.dtype, tensor.shape, first)


def _index_select(tensor: Any, dim: int, index: Tensor) -> Any:
    if not isinstance(tensor, CompressedTensor) or dim % tensor.dim() != 0:
        return NotImplemented
    return tensorwire.rows(tensor.frame, tensor.dtype, tensor.shape, index)


def _embedding_op(weight: Any, indices: Tensor, *options: Any) -> Any:
    return _index_select(weight, 0, indices)


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.linear.default: _linear,
    aten.detach.default: _detach,
    aten.alias.default: _detach,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy_,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.embedding.default: _embedding_op,
}


def _write(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operation that changes some of its arguments. Those that are compressed are decoded, and compressed anew.

    Raises:
        RuntimeError: one would have another shape, dtype or layout.
    """
    dense: dict[CompressedTensor, Tensor] = {}

    def decoded(tensor: CompressedTensor) -> Tensor:
        if tensor not in dense:
            dense[tensor] = tensor.decode()
        return dense[tensor]

    dense_args, dense_kwargs = tree_map_only(CompressedTensor, decoded, (args, kwargs))
    result = func(*dense_args, **dense_kwargs)
    for tensor in _written(func, args, kwargs):
        values = dense[tensor]
        if (values.shape, values.dtype, values.stride()) != (tensor.shape, tensor.dtype, tensor.stride()):
            raise RuntimeError(_refused_write(str(func), tensor))
        _copy_(tensor, values)
    compressed = {id(values): tensor for tensor, values in dense.items()}
    return tree_map_only(torch.Tensor, lambda found: compressed.get(id(found), found), result)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[CompressedTensor]:
    """The compressed arguments that an operation changes."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            values = value if isinstance(value, list | tuple) else [value]
            yield from (tensor for tensor in values if isinstance(tensor, CompressedTensor))


def _refused_write(what: str, tensor: CompressedTensor) -> str:
    return (
        f"{what} writes to a part of a compressed tensor of shape {tuple(tensor.shape)}, or changes its shape; write "
        "to tensor.decode(), or make the module dense first with tensorwire.torch.decompress_module"
    )


torch.serialization.add_safe_globals([CompressedTensor])
ForkingPickler.register(CompressedTensor, _for_another_process)
