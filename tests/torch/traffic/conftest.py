"""Four ranks for each module of tests."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from tensorwire._ground.packages import is_older
from tests.support.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

if is_older(version("torch"), (2, 12)):  # which tensorwire.torch.traffic refuses
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4) as started:
        yield started
