"""Parameters that lie in memory in another way than a new tensor does: they stay as they are, and so do the bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tensorwire.torch import CompressedTensor, compress_module, decompress_module, memory_report  # noqa: E402
from tests.support.linear_models import same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = [torch.float32, torch.bfloat16]
WIDTH = 256


def weights(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator) * 0.02).to(dtype)


def by_columns(dtype: Any) -> nn.Module:
    layer = nn.Linear(WIDTH, 2 * WIDTH, dtype=dtype)
    layer.weight = nn.Parameter(weights(WIDTH, 2 * WIDTH, dtype=dtype).t())
    return layer


def part_of_rows(dtype: Any) -> nn.Module:
    layer = nn.Linear(WIDTH, 2 * WIDTH, dtype=dtype)
    layer.weight = nn.Parameter(weights(2 * WIDTH, 2 * WIDTH, dtype=dtype)[:, :WIDTH])
    return layer


def channels_last(dtype: Any) -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, 3, dtype=dtype).to(memory_format=torch.channels_last)


def channels_last_of_one_pixel(dtype: Any) -> nn.Module:
    """Contiguous in both layouts: torch goes by the strides that mean nothing."""
    return nn.Conv2d(WIDTH, WIDTH, 1, dtype=dtype).to(memory_format=torch.channels_last)


def inputs(layer: nn.Module, dtype: Any) -> Any:
    shape = (3, WIDTH, 5, 5) if isinstance(layer, nn.Conv2d) else (8, WIDTH)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("made", [by_columns, part_of_rows, channels_last, channels_last_of_one_pixel])
@torch.no_grad()
def test_outputs_keep_their_bits(made: Callable[[Any], nn.Module], dtype: Any) -> None:
    layer = made(dtype)
    x = inputs(layer, dtype)
    expected, strides = layer(x), layer.weight.stride()
    compress_module(layer, min_numel=1000)
    assert same(layer(x), expected)
    assert layer(x).stride() == expected.stride()
    assert layer.weight.stride() == strides
    report = memory_report(layer)
    assert report.ratio == 1.0


@torch.no_grad()
def test_others_of_the_model_are_compressed() -> None:
    model = nn.Sequential(by_columns(torch.float32), nn.Linear(2 * WIDTH, WIDTH))
    x = inputs(model, torch.float32)
    expected = model(x)
    compress_module(model, min_numel=1000)
    assert [isinstance(layer.weight, CompressedTensor) for layer in model] == [False, True]
    assert same(model(x), expected)
    report = memory_report(model)
    assert [module.nbytes == module.dense_nbytes for module in report.modules] == [True, False]


# Views of the same memory ---------------------------------------------------------------------------------------------


class Views(nn.Module):
    """Two projections that are views of one matrix, as some models have them, and one of their own."""

    def __init__(self, parts: list[slice]) -> None:
        super().__init__()
        fused = weights(4 * WIDTH, WIDTH)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, 1, bias=False) for _ in parts)
        for layer, part in zip(self.parts, parts, strict=True):
            layer.weight = nn.Parameter(fused[part])
        self.own = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.cat([layer(self.own(x)) for layer in self.parts], -1)


@pytest.mark.parametrize(
    "parts",
    [[slice(0, 1024), slice(0, 512)], [slice(0, 512), slice(512, 1024)], [slice(0, 1024), slice(0, 1024)]],
    ids=["overlapping", "side by side", "the same"],
)
@torch.no_grad()
def test_parameters_that_share_memory_do_not_grow(parts: list[slice]) -> None:
    model = Views(parts)
    x = inputs(model, torch.float32)
    expected = model(x)
    dense = memory_report(model)
    assert dense.nbytes == dense.dense_nbytes == (4 * WIDTH + WIDTH) * WIDTH * 4, "shared memory counts once"
    compress_module(model, min_numel=1000)
    assert same(model(x), expected)
    assert isinstance(model.own.weight, CompressedTensor)
    first, second = (layer.weight for layer in model.parts)
    assert first.untyped_storage() is second.untyped_storage()
    report = memory_report(model)
    assert report.nbytes == 4 * WIDTH * WIDTH * 4 + model.own.weight.frame.numel()
    assert report.dense_nbytes == dense.dense_nbytes
    assert same(decompress_module(model)(x), expected)


@torch.no_grad()
def test_what_the_page_says_makes_them_like_others() -> None:
    for model, change in (
        (by_columns(torch.float32), torch.Tensor.contiguous),
        (Views([slice(0, 512)] * 2), torch.clone),
    ):
        for parameter in model.parameters():
            parameter.data = change(parameter.data)
        x = inputs(model, torch.float32)
        expected = model(x)
        compress_module(model, min_numel=1000)
        assert all(isinstance(p, CompressedTensor) for p in model.parameters() if p.dim() == 2)
        assert memory_report(model).ratio > 1.1
        assert same(model(x), expected)


@torch.no_grad()
def test_a_small_view_keeps_the_whole() -> None:
    """To compress the matrix would free nothing, as long as a bias or a buffer lies in the same memory."""
    for name in ("bias", "buffer"):
        layer = nn.Linear(WIDTH, WIDTH, bias=False)
        memory = weights(WIDTH + 1, WIDTH)
        layer.weight = nn.Parameter(memory[:WIDTH])
        if name == "bias":
            layer.bias = nn.Parameter(memory[WIDTH])
        else:
            layer.register_buffer("scale", memory[WIDTH])
        compress_module(layer, min_numel=1000)
        assert not isinstance(layer.weight, CompressedTensor)
        assert memory_report(layer).nbytes == (WIDTH + 1) * WIDTH * 4


def test_a_report_on_a_module_without_memory_or_with_sparse_tensors() -> None:
    with torch.device("meta"):
        module = nn.Linear(3, 4)
    module.register_buffer("sparse", torch.eye(3).to_sparse())
    assert memory_report(module).nbytes == (3 * 4 + 4 + 9) * 4
