"""What is kept of a run: every figure that a page, a target or a document names, one row for each codec and setting.

A run measures each codec on a data set as one buffer and again tensor by tensor, and notes spreads of every quotient.
The summary has one row for both units, the spread of the speeds alone, and eight significant digits.
"""

from __future__ import annotations

import json
from typing import Any

Row = dict[str, Any]
DIGITS = 8
YARDSTICKS = ("vs_memcpy", "vs_zipnn", "vs_one_thread")
_SETTING = ("dataset", "codec", "threads", "verify", "forced_cpu")


def summarize(results: dict[str, Any]) -> dict[str, Any]:
    """`results` as `benchmarks.codecs.run` measures them, each pair of rows as one."""
    by_tensor = {_setting(row): row for row in results["rows"] if row["unit"] == "tensor"}
    rows = [_row(row, by_tensor.get(_setting(row))) for row in results["rows"] if row["unit"] == "whole"]
    return rounded({**results, "rows": rows})


def dumps(summary: dict[str, Any]) -> str:
    """JSON with one line for each entry of a list, so that a difference shows in one line."""
    parts = [f" {json.dumps(key)}: {_entry(value)}" for key, value in summary.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def medians(figure: Row, yardsticks: tuple[str, ...]) -> Row:
    """A measured speed, and its quotients by those `yardsticks` that were measured beside it."""
    return {
        "median": figure["median"],
        "spread": (figure["high"] - figure["low"]) / 2,
        "runs": figure["runs"],
        **{name: figure[name]["median"] for name in yardsticks if figure[name]},
    }


def _row(whole: Row, tensor: Row | None) -> Row:
    row = {key: whole[key] for key in ("dataset", "codec", "version", "threads", "verify", "cpu")}
    if whole.get("forced_cpu"):
        row["forced_cpu"] = whole["forced_cpu"]
    row["ratio"] = whole["ratio"]
    for direction in ("compress", "decompress"):
        row[direction] = medians(whole[direction], YARDSTICKS)
    if tensor:
        row["by_tensor"] = {
            "ratio": tensor["ratio"],
            "compress": tensor["compress"]["median"],
            "decompress": tensor["decompress"]["median"],
        }
    return row


def _setting(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _SETTING)


def rounded(value: Any) -> Any:
    """`value` with every float in it cut to `DIGITS`."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return value


def _entry(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]"
