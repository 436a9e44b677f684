"""What all tests of distributed checkpoints have."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What torch says of a process group that is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
