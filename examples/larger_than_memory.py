"""A model of which a part stays on the disk while it runs, compressed, with the bits of the dense model.

Makes a chain of linear layers, saves it compressed, and runs it three times: with all weights compressed in memory,
with a third of them in memory and the others in their file, and the same with the next weights decoded ahead. Prints
what each takes and whether the outputs have the bits of the dense model. Takes some seconds and 100 MB of disk; needs
torch. The exit code is 1 if any output differs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn

import tensorwire
from tensorwire.torch import decode_ahead, memory_report

WIDTH = 2048
NUM_LAYERS = 16
NUM_TOKENS = 8


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(NUM_LAYERS)))


def generate(model: nn.Module) -> torch.Tensor:
    """Each output is the next input, as when a language model writes."""
    x = torch.ones(1, WIDTH, dtype=torch.bfloat16)
    for _ in range(NUM_TOKENS):
        x = nn.functional.normalize(model(x), dim=-1) * WIDTH**0.5
    return x


@torch.no_grad()
def main() -> int:
    torch.manual_seed(0)
    dense = layers()
    expected = generate(dense)
    dense_nbytes = sum(parameter.numel() * 2 for parameter in dense.parameters())
    print(f"dense: {dense_nbytes / 1e6:.0f} MB of weights")
    equal = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        tensorwire.save_file(dense.state_dict(), path)
        third = path.stat().st_size // 3
        for title, resident_nbytes, ahead in (
            ("compressed, in memory", None, False),
            ("compressed, a third in memory", third, False),
            ("the same, decoded ahead", third, True),
        ):
            with torch.device("meta"):
                model = layers()
            weights = tensorwire.load_file(path, framework="pt", compressed=True, resident_nbytes=resident_nbytes)
            model.load_state_dict(weights, assign=True)
            context: AbstractContextManager[object] = decode_ahead(model) if ahead else nullcontext()
            with context:
                start = time.perf_counter()
                found = generate(model)
                seconds = time.perf_counter() - start
            same = torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
            equal &= same
            print(
                f"{title}: {memory_report(model).nbytes / 1e6:.0f} MB of weights in memory, "
                f"{1e3 * seconds / NUM_TOKENS:.0f} ms a token; bit-identical: {'yes' if same else 'NO'}"
            )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
