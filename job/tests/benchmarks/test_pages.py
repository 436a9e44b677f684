"""Each committed page of results of tensorwire-job says what the results beside it say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from job.benchmarks import RESULTS, probe, simulate
from job.benchmarks.standstills import page as standstills
from job.tests.faults import dump_readers

if TYPE_CHECKING:
    from benchmarks.results_page import Page


@pytest.mark.parametrize("page", [probe.PAGE, simulate.PAGE, standstills.PAGE], ids=lambda page: page.name)
def test_a_committed_page_is_that_of_its_results(page: Page) -> None:
    results = json.loads((RESULTS / f"{page.name}.json").read_text())
    assert page.render(results, RESULTS) == (RESULTS / f"{page.name}.md").read_text()


def test_the_page_of_dumps_is_that_of_its_results() -> None:
    results = json.loads(dump_readers.RESULTS.read_text())
    assert dump_readers.page(results["runs"], results) == dump_readers.RESULTS.with_suffix(".md").read_text()
    assert dump_readers.counts(results["runs"]) == results["counts"]
