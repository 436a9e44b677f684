"""A training job of four ranks over NCCL that share one GPU; started by torchrun, it knows nothing of tensorwire.

NCCL refuses two ranks on one device of a machine. Each rank says that it is on a machine of its own, so NCCL joins them
by sockets, as it would join four machines. argv: how many steps, and what rank 2 does in the last: "works" or "hangs".
"""

from __future__ import annotations

import os
import sys
import threading

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"machine-{RANK}"
os.environ["NCCL_SOCKET_IFNAME"] = "lo"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

CULPRIT = 2


def load_batch(step: int) -> torch.Tensor:
    """A data loader that one rank waits in for ever: a lock that is not given back."""
    if step == int(sys.argv[1]) - 1 and RANK == CULPRIT and sys.argv[2] == "hangs":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    return torch.randn(8, 256, device="cuda")


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    torch.manual_seed(RANK)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(int(sys.argv[1])):
        batch = load_batch(step)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
    every = torch.full((4,), RANK + 1.0, device="cuda")
    dist.all_reduce(every)
    assert every.tolist() == [10.0] * 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
