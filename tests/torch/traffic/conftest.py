"""Four ranks for each module of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4) as started:
        yield started
