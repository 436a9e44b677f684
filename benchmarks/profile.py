"""Where a coder spends its time, by function: python -m benchmarks.profile [decode|encode]; needs Linux perf.

One thread on one core works on a synthetic tensor, from memory, while perf samples it. Functions of the library
alone are counted, so that what Python and the allocator do drops out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import environment
from benchmarks.timing import pinned
from tensorwire import _core
from tensorwire.codec import FrameEncoder, FrameReader, new_buffer

LIBRARY = "_tensorwire.so"
NUMEL = 64 << 20
SECONDS = 10.0
LEAST_SHARE = 0.01


def loop(direction: str, profile: Any) -> None:
    """Work until the time is over."""
    weights = np.random.default_rng(0).normal(0, 0.02, NUMEL).astype(np.float32).astype(ml_dtypes.bfloat16)
    words, frame, out = new_buffer(weights.nbytes), new_buffer(2 * weights.nbytes), new_buffer(weights.nbytes)
    np.frombuffer(words, np.uint8)[:] = weights.view(np.uint8)

    def encode() -> bytes:
        encoder = FrameEncoder("BF16", weights.shape, profile=profile, threads=1)
        encoder.encode(words, frame)
        return encoder.finish()

    reader = FrameReader(encode())
    blocks = frame[: reader.info.data_nbytes]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if direction == "decode":
            reader.decode(blocks, out, threads=1, verify=True)
        else:
            encode()


def sample(direction: str, profile: str) -> dict[str, Any]:
    """Each function's share of the time that is spent in the library."""
    perf = shutil.which("perf")
    if perf is None:
        raise SystemExit("python -m benchmarks.profile needs perf: install the Debian package linux-perf")
    with tempfile.TemporaryDirectory(prefix="tensorwire-") as folder:
        data = str(Path(folder) / "perf.data")
        work = [sys.executable, "-m", "benchmarks.profile", direction, "--profile", profile, "--loop"]
        record = [perf, "record", "-q", "-e", "cpu-clock", "-F", "997", "-o", data, *work]
        subprocess.run(record, check=True, env=environment.child())
        report = [perf, "report", "--stdio", "-q", "-i", data, "--sort", "symbol", "--dsos", LIBRARY]
        text = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    shares: dict[str, float] = {}
    for line in text.splitlines():
        share, _, name = line.strip().partition("%")
        if name:
            name = name.split("[.]")[-1].split("  ")[0].strip()  # other columns follow
            name = name.replace("tw::", "").replace("(anonymous namespace)::", "")
            shares[name] = shares.get(name, 0.0) + float(share)
    total = sum(shares.values())
    return {name: share / total for name, share in sorted(shares.items(), key=lambda item: -item[1])}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("direction", nargs="?", choices=("decode", "encode"), default="decode")
    parser.add_argument("--profile", choices=_core.PROFILES, default="fast")
    parser.add_argument("--json", action="store_true", help="print the shares as JSON")
    parser.add_argument("--loop", action="store_true", help="only work: what perf samples")
    options = parser.parse_args()
    if options.loop:
        with pinned(1):
            loop(options.direction, options.profile)
        return
    shares = sample(options.direction, options.profile)
    if options.json:
        print(json.dumps(shares, indent=1))
        return
    for name, share in shares.items():
        if share >= LEAST_SHARE:
            print(f"{share:6.1%}  {name}")


if __name__ == "__main__":
    main()
