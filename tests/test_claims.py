"""No figure in prose without a measurement: README, docs, help texts and docstrings against benchmarks/results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tensorwire.cli import _commands
from tests.claims import CLAIMS, NOT_MEASURED
from tests.support.prose import texts, unsaid, without_measurement
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


def test_what_is_not_measured_stands_in_its_text(said: dict[str, str]) -> None:
    gone = unsaid(said, NOT_MEASURED)
    assert not gone, f"no text says these: strike them from NOT_MEASURED in tests/claims.py: {gone}"
