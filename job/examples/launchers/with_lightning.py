"""Training with Lightning, on the CPU (gloo). It knows nothing of tensorwire.

STUCK_RANK in the environment names a rank that waits for ever after 20 steps.
"""

from __future__ import annotations

import os
import time

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        while index == 20 and str(self.global_rank) == os.environ.get("STUCK_RANK"):
            time.sleep(1)
        time.sleep(0.05)
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    data = torch.utils.data.DataLoader(torch.randn(3200, 64), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "4")),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), data)
    if trainer.is_global_zero:
        print(f"trained on {trainer.world_size} ranks", flush=True)


if __name__ == "__main__":
    main()
