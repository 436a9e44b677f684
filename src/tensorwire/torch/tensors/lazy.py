"""The base class of compressed tensors and their views: they are decoded where an operation needs their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.utils._pytree import tree_map_only

from .dense import become_dense

if TYPE_CHECKING:
    from torch import Tensor


DENSE_MEMORY = (
    "CompressedTensor.from_dense compresses a tensor; if a library reads weights back that it has written to disk, as "
    "accelerate's disk_offload does, make the model dense first with tensorwire.torch.decompress_module"
)
"""What to do if dense memory is given for a frame."""


class LazyTensor(torch.Tensor):  # type: ignore[misc] # the checker does not see torch
    """A tensor without memory, which every operation meets below autograd.

    Derivatives of all kinds, vmap and autocast stay torch's own: they see the operations of the dense tensor.
    `__torch_function__` would be called before them. It is disabled for one more reason: torch's attention modules
    look for it, and choose another path where a weight has it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    _operations: ClassVar[dict[Any, Callable[..., Any]]]
    """Handlers of the operations that do not decode the whole tensor. A handler may return NotImplemented."""

    def decode(self) -> Tensor:
        """The dense tensor, new memory on the same device."""
        raise NotImplementedError

    @property
    def data(self) -> Tensor:
        """As torch's."""
        return cast("Tensor", torch.Tensor.data.__get__(self))

    @data.setter
    def data(self, value: Tensor) -> None:
        self._set_data(value)

    def _set_data(self, value: Tensor) -> None:
        """Torch would change the shape that the tensor shows, and nothing else."""
        raise RuntimeError(refused_write("assignment to .data", self))

    def storage(self) -> Any:
        """Safetensors, PEFT and accelerate ask for it before they read the bytes of the values, or to see which tensors
        share them: a tensor of a state dict becomes dense. A parameter stays as it is: a model would become dense
        because another library looked at it.

        Raises:
            RuntimeError: it is a parameter.
        """
        if isinstance(self, torch.nn.Parameter):
            raise RuntimeError(
                f"expected a dense tensor, got a compressed parameter of shape {tuple(self.shape)}, which has no "
                "memory with its values; give model.state_dict() or tensor.decode(), or make the module dense first "
                "with tensorwire.torch.decompress_module"
            )
        become_dense(self)
        return self.untyped_storage()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Through a slice, which is a dense copy, the write would be lost."""
        raise RuntimeError(refused_write("item assignment", self))

    def __dlpack__(self, **options: Any) -> Any:
        return self.decode().__dlpack__(**options)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view and torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # torch wants to track views, which tensors of that mode do not allow
                return cls._run(func, args, kwargs or {})
        return cls._run(func, args, kwargs or {})

    @classmethod
    def _run(cls, func: Any, args: Any, kwargs: Any) -> Any:
        handler = cls._operations.get(func)
        result = NotImplemented if handler is None else handler(*args, **kwargs)
        if result is NotImplemented and not any(isinstance(x, torch.Tensor) and x.is_nested for x in args):
            result = func.decompose(*args, **kwargs)  # under inference_mode composite operations come whole
        if result is NotImplemented and func._schema.is_mutable:
            result = cls._write(func, args, kwargs)
        if result is NotImplemented:
            args, kwargs = tree_map_only(cls, cls.decode, (args, kwargs))
            result = func(*args, **kwargs)
        return result

    @classmethod
    def _write(cls, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that changes some of its arguments; NotImplemented if it only reads those of this class.

        Raises:
            RuntimeError: it changes one of this class.
        """
        for tensor in cls._written(func, args, kwargs):
            raise RuntimeError(refused_write(str(func), tensor))
        return NotImplemented

    @classmethod
    def _written(cls, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """The arguments of this class that an operation changes."""
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else kwargs.get(argument.name)
                values = value if isinstance(value, list | tuple) else [value]
                yield from (tensor for tensor in values if isinstance(tensor, cls))


def refused_write(what: str, tensor: LazyTensor) -> str:
    """The message of the error of a write that cannot be followed."""
    return (
        f"{what} writes to a part of a compressed tensor of shape {tuple(tensor.shape)}, or changes its shape; write "
        "to tensor.decode(), or make the module dense first with tensorwire.torch.decompress_module"
    )


def kind_of(value: object) -> str:
    """What something is, for messages."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
