"""python -m benchmarks.inference.order: in which order torch sums products on this CPU, as far as we know it.

Each order is computed by the scalar code of the core, so that all of them are tried on every CPU, and compared with
torch bit by bit on sums that cancel: in another order nearly all of them differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import groupby

import torch

from benchmarks.environment import describe
from tensorwire.codec.products import linear_orders
from tensorwire.torch.products.kind import kind_of
from tensorwire.torch.products.trial import Trial

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
WIDTHS = (48, 77, 1000, 2048, 2056, 8192)
ROWS = 1024
INPUT_ROWS = (*range(1, 9), 16, 32, 33, 64)


def orders_of(dtype: str, columns: int, count: int, threads: int, bias: bool) -> str:
    """Names of the orders that have torch's bits, with a bias that is added before the result is rounded."""
    torch.set_num_threads(threads)
    x = torch.empty(count, columns, dtype=DTYPES[dtype])
    trial = Trial(kind_of(x, ROWS, torch.empty(ROWS) if bias else None))
    return " or ".join(order.name for order in trial.orders(linear_orders(dtype))) or "none that is known"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")
    arguments = parser.parse_args()
    if os.environ.get("TENSORWIRE_CPU") != "scalar":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "TENSORWIRE_CPU": "scalar"})
    print(describe("order", None)["cpu"], "torch", torch.__version__)
    for dtype in DTYPES:
        for columns in WIDTHS:
            for threads in arguments.threads:
                for bias in (False, True):
                    found = [(orders_of(dtype, columns, count, threads, bias), count) for count in INPUT_ROWS]
                    for orders, counts in groupby(found, key=lambda pair: pair[0]):
                        first, *others = [count for _, count in counts]
                        spans = f"{first} to {others[-1]}" if others else f"{first}"
                        product = f"{dtype}, {columns} columns, {threads} threads, {spans} input rows" + ", bias" * bias
                        print(f"{product}: {orders}", flush=True)


if __name__ == "__main__":
    main()
