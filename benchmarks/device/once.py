"""Open a weight and multiply by it, with one input and with 32, for tools that look at kernels:

python -m benchmarks.device.once PROFILE ROWS COLUMNS [BF16 or F16]

Profilers are told when that begins: what is tried before, once for a device, is not of interest.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import linear

from benchmarks.device.measure import Bench, compressed

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}
_INPUTS = 1, 32


def main() -> None:
    profile, rows, columns, dtype = sys.argv[1], *map(int, sys.argv[2:4]), _DTYPES[(*sys.argv[4:], "BF16")[0]]
    bench = Bench("cuda" if torch.cuda.is_available() else "cpu")
    for wide, is_wanted in ((256, False), (columns, True)):
        (weight,) = bench.weights(rows, wide, 1, dtype)
        (held,) = compressed([weight], profile, "fused")
        bench.settle()
        if bench.device == "cuda" and is_wanted:
            torch.cuda.profiler.start()
        for count in _INPUTS:
            linear(torch.ones(count, wide, dtype=dtype, device=bench.device), held)
        bench.settle()


if __name__ == "__main__":
    main()
