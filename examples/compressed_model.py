"""Compress the weights of a model in memory, use it, train an adapter beside it, and make it dense again.

Prints what each module takes, and compares outputs, gradients of the adapter and the weights that come back bit for bit
with those of the dense model. Takes some seconds; needs torch. The exit code is 1 if any bit differs.
"""

from __future__ import annotations

import copy
import io
import sys

import torch
from torch import nn

from tensorwire.torch import CompressedTensor, compress_module, decompress_module, memory_report

VOCABULARY, WIDTH, RANK = 4096, 512, 8


class WithAdapter(nn.Module):
    """A frozen linear layer, and a trained product of two small matrices beside it, as LoRA has it."""

    def __init__(self, frozen: nn.Module) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(WIDTH, RANK, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(RANK, WIDTH, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.frozen(x) + self.up(self.down(x))
        return y


def model() -> nn.Sequential:
    """An embedding, two layers, and a head that is tied to the embedding."""
    embedding = nn.Embedding(VOCABULARY, WIDTH)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    head.weight = embedding.weight
    layers = nn.Sequential(embedding, nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), head)
    return layers.bfloat16().requires_grad_(False)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.detach().view(torch.uint8), b.detach().view(torch.uint8))


def adapter_gradients(frozen: nn.Sequential, tokens: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    adapted = WithAdapter(frozen[1])
    adapted(frozen[0](tokens)).float().square().mean().backward()
    return [parameter.grad for parameter in (adapted.down.weight, adapted.up.weight) if parameter.grad is not None]


def main() -> int:
    torch.manual_seed(0)
    dense = model()
    compressed = compress_module(copy.deepcopy(dense))
    assert isinstance(compressed, nn.Sequential)
    print(memory_report(compressed))

    tokens = torch.randint(0, VOCABULARY, (1, 4))
    checks = {"outputs": same(compressed(tokens), dense(tokens))}
    gradients = zip(adapter_gradients(compressed, tokens), adapter_gradients(dense, tokens), strict=True)
    checks["gradients of an adapter"] = all(same(ours, expected) for ours, expected in gradients)

    saved = io.BytesIO()
    torch.save(compressed.state_dict(), saved)
    saved.seek(0)
    weights = torch.load(saved, weights_only=True)
    checks["saved and loaded"] = isinstance(weights["1.weight"], CompressedTensor) and same(
        weights["1.weight"].decode(), dense[1].weight
    )

    decompress_module(compressed)
    weights = compressed.state_dict()
    checks["made dense again"] = all(same(weights[name], weight) for name, weight in dense.state_dict().items())
    for what, equal in checks.items():
        print(f"{what}: {'equal' if equal else 'DIFFERENT'}")
    equal = all(checks.values())
    print(f"bit-identical: {'yes' if equal else 'no'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
