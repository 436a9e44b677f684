"""Train with activations and optimizer states in the memory of the host, as frames, and compare every bit.

    python examples/offload_training.py          # on the CPU, where it shows that no bit changes
    python examples/offload_training.py cuda     # on a GPU: tensors are encoded there, and frames alone cross the bus

What backward needs of a layer, and what the optimizer keeps of a weight, is not used for most of a step. Here it
becomes a frame as soon as it rests, leaves the device, and comes back when it is needed. Needs torch. The exit code is
1 if the weights differ from those of a training without all this.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from tensorwire.torch import CompressedTensor

LEAST_NUMEL = 4096  # of a tensor that is worth a frame
STEPS, LAYERS, WIDTH, BATCH = 3, 4, 256, 64


class Offloaded:
    """Tensors as frames in the memory of the host.

    Attributes:
        dense_nbytes, nbytes: of all that left the device, before and as frames.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.dense_nbytes = self.nbytes = 0

    def put(self, tensor: torch.Tensor) -> Any:
        """The frame, in the memory of the host; the tensor itself if it is small, or another view of one that stays,
        such as a weight that a product transposes."""
        if tensor.dtype != torch.bfloat16 or tensor.numel() < LEAST_NUMEL or not tensor.is_contiguous():
            return tensor
        frame = CompressedTensor.from_dense(tensor.detach(), "resident").to("cpu")
        self.dense_nbytes += tensor.nbytes
        self.nbytes += frame.frame.numel()
        return frame

    def get(self, held: Any) -> torch.Tensor:
        return held.to(self.device).decode() if isinstance(held, CompressedTensor) else held


def train(device: str, offloaded: Offloaded | None) -> list[torch.Tensor]:
    """The weights after some steps."""
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(device, torch.bfloat16)
    inputs = torch.randn(BATCH, WIDTH).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = nullcontext() if offloaded is None else saved_tensors_hooks(offloaded.put, offloaded.get)
    states = optimizer.state
    for _ in range(STEPS):
        with hooks:
            loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        if offloaded is not None:
            for state in states.values():
                state.update({name: offloaded.get(value) for name, value in state.items()})
        optimizer.step()
        optimizer.zero_grad()
        if offloaded is not None:
            for state in states.values():
                state.update({name: offloaded.put(value) for name, value in state.items()})
    return [weight.detach().cpu() for weight in model.parameters()]


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    offloaded = Offloaded(device)
    pairs = zip(train(device, None), train(device, offloaded), strict=True)
    equal = all(torch.equal(one.view(torch.int16), other.view(torch.int16)) for one, other in pairs)
    ratio = offloaded.dense_nbytes / offloaded.nbytes
    print(f"{offloaded.dense_nbytes:,} bytes left the device as {offloaded.nbytes:,}: ratio {ratio:.3f}")
    print(f"bit-identical: {'yes' if equal else 'no'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
