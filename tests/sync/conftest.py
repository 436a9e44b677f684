"""Fixtures of the tests of tensorwire.sync."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores import faulty_store


@pytest.fixture(autouse=True, scope="module")
def _machine_that_stays_on() -> Iterator[None]:
    """What a disk would hold if the machine stopped, no test here sees: they do not wait for it, in forks neither."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("fsync", "fdatasync"):
            patched.setattr(os, name, os.fstat)  # which also wants an open file
        yield


@pytest.fixture(params=["directory", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where versions lie: a folder, and a URL."""
    if request.param == "directory":
        yield str(tmp_path / "store")
    else:
        with faulty_store():
            yield "faulty://store"
