"""The section of `make engines` for weights: what its wires send, and how it judges."""

from __future__ import annotations

from pathlib import Path

import pytest

for _package in ("torch", "zstandard"):
    pytest.importorskip(_package)

from benchmarks.engines import delta, run  # noqa: E402
from benchmarks.synthetic_pairs import synthetic_pair  # noqa: E402
from benchmarks.trained_pairs import Pair  # noqa: E402


def pair() -> Pair:
    old, new = synthetic_pair(1 << 16, 5e-6)
    shape = 256, 256
    sides = ({"encoder.weight": words.reshape(shape), "norm": words[:8].copy()} for words in (old, new))
    return Pair(delta.JUDGED, *sides)


def test_every_wire_brings_the_new_words() -> None:
    assert run.sections()["delta"] is delta
    sides = delta._sides(pair())
    wires = delta._wires(1 << 16)
    assert {*wires, "patches"} == delta.WIRES.keys()
    for wire in wires.values():
        delta._ways(wire, sides)["encode"]()


def test_bits_are_those_of_changed_words() -> None:
    row = delta._bits(pair())
    assert row["index_value"] == 48
    assert row["dense"] == pytest.approx(16 / row["changed"])
    assert row["ours_compact"] <= row["ours"] < row["xor_zstd"] < row["index_value"] < row["dense"]
    assert row["version"] > row["ours"]


def test_patches_come_out_of_staged_frames(tmp_path: Path) -> None:
    delta._patches(pair(), str(tmp_path))()


def test_targets_are_those_of_frames() -> None:
    results = {
        "wires": [
            {"pair": delta.JUDGED, "ours": 8.2, "ours_compact": 7.0, "version": 8.6, "version_compact": 7.5},
            {"pair": "1e-6"},
        ],
        "wire_speeds": [{"wire": "ours", "with": "", "encode, of zstd": 2.5}, {"wire": "xor_zstd"}],
    }
    assert [(each.measured, each.met) for each in delta.evaluate(results)] == [
        (8.2, True),
        (7.0, True),
        (8.6, False),
        (7.5, True),
        (2.5, True),
    ]
