"""Training with accelerate, on the CPU (gloo). It knows nothing of tensorwire.

STUCK_RANK in the environment names a rank that waits for ever after 20 steps.
"""

from __future__ import annotations

import os
import time

import torch
from accelerate import Accelerator


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(64, 64)
    data = torch.utils.data.DataLoader(torch.randn(6400, 64), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
    for step, batch in enumerate(loader):
        while step == 20 and str(accelerator.process_index) == os.environ.get("STUCK_RANK"):
            time.sleep(1)
        time.sleep(0.05)
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
    accelerator.print(f"trained on {accelerator.num_processes} ranks")


if __name__ == "__main__":
    main()
