"""What stands on the kernels, on the device that TENSORWIRE_TEST_DEVICE names: operators, models, streams, graphs, and
tensors with more words and bytes than 32 bits can count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import embedding, linear  # noqa: E402

from tensorwire.torch import CompressedTensor, compress_module, decompress_module, set_linear_mode  # noqa: E402
from tensorwire.torch.frames.open_frame import opened_anywhere  # noqa: E402
from tests.support.devices import DEVICE, INTERPRETED, same_bits  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(INTERPRETED, reason="needs a device")
PROFILES = ("fast", "enec", "resident")
ROWS, COLUMNS = 1500, 1024  # the last of 47 blocks is short


def normal(*shape: int, scale: float = 0.02, seed: int = 0) -> Any:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return (torch.randn(shape, generator=generator, device=DEVICE) * scale).to(torch.bfloat16)


def compressed(weight: Any, profile: Any = "fast", mode: str = "exact") -> CompressedTensor:
    return CompressedTensor.from_dense(weight, profile, linear_mode=mode)


@pytest.mark.parametrize("profile", PROFILES)
def test_operators(profile: str) -> None:
    weight = normal(ROWS, COLUMNS)
    held = compressed(weight, profile)
    assert held.device == held.frame.device == weight.device
    assert same_bits(held.decode(), weight)
    assert same_bits(held[700:702], weight[700:702])
    indices = torch.tensor([[0, ROWS - 1, 5], [5, 6, 7]], device=DEVICE)
    assert same_bits(embedding(indices, held), embedding(indices, weight))
    if opened_anywhere(held.frame).rows is None:
        with pytest.raises(IndexError, match="out of range"):
            embedding(indices + ROWS, held)
    else:
        assert embedding(indices + ROWS, held).isnan().all(), "nobody waits to tell"
    assert same_bits(held.cpu().decode(), weight.cpu())
    assert same_bits(held.cpu().to(DEVICE).decode(), weight)


@pytest.mark.parametrize("count", [1, 4, 5, 100])
@pytest.mark.parametrize("profile", PROFILES)
def test_linear(profile: str, count: int) -> None:
    weight, bias, x = normal(ROWS, COLUMNS), normal(ROWS), normal(1, count, COLUMNS, scale=1, seed=1)
    dense = linear(x, weight, bias)
    held = compressed(weight, profile)
    assert same_bits(linear(x, held, bias), dense)
    held.set_linear_mode("fused")
    exactly = x.double() @ weight.double().T + bias.double()
    assert (linear(x, held, bias).double() - exactly).abs().max() <= 2 * (dense.double() - exactly).abs().max()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_other_streams(mode: str, profile: str) -> None:
    """The frame is opened on one stream, and used on another one that waits for nothing but its input."""
    weight, x = normal(4096, 4096), normal(1, 4096, scale=1, seed=1)
    held = compressed(weight, profile, mode)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [linear(x, held) for _ in range(20)]
    stream.synchronize()
    expected = linear(x, held)
    assert all(same_bits(each, expected) for each in found)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_captured_graphs(mode: str, profile: str) -> None:
    """Once the frame is open, a product asks the host for nothing."""
    weight, x = normal(ROWS, COLUMNS), normal(1, COLUMNS, scale=1, seed=1)
    held = compressed(weight, profile, mode)
    linear(x, held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = linear(x, held)
    x.copy_(normal(1, COLUMNS, scale=1, seed=2))
    graph.replay()
    assert same_bits(found, linear(x, held))


@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_compiled(mode: str) -> None:
    layer = torch.nn.Linear(COLUMNS, ROWS, dtype=torch.bfloat16, device=DEVICE)
    x = normal(2, COLUMNS, scale=1, seed=1)
    compress_module(layer, linear_mode=mode)
    assert same_bits(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_models(tmp_path: Path) -> None:
    """One is loaded from a compressed checkpoint, one is compressed on the device."""
    pytest.importorskip("transformers", minversion="5.16")
    from tensorwire.checkpoint import compress_checkpoint
    from tests.support.transformer_models import load, save

    save("llama", tmp_path / "model")
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    tokens = torch.randint(1, 512, (2, 12), generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def outputs(model: Any) -> list[Any]:
        with torch.no_grad():
            return [
                model(input_ids=tokens).logits,
                model.generate(tokens[:1], max_new_tokens=6, do_sample=False, pad_token_id=0),
            ]

    dense = load(tmp_path / "model", "llama").to(DEVICE)
    expected = outputs(dense)
    for held in (load(tmp_path / "packed", "llama").to(DEVICE), compress_module(dense)):
        assert any(isinstance(each, CompressedTensor) for each in held.parameters())
        assert all(map(same_bits, outputs(held), expected))
        set_linear_mode(held, "fused")
        assert torch.allclose(outputs(held)[0], expected[0], rtol=0.02, atol=0.02)
        set_linear_mode(held, "exact")
        assert all(map(same_bits, outputs(decompress_module(held)), expected))


@pytest.mark.slow
def test_more_words_than_32_bits_count() -> None:
    weight = normal(2**31 // 4096 + 3, 4096)
    held = compressed(weight)
    assert same_bits(held.decode(), weight)
    assert same_bits(held[-5:], weight[-5:])
    x = torch.zeros(1, 4096, dtype=torch.bfloat16, device=DEVICE)
    x[0, 77] = 1
    held.set_linear_mode("fused")
    assert same_bits(linear(x, held)[0], weight[:, 77])
