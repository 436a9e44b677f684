"""Four ranks for each module of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ranks import Ranks
from tests.support.versions import is_torch_before

if TYPE_CHECKING:
    from collections.abc import Iterator

if is_torch_before(2, 12):  # which tensorwire.torch.traffic refuses
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4) as started:
        yield started
