"""No figure in the prose of tensorwire-job without a measurement, as tests/test_claims.py has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from job.tests.claims import CLAIMS, NOT_MEASURED
from tensorwire_job.cli import command
from tests.support.prose import texts, unsaid, without_measurement


@pytest.fixture(scope="module")
def said(repository: Path) -> dict[str, str]:
    """All prose, by path."""
    paths = [
        *(repository / "job").glob("*.md"),
        *(repository / "job/docs").rglob("*.md"),
        *(repository / "job/src").rglob("*.py"),
    ]
    return texts(repository, paths, command)


def test_claims_say_what_was_measured(said: dict[str, str]) -> None:
    wrong = unsaid(said, CLAIMS)
    assert not wrong, "these texts should say something else:\n" + "\n".join(f"{key}: {claim}" for key, claim in wrong)


def test_no_figure_is_without_a_measurement(said: dict[str, str]) -> None:
    unclaimed = without_measurement(said, CLAIMS, NOT_MEASURED)
    assert not unclaimed, "add these to CLAIMS or NOT_MEASURED in job/tests/claims.py:\n" + "\n".join(unclaimed)


def test_what_is_not_measured_stands_in_its_text(said: dict[str, str]) -> None:
    gone = unsaid(said, NOT_MEASURED)
    assert not gone, f"no text says these: strike them from NOT_MEASURED in job/tests/claims.py: {gone}"
