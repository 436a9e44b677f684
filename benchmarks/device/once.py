"""Decode a weight and multiply by it once, for tools that look at kernels:

    python -m benchmarks.device.once PROFILE ROWS COLUMNS
"""

from __future__ import annotations

import sys

import torch

import tensorwire
from benchmarks.device.measure import Bench


def main() -> None:
    profile, rows, columns = sys.argv[1], *map(int, sys.argv[2:4])
    bench = Bench("cuda" if torch.cuda.is_available() else "cpu")
    (weight,) = bench.weights(rows, columns, 1)
    data = bytearray(tensorwire.compress(weight.cpu(), profile=profile))  # type: ignore[arg-type]
    opened = bench.opened(torch.frombuffer(data, dtype=torch.uint8).to(weight.device))
    if not torch.equal(opened.decode_all().view(torch.int16), weight.view(torch.int16)):
        sys.exit("other bits")
    product = opened.product
    if product is not None:
        product.multiply(torch.ones(1, columns, dtype=torch.bfloat16, device=weight.device))
    bench.settle()


if __name__ == "__main__":
    main()
