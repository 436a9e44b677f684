"""The table of LMCache: how it is judged, and what it says where LMCache is missing."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from benchmarks import environment
from benchmarks.engines import lmcache, tier, weights

if TYPE_CHECKING:
    from pathlib import Path


def test_every_object_has_to_come_back() -> None:
    rows = [{"with": name, "equal": equal} for name, equal in (("`fast`", 8), ("`compact`", 7))]
    assert [each.met for each in lmcache.evaluate({"lmcache": rows})] == [True, False]


def test_without_its_environment_a_table_says_what_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others are measured."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    for section in (lmcache, tier, weights):
        for table in section.TABLES:
            assert re.fullmatch("(lmcache|vllm) is missing: run make \\1 first", table.missing())
    python = tmp_path / "build" / "lmcache-env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert lmcache.TABLES[0].missing() == ""
