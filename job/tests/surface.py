"""All that users of tensorwire-job may name: ``python -m job.tests.surface`` writes job/tests/surface.txt anew.

job/docs/decisions.md, The surface, has a reason for what is newer. ``--release`` moves that into the first list.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tensorwire_job.cli import command
from tests.support.surface import commands_of, environment_of, names_of, write

if TYPE_CHECKING:
    from tests.support.surface import Surface

JOB = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".txt")
MODULES = ("tensorwire_job",)
EXPERIMENTAL = ("tensorwire_job.nccl.plugin", "tensorwire_job.nccl.ras")
EXPERIMENTAL_PARTS = {"environment": ["NCCL_RAS_ADDR"], "tensorwire-job diagnose": ["--ras"]}


def surface() -> Surface:
    """Things and their parts, as they are now."""
    sources = (*(JOB / "src").rglob("*.py"), *(JOB / "core").rglob("*.cpp"))
    found = {
        "environment": environment_of(path for path in sources if "tests" not in path.parts),
        **dict(commands_of(command, "tensorwire-job")),
        **dict(names_of(MODULES)),
    }
    for thing, parts in EXPERIMENTAL_PARTS.items():
        for part in parts:
            found[thing].remove(part)
    return found


def experimental() -> Surface:
    return {**EXPERIMENTAL_PARTS, **dict(names_of(EXPERIMENTAL, MODULES))}


if __name__ == "__main__":
    write(LIST, surface(), experimental(), release="--release" in sys.argv[1:])
