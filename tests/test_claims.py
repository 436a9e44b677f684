"""No figure in prose without a measurement: README, docs, help texts and docstrings against benchmarks/results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tensorwire.cli import _commands
from tests.claims import CLAIMS, NOT_MEASURED
from tests.support.prose import figures, prose, texts, unsaid, without_measurement
from tests.tables import PAGES, ROOT, TABLES, known, rendered

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def said(repository: Path) -> dict[str, str]:
    """All prose, by path."""
    paths = [repository / "README.md", *(repository / "docs").rglob("*.md"), *(repository / "src").rglob("*.py")]
    return texts(repository, paths, _commands)


def test_claims_say_what_was_measured(said: dict[str, str]) -> None:
    wrong = unsaid(said, CLAIMS)
    assert not wrong, "these texts should say something else:\n" + "\n".join(f"{key}: {claim}" for key, claim in wrong)


def test_no_figure_is_without_a_measurement(said: dict[str, str]) -> None:
    tables = {page.relative_to(ROOT).as_posix(): known(page.read_text()) for page in PAGES}
    unclaimed = without_measurement(said, tables, CLAIMS, NOT_MEASURED)
    advice = "put these into a table (tests/tables.py), or into CLAIMS or NOT_MEASURED in tests/claims.py:\n"
    assert not unclaimed, advice + "\n".join(unclaimed)


def test_tables_say_what_was_measured() -> None:
    pages = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
    assert [name for name, text in pages.items() if rendered(text) != text] == [], "run python -m tests.tables"
    assert {name for text in pages.values() for name in re.findall("<!-- table (.*?) -->\n\\|", text)} == set(TABLES)


def test_a_table_keeps_what_is_the_pages_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "numbers", lambda: {"a | b": "1 | 2", "c": "3"})
    text = "x\n<!-- table numbers -->\n| | |\n|---|---|\n| a | b | 7 | 8 | why | |\n| a | own |\n\ny | 9 |\n"
    expected = text.replace("7 | 8", "1 | 2").replace("own |\n", "own |\n| c | 3 |\n")
    assert rendered(text) == rendered(expected) == expected
    assert known(text) == ["| a | b | 1 | 2 |", "| c | 3 |"]


def test_figures_are_found_in_prose_alone() -> None:
    found = ["6.5 GB/s", "1.501", "34 %", "12%", "3 times", "2x", "877 of 880", "1.87", "1.2 us"]
    others = "PyTorch 2.13, [arXiv [2604.03298]], F8_E4M3 on AVX-512, blocks of 65536 words, rank 2 of the job, 1.2.3"
    assert figures(f"{', '.join(found)}; {others}") == found
    assert prose("a.md", "one [page](x/1.234.md)\n```sh\n$ 5 GB/s\n```\ntwo") == "one [page] two"
    assert prose("a.py", 'def f():\n    """Takes 5 %."""\n    return "6 %"\n') == "Takes 5 %."


def test_what_is_not_measured_stands_in_its_text(said: dict[str, str]) -> None:
    gone = unsaid(said, NOT_MEASURED)
    assert not gone, f"no text says these: strike them from NOT_MEASURED in tests/claims.py: {gone}"
