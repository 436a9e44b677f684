"""The public functions against the core's.

`compress(out=)` and `decompress(out=)` take turns with `FrameEncoder` and `FrameReader`, which call the core once and
do nothing else. Both reuse their memory, run on one thread, and write and check checksums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import data, environment, summary
from benchmarks.tables import of_columns
from benchmarks.timing import interleave, pinned, relative, spread, timed
from tensorwire._ground.allocation import new_buffer
from tensorwire.codec import FrameEncoder, FrameReader, compress, compress_bound, decompress, dtype_bits
from tensorwire.codec.frame import core as _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire.codec import Profile

PROFILES: tuple[Profile, ...] = ("fast", "compact", "resident", "enec")
BUDGET = 3.0


def measure(dataset: data.Dataset, profile: Profile, rounds: int) -> list[dict[str, Any]]:
    """A row for each direction: GB/s of both ways, and how fast the public one is beside the other."""
    nbytes = len(dataset.data)
    shape = (nbytes * 8 // dtype_bits(dataset.dtype),)
    room = compress_bound(dataset.data, dtype=dataset.dtype, profile=profile)
    frame, blocks, out = new_buffer(room), new_buffer(room), new_buffer(nbytes)

    def core_compress() -> FrameReader:
        encoder = FrameEncoder(dataset.dtype, shape, profile=profile, threads=1)
        encoder.encode(dataset.data, blocks)
        return FrameReader(encoder.finish())

    def public_compress() -> memoryview:
        made = compress(dataset.data, dtype=dataset.dtype, profile=profile, out=frame, threads=1)
        assert isinstance(made, memoryview)
        return made

    reader, made = core_compress(), public_compress()
    functions: dict[str, Callable[[], Any]] = {
        "core/compress": core_compress,
        "public/compress": public_compress,
        "core/decompress": lambda: reader.decode(blocks[: reader.info.data_nbytes], out, threads=1),
        "public/decompress": lambda: decompress(made, out=out, threads=1),
    }
    operations = {name: lambda function=function: timed(function)[0] for name, function in functions.items()}
    seconds = interleave(operations, {name: operation() for name, operation in operations.items()}, rounds, BUDGET)
    if out != dataset.data:
        raise RuntimeError(f"{profile} on {dataset.name}: the result differs from the input")
    rows = []
    for direction in ("compress", "decompress"):
        public, core = (seconds[f"{side}/{direction}"] for side in ("public", "core"))
        speeds = [spread([nbytes / each / 1e9 for each in side if each])["median"] for side in (public, core)]
        quotient = relative(public, core)
        row = {"dataset": dataset.name, "profile": profile, "direction": direction, "cpu": _core.cpu_target()}
        rows.append({**row, "public": speeds[0], "core": speeds[1], "of_core": quotient and quotient["median"]})
    return rows


def measure_all(name: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of all profiles on the CPU target of this process."""
    dataset = data.load(name)
    with pinned(1):
        return [row for profile in PROFILES for row in measure(dataset, profile, rounds)]


def run(name: str, rounds: int) -> list[dict[str, Any]]:
    """The same on every CPU target that is here."""
    found = environment.on_each_target(measure_all, name, rounds)
    return summary.rounded([row for rows in found.values() for row in rows])


def render(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    columns = (
        ("profile", lambda row: f"`{row['profile']}`"), ("CPU target", "cpu", ""), ("direction", "direction", ""),
        ("public, GB/s", "public", ".2f"), ("core, GB/s", "core", ".2f"), ("of the core", "of_core", ".3f"),
    )  # fmt: skip
    return of_columns(columns, rows)
