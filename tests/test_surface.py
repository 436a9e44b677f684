"""tests/surface.txt has all that users may name, and nothing comes to it without a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

for _package in ("torch", "transformers", "triton"):
    pytest.importorskip(_package)

from tests import surface  # noqa: E402
from tests.support.surface import differences, read, unexplained  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

_ADVICE = (
    "run python -m tests.surface; docs/decisions.md, The surface, has a line for what is new, CHANGELOG.md for both"
)


def test_the_list_is_the_surface() -> None:
    new, gone = differences(surface.LIST, surface.surface(), surface.experimental())
    assert new == [], f"new: {_ADVICE}"
    assert gone == [], f"gone: {_ADVICE}"


def test_what_is_newer_has_a_reason(repository: Path) -> None:
    page = (repository / "docs" / "decisions.md").read_text()
    section = page.partition("\n## The surface\n")[2].partition("\n## ")[0]
    listed = read(surface.LIST)
    assert unexplained(listed.first, listed.newer, section) == [], "say in docs/decisions.md who needs it"


def test_a_new_thing_and_a_new_part_of_an_old_one_need_a_reason() -> None:
    first, newer = ["load: path, device", "exit codes: 0"], ["load: fast", "save: path, force", "exit codes: 4"]
    missing = ["exit codes: 4", "load: fast", "save"]
    assert unexplained(first, newer, "") == missing
    assert unexplained(first, newer, "| `load: fast` | `load: path` | `save: path` |") == missing[::2]
