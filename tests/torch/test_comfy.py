"""Tensors of comfy-kitchen, the library under ComfyUI, whose data is a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("comfy_kitchen", reason="comfy-kitchen is missing")

from comfy_kitchen.tensor import QuantizedTensor  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

from tensorwire.torch import comfy  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def weight(dtype: Any = torch.bfloat16, rows: int = 96, columns: int = 64) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(dtype)


def compressed(dense: Tensor, **options: Any) -> Any:
    return QuantizedTensor.from_float(dense, comfy.NAME, **options)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_gives_every_bit_back(dtype: Any) -> None:
    dense = weight(dtype)
    tensor = compressed(dense)
    assert (tensor.dtype, tensor.shape) == (dense.dtype, dense.shape)
    assert tensor.storage_dtype == torch.uint8
    assert same_bits(tensor.dequantize(), dense)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 64), (5, 64), (2, 3, 64), (40, 64)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_layers_give_the_bits_of_dense_ones(dtype: Any, shape: Any, bias: bool, inference: bool) -> None:
    dense, x = weight(dtype), torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    offset = weight(dtype)[:, 0].contiguous() if bias else None
    with torch.inference_mode(inference), torch.no_grad():
        assert same_bits(linear(x, compressed(dense), offset), linear(x, dense, offset))


def test_linear_layers_make_no_dense_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, x = compressed(weight(), linear_mode="fused"), weight(rows=2)
    monkeypatch.setattr(comfy.TensorwireLayout, "dequantize", lambda *_: pytest.fail("it was decoded"))
    for inference in (False, True):
        with torch.inference_mode(inference), torch.no_grad():
            linear(x, tensor)


def test_other_operations_decode() -> None:
    dense = weight()
    tensor = compressed(dense)
    assert same_bits(tensor + 1, dense + 1)
    assert same_bits(dense @ tensor.t(), dense @ dense.t())
    assert same_bits(dense.t() @ tensor, dense.t() @ dense)
    assert same_bits(tensor.clone().dequantize(), dense)
    assert same_bits(tensor.to(torch.float32).dequantize(), dense.to(torch.float32))
    assert same_bits(linear(dense.float(), tensor.to(torch.float32)), linear(dense.float(), dense.float()))


def test_another_tensor_may_be_copied_over_it() -> None:
    """As ComfyUI does with tensors on their way to a device: memory is used again."""
    first, second = (torch.full((8, 64), value, dtype=torch.bfloat16) for value in (1.0, 2.0))
    target, source = compressed(first), compressed(second)
    assert target.storage_shape == source.storage_shape
    assert same_bits(target.dequantize(), first)
    target.copy_(source)
    assert same_bits(target.dequantize(), second)
    assert same_bits(linear(first, target), linear(first, second))


def test_it_is_in_the_state_dict_as_a_frame() -> None:
    module = torch.nn.Linear(64, 96, bias=False, dtype=torch.bfloat16)
    dense = module.weight.detach().clone()
    module.weight = torch.nn.Parameter(compressed(dense), requires_grad=False)
    parts = module.weight.data.state_dict("weight")
    assert list(parts) == ["weight"]
    from tensorwire import decompress

    assert same_bits(decompress(parts["weight"], framework="pt"), dense)
    x = weight(rows=3)
    assert same_bits(module(x), linear(x, dense))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="exact, fused"):
        compressed(weight(), linear_mode="fast")
