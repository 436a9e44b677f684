"""Tests of what older releases of PyTorch do not have, or do otherwise."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tensorwire._ground.packages import is_older


def is_torch_before(major: int, minor: int) -> bool:
    """Whether this is an older release; docs/api-torch.md says what does not hold there."""
    return is_older(version("torch"), (major, minor))


def torch_since(major: int, minor: int) -> pytest.MarkDecorator:
    """Skips a test under older releases."""
    return pytest.mark.skipif(is_torch_before(major, minor), reason=f"it needs torch {major}.{minor}")
