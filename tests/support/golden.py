"""The golden files of the format's version: frames, bases, and invalid frames with their errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reference.tensorwire_reference import Layout
from reference.tensorwire_reference.layouts import SPLITS, TABLE

# What the manifest says in the words of a header.
HEADER_KEYS = (
    *("dtype", "shape", "bits", "profile", "block_words", "block_alignment", "frame_alignment"),
    *("header_nbytes", "padding_nbytes"),
)
FOLDER = Path(__file__).resolve().parents[1] / "golden" / "v1"


def manifest(part: str) -> list[dict[str, Any]]:
    """The entries of "frames" or "invalid". Raises if a file is missing or unlisted."""
    listed = json.loads((FOLDER / "manifest.json").read_text())
    names = {f"{entry['name']}.tw" for entry in listed["frames"]}
    names |= {f"invalid/{entry['name']}.tw" for entry in listed["invalid"]}
    names |= {f"bases/{entry['base']}" for entry in (*listed["frames"], *listed["invalid"]) if entry["base"]}
    there = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    if there - {"manifest.json"} != names:
        raise AssertionError(f"golden files and manifest differ: {sorted(there ^ names)[:5]}")
    return listed[part]


def frame_of(entry: dict[str, Any]) -> bytes:
    folder = FOLDER / "invalid" if "error" in entry else FOLDER
    return (folder / f"{entry['name']}.tw").read_bytes()


def has_layout_of_table(entry: dict[str, Any]) -> bool:
    """Whether an entry's bits and layout are those that writers take for its dtype."""
    bits, layout = TABLE.get(entry["dtype"], (entry["bits"], Layout(1, 0, 0, "none", False)))
    numbers = [layout.word_nbytes, layout.exponent_bits, layout.rest_bits, SPLITS.index(layout.split), layout.ordered]
    return (entry["bits"], entry["layout"]) == (bits, numbers)


def kind_of(coding: str) -> str:
    """The kind of a block, with its variant, of the reference's name of its coding."""
    return coding.split("(")[0].split("+")[0]


def rest_of(coding: str) -> str:
    """Likewise how the rest is stored."""
    return coding.rpartition("+")[2].split("[")[0]


def base_of(entry: dict[str, Any]) -> bytes | None:
    return (FOLDER / "bases" / entry["base"]).read_bytes() if entry["base"] else None
