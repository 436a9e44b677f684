"""All that users may name: ``python -m tests.surface`` writes tests/surface.txt anew.

docs/decisions.md, The surface, has a reason for what is newer. ``--release`` moves that into the first list.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch

from tensorwire.cli import _commands, failures
from tensorwire.codec import Profile
from tensorwire.torch.integrations.transformers import TensorwireConfig
from tests.support.surface import commands_of, environment_of, names_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.surface import Surface

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".txt")

# A name that several of these modules have is listed once, under the first.
MODULES = ("tensorwire", "tensorwire.checkpoint", "tensorwire.kv",
           "tensorwire.torch", "tensorwire.torch.device", "tensorwire.torch.dcp",
           "tensorwire.torch.integrations.trainer", "tensorwire.torch.integrations.lightning",
           "tensorwire.safetensors", "tensorwire.sync",
           "tensorwire.safetensors.numpy", "tensorwire.safetensors.torch")  # fmt: skip
EXPERIMENTAL = ("tensorwire.torch.traffic", "tensorwire.sync.interchange")


def surface() -> Surface:
    """Things and their parts, as they are now."""
    codes = [code for name, code in vars(failures).items() if name.isupper() and type(code) is int]
    sources = (*(ROOT / "src").rglob("*.py"), *(ROOT / "core").rglob("*.cpp"))
    return {
        "exit codes": [str(code) for code in sorted([0, *codes])],
        "profiles": list(get_args(Profile)),
        "environment": environment_of(path for path in sources if "tests" not in path.parts),
        f"quantization_config in config.json, {TensorwireConfig.__module__}.TensorwireConfig": list(
            inspect.signature(TensorwireConfig).parameters
        ),
        **dict(commands_of(_commands, "tensorwire")),
        **dict(_operators()),
        **dict(names_of(MODULES)),
    }


def experimental() -> Surface:
    return dict(names_of(EXPERIMENTAL, MODULES))


def _operators() -> Iterator[tuple[str, list[str]]]:
    for schema in sorted(torch._C._jit_get_all_schemas(), key=str):
        if schema.name.startswith("tensorwire::"):
            name = f"torch.ops.{schema.name.replace('::', '.')}"
            yield f"{name}.{schema.overload_name}".rstrip("."), [argument.name for argument in schema.arguments]


if __name__ == "__main__":
    write(LIST, surface(), experimental(), release="--release" in sys.argv[1:])
