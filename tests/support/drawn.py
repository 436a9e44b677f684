"""How many examples a test draws."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def drawn(same: int, new: int, **options: Any) -> settings:
    """Settings with so many examples under the profile `same` of conftest.py, and so many under `new`. A number that a
    test names itself would hold under both."""
    is_new = settings.default is settings.get_profile("new")
    return settings(max_examples=new if is_new else same, **options)
