"""FSDP2 with exact differences in the all-gather: fewer bytes between the ranks, and parameters with the same bits.

Trains a small model twice with `fully_shard`, without and with `attach_fsdp`, and prints what the ranks sent and
whether the parameters have the same bits on all of them. It starts itself under torchrun with four ranks on the CPU:

    python examples/traffic_fsdp.py

Takes some seconds; needs torch. The exit code is 1 if any parameter differs.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.run import main as torchrun

from tensorwire.torch import traffic

RANKS, STEPS, WIDTH, LAYERS = 4, 8, 256, 4


def trained(*, differences: bool) -> tuple[nn.Module, traffic.Attachment | None]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    attachment = traffic.attach_fsdp(model) if differences else None  # this line is all that changes
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        model(torch.randn(32, WIDTH, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, attachment


def run_rank() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    expected, _ = trained(differences=False)
    found, attachment = trained(differences=True)
    pairs = zip(expected.parameters(), found.parameters(), strict=True)
    same = all(
        torch.equal(one.to_local().view(torch.int32), other.to_local().view(torch.int32)) for one, other in pairs
    )
    everywhere: list[bool | None] = [None] * RANKS
    dist.all_gather_object(everywhere, same)
    if dist.get_rank() == 0:
        rows = traffic.counters(found)
        print(rows)
        total = rows.total()
        print("rank 0 sent {sent_nbytes:,} bytes in all-gathers, and not {raw_nbytes:,}".format(**total), end=": ")
        print(f"{total['ratio']:.1f} times fewer")
        print("bit-identical:", "yes" if all(everywhere) else "NO")
    if attachment is not None:
        attachment.detach()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(not all(everywhere))


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_rank()
    torchrun(["--standalone", f"--nproc-per-node={RANKS}", __file__])
