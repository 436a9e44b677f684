"""Models whose weights stay compressed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from .._ground.text import count, in_a_line, size
from ..errors import ErrorContext
from .frames.open_frame import in_memory_nbytes
from .ops import check_linear_mode
from .products.kind import Strides, strides_of
from .tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from torch import nn

    from ..codec import Profile

_Module = TypeVar("_Module", bound="nn.Module")

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2)
MIN_NUMEL = 65_536
"""Smaller tensors are left dense by default."""


def compress_module(
    model: _Module, *, profile: Profile = "fast", min_numel: int = MIN_NUMEL, linear_mode: str = "exact"
) -> _Module:
    """Compress the parameters of a model, one after the other, in place; outputs stay bit-identical.

    Compressed parameters are frozen until they are asked to require a gradient, which makes them dense. Tied parameters
    stay tied. Not thread-safe while it runs.

    Args:
        model: on the CPU, or on a device, which then compresses them as `CompressedTensor.from_dense` says. Parameters
            of BF16, F16, F32 and F8 are compressed. Parameters that share memory with other tensors of the model stay
            as they are, and so do parameters with other strides than a new tensor has: torch sums in another order
            where a matrix lies by columns.
        profile: "fast", or "resident", which is larger; where it decodes faster, docs/performance.md says.
        min_numel: smaller parameters stay as they are, and so do those that would not become smaller.
        linear_mode: "exact", or "fused": linear layers in a summation order of our own, without a dense weight.

    Returns:
        The model.

    Raises:
        UnsupportedTensorError: a parameter has no memory of its own, as a DTensor; it is named.
        ValueError: there is no such profile or mode. After an error some parameters are compressed, the others not.
    """
    check_linear_mode(linear_mode)
    frozen: dict[torch.Tensor, nn.Parameter] = {}
    shared = _shared_storages(model)
    for path, module, name, parameter in list(_parameters(model)):
        if parameter not in frozen:
            if not _worth_it(parameter, min_numel) or parameter.untyped_storage() in shared:
                continue
            with ErrorContext(tensor=f"{path}.{name}".lstrip(".")):
                compressed = CompressedTensor.from_dense(parameter, profile, linear_mode=linear_mode)
            if compressed.frame.numel() >= parameter.numel() * parameter.element_size():
                continue
            frozen[parameter] = torch.nn.Parameter(compressed, requires_grad=parameter.requires_grad)
        module._parameters[name] = frozen[parameter]
    return model


def decompress_module(model: _Module) -> _Module:
    """Make the compressed parameters of a model dense again, in place. They stay frozen, and tied ones tied. What
    decodes them is a trusting reader (docs/format.md).

    Not thread-safe while it runs.

    Returns:
        The model.

    Raises:
        FormatError: a block is damaged.
    """
    dense: dict[torch.Tensor, nn.Parameter] = {}
    values: dict[torch.Tensor, torch.Tensor] = {}
    for _, module, name, parameter in list(_parameters(model)):
        if isinstance(parameter, CompressedTensor):
            if parameter not in dense:
                with torch.inference_mode(False):  # as the parameters of a model are that is loaded in that mode
                    if parameter.frame not in values:  # parameters that share one share memory
                        values[parameter.frame] = parameter.decode()
                    dense[parameter] = torch.nn.Parameter(values[parameter.frame], requires_grad=False)
            module._parameters[name] = dense[parameter]
    return model


def set_linear_mode(model: _Module, mode: str) -> _Module:
    """How the linear layers of a model multiply with compressed weights: "exact" or "fused".

    Returns:
        The model.

    Raises:
        ValueError: there is no such mode.
    """
    check_linear_mode(mode)  # of a model without compressed weights, too
    for *_, parameter in _parameters(model):
        if isinstance(parameter, CompressedTensor):
            parameter.set_linear_mode(mode)
    return model


@dataclass(frozen=True)
class ModuleMemory:
    """Memory of the parameters and buffers of a module, without those of its children.

    Attributes:
        name: of the module in the model; "" for the model itself.
        nbytes: what they take now. A view of other memory takes all of that. Frames that are mapped from a file count
            whole, blocks that `resident_nbytes` leaves in a file not at all.
        dense_nbytes: what they would take uncompressed.
    """

    name: str
    nbytes: int
    dense_nbytes: int

    @property
    def ratio(self) -> float:
        """Uncompressed size over size."""
        return self.dense_nbytes / self.nbytes if self.nbytes else 1.0


@dataclass(frozen=True)
class MemoryReport:
    """Memory of a model's parameters and buffers. ``print(report)`` shows a table.

    Attributes:
        modules: those that hold any, in the order of ``model.named_modules()``. Memory of several tensors, tied ones
            or views, counts once, where it comes first.
    """

    modules: tuple[ModuleMemory, ...]

    def __repr__(self) -> str:
        return in_a_line(
            self,
            count(len(self.modules), "module"),
            f"{size(self.dense_nbytes)} in {size(self.nbytes)}",
            f"ratio {self.ratio:.3f}",
        )

    @property
    def nbytes(self) -> int:
        """The bytes that all of them take."""
        return sum(module.nbytes for module in self.modules)

    @property
    def dense_nbytes(self) -> int:
        """The bytes that all of them would take uncompressed."""
        return sum(module.dense_nbytes for module in self.modules)

    @property
    def ratio(self) -> float:
        """Uncompressed size over size."""
        return self.dense_nbytes / self.nbytes if self.nbytes else 1.0

    def __str__(self) -> str:
        rows = [*self.modules, ModuleMemory("total", self.nbytes, self.dense_nbytes)]
        width = max(len("module"), *(len(row.name) for row in rows))
        lines = [f"{'module':{width}} {'compressed':>14} {'dense':>14} {'ratio':>6}"]
        lines += [f"{row.name:{width}} {row.nbytes:14,} {row.dense_nbytes:14,} {row.ratio:6.3f}" for row in rows]
        return "\n".join(lines)


def memory_report(model: nn.Module) -> MemoryReport:
    """The memory of a model's parameters and buffers, module by module, beside what it would be uncompressed."""
    seen: set[object] = set()
    modules = []
    for name, module in model.named_modules():
        held = {_holder(tensor): _nbytes(tensor) for tensor in _tensors(module)}
        new = [held[holder] for holder in held.keys() - seen]
        seen.update(held)
        if new:
            modules.append(ModuleMemory(name, *map(sum, zip(*new, strict=True))))
    return MemoryReport(tuple(modules))


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Its parameters and buffers, without those of its children."""
    yield from (t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None)


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """The path of each module, the module, and name and value of each of its own parameters."""
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield path, module, name, parameter


def _worth_it(parameter: torch.Tensor, min_numel: int) -> bool:
    if isinstance(parameter, CompressedTensor) or parameter.dtype not in DTYPES or parameter.numel() < min_numel:
        return False
    return strides_of(parameter.shape, parameter.stride()) is Strides.USUAL


def _shared_storages(model: nn.Module) -> set[object]:
    """The memory that several tensors of a model are views of: it stays as long as one of them does."""
    tensors = {tensor for module in model.modules() for tensor in _tensors(module)}
    return {holder for holder, count in Counter(map(_holder, tensors)).items() if count > 1}


def _holder(tensor: torch.Tensor) -> object:
    """What its memory belongs to: the same for all views of it."""
    if isinstance(tensor, CompressedTensor):
        return tensor.frame
    return tensor.untyped_storage() if tensor.layout == torch.strided else tensor


def _nbytes(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes that a tensor's memory takes, and those that it would take uncompressed."""
    nbytes = tensor.numel() * tensor.element_size()
    if isinstance(tensor, CompressedTensor):
        return in_memory_nbytes(tensor.frame), nbytes
    if tensor.layout == torch.strided:
        nbytes = tensor.untyped_storage().nbytes()
    return nbytes, nbytes
