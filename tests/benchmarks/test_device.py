"""The benchmark of a GPU: what the model expects, and the page of the committed results."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.2")

from benchmarks.device.model import INSTRUCTIONS, modelled
from benchmarks.device.run import main, render
from tests.support.device_figures import DEVICE
from tests.support.figures import RESULTS


def test_the_page_is_that_of_the_results() -> None:
    assert (RESULTS / "device-h200.md").read_text() == render(DEVICE)


def test_an_unknown_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["device", "decodings"])
    with pytest.raises(SystemExit, match="expected tables among decoding, products, models, got decodings"):
        main()


def test_the_smaller_rate_counts() -> None:
    """A word of two bytes is read in one and written in two if the ratio is 2."""
    assert modelled("fast", 2.0, {"copy": 3e9, "processors": 100}) == [pytest.approx(0.002)]
    slots = 128 * 1.7e9
    expected = [part * slots / INSTRUCTIONS["fast"] * 2 / 1e12 for part in (0.5, 0.7)]
    assert modelled("fast", 2.0, {"copy": 3e15, "processors": 1}) == pytest.approx(expected)
