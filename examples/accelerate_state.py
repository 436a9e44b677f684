"""Accelerate's save_state with compressed weights, and load_state from them, by its own hooks:

    python examples/accelerate_state.py

It needs accelerate, and trains a small model on the CPU. The exit code is 1 if the losses after load_state differ from
those of the training that went on.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

import tensorwire

WIDTH = 256


def register(accelerator: Accelerator) -> None:
    """Have compressed files take the place of the weights in what `accelerator` saves and loads."""

    def save(models: list[torch.nn.Module], weights: list[dict[str, torch.Tensor]], folder: str) -> None:
        if accelerator.is_main_process:
            for number, tensors in enumerate(weights):
                tensorwire.save_file(tensors, Path(folder, f"model-{number}.safetensors"))
        weights.clear()  # nothing is left for Accelerate to save

    def load(models: list[torch.nn.Module], folder: str) -> None:
        for number, model in enumerate(models):
            file = Path(folder, f"model-{number}.safetensors")
            accelerator.unwrap_model(model).load_state_dict(tensorwire.load_file(file, framework="pt"))
        models.clear()

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def train(accelerator: Accelerator, model: Any, optimizer: Any) -> list[float]:
    losses = []
    for _ in range(4):
        loss = model(torch.randn(8, WIDTH, dtype=torch.bfloat16)).float().square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(folder: Path) -> bool:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    made = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).bfloat16()
    model, optimizer = accelerator.prepare(made, torch.optim.AdamW(made.parameters(), lr=1e-3))
    register(accelerator)

    train(accelerator, model, optimizer)
    accelerator.save_state(str(folder))
    went_on = train(accelerator, model, optimizer)
    accelerator.load_state(str(folder))
    resumed = train(accelerator, model, optimizer)

    print(f"saved: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    print(f"ratio of the weights: {tensorwire.inspect(folder / 'model-0.safetensors').ratio:.3f}")
    return resumed == went_on


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        is_same = main(Path(place))
    print(f"bit-identical: {'yes' if is_same else 'no'}")
    sys.exit(not is_same)
