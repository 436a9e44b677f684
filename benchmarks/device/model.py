"""What bandwidth and instructions allow: python -m benchmarks.device.model

The smaller of two rates counts. The model knows nothing of latency, caches and launches.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

import tensorwire
from benchmarks import environment, pages
from benchmarks.device.counts import PAGE
from benchmarks.tables import cell

INSTRUCTIONS = {"fast": 19.0, "enec": 17.4, "resident": 13.7}
"""A word, to decode, of the Triton kernels that were measured: counted in their machine code for sm_90."""
_MEASURED = environment.RESULTS / "device-h200.json"
_SLOTS_USED = (0.5, 0.7)
_WORD_NBYTES = 2
_TABLES_NBYTES = 2 / 256  # a word, of what is known of each run
_LANES, _HERTZ = 128, 1.7e9
_HOPPERS = ("H200", "H100")
_OTHERS: dict[str, dict[str, Any]] = {
    "H100": {"processors": 132, "copy": 3.0e12},
    "RTX 4070": {"processors": 46, "copy": 0.452e12, "hertz": 2.475e9},
}
"""Cards that were not measured here, and what others say that a copy moves in a second."""


def counted() -> dict[str, float]:
    """Instructions a word of the kernels in CUDA C++, by their names."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {name: float(everything) for name, _, everything, *_ in rows[1:] if everything != "-"}


def instructions(profile: str, by_cuda: bool) -> float | None:
    """What decoding takes a word; None where it was not counted."""
    if not by_cuda:
        return INSTRUCTIONS.get(profile)
    return next((count for name, count in counted().items() if name.startswith(f"decode `{profile}`")), None)


def modelled(count: float, ratio: float, card: dict[str, Any]) -> list[float]:
    """TB/s of output of a decoder, least and most, or one number. `card` is as results have it."""
    by_memory = card["copy"] / (1 + 1 / ratio)
    by_instructions = [each * _WORD_NBYTES for each in _words(count, card)]
    return list(dict.fromkeys(min(by_memory, each) / 1e12 for each in by_instructions))


def times_dense(count: float, ratio: float, card: dict[str, Any]) -> list[float]:
    """How many times as fast as with dense weights a product is that reads its weights alone, least and most."""
    dense = card["copy"] / _WORD_NBYTES
    by_memory = 1 / (1 / ratio + _TABLES_NBYTES / _WORD_NBYTES)
    return list(dict.fromkeys(min(by_memory, each / dense) for each in _words(count, card)))


def _words(count: float, card: dict[str, Any]) -> list[float]:
    slots = card["processors"] * _LANES * card.get("hertz", _HERTZ)
    return [used * slots / count for used in _SLOTS_USED]


def rows() -> list[list[str]]:
    """The table: what the kernels in CUDA C++ may reach on each card, by what was counted."""
    measured = json.loads(_MEASURED.read_text())
    cards = {"H200": measured["device"], **_OTHERS}
    ratios = {row["what"]: row["ratio"] for row in reversed(measured["decoding"])}
    found = []
    for name, count in counted().items():
        if not name.startswith(("decode `", "product")):  # what encodes or applies is not modelled
            continue
        profile = name.split("`")[1]
        ratio = _ratio_of_f16(profile) if "F16" in name else ratios[profile]
        of_card = modelled if name.startswith("decode") else times_dense
        cells = [
            cell(_shown(of_card(count, ratio, card)), ".2f") if which in _HOPPERS or not name.endswith("wgmma") else "-"
            for which, card in cards.items()
        ]
        found.append([name, f"{count:.1f}", *cells])
    return found


@functools.cache
def _ratio_of_f16(profile: Any) -> float:
    """That of normal weights in F16, which were not among the measured ones."""
    weight = torch.randn((64, 4096), generator=torch.Generator().manual_seed(0)) * 0.02
    return weight.numel() * _WORD_NBYTES / len(tensorwire.compress(weight.half(), profile=profile))


def _shown(span: list[float]) -> list[float]:
    """One number where both look alike."""
    return list({f"{each:.2f}": each for each in span}.values())


def main() -> None:
    print("TB/s of output for decoding, times dense for products; modelled, not measured.")
    print(pages.table(["kernel", "instructions a word", "H200", *_OTHERS], rows()))


if __name__ == "__main__":
    main()
