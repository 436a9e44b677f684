"""Models of Transformers and diffusers whose weights stay on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tensorwire.torch import CompressedTensor, compress_module  # noqa: E402
from tensorwire.torch.offloading import Offload  # noqa: E402
from tests.support.disguised import DEVICE  # noqa: E402
from tests.support.linear_models import same  # noqa: E402
from tests.support.streams import LateDevice  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402
from tests.torch.device.test_offload import COPIES, FakePinning, frames_nbytes, one_thread  # noqa: E402, F401

if TYPE_CHECKING:
    from collections.abc import Callable


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


@torch_since(2, 13)  # 2.5 has no autocast for a device like this one
def test_generate() -> None:
    ids = torch.arange(10).view(1, 10)
    model = compress_module(llama(), min_numel=1000)

    def tokens(model: Any) -> Any:
        found = model.generate(ids.to(DEVICE), max_new_tokens=4, do_sample=False, output_logits=True,
                               return_dict_in_generate=True)  # fmt: skip
        return found.sequences.cpu(), torch.cat(found.logits).cpu()

    with LateDevice(0):
        dense = llama().to(DEVICE)
        wanted = tokens(dense)
    with LateDevice(1) as device:
        handle = Offload(model, DEVICE, 0, device.streams, FakePinning())
        assert model.device == DEVICE
        assert model.dtype == torch.bfloat16
        found = tokens(model)
        copied = device.streams.copied_nbytes[COPIES]
        handle.close()
    assert all(map(same, found, wanted))
    assert 4 <= copied / frames_nbytes(model) < 5, "four passes, and what sets out for the fifth"


def unet(diffusers: Any) -> Any:
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    return diffusers.UNet2DModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(16, 32), layers_per_block=1,
        norm_num_groups=8, down_block_types=down, up_block_types=up,
    )  # fmt: skip


def transformer(diffusers: Any) -> Any:
    return diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=32, caption_projection_dim=64, pooled_projection_dim=32, out_channels=4,
        pos_embed_max_size=8,
    )  # fmt: skip


@pytest.mark.parametrize("make", [pytest.param(unet, marks=pytest.mark.slow), transformer])
def test_diffusers(make: Callable[[Any], Any]) -> None:
    diffusers = pytest.importorskip("diffusers")
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).bfloat16()

    latents, words, pooled = noise(1, 4, 8, 8), noise(1, 5, 32), noise(1, 32)

    def built() -> Any:
        torch.manual_seed(0)
        return make(diffusers).bfloat16().eval()

    def step(model: Any) -> Any:
        at, time = latents.to(DEVICE), torch.tensor([3]).to(DEVICE)
        if make is unet:
            return model(at, time).sample.cpu()
        words_and_pooled = {"encoder_hidden_states": words.to(DEVICE), "pooled_projections": pooled.to(DEVICE)}
        return model(hidden_states=at, timestep=time, **words_and_pooled).sample.cpu()

    model = compress_module(built(), min_numel=512)
    with torch.no_grad(), LateDevice(0):
        wanted = step(built().to(DEVICE))
    with torch.no_grad(), LateDevice(1) as device:
        handle = Offload(model, DEVICE, 0, device.streams, FakePinning())
        assert model.device == DEVICE
        assert all(same(step(model), wanted) for _ in range(3))
        with pytest.raises(RuntimeError, match="close what tensorwire"):
            model.to("cpu")  # as enable_model_cpu_offload does
        assert same(step(model), wanted)
        copied = device.streams.copied_nbytes[COPIES]
        handle.close()
    assert 4 <= copied / frames_nbytes(model) < 4.5
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}


def test_offload_of_diffusers_over_ours_is_refused() -> None:
    diffusers = pytest.importorskip("diffusers")
    from diffusers.hooks import apply_group_offloading

    model = compress_module(transformer(diffusers).bfloat16(), min_numel=512)
    cpu = torch.device("cpu")
    with torch.no_grad(), LateDevice(0) as device:
        handle = Offload(model, DEVICE, 0, device.streams, FakePinning())
        with pytest.raises(RuntimeError, match="close what tensorwire"):
            apply_group_offloading(model, onload_device=cpu, offload_device=cpu, offload_type="leaf_level")
        handle.close()


@pytest.mark.parametrize("tied", [False, True])
def test_accelerate_moves_frames(tied: bool) -> None:
    """Entries "cpu" of a device_map. Its map of tied weights is by their addresses."""
    accelerate = pytest.importorskip("accelerate")
    ids = torch.arange(10).view(1, 10)
    dense = llama()
    if not tied:
        dense.lm_head.weight = torch.nn.Parameter(dense.lm_head.weight.clone())
        dense.config.tie_word_embeddings = False
    with torch.no_grad():
        wanted = dense(ids).logits
        model = compress_module(dense, min_numel=1000)
        names = ["model.embed_tokens", "lm_head", "model.layers", "model.norm", "model.rotary_emb"]
        accelerate.dispatch_model(model, dict.fromkeys(names, "cpu"), main_device="cpu", force_hooks=True)
        assert sum(isinstance(weight, CompressedTensor) for weight in model.parameters()) > 10
        assert same(model(ids).logits, wanted)
        with pytest.raises(ValueError, match="has hooks of accelerate"):
            Offload(model, DEVICE, 0, None, FakePinning())
