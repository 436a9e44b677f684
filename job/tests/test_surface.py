"""job/tests/surface.txt has all that users of tensorwire-job may name, as tests/test_surface.py has it."""

from __future__ import annotations

from pathlib import Path

from job.tests import surface
from tests.support.surface import differences, read, unexplained


def test_the_list_is_the_surface() -> None:
    new, gone = differences(surface.LIST, surface.surface(), surface.experimental())
    assert (new, gone) == ([], []), "run python -m job.tests.surface; job/docs/decisions.md and CHANGELOG.md say why"


def test_what_is_newer_has_a_reason(repository: Path) -> None:
    page = (repository / "job" / "docs" / "decisions.md").read_text()
    section = page.partition("\n## The surface\n")[2].partition("\n## ")[0]
    listed = read(surface.LIST)
    assert unexplained(listed.first, listed.newer, section) == [], "say in job/docs/decisions.md who needs it"
