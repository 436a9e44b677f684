"""SDP4Bit under FSDP2: 4-bit differences of weights, and 8-bit and 4-bit gradients within and between two nodes.

This is lossy: the weights are others than without it. Trains a small model on four ranks of this machine, which stand
for two nodes of two, and prints the loss, what rank 0 sent, and whether all ranks compute with the same weights bit for
bit, which is what keeps the errors from adding up. It starts itself under torchrun with four ranks on the CPU:

    python examples/traffic_sdp4bit.py

Takes some seconds; needs torch. The exit code is 1 if the ranks compute with unlike weights.
"""

from __future__ import annotations

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.run import main as torchrun

from tensorwire.torch import traffic
from tensorwire.torch.traffic import Grid

RANKS, STEPS, WIDTH, LAYERS = 4, 20, 256, 4


def model_of_layers() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def replica(model: nn.Sequential) -> str:
    """A hash of the weights that this rank computes with."""
    digest = hashlib.sha256()
    for layer in model:
        layer.unshard()
        for parameter in layer.parameters():
            digest.update(parameter.detach().view(torch.uint8).clone().numpy().tobytes())
        layer.reshard()
    return digest.hexdigest()


def run_rank() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = model_of_layers()
    attachment = traffic.attach_fsdp(
        model,
        weights=Grid(4, 2048, rounding="stochastic"),
        gradients=(
            Grid(8, 128, hadamard=32, rounding="stochastic"),
            Grid(4, 128, hadamard=32, rounding="stochastic"),
        ),
        ranks_per_node=2,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    first = loss = 0.0
    for step in range(STEPS):
        batch = torch.randn(32, WIDTH, generator=data)
        error = (model(batch) - batch.roll(1, 1)).square().mean()
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = error.item()
        first = loss if step == 0 else first
    hashes: list[str | None] = [None] * RANKS
    dist.all_gather_object(hashes, replica(model))
    if dist.get_rank() == 0:
        print(traffic.counters(model))
        print(f"loss {first:.3f}, after {STEPS} steps {loss:.3f}")
        print("weights that ranks compute with, bit-identical:", "yes" if len(set(hashes)) == 1 else "NO")
    attachment.detach()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(len(set(hashes)) != 1)


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_rank()
    torchrun(["--standalone", f"--nproc-per-node={RANKS}", __file__])
