"""A tensor whose values stay compressed until an operation needs them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from ..._ground.version import __version__
from ...errors import UnsupportedTensorError
from .. import ops
from ..frames.new_frame import new_frame
from ..frames.open_frame import check_unchanged, copy_of, opened_anywhere, sendable
from .dense import become_trainable
from .elsewhere import NO_ADDRESS, Elsewhere, check_not_offloaded, home_of, pickling
from .lazy import DENSE_MEMORY, LazyTensor, kind_of, refused_write
from .matrices import Matrices
from .view import GROUPED, VIEWS, view_by

if TYPE_CHECKING:
    from torch import Tensor

    from ...codec import Profile

aten = torch.ops.aten
tensorwire = torch.ops.tensorwire
_NUMBERS = (torch.int32, torch.int64)  # of rows, as torch takes them: what else there is, it refuses


class CompressedTensor(LazyTensor):
    """A tensor that holds a frame, with dtype, shape and device of the tensor that was compressed.

    It stands wherever a frozen weight stands: as a parameter of a module, in a state dict, under an adapter, in a
    compiled graph. `torch.nn.functional.linear` and `embedding` and slices of rows decode what they need of it, any
    other operation all of it; results and derivatives are bit-identical to those of the dense tensor. A parameter is
    frozen, and becomes dense if it is asked to require a gradient. An operation that writes to the whole tensor, such
    as `copy_` or `add_`, compresses anew.

    Safe to be read by several threads at once, but not while another one writes to it or calls `set_linear_mode`.

    Attributes:
        linear_mode: "exact" or "fused": how `torch.nn.functional.linear` multiplies with it.
    """

    linear_mode: str
    _asked_to_train: bool = False
    """Whether it was last asked to require a gradient as a parameter: then a dense one in its place would train."""
    _elsewhere: Elsewhere | None = None
    """None if the frame is on the tensor's device."""
    _held: list[Tensor | CompressedTensor]
    """The frame; or, until it is asked for, the tensor of another dtype that it is made of. All that pass for
    views of one tensor, such as its `detach()`, hold it together, so that all see what is written to one of them. A
    list: it can be unpickled with `weights_only=True`."""

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
            return _like(frame, [frame._inner])
        ops.check_linear_mode(linear_mode)
        if not isinstance(frame, torch.Tensor) or frame.dtype != torch.uint8 or frame.dim() != 1:
            raise UnsupportedTensorError(
                f"expected a frame in a uint8 tensor of one dimension, got {kind_of(frame)}",
                advice=DENSE_MEMORY,
            )
        head = opened_anywhere(frame)
        return _wrap([frame], head.dtype, head.shape, linear_mode)

    @property
    def frame(self) -> Tensor:
        """One plain frame (docs/format.md), a uint8 tensor of one dimension. It is on the same device, or in memory of
        the host if the tensor is offloaded."""
        if isinstance(self._inner, CompressedTensor):
            self._held[0] = _compressed_as(self._inner, self.decode()).frame
        return self._held[0]

    @property
    def _inner(self) -> Tensor | CompressedTensor:
        return self._held[0]

    @classmethod
    def from_dense(cls, tensor: Tensor, profile: Profile = "fast", *, linear_mode: str = "exact") -> CompressedTensor:
        """Compress a tensor; the result is on its device. On a GPU with NVRTC kernels compress BF16, F16 and F8 in
        profiles "fast" and "resident"; all else is compressed on the CPU.

        Args:
            tensor: of any dtype that both torch and safetensors have; one that is not contiguous is copied first.

        Raises:
            UnsupportedTensorError: its dtype or layout is not supported.
            ValueError: there is no such profile or mode.
        """
        if isinstance(tensor, CompressedTensor):
            tensor = tensor.decode()
        return cast("CompressedTensor", cls(new_frame(tensor, profile), linear_mode=linear_mode).to(tensor.device))

    def decode(self) -> Tensor:
        """The dense tensor, new memory on the same device, of a trusting reader (docs/format.md).

        Raises:
            FormatError: a block is damaged.
        """
        if isinstance(self._inner, CompressedTensor):
            return self._inner.decode().to(self.dtype)
        if self._elsewhere is not None:
            return self._elsewhere.decode()
        return cast("Tensor", tensorwire.decode(self.frame, self.dtype, self.shape))

    def set_linear_mode(self, mode: str) -> None:
        """How `torch.nn.functional.linear` multiplies with it from now on: "exact" or "fused"; else ValueError."""
        self.linear_mode = ops.check_linear_mode(mode)

    @property
    def requires_grad(self) -> bool:
        """Whether autograd differentiates by it. A parameter that is set to True becomes a dense one. If it cannot now,
        since it is offloaded or a backward pass still needs it, that is only remembered."""
        return bool(torch.Tensor.requires_grad.__get__(self))

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if self._is_param:
            self._asked_to_train = value
            if value:
                become_trainable(self)
        else:
            torch.Tensor.requires_grad.__set__(self, value)

    def requires_grad_(self, requires_grad: bool = True) -> CompressedTensor:
        """The same, as a method."""
        self.requires_grad = requires_grad
        return self

    @property
    def _is_param(self) -> bool:
        return bool(self.__dict__.get("_is_param"))

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        """Torch sets it to make a parameter of the tensor. That is no request to train: `nn.Module.to` makes one that
        requires what the old one did. A parameter is kept, so it is compressed, but for one without memory."""
        self._asked_to_train |= self.requires_grad
        self.requires_grad = False
        self.__dict__["_is_param"] = value
        if self.device.type != "meta":
            self._held[0] = self.frame

    def share_memory_(self) -> CompressedTensor:
        """A copy takes the place of the frame: torch moves the memory of what it shares from under its readers."""
        check_not_offloaded(self, "shared with other processes")
        if not self.is_shared():
            self._held[0] = sendable(self.frame)
        return self

    def data_ptr(self) -> int:
        """No address, and the same number for all that share a frame: accelerate tells tied weights by it. Torch gives
        zero, by which accelerate took one weight for another, and by which torch knows what it pickles by attributes.
        """
        return 0 if pickling.now else NO_ADDRESS | self._inner.data_ptr()

    def is_shared(self) -> bool:
        """Whether the frame lies in memory that processes share."""
        return bool(self.frame.is_shared())

    def _set_data(self, value: Tensor) -> None:
        """Torch changes what the tensor shows: dtype, shape and device. A dense value is compressed anew."""
        compressed = value if isinstance(value, CompressedTensor) else _compressed_as(self, value)
        torch.Tensor.data.__set__(self, compressed.detach())
        self._held, self._elsewhere = compressed._held, compressed._elsewhere

    @classmethod
    def _write(cls, func: Any, args: Any, kwargs: Any) -> Any:
        """Compressed arguments are decoded, and the changed ones compressed anew.

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
        for tensor in cls._written(func, args, kwargs):
            values = dense[tensor]
            if (values.shape, values.dtype, values.stride()) != (tensor.shape, tensor.dtype, tensor.stride()):
                raise RuntimeError(refused_write(str(func), tensor))
            _copy_(tensor, values)
        compressed = {id(values): tensor for tensor, values in dense.items()}
        return tree_map_only(torch.Tensor, lambda found: compressed.get(id(found), found), result)

    def _linear(self, x: Tensor, bias: Tensor | None) -> Any:
        """`torch.nn.functional.linear` with it as the weight; NotImplemented where that needs the dense tensor."""
        if self.dim() != 2 or isinstance(self._inner, CompressedTensor):
            return NotImplemented
        if isinstance(x, LazyTensor) or x.is_nested or x.layout != torch.strided:
            return NotImplemented
        if isinstance(bias, CompressedTensor):
            bias = bias.decode()
        if self._elsewhere is not None:
            return self._elsewhere.linear(x, bias, self.linear_mode)
        multiply = tensorwire.linear
        if _is_plain(x) and x.device == self.device:
            multiply = ops.linear_on_cpu if self.is_cpu else ops.linear_in_turn
        return multiply(x, self.frame, self.dtype, self.shape, bias, self.linear_mode)

    def _stable_hash_for_caching(self) -> str:
        """The facts that compiled code depends on. Torch keeps that code in files, which later versions of this package
        find."""
        facts = (__version__, self.dtype, tuple(self.shape), self._inner.shape, self.device, self.linear_mode)
        return " ".join(["CompressedTensor", *map(str, facts)])

    def __repr__(self, *, tensor_contents: object = None) -> str:
        inner, nbytes = self._inner, self.numel() * self.dtype.itemsize
        size = f"of {inner!r}" if isinstance(inner, CompressedTensor) else f"{inner.numel():,} of {nbytes:,} bytes"
        return f"CompressedTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}, {size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedTensor:
        """A frame that two tensors share stays shared."""
        if id(self) not in memo:
            if id(self.frame) not in memo:
                memo[id(self.frame)] = copy_of(self.frame, home_of(self))
            twin = memo[id(self)] = _like(self, [memo[id(self.frame)]])
            for name, value in vars(self).items():  # what others have set: a parameter is one by an attribute
                if name not in ("_elsewhere", "_held", "linear_mode"):
                    setattr(twin, name, copy.deepcopy(value, memo))
        return cast("CompressedTensor", memo[id(self)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """To pickle is to read the frame as memory. If that is a map of a file, a cut file would end the process."""
        check_unchanged(self.frame)
        if self._elsewhere is not None:
            twin = _wrap([self.frame], self.dtype, self.shape, self.linear_mode)
            for name, value in vars(self).items():
                if name not in ("_elsewhere", "_held"):
                    twin.__dict__[name] = value
            return twin.__reduce_ex__(protocol)
        pickling.now = True
        try:
            return super().__reduce_ex__(protocol)
        finally:
            pickling.now = False

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        check_not_offloaded(self, "compiled")
        return ["_inner"], (self.dtype, self.linear_mode)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], context: Any, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> CompressedTensor:
        dtype, linear_mode = context
        return _wrap([inner["_inner"]], dtype, outer_size, linear_mode)


def _wrap(
    held: list[Any], dtype: torch.dtype, shape: Sequence[int], linear_mode: str, elsewhere: Elsewhere | None = None
) -> CompressedTensor:
    device = held[0].device if elsewhere is None else elsewhere.device
    tensor = torch.Tensor._make_wrapper_subclass(
        CompressedTensor, shape, dtype=dtype, device=device, requires_grad=False
    )
    tensor._held, tensor.linear_mode = held, linear_mode
    if elsewhere is not None:
        tensor._elsewhere = elsewhere
    return cast("CompressedTensor", tensor)


def _is_plain(x: Tensor) -> bool:
    """Whether nothing but the kernel is to see an operation on it: then the way through torch to it is saved."""
    if type(x) is not torch.Tensor or torch._C._len_torch_dispatch_stack():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _like(tensor: CompressedTensor, held: list[Any], dtype: torch.dtype | None = None) -> CompressedTensor:
    elsewhere = tensor._elsewhere if held[0] is tensor._held[0] else None
    twin = _wrap(held, dtype or tensor.dtype, tensor.shape, tensor.linear_mode, elsewhere)
    if tensor._asked_to_train:
        twin._asked_to_train = True
    return twin


def _for_another_process(tensor: CompressedTensor) -> Any:
    """How multiprocessing pickles it: its frame moves into shared memory, as a dense tensor does."""
    check_not_offloaded(tensor, "sent to another process")
    tensor._held[0] = sendable(tensor.frame)
    return tensor.__reduce_ex__(2)


# Operations of aten ---------------------------------------------------------------------------------------------------


def _linear(x: Tensor, weight: Any, bias: Any = None) -> Any:
    return weight._linear(x, bias) if isinstance(weight, CompressedTensor) else NotImplemented


def _detach(tensor: CompressedTensor) -> CompressedTensor:
    return _like(tensor, tensor._held)


def _view(tensor: CompressedTensor, shape: Sequence[int]) -> Any:
    """One of the same shape is written to in place of the tensor: by `torch.nn.init.orthogonal_`, for one."""
    if tuple(shape) == tuple(tensor.shape):
        return _detach(tensor)
    return view_by(aten.view.default)(tensor, shape)


def _clone(tensor: CompressedTensor, *, memory_format: Any = None) -> CompressedTensor:
    return _like(tensor, [copy_of(tensor.frame, home_of(tensor))])


def _to_copy(
    tensor: CompressedTensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    non_blocking: bool = False,
    **ignored: Any,
) -> CompressedTensor:
    """To another device the frame travels; to another dtype the values are compressed anew once a frame is needed. A
    module that is converted needs one. Autocast, which converts a weight for one product, does not."""
    if device is not None and torch.device(device) != tensor.device:
        check_not_offloaded(tensor, f"moved to {device}")
    if dtype is None or dtype == tensor.dtype:
        return _like(tensor, [copy_of(tensor.frame, device or home_of(tensor), non_blocking)])
    source = _like(tensor, [tensor.frame]) if device is None else tensor.to(device)
    return _like(tensor, [source], dtype)


def _copy_(target: Any, source: Tensor, non_blocking: bool = False) -> Any:
    """What `load_state_dict` does: all values are replaced."""
    if not isinstance(target, CompressedTensor) or not isinstance(source, torch.Tensor):
        return NotImplemented
    if source.shape != target.shape:
        raise UnsupportedTensorError(f"expected a tensor of shape {tuple(target.shape)}, got {tuple(source.shape)}")
    check_not_offloaded(target, "written to")
    if isinstance(source, CompressedTensor) and source.dtype == target.dtype:
        target._held[0] = source.to(target.device).frame
    else:
        dense = source.decode() if isinstance(source, CompressedTensor) else source
        target._held[0] = _compressed_as(target, dense.to(target.dtype)).frame.to(target.device)
    return target


def offloaded(tensor: CompressedTensor, elsewhere: Elsewhere, frame: Tensor) -> CompressedTensor:
    """The tensor on the device of `elsewhere`, which has its frame, in host memory."""
    return _wrap([frame], tensor.dtype, tensor.shape, tensor.linear_mode, elsewhere)


def _compressed_as(tensor: CompressedTensor, values: Tensor) -> CompressedTensor:
    """Other values, compressed with what the tensor was compressed with."""
    profile = opened_anywhere(tensor.frame).info.profile
    return CompressedTensor.from_dense(values, profile, linear_mode=tensor.linear_mode)


def _rows_of(tensor: CompressedTensor, start: int, stop: int) -> Tensor:
    """Dense rows; only their blocks are decoded. In forward mode all are: torch wants the rows to lie in memory as
    those of a tangent do."""
    if forward_ad._current_level >= 0:
        return tensor.decode()[start:stop]
    size = tensor.shape[1:]
    if tensor._elsewhere is not None:
        return tensor._elsewhere.part((stop - start, *size), start * size.numel())
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


def _rows_by_number(tensor: CompressedTensor, numbers: Tensor, take: Callable[[Tensor], Any]) -> Any:
    """In a graph, rows are taken out of a table, as they are out of a dense tensor. On devices it would take its
    memory."""
    if tensor._elsewhere is not None:
        return tensor._elsewhere.rows(numbers)
    arguments = tensor.frame, tensor.dtype, tensor.shape, numbers
    if torch.compiler.is_compiling() and tensor.device.type == "cpu":
        return take(tensorwire.table(*arguments))
    return tensorwire.rows(*arguments)


def _index(tensor: Any, indices: list[Tensor | None]) -> Any:
    first = indices[0]
    if not isinstance(tensor, CompressedTensor) or len(indices) != 1 or first is None or first.dtype not in _NUMBERS:
        return NotImplemented
    if tensor.frame.device.type != "cpu":  # where a negative number is out of range
        first = first % tensor.shape[0]
        if tensor.linear_mode == "fused" and tensor.dim() == 3 and first.dim() == 1:
            return Matrices(tensor.frame, tensor.dtype, tensor.shape, first)
    return _rows_by_number(tensor, first, lambda table: table[first])


def _index_select(tensor: Any, dim: int, index: Tensor) -> Any:
    if not isinstance(tensor, CompressedTensor) or dim % tensor.dim() or index.dim() > 1 or index.dtype not in _NUMBERS:
        return NotImplemented
    return _rows_by_number(tensor, index, lambda table: table.index_select(dim, index))


def _embedding(weight: Any, indices: Tensor, *options: Any) -> Any:
    if not isinstance(weight, CompressedTensor) or indices.dtype not in _NUMBERS:
        return NotImplemented
    return _rows_by_number(weight, indices, lambda table: torch.nn.functional.embedding(indices, table))


def _encoder_layer(x: Tensor, *arguments: Any) -> Any:
    """Torch's fast path of a layer. Autocast casts for the operations that it is made of, and not for it as a whole.
    Down here autocast is off, so it is switched on again for them if it was on above."""
    with torch._C._RestorePythonTLSSnapshot():
        autocast = torch.is_autocast_enabled(x.device.type)
    x, *arguments = tree_map_only(CompressedTensor, CompressedTensor.decode, [x, *arguments])
    with torch.autocast(x.device.type, torch.get_autocast_dtype(x.device.type), enabled=autocast):
        return torch._transformer_encoder_layer_fwd(x, *arguments)


CompressedTensor._operations = {
    aten.linear.default: _linear,
    **{func: view_by(func) for func in VIEWS},
    aten.view.default: _view,
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
    aten.embedding.default: _embedding,
    **GROUPED,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}


def _linear_of_frame(
    x: Tensor, frame: Tensor, dtype: torch.dtype, shape: Sequence[int], bias: Tensor | None, mode: str
) -> Any:
    """The operator for inputs that autograd differentiates by, or that vmap takes: torch's rules for its own linear."""
    while torch._C._functorch.is_functorch_wrapped_tensor(frame):  # as all arguments then are
        frame = torch._C._functorch.get_unwrapped(frame)
    return torch.nn.functional.linear(x, _wrap([frame], dtype, shape, mode), bias)


_rules = torch.library.Library("tensorwire", "FRAGMENT")
for _key in ("Autograd", "FuncTorchBatched"):
    _rules.impl("linear", _linear_of_frame, _key)

torch.serialization.add_safe_globals([CompressedTensor])
ForkingPickler.register(CompressedTensor, _for_another_process)
