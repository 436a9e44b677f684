"""Print the CPU target that runs here and one digest over the frames of the registry: to compare targets."""

from __future__ import annotations

import hashlib

from tensorwire.codec.frame import core
from tests.support import registry
from tests.support.frames import compress, decompress


def main() -> None:
    digest = hashlib.sha256()
    inputs = [*registry.small_inputs(), *registry.pattern_inputs()]
    for dtype in registry.FLOATS:
        inputs += [*registry.boundary_inputs(dtype, 32768), registry.mixed_input(dtype)]
    inputs += [registry.mixed_input("I8"), registry.mixed_input("I16")]
    for item in inputs:
        for profile in registry.PROFILES:
            frame = compress(item, profile)
            if decompress(frame) != item.data:
                raise SystemExit(f"{item} is not restored on {core.cpu_target()}")
            digest.update(frame)
    print(core.cpu_target(), digest.hexdigest())


if __name__ == "__main__":
    main()
