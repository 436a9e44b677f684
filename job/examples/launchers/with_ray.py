"""Training with Ray Train, on the CPU (gloo): the one launcher whose ranks are not started from a command line.

So the training function attaches the probe itself. STUCK_RANK in the environment names a rank that waits for ever
after 20 steps.
"""

from __future__ import annotations

import os
import time

from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train(config: dict[str, str | None]) -> None:
    import torch

    import tensorwire_job

    tensorwire_job.attach()
    rank = torch.distributed.get_rank()
    model = prepare_model(torch.nn.Linear(64, 64), parallel_strategy="ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(200):
        while step == 20 and str(rank) == config["stuck"]:
            time.sleep(1)
        time.sleep(0.05)
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        print(f"trained on {torch.distributed.get_world_size()} ranks", flush=True)


def main() -> None:
    TorchTrainer(
        train,
        train_loop_config={"stuck": os.environ.get("STUCK_RANK")},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=4, resources_per_worker={"CPU": 0.25}),
    ).fit()


if __name__ == "__main__":
    main()
