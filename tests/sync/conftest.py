"""Fixtures of the tests of tensorwire.sync."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores import faulty_store


@pytest.fixture(params=["directory", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where versions lie: a folder, and a URL."""
    if request.param == "directory":
        yield str(tmp_path / "store")
    else:
        with faulty_store():
            yield "faulty://store"
