"""Denoise an image with a model of diffusers whose weights stay compressed, and compare every bit with the dense model.

diffusers has no place where a package could register, so its own `from_pretrained` opens a compressed directory only
after `tensorwire.torch.install`. Here nothing is exchanged in diffusers: the model is made from the configuration, its
weights come from the compressed directory, and are compressed in memory.

The weights are random. It needs ``pip install '.[torch]' diffusers``. The exit code is 1 if any bit differs.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from diffusers import DDIMScheduler, UNet2DModel

import tensorwire
import tensorwire.torch

SIZES = {"sample_size": 16, "block_out_channels": (64, 128), "layers_per_block": 1, "norm_num_groups": 8}
BLOCKS = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}


def load(path: str) -> UNet2DModel:
    """The model of a directory, plain or compressed, with dense weights.

    Both are loaded so: with `from_pretrained` the dense model's own outputs had other last bits than with weights
    that were copied into it, perhaps because the mapped file lies at other addresses.
    """
    model = UNet2DModel.from_config(UNet2DModel.load_config(path))
    model.load_state_dict(tensorwire.load_file(path, framework="pt"))
    return model.eval()


@torch.no_grad()
def denoised(model: UNet2DModel) -> torch.Tensor:
    """Four steps from the same noise."""
    image = torch.randn((1, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(4)
    for step in scheduler.timesteps:
        image = scheduler.step(model(image, step).sample, step, image).prev_sample
    return image


def main() -> int:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="tensorwire-example-") as folder:
        UNet2DModel(**SIZES, **BLOCKS).save_pretrained(f"{folder}/dense")
        tensorwire.compress_checkpoint(f"{folder}/dense", f"{folder}/compressed")
        dense = load(f"{folder}/dense")
        compressed = load(f"{folder}/compressed")
    tensorwire.torch.compress_module(compressed)
    report = tensorwire.torch.memory_report(compressed)
    print(f"{report.dense_nbytes:,} bytes of weights in {report.nbytes:,}, ratio {report.ratio:.3f}")
    equal = torch.equal(denoised(dense).view(torch.int32), denoised(compressed).view(torch.int32))
    print(f"bit-identical: {'yes' if equal else 'no'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
