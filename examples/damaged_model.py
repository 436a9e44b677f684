"""What a compressed model says when something is wrong with it. It never gives a wrong number.

A byte of a file changes, the file is cut while a model runs from it, its weights are given to another model, and a
loader that does not know tensorwire opens it. Prints the error of each, and what the layers that are whole compute
meanwhile. Takes some seconds; needs torch and safetensors. The exit code is 1 if an error is missing, or any bit of the
other layers differs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import safetensors.torch
import torch
from torch import nn

import tensorwire

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, NUM_LAYERS, DAMAGED = 1024, 4, 2


def layers(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(NUM_LAYERS)))


def loaded(path: Path, verify: bool | Literal["load"] = True) -> nn.Sequential:
    """Blocks are checked when a layer first needs them, or while loading."""
    with torch.device("meta"):
        model = layers()
    weights = tensorwire.load_file(path, framework="pt", compressed=True, verify=verify)
    model.load_state_dict(weights, assign=True)
    return model


def flip_a_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def raised(what: str, action: Callable[[], object]) -> bool:
    """Whether an action raises; prints with what."""
    try:
        action()
    except Exception as error:
        print(f"{what}:\n    {type(error).__name__}: {' '.join(str(error).split())}")
        return True
    print(f"{what}:\n    NO ERROR")
    return False


@torch.no_grad()
def main() -> int:
    torch.manual_seed(0)
    dense = layers()
    x = torch.randn(1, WIDTH).bfloat16()
    with tempfile.TemporaryDirectory(prefix="tensorwire-example-") as folder:
        path = Path(folder) / "model.safetensors"
        tensorwire.save_file(dense.state_dict(), path)
        others = layers(WIDTH // 2)
        weights = tensorwire.load_file(path, framework="pt", compressed=True)
        checks = [
            raised("weights of another model", lambda: others.load_state_dict(weights)),
            raised("a loader that does not know tensorwire", lambda: safetensors.torch.load_file(path)),
        ]

        flip_a_bit(path, path.stat().st_size * (2 * DAMAGED + 1) // (2 * NUM_LAYERS))
        checks.append(raised("a bit of the file has changed", lambda: loaded(path, verify="load")))
        model = loaded(path)
        checks.append(raised("the same, in the middle of a model that runs from the file", lambda: model(x)))
        whole = [index for index in range(NUM_LAYERS) if index != DAMAGED]
        equal = all(torch.equal(model[i](x).view(torch.int16), dense[i](x).view(torch.int16)) for i in whole)

        with path.open("r+b") as opened:
            opened.truncate(path.stat().st_size // 2)
        checks.append(raised("the file was cut while the model runs from it", lambda: model[NUM_LAYERS - 1](x)))
    print(f"the layers that are whole, bit-identical: {'yes' if equal else 'no'}")
    return 0 if equal and all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
