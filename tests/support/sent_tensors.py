"""What other processes do with compressed tensors that they get. A module of its own: they import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from tensorwire.torch import CompressedTensor

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def bits(tensor: Any) -> bytes:
    """The values as bytes."""
    dense = tensor.decode() if isinstance(tensor, CompressedTensor) else tensor.detach()
    data: bytes = dense.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return data


def described(tensor: Any) -> tuple[str, bool, bytes]:
    """The type of a tensor, or of the weight of a layer, whether it is a parameter, and its bits."""
    tensor = tensor.weight if isinstance(tensor, torch.nn.Module) else tensor
    return type(tensor).__name__, isinstance(tensor, torch.nn.Parameter), bits(tensor)


def answer(tensors: dict[str, Any], queue: Any, back: Any, pipe: Connection) -> None:
    """Run in another process: say what has come, in the arguments, by the queue and by the pipe, and send it back.

    Each step waits for a message, so that the other side may have let go of its tensors by then.
    """
    pipe.recv()
    pipe.send({name: described(tensor) for name, tensor in tensors.items()})
    for source in (queue.get, pipe.recv):
        pipe.recv()
        tensor = source()
        pipe.send(described(tensor))
        for _ in range(2):
            back.put(tensor)
    pipe.recv()  # what was sent is fetched from this process while it lives


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Rows of a weight, products with it, and the weight itself: as a dataset that workers get."""

    def __init__(self, weight: CompressedTensor) -> None:
        self.weight = weight

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.full((1, self.weight.shape[1]), 0.5 + index, dtype=self.weight.dtype)
        return {"row": self.weight[index], "product": linear(x, self.weight), "weight": self.weight}
