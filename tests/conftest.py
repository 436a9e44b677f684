"""Fixtures that several test files use."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tensorwire.checkpoint import compress_checkpoint
from tests.support.checkpoint_models import write_model
from tests.support.programs import Programs


@pytest.fixture(scope="session")
def _kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kit = tmp_path_factory.mktemp("kit")
    write_model(kit / "model")
    compress_checkpoint(kit / "model", kit / "packed")
    return kit


@pytest.fixture
def model(_kit: Path, tmp_path: Path) -> Path:
    """A checkpoint of two shards."""
    return Path(shutil.copytree(_kit / "model", tmp_path / "model"))


@pytest.fixture
def packed(_kit: Path, model: Path, tmp_path: Path) -> Path:
    """The same, compressed."""
    return Path(shutil.copytree(_kit / "packed", tmp_path / "packed"))


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Programs that begin with what most of them, or torch for them, would import, and none of what is ours. Memory
    that they free is no reserve: it goes back to the system. Tests that have them are in the group of that name, so
    that one process imports torch once."""
    of_torch = ("torch.distributed.checkpoint", "torch.distributed.tensor") if find_spec("torch") else ()
    given_back = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    with Programs("numpy", *filter(find_spec, ("ml_dtypes", *of_torch)), **given_back) as found:
        yield found
