"""ComfyUI: a layout of comfy-kitchen's quantized tensors whose data is a frame.

Importing it registers the layout under its name, for ``QuantizedTensor.from_float(weight, "TensorwireLayout")``. Linear
layers multiply with the compressed weight; whatever else happens to it decodes it first. docs/vllm.md says what
ComfyUI lacks to load such tensors by itself.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from comfy_kitchen.tensor import QuantizedLayout, QuantizedTensor, register_layout_class, register_layout_op

from .ops import check_linear_mode
from .tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..codec import Profile

NAME = "TensorwireLayout"
aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class FrameParams:
    """What comfy-kitchen keeps beside the frame.

    Attributes:
        orig_dtype: the dtype that the tensor passes for; ``.to(dtype)`` changes it and leaves the frame.
        orig_shape: its shape, that of the transpose where it is `transposed`.
        frame_dtype: dtype in the frame.
        linear_mode: "exact" or "fused".
        transposed: the tensor is the transpose of the one in the frame.
    """

    orig_dtype: torch.dtype
    orig_shape: tuple[int, ...]
    frame_dtype: torch.dtype
    linear_mode: str = "exact"
    transposed: bool = False

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return self.orig_shape[::-1] if self.transposed else self.orig_shape

    def to_device(self, device: torch.device) -> FrameParams:
        return self

    def clone(self) -> FrameParams:
        return self

    def copy_from(self, src: FrameParams, non_blocking: bool = False) -> None:
        """Called when the frame was overwritten by another of equal size."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, getattr(src, field.name))


class TensorwireLayout(QuantizedLayout):  # type: ignore[misc] # the checker does not see comfy-kitchen
    """A tensor as one plain frame; no value changes."""

    Params = FrameParams

    @classmethod
    def quantize(
        cls, tensor: Tensor, profile: Profile = "fast", linear_mode: str = "exact", **options: Any
    ) -> tuple[Tensor, FrameParams]:
        """Compress a tensor. ComfyUI gives `options` to all layouts, such as a scale, which this one has not."""
        frame = CompressedTensor.from_dense(tensor, profile).frame
        return frame, FrameParams(tensor.dtype, tuple(tensor.shape), tensor.dtype, check_linear_mode(linear_mode))

    @classmethod
    def dequantize(cls, qdata: Tensor, params: FrameParams) -> Tensor:
        dense = torch.ops.tensorwire.decode(_unopened(qdata), params.frame_dtype, params.frame_shape)
        return dense.to(params.orig_dtype)

    @classmethod
    def get_plain_tensors(cls, qtensor: Any) -> tuple[Tensor, ...]:
        return (qtensor._qdata,)

    @classmethod
    def state_dict_tensors(cls, qdata: Tensor, params: FrameParams) -> dict[str, Tensor]:
        return {"": qdata}


def _unopened(frame: Tensor) -> Tensor:
    """comfy-kitchen copies other tensors over a frame, so what was known of its bytes may not be true any more."""
    return frame.detach()


def _linear(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    """`weight` as torch.nn.functional.linear takes it: not transposed."""
    params: FrameParams = weight._params
    if params.transposed or params.orig_dtype != params.frame_dtype or len(params.orig_shape) != 2:
        return torch.nn.functional.linear(x, weight.dequantize(), bias)
    product: Tensor = torch.ops.tensorwire.linear(
        x, _unopened(weight._qdata), params.frame_dtype, params.frame_shape, bias, params.linear_mode
    )
    return product


def _transposed(weight: Any) -> Any:
    params: FrameParams = weight._params
    turned = dataclasses.replace(params, orig_shape=params.orig_shape[::-1], transposed=not params.transposed)
    return QuantizedTensor(weight._qdata, NAME, turned)


def _dense(tensor: Any) -> Any:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor


# How torch.nn.functional.linear arrives: whole under inference_mode, else as a transpose and a product.


def _on_linear(_: Any, args: Any, kwargs: Any) -> Tensor:
    x, weight, *bias = args
    if not isinstance(weight, QuantizedTensor):
        return torch.nn.functional.linear(_dense(x), weight, *map(_dense, bias))
    return _linear(_dense(x), weight, _dense(bias[0]) if bias else None)


def _on_transpose(_: Any, args: Any, kwargs: Any) -> Any:
    return _transposed(args[0])


def _on_product(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """mm(x, weight) or addmm(bias, x, weight)."""

    def handler(_: Any, args: Any, kwargs: Any) -> Tensor:
        *bias, x, weight = args
        if kwargs or not isinstance(weight, QuantizedTensor) or not weight._params.transposed:
            return function(*map(_dense, args), **kwargs)
        return _linear(_dense(x), _transposed(weight), _dense(bias[0]) if bias else None)

    return handler


register_layout_class(NAME, TensorwireLayout)
register_layout_op(aten.linear.default, TensorwireLayout)(_on_linear)
register_layout_op(aten.t.default, TensorwireLayout)(_on_transpose)
register_layout_op(aten.mm.default, TensorwireLayout)(_on_product(torch.mm))
register_layout_op(aten.addmm.default, TensorwireLayout)(_on_product(torch.addmm))
