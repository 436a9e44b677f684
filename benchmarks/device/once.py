"""Decode a weight and multiply by it once, for tools that look at kernels:

python -m benchmarks.device.once PROFILE ROWS COLUMNS
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import linear

from benchmarks.device.measure import Bench, compressed


def main() -> None:
    profile, rows, columns = sys.argv[1], *map(int, sys.argv[2:4])
    bench = Bench("cuda" if torch.cuda.is_available() else "cpu")
    (weight,) = bench.weights(rows, columns, 1)
    (held,) = compressed([weight], profile, "fused")
    linear(torch.ones(1, columns, dtype=torch.bfloat16, device=bench.device), held)
    bench.settle()


if __name__ == "__main__":
    main()
