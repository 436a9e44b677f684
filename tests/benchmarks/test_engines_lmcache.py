"""The table of LMCache: how it is judged, and what it says where LMCache is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.engines import lmcache


def test_every_object_has_to_come_back() -> None:
    rows = [{"with": name, "equal": equal} for name, equal in (("`fast`", 8), ("`compact`", 7))]
    assert [each.met for each in lmcache.evaluate({"lmcache": rows})] == [True, False]


def test_without_its_environment_the_table_says_what_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmcache, "PYTHON", Path("missing") / "python")
    with pytest.raises(FileNotFoundError, match="run make lmcache first"):
        lmcache.measure(quick=True)
