"""DDP whose data loader has a worker; the worker blocks in a FIFO without a writer."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from .common import folder, is_befallen, mark_fault

FAULT_BATCH = 150


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == FAULT_BATCH * 4 and is_befallen():
            fifo = folder() / "samples"
            os.mkfifo(fifo)
            mark_fault()
            fifo.read_bytes()
        return torch.ones(32)


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in DataLoader(Samples(), batch_size=4, num_workers=1):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
