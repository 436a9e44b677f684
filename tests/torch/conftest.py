"""What all tests under torch have."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(tryfirst=True)  # xdist then looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker has the ranks, so that they start once and take the cores from nobody else. Items of other folders
    are here too, some with arguments of that name."""
    for item in items:
        names = {"ranks", "two"}.intersection(getattr(item, "fixturenames", ()))
        if names and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("ranks"))


def pytest_collection_finish() -> None:
    """What was imported stays. A search for living tensors, and for garbage, need not go through it each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Four ranks, which no test leaves other than it found them."""
    with Ranks(4) as started:
        yield started


@pytest.fixture(scope="session")
def two() -> Iterator[Ranks]:
    """Two ranks, likewise: all that most tests need, for half of the work of four."""
    with Ranks(2) as started:
        yield started


@pytest.fixture(scope="session")
def _chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three linear layers."""
    from tests.support.linear_models import chain, saved

    return saved(chain(num_layers=3), tmp_path_factory.mktemp("chain") / "model.safetensors")


@pytest.fixture
def file(_chain: Path, tmp_path: Path) -> Path:
    """A copy of it, which may be damaged."""
    return Path(shutil.copy(_chain, tmp_path))
