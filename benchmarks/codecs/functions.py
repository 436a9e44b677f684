"""Where each profile spends its time, by function: python -m benchmarks.codecs.functions; needs perf, and symbols.

One thread on one core works on a synthetic BF16 tensor, from memory, while perf samples it. Functions of the library
alone are counted, so that what Python and the allocator do drops out. An installed library has no symbols, unless pip
was given --config-settings=install.strip=false. TENSORWIRE_CPU=avx2 holds it to that CPU target.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks import environment, summary
from benchmarks.timing import pinned
from tensorwire._ground.allocation import new_buffer
from tensorwire.codec import FrameEncoder, FrameReader
from tensorwire.codec.frame import core

if TYPE_CHECKING:
    from tensorwire.codec import Profile

LIBRARY = "_tensorwire.so"
NUMEL = 64 << 20
SECONDS = 10.0
DIRECTIONS = ("decode", "encode")
PROFILES: tuple[Profile, ...] = ("fast", "compact", "resident", "enec")
LEAST_SHARE = 0.01


def loop(profile: Profile, direction: str) -> None:
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


def sample(profile: Profile, direction: str) -> dict[str, float]:
    """The share of each function that takes its hundredth of the time spent in the library."""
    perf = shutil.which("perf")
    if perf is None:
        raise SystemExit("python -m benchmarks.codecs.functions needs perf: install the Debian package linux-perf")
    with tempfile.TemporaryDirectory(prefix="tensorwire-") as folder:
        data = str(Path(folder) / "perf.data")
        work = [sys.executable, "-m", "benchmarks.codecs.functions", "--loop", profile, direction]
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
    if any(name.startswith("0x") for name in shares):
        raise SystemExit("the library has no symbols; install it with --config-settings=install.strip=false")
    least = LEAST_SHARE * sum(shares.values())
    found = sorted(shares.items(), key=lambda item: -item[1])
    return {name: share / sum(shares.values()) for name, share in found if share >= least}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codecs.functions", description=__doc__.splitlines()[0])
    parser.add_argument("--loop", nargs=2, metavar=("PROFILE", "DIRECTION"), help="only work: what perf samples")
    options = parser.parse_args()
    if options.loop:
        with pinned(1):
            loop(*options.loop)
        return
    facts = environment.describe("python -m benchmarks.codecs.functions") | {"cpu_target": core.cpu_target()}
    shares = {profile: {direction: sample(profile, direction) for direction in DIRECTIONS} for profile in PROFILES}
    results: dict[str, Any] = summary.rounded({"environment": facts} | shares)
    (environment.RESULTS / "functions.json").write_text(summary.dumps(results))
    for profile in PROFILES:
        for direction in DIRECTIONS:
            print(f"{profile}, {direction}")
            for name, share in results[profile][direction].items():
                print(f"{share:6.1%}  {name}")


if __name__ == "__main__":
    main()
