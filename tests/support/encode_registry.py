"""Print the CPU target that runs here and one digest over the frames of the registry: to compare targets."""

from __future__ import annotations

import hashlib

import tensorwire
from tensorwire import _core
from tests.support import registry


def main() -> None:
    digest = hashlib.sha256()
    inputs = registry.small_inputs() + registry.pattern_inputs()
    for dtype in registry.FLOATS:
        inputs += [*registry.boundary_inputs(dtype, 32768), registry.mixed_input(dtype)]
    inputs += [registry.mixed_input("I8"), registry.mixed_input("I16")]
    for item in inputs:
        for profile in registry.PROFILES:
            frame = tensorwire.compress(item.data, dtype=item.dtype, shape=item.shape, profile=profile)
            if bytes(tensorwire.decompress(frame, framework="bytes")) != item.data:
                raise SystemExit(f"{item} is not restored on {_core.cpu_target()}")
            digest.update(frame)
    print(_core.cpu_target(), digest.hexdigest())


if __name__ == "__main__":
    main()
