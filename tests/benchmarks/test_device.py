"""The benchmark of a GPU: what the model expects, and the page of the committed results."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.2")

from benchmarks.device.model import INSTRUCTIONS, modelled  # noqa: E402
from benchmarks.device.rows import check  # noqa: E402
from benchmarks.device.run import main, render  # noqa: E402
from tests.support.device_figures import DEVICE  # noqa: E402
from tests.support.figures import RESULTS  # noqa: E402


def test_the_page_is_that_of_the_results() -> None:
    assert (RESULTS / "device-h200.md").read_text() == render(DEVICE)


def test_an_unknown_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["device", "decodings"])
    with pytest.raises(SystemExit, match="expected tables among decoding, products, models, got decodings"):
        main()


@pytest.mark.parametrize(("name", "error"), [("exact, fast", 0.01), ("fused, fast", 0.5)])
def test_a_wrong_product_is_not_timed(name: str, error: float) -> None:
    weight, x = torch.full((2, 256), 0.5, dtype=torch.bfloat16), torch.ones(1, 256, dtype=torch.bfloat16)
    check(x, {"dense": [weight], name: [weight]})
    with pytest.raises(RuntimeError, match="is wrong"):
        check(x, {"dense": [weight], name: [weight * (1 + error)]})


def test_the_smaller_rate_counts() -> None:
    """A word of two bytes is read in one and written in two if the ratio is 2."""
    assert modelled("fast", 2.0, {"copy": 3e9, "processors": 100}) == [pytest.approx(0.002)]
    slots = 128 * 1.7e9
    expected = [part * slots / INSTRUCTIONS["fast"] * 2 / 1e12 for part in (0.5, 0.7)]
    assert modelled("fast", 2.0, {"copy": 3e15, "processors": 1}) == pytest.approx(expected)
