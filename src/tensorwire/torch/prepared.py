"""A model on a device, made ready: its frames open, and weights that meet the same input multiplied together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .frames.open_frame import FrameThere, check_not_capturing, close, is_open, opened_there, ready_to_multiply
from .frames.turn import wait_for
from .products.joint import Group, JointProduct, Member
from .tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from torch import Tensor, nn

SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
    ("q", "k", "v"),
    ("to_k", "to_v"),
    ("k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wi_0", "wi_1"),
)
"""Names of layers of one module that models give the same input. Where one of them does not, the group is found to be
none when it is used: a wrong guess costs time and changes no result."""


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did. ``print(prepared)`` says it in a sentence.

    Attributes:
        frames: how many frames of the model lie on a device; all are open now.
        nbytes: of these frames.
        dense_nbytes: of their tensors.
        joined: the weights of layers in mode *fused* that are multiplied together, by their names in the model.
    """

    frames: int
    nbytes: int
    dense_nbytes: int
    joined: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        weights = sum(map(len, self.joined))
        return (
            f"{self.frames} frames are open, {self.nbytes:,} bytes for {self.dense_nbytes:,}; "
            f"{weights} weights in {len(self.joined)} groups are multiplied together"
        )


def prepare(model: nn.Module) -> Prepared:
    """Make a model on a device ready: nothing is left to be made at the first use, or while a graph is captured.

    All its frames are opened, and products get their tables. Linear layers that meet the same input, such as query, key
    and value, are multiplied in one launch, if they are in mode *fused*, or in mode *exact* and a trial finds one order
    of summation for all. Outputs stay the same. `from_pretrained` calls it. Call it again after `set_linear_mode`, and
    after weights were replaced; what is ready stays as it is. Weights on the CPU are not touched. Not thread-safe while
    it runs.

    Args:
        model: with compressed weights on devices, or without.

    Raises:
        RuntimeError: a graph is captured; or what a device raises, its being out of memory above all. After an error
            the model is as it was.
        FormatError: a frame is damaged.
    """
    weights = dict(_weights(model))
    frames = list({id(weight.frame): weight.frame for weight in weights.values()}.values())
    for device in {frame.device for frame in frames}:
        check_not_capturing(device)
    opened: list[Tensor] = []
    try:
        for frame in frames:
            if not is_open(frame):
                opened_there(frame)
                opened.append(frame)
        for weight in weights.values():
            if weight.dim() in (2, 3):
                ready_to_multiply(weight.frame)
        groups = [(names, members, _group(members)) for names, members in _groups(model)]
        for device in {frame.device for frame in frames}:
            wait_for(device)  # what reads the tables may run on another stream
    except BaseException:
        for frame in opened:
            close(frame)
        raise
    joined = []
    for names, members, group in groups:
        if group is not None:
            if members[0].weight.linear_mode == "fused":
                joined.append(names)
            for number, member in enumerate(members):
                member.frame.member = Member(group, number)
    nbytes = sum(frame.numel() for frame in frames)
    dense = {id(weight.frame): weight.numel() * weight.element_size() for weight in weights.values()}
    return Prepared(len(frames), nbytes, sum(dense.values()), tuple(joined))


@dataclass(frozen=True)
class _Layer:
    weight: CompressedTensor
    bias: Tensor | None

    @property
    def frame(self) -> FrameThere:
        return opened_there(self.weight.frame)


def _weights(model: nn.Module) -> Iterator[tuple[str, CompressedTensor]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if isinstance(parameter, CompressedTensor) and parameter.frame.device.type not in ("cpu", "meta"):
            yield name, parameter


def _groups(model: nn.Module) -> Iterator[tuple[tuple[str, ...], list[_Layer]]]:
    """Layers that may meet the same input, each in one group at most."""
    for name, module in model.named_modules():
        children, prefix = module._modules, f"{name}." if name else ""
        taken: set[str] = set()
        for siblings in SIBLINGS:
            layers = [_layer(children.get(sibling)) for sibling in siblings]
            found = [layer for layer in layers if layer is not None]
            if len(found) == len(siblings) and not taken & set(siblings) and _fit(found):
                taken.update(siblings)
                yield tuple(prefix + sibling for sibling in siblings), found


def _layer(module: nn.Module | None) -> _Layer | None:
    """A linear layer, also under an adapter, which has it as its `base_layer`."""
    module = getattr(module, "base_layer", module)
    weight = getattr(module, "weight", None)
    if not isinstance(module, torch.nn.Linear) or not isinstance(weight, CompressedTensor):
        return None
    if weight.frame.device.type in ("cpu", "meta"):
        return None
    return _Layer(weight, module.bias)


def _fit(layers: Sequence[_Layer]) -> bool:
    """Whether their products can be one launch."""
    weights = [layer.weight for layer in layers]
    kinds = {(weight.device, weight.dtype, weight.shape[1], weight.linear_mode) for weight in weights}
    frames = {id(layer.weight.frame) for layer in layers}
    return len(kinds) == 1 and len(frames) == len(layers) and all(_adds(layer) for layer in layers)


def _adds(layer: _Layer) -> bool:
    """Whether its bias is such as kernels add."""
    bias, weight = layer.bias, layer.weight
    if bias is None:
        return True
    alike = (bias.dtype, bias.device, bias.shape) == (weight.dtype, weight.device, weight.shape[:1])
    return alike and not isinstance(bias, CompressedTensor)


def _group(layers: Sequence[_Layer]) -> Group | None:
    """The group that they are in already, or a new one; None if their kernels cannot be joined."""
    readers = [layer.frame for layer in layers]
    products = [reader.product for reader in readers]
    known = [reader.member for reader in readers]
    biases = [layer.bias for layer in layers]
    group: Group | None = None if known[0] is None else known[0].group
    same = group is not None and known == [Member(group, number) for number in range(len(layers))]
    if group is not None and same and group.is_open and group.has(biases):
        return group
    if None in products or len({product.width for product in products if product is not None}) > 1:
        return None
    frames, rows = [layer.weight.frame for layer in layers], [layer.weight.shape[0] for layer in layers]
    return Group(frames, rows, biases, _joint(products))


def _joint(products: Sequence[Any]) -> JointProduct:
    from .device.product import joint

    return joint(products)
