"""Each committed page of results says what the results beside it say: every table, figure and verdict of a target."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", minversion="2.9")
pytest.importorskip("xxhash")
pytest.importorskip("zstandard")

from benchmarks.checkpoints import run as checkpoints
from benchmarks.codecs import cycles, geometry
from benchmarks.codecs.report import PAGE as CODECS
from benchmarks.deltas.report import PAGE as DELTAS
from benchmarks.engines import run as engines
from benchmarks.environment import RESULTS
from benchmarks.inference import served
from benchmarks.inference.report import PAGE as INFERENCE
from benchmarks.sync import run as sync
from benchmarks.traffic import run as traffic

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.results_page import Page

PAGES = (CODECS, cycles.PAGE, geometry.PAGE, DELTAS, INFERENCE, served.PAGE, sync.PAGE, traffic.PAGE, engines.page())
PAGES += tuple(checkpoints.PAGES.values())
TABLES = {"sync": sync.TABLES, "traffic": traffic.TABLES, **checkpoints.TABLES}


def results(page: Page, folder: Path = RESULTS) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{page.name}.json").read_text())
    return found


@pytest.mark.parametrize(
    ("page", "folder"),
    [*((page, RESULTS) for page in PAGES), *((page, RESULTS / "zen5-avx512") for page in (CODECS, INFERENCE))],
    ids=lambda each: each.name,
)
def test_a_committed_page_is_that_of_its_results(page: Page, folder: Path) -> None:
    assert page.render(results(page, folder), folder) == (folder / (page.file or f"{page.name}.md")).read_text()


def test_every_table_was_measured() -> None:
    for page in PAGES:
        assert {table.name for table in TABLES.get(page.name, ())} <= results(page).keys(), page.name
