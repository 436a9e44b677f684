"""Training with DeepSpeed (ZeRO stage 1), on the CPU (gloo). It knows nothing of tensorwire.

STUCK_RANK in the environment names a rank that waits for ever after 20 steps.
"""

from __future__ import annotations

import os
import time

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


def main() -> None:
    deepspeed.init_distributed("gloo")
    model = torch.nn.Linear(64, 64)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    rank = torch.distributed.get_rank()
    for step in range(200):
        while step == 20 and str(rank) == os.environ.get("STUCK_RANK"):
            time.sleep(1)
        time.sleep(0.05)
        engine.backward(engine(torch.randn(8, 64)).square().mean())
        engine.step()
    if rank == 0:
        print(f"trained on {torch.distributed.get_world_size()} ranks", flush=True)


if __name__ == "__main__":
    main()
