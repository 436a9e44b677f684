"""Measure the tables on this machine's GPU and write their page."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks import summary
from benchmarks.device import measure, rows
from benchmarks.device.model import modelled
from benchmarks.tables import Table, add_options, asked, exit_if, runs
from benchmarks.tables import measure as measure_tables

TABLES = (
    Table(
        "decoding",
        "Decoding to BF16",
        "Normal weights, as many by turns as the cache cannot hold. TB/s are those of the dense weights, by replays of "
        "a graph. Moved is what is read of the frame and written, as a part of what a copy moves in that time. "
        "Modelled is what docs/devices.md expects. A call also costs the host's time.",
        (
            ("profile", "what", ""),
            ("matrix", "shape", ""),
            ("ratio", "ratio", ".3f"),
            ("µs", "microseconds", ".0f"),
            ("TB/s", "output", ".2f"),
            ("TB/s modelled", "modelled", ".2f"),
            ("moved", "moved", ".2f"),
            ("µs a call", "by_call", ".0f"),
        ),
        rows.decoding,
    ),
    Table(
        "products",
        "Products with few inputs",
        "By replays of a graph, all contenders by turns. Times dense is how many times as fast as torch's own product "
        "with dense weights. A call also costs the host's time.",
        (
            ("weight", "what", ""),
            ("matrix", "shape", ""),
            ("inputs", "inputs", "d"),
            ("µs", "microseconds", ".0f"),
            ("times dense", "of_dense", ".2f"),
            ("µs a call", "by_call", ".0f"),
        ),
        rows.products,
    ),
    Table(
        "models",
        "A model",
        "Llama of transformers with random weights, as wide as that of 8 billion weights. Tokens that `generate` makes "
        "of one sequence, greedily, with 64 tokens before. Memory is that of PyTorch's allocator.",
        (
            ("weights", "what", ""),
            ("billions", "weights", ".2f"),
            ("tokens/s", "tokens", ".1f"),
            ("GB at rest", "resting", ".2f"),
            ("GB at most", "peak", ".2f"),
            ("ms to open a GB", "opening", ".0f"),
        ),
        rows.models,
    ),
)


def facts() -> dict[str, Any]:
    """The device, and what it moves."""
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "processors": found.multi_processor_count,
        "memory": found.total_memory,
        "l2": found.L2_cache_size,
        "driver": _driver(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy": measure.copy_bandwidth(),
    }


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found.group() if found else ""


def render(results: dict[str, Any]) -> str:
    device = results["device"]
    line = (
        f"{device['name']}, {device['processors']} processors, {device['memory'] / 1e9:.0f} GB of memory, L2 of "
        f"{device['l2'] / 1e6:.0f} MB; driver {device['driver']}, torch {device['torch']}, Triton {device['triton']}. "
        f"A copy on the device moves {device['copy'] / 1e12:.2f} TB/s, read and written together."
    )
    parts = ["# Results of kernels on a GPU", "[The page](../../docs/devices.md) says what they do.", line]
    decoding = [{**row, "modelled": modelled(row["what"], row["ratio"], device)} for row in results.get("decoding", [])]
    shown = {**results, "decoding": decoding}
    parts += [table.render(shown[table.name]) for table in TABLES if table.name in results]
    return "\n\n".join(parts + runs(results)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    options = parser.parse_args()
    tables, folder = asked(TABLES, options)
    device = facts()
    name = "device-" + re.sub(r"[^a-z0-9]+", "-", device["name"].lower().replace("nvidia", "")).strip("-")
    path = folder / f"{name}.json"
    results, failed = measure_tables(tables, path, quick=options.quick, command="make device")
    results = {**results, "device": device}
    path.write_text(summary.dumps(summary.rounded(results)))
    page = render(summary.rounded(results))
    (folder / f"{name}.md").write_text(page)
    print(page, end="")
    exit_if(failed)
