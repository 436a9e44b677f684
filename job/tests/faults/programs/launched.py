"""A rank that waits for a lock, in a job started by accelerate, torchrun or transformers' Trainer."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from .common import chosen, folder, is_befallen, stay_away
from .small_training import Training, start, steps

FAULT_STEP = 120


def train() -> None:
    start()
    Training().train(stay_away)


def train_with_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3))
    for step in steps():
        if step == FAULT_STEP and is_befallen():
            stay_away()
        accelerator.backward(model(torch.randn(8, 64)).sum())
        optimizer.step()
        optimizer.zero_grad()


def train_with_trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.linear(inputs).pow(2).mean()}

    class Hang(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            time.sleep(0.015)
            if state.global_step == FAULT_STEP and is_befallen():
                stay_away()

    arguments = TrainingArguments(
        output_dir=str(folder() / "trainer"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=100_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = [{"inputs": torch.ones(64)}] * 1000
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Hang()]).train()


if __name__ == "__main__":
    chosen(globals())()
