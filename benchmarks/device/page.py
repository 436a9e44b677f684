"""The page of a card: all that was ever measured on it, from the JSON lines of the runs."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import summary
from benchmarks.device.measure import CUDA
from benchmarks.device.model import instructions, modelled
from benchmarks.device.runner import Row, Section, lines
from benchmarks.results_page import Page
from benchmarks.tables import filled, of_columns, runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def results_of(path: Path, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a journal says, added to what is `known` of the card: a section that has rows takes the place of its old
    ones."""
    results: dict[str, Any] = {"runs": [], **(known or {})}
    found, facts = lines(path), {}
    rows: dict[str, list[Row]] = {}
    for line in found:
        facts = line.get("environment", facts)
        if "row" in line:
            rows.setdefault(line["section"], []).append(line["row"])
    for name in dict.fromkeys(line["section"] for line in found if "section" in line):
        if name in rows:
            results[name] = rows[name]
        errors = [line["error"] for line in found if line.get("section") == name and "error" in line]
        seconds = [line["seconds"] for line in found if line.get("section") == name and "seconds" in line]
        kept = [each for each in results["runs"] if each["table"] != name]
        run = {"table": name, "seconds": sum(seconds), "environment": facts}
        results["runs"] = [*kept, {**run, **({"errors": errors} if errors else {})}]
    device = {**results.get("device", {})}
    for row in rows.get("card", []):
        if "name" in row:
            device |= {key: value for key, value in row.items() if key != "what"}
    for row in rows.get("ceilings", []):
        if row["what"].startswith("copy"):
            device["copy"] = row["moved"] * 1e12
    results["device"] = device
    rounded: dict[str, Any] = summary.rounded(results)
    return rounded


def unfinished(path: Path, sections: Sequence[Section]) -> list[str]:
    """The sections that a journal has not to the end."""
    found = lines(path)
    ended = {line["section"] for line in found if "seconds" in line}
    broken = {line["section"] for line in found if "error" in line}
    return [section.name for section in sections if section.name not in ended - broken]


def file_name(results: dict[str, Any]) -> str:
    """Without its suffix: that of the card."""
    name = results["device"].get("name", "unknown").lower().replace("nvidia", "")
    return "device-" + re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def page_of(results: dict[str, Any], sections: Sequence[Section]) -> Page:
    """The page of a card."""
    return Page(file_name(results), partial(_parts, sections))


def _parts(sections: Sequence[Section], results: dict[str, Any]) -> list[str]:
    device = results["device"]
    parts = ["# Results of kernels on a GPU", "[The page](DOCS/devices.md) says what they do.", _line(device)]
    for section in sections:
        rows = results.get(section.name, [])
        if section.name == "decoding" and "copy" in device:
            rows = [{**row, **_of_copy(row, device)} for row in rows]
        if section.name == "card":
            rows = [row for row in rows if "name" not in row]
        if rows:
            parts.append(_table(section, rows))
    return parts + runs(results)


def write(journal: Path, folder: Path, sections: Sequence[Section], *, add: bool) -> None:
    """Write and print the page of a journal's card in `folder`; if asked, `add` it to what was known there."""
    results = results_of(journal)
    path = folder / f"{file_name(results)}.json"
    if add and path.exists():
        results = results_of(journal, json.loads(path.read_text()))
    page_of(results, sections).keep(results, folder)


def _line(device: dict[str, Any]) -> str:
    if "memory" not in device:
        return "No GPU was measured."
    copy = ""
    if "copy" in device:
        copy = f" A copy on the device moves {device['copy'] / 1e12:.2f} TB/s, read and written together."
    return (
        f"{device['name']}, {device['processors']} processors, {device['memory'] / 1e9:.0f} GB of memory, L2 of "
        f"{device['l2'] / 1e6:.0f} MB; driver {device['driver']}, torch {device['torch']}, Triton {device['triton']}."
        + copy
    )


def _of_copy(row: Row, device: dict[str, Any]) -> Row:
    """What a row of decoding moves as a part of what a copy moves, and what the model expects of our profiles."""
    found = {"moved": row["bytes"] * 1e12 / device["copy"]} if "bytes" in row else {}
    count = instructions(row["what"], row.get("by") == CUDA)
    return {**found, **({} if count is None else {"modelled": modelled(count, row["ratio"], device)})}


def _table(section: Section, rows: Iterable[Row]) -> str:
    rows = list(rows)
    columns = [column for column in section.columns if any(row.get(column[1]) not in (None, "") for row in rows)]
    return f"## {section.question}\n\n{filled(section.text)}\n\n{of_columns(columns, rows)}"
