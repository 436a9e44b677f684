"""tensorwire bench"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._ground.packages import how_to_install
from . import options, output
from .failures import BAD_DATA

if TYPE_CHECKING:
    from .measure import Measurement


@click.command()
@click.argument("path", type=options.EXISTING_LOCAL_PATH, required=False)
@options.json_option
def command(path: Path | None, as_json: bool) -> int:
    """Measure every codec that is installed, here, on your data.

    PATH is a file or directory, plain or compressed. The first 67 MB of each dtype are measured. Without PATH the data
    is synthetic BF16. Each codec has one thread, and page-aligned memory that is reused; its round trip is checked
    before it is timed. 1 GB/s is 10^9 uncompressed bytes per second. A note says how to install
    the codecs of others.

    \b
    Example:
      tensorwire bench model.safetensors
    """
    from ..codec import cpu_target
    from . import measure
    from .machine import cpu_name
    from .peers import ADAPTERS

    samples = measure.synthetic() if path is None else measure.samples(path)
    adapters = [adapter for adapter in ADAPTERS if adapter.installed]
    tasks = [(adapter, sample) for sample in samples for adapter in adapters]
    results: list[Measurement] = []
    with output.progress("bench", in_bytes=False) as progress:
        for adapter, sample in tasks:
            if progress is not None:
                progress(len(results), len(tasks), f"{sample.dtype} {adapter.name}")
            results.append(measure.measure(adapter, sample))
    machine = {"cpu": cpu_name(), "cpu_target": cpu_target(), "cores": os.cpu_count()}
    machine["system"] = platform.platform(terse=True)
    missing = {adapter.name: adapter.package for adapter in ADAPTERS if not adapter.installed}
    if as_json:
        output.print_json({"path": path and str(path), "machine": machine, "results": results, "missing": [*missing]})
    else:
        _print(str(path or "synthetic BF16 weights"), machine, results, sorted(set(missing.values())))
    return BAD_DATA if any(result.error and result.codec.startswith("tensorwire") for result in results) else 0


def _print(source: str, machine: dict[str, Any], results: list[Measurement], missing: list[str]) -> None:
    sizes = {result.dtype: output.size(result.nbytes) for result in results}
    output.print_line(f"{source}: " + ", ".join(f"{dtype} {size}" for dtype, size in sizes.items()))
    cores = output.count(machine["cores"], "core")
    output.print_line(f"{machine['cpu']}, {cores}, CPU target {machine['cpu_target']}; one thread")
    print()
    columns = ("codec", "version", "dtype", ">ratio", ">compress", ">decompress")
    output.print_table(columns, [_row(result) for result in results], less_important=("version", "compress"))
    print()
    for result in results:
        if result.error:
            output.print_line(f"note: {result.codec} on {result.dtype}: {result.error}")
    if missing:
        output.print_line(f"note: not installed: {', '.join(missing)}; {how_to_install('peers')}")


def _row(result: Measurement) -> tuple[str, ...]:
    speeds = [
        "-" if seconds is None else output.speed(result.nbytes, seconds)
        for seconds in (result.compress_seconds, result.decompress_seconds)
    ]
    return result.codec, result.version, result.dtype, output.decimals(result.ratio), *speeds
