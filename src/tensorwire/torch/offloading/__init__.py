"""Models that are larger than a device: weights stay compressed on the host, and come when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..._ground.copies import not_copied
from ..._ground.text import in_a_line, size
from ..frames.open_frame import opened
from ..tensors.compressed_tensor import CompressedTensor, offloaded
from .host_memory import HostMemory, Pinning
from .streamed import HostWeight, Streamed, aligned

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Offload", "offload"]

_HOOKS = ("_hf_hook", "_diffusers_hook")


class _OffloadedWeight:
    """A weight in host memory that shows itself on a device: what a `CompressedTensor` asks for its values."""

    __reduce_ex__ = not_copied("memory of the host", "offload the other model")

    def __init__(self, weight: HostWeight, streamed: Streamed, device: torch.device) -> None:
        self.device = device
        self._weight, self._streamed, self.frame = weight, streamed, weight.frame
        reader = opened(weight.frame)
        self.dtype, self.shape = reader.dtype, reader.shape

    def decode(self) -> Tensor:
        with self._there() as frame:
            values: Tensor = torch.ops.tensorwire.decode(frame, self.dtype, self.shape)
            return values

    def part(self, shape: Sequence[int], first: int) -> Tensor:
        """The host decodes it, so a caller that wants a few rows does not wait for all of them."""
        if math.prod(shape) == math.prod(self.shape):
            return self.decode().view(shape)
        values: Tensor = torch.ops.tensorwire.decode(self._weight.frame, self.dtype, shape, first)
        return values.to(self.device)

    def rows(self, indices: Tensor) -> Tensor:
        """The host decodes them, which waits until the indices are known."""
        frame = self._weight.frame
        rows: Tensor = torch.ops.tensorwire.rows(frame, self.dtype, self.shape, indices.to(frame.device))
        return rows.to(self.device)

    def linear(self, x: Tensor, bias: Tensor | None, mode: str) -> Tensor:
        if self._weight.multiplies(x, bias, mode):
            with self._there() as frame:
                product: Tensor = torch.ops.tensorwire.linear(x, frame, self.dtype, self.shape, bias, mode)
                return product
        lease = self._streamed.take(self._weight, decoded=True)
        if lease is None:
            return torch.nn.functional.linear(x, self.decode(), bias)
        with lease as values:
            return torch.nn.functional.linear(x, values, bias)

    @contextmanager
    def _there(self) -> Iterator[Tensor]:
        """The frame on the device."""
        lease = self._streamed.take(self._weight, decoded=False)
        if lease is None:
            yield self._weight.newly_at(self._weight.frame.to(self.device))
        else:
            with lease as frame:
                yield frame


class Offload:
    """What `offload` returns: close it, or use it in a ``with`` statement.

    Attributes:
        device: where the model computes.
        nbytes: size of the frames that stay in memory of the host.
        pinned_nbytes: size of those among them that are copied while the host goes on.
        resident_nbytes: size of the frames that lie on the device.
    """

    __reduce_ex__ = not_copied("memory and streams of a device", "call offload with the other model")

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self.device,
            f"{size(self.nbytes)} in memory of the host",
            f"{size(self.pinned_nbytes)} of them pinned",
            f"{size(self.resident_nbytes)} resident",
        )

    def __init__(self, model: nn.Module, device: torch.device, memory: int, streams: Any, pinning: Pinning) -> None:
        weights = _weights(model)
        chosen = _chosen(model, weights, memory)
        frames = list({id(weight.frame): weight.frame for weight in chosen}.values())
        self.device = device
        self._model: nn.Module | None = model
        self._host = HostMemory(frames, pinning)
        self._streamed: Streamed | None = None
        self.nbytes, self.pinned_nbytes = self._host.nbytes, self._host.pinned_nbytes
        self.resident_nbytes = sum({id(w.frame): w.frame.numel() for w in weights}.values()) - self.nbytes
        there = {id(frame): HostWeight(copy) for frame, copy in zip(frames, self._host.frames, strict=True)}
        try:
            self._put(there, streams)
        except BaseException:
            self.close()
            raise

    def _put(self, weights: dict[int, HostWeight], streams: Any) -> None:
        """What stays on the device comes first: what is left is for what comes and goes."""

        def stays(tensor: Tensor) -> Tensor:
            return tensor if _weight_of(tensor, weights) is not None else _moved(tensor, self.device)

        def goes(tensor: Tensor) -> Tensor:
            weight = _weight_of(tensor, weights)
            return tensor if weight is None else _shown(tensor, _OffloadedWeight(weight, streamed, self.device))

        _change(self._model, stays)
        streamed = self._streamed = Streamed(list(weights.values()), self.device, streams)
        _change(self._model, goes)

    def close(self) -> None:
        """Bring the model back to the host, its weights compressed, and free the memory of the device."""
        if self._model is not None:
            _change(self._model, lambda tensor: _moved(tensor, torch.device("cpu")))
            self._model = None
        if self._streamed is not None:
            self._streamed.close()
        self._host.close()

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def offload(model: nn.Module, device: torch.device | str = "cuda", *, memory: int = 0) -> Offload:
    """Let a model compute on a device that is too small for it.

    Its compressed weights stay in memory of the host, as many as do not fit into `memory`. A weight is copied to the
    device, compressed, and decoded there while those before it are in use. Everything else moves to the device. So the
    model's tensors show that they are on the device, and inputs belong there. Outputs have the bits of the dense model
    on that device, in mode *exact*.

    The order is learned from the first pass and followed from the second on; a weight that comes out of turn is copied
    when it is asked for. Rows of embeddings are decoded by the host.

    Args:
        model: with compressed weights, in memory of the host. It is changed in place, and must not be in use meanwhile.
        device: where it computes.
        memory: how many bytes of the device may be taken by weights. Zero takes what is needed at least: room for two
            weights as they are, and for two compressed. What is beyond that is for weights that then stay there.

    Returns:
        A handle; its `close`, or the end of its ``with`` statement, brings the model back to the host.

    Raises:
        ValueError: the device is the CPU; the model has no compressed weights, or is not all on the host, or has hooks
            of accelerate or diffusers; or `memory` is negative.
        FormatError: a weight is damaged.
        MemoryError, RuntimeError: no memory on the host, or on the device. The model is then as it was.
    """
    there = torch.device(device)
    if there.type in ("cpu", "meta"):
        raise ValueError(f"expected a device with memory of its own, got {there}; on the CPU, decode_ahead is for that")
    if memory < 0:
        raise ValueError(f"expected memory from 0 on, got {memory}")
    there = torch.empty(0, device=there).device  # with its number
    return Offload(model, there, memory, torch.get_device_module(there), Pinning(there))


def _weights(model: nn.Module) -> list[CompressedTensor]:
    """Its compressed weights."""
    for name, module in model.named_modules():
        if hook := next((hook for hook in _HOOKS if hasattr(module, hook)), None):
            raise ValueError(
                f"module {name!r} has hooks of accelerate's or diffusers' ({hook}), which move weights by themselves; "
                "load the model without device_map and without another offload"
            )
    weights = [weight for weight in model.parameters() if isinstance(weight, CompressedTensor)]
    if not weights:
        raise ValueError("expected a model with compressed weights; tensorwire.torch.compress_module compresses it")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise ValueError(f"expected a model in memory of the host, got {name} on {tensor.device}; move it there")
    return weights


def _chosen(model: nn.Module, weights: Sequence[CompressedTensor], memory: int) -> list[CompressedTensor]:
    """Weights that stay on the host: evenly from among all, so that one is copied while others are used that are on the
    device. Embeddings come last: of them the host decodes a few rows."""
    nbytes = {id(weight.frame): weight.frame.numel() for weight in weights}
    if sum(map(aligned, nbytes.values())) <= memory:
        return []
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    looked_up -= {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    streamed = [weight for weight in weights if id(weight) not in looked_up]
    rest = memory - sum(sum(sorted(sizes)[-2:]) for sizes in _sizes(weights))
    total = sum(aligned(size) for size in {id(w.frame): w.frame.numel() for w in streamed}.values())
    chosen: list[CompressedTensor] = [weight for weight in weights if id(weight) in looked_up]
    seen = kept = 0
    resident: set[int] = set()
    for weight in streamed:
        size = aligned(weight.frame.numel())
        seen += size
        if id(weight.frame) in resident:
            continue
        if (kept + size) * total <= rest * seen:
            kept += size
            resident.add(id(weight.frame))
        else:
            chosen.append(weight)
    return chosen


def _sizes(weights: Sequence[CompressedTensor]) -> tuple[list[int], list[int]]:
    frames = {id(weight.frame): weight for weight in weights}.values()
    return (
        [aligned(weight.frame.numel()) for weight in frames],
        [aligned(weight.numel() * weight.element_size()) for weight in frames],
    )


def _weight_of(tensor: Tensor, weights: dict[int, HostWeight]) -> HostWeight | None:
    return weights.get(id(tensor.frame)) if isinstance(tensor, CompressedTensor) else None


def _change(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Put another tensor, or the same one, in the place of each parameter and buffer. Tied ones stay tied."""
    changed: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one, whose number is no other's meanwhile
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    if id(tensor) not in changed:
                        changed[id(tensor)] = tensor, change(tensor)
                    held[name] = changed[id(tensor)][1]


def _shown(weight: CompressedTensor, elsewhere: _OffloadedWeight) -> Tensor:
    """A parameter that shows itself elsewhere."""
    return _parameter(offloaded(weight, elsewhere, elsewhere.frame), weight)


def _parameter(tensor: CompressedTensor, like: CompressedTensor) -> Tensor:
    return torch.nn.Parameter(tensor, requires_grad=like._asked_to_train) if like._is_param else tensor


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """As `torch.nn.Module.to`: a parameter stays the same object where torch can change its device."""
    if tensor.device == device:
        return tensor
    if isinstance(tensor, CompressedTensor):
        here = CompressedTensor(tensor.frame, linear_mode=tensor.linear_mode)  # which is on the host
        return _parameter(here if tensor._elsewhere is not None else here.to(device), tensor)
    moved = tensor.detach().to(device)
    if not isinstance(tensor, torch.nn.Parameter):
        return moved
    if not torch._has_compatible_shallow_copy_type(tensor, moved):
        return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    gradient, tensor.grad = tensor.grad, None
    tensor.data = moved
    tensor.grad = None if gradient is None else gradient.to(device)
    return tensor
