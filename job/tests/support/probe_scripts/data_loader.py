"""The only rank: waits for a worker of its data loader, which waits for a file that is not written."""

from __future__ import annotations

import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Blocked(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            with open(sys.argv[1], "rb") as file:  # noqa: PTH123
                file.read()
        return torch.ones(1)


def main() -> None:
    os.mkfifo(sys.argv[1])
    for _ in DataLoader(Blocked(), num_workers=1):
        pass


main()
