"""Packages that parts of this one need, and how their absence is reported."""

from __future__ import annotations

import importlib
import re


def require(package: str, least: tuple[int, int], needs: str) -> None:
    """Import a package, or say in an ImportError how to get a version that is not below `least`.

    `needs` is what needs it, and the name by which its users know it. A package that does not tell its version passes.
    """
    try:
        version = str(getattr(importlib.import_module(package), "__version__", ""))
    except ImportError as error:
        needed = f"{needs} {least[0]}.{least[1]} or later"
        raise ImportError(f"{needed}, which cannot be imported: {error}; pip install -U {package}") from error
    check_version(package, version, least, needs)


def check_version(package: str, version: str, least: tuple[int, int], needs: str) -> None:
    """ImportError for a version that is too old; a name that is no version passes."""
    if is_older(version, least):
        raise ImportError(f"{needs} {least[0]}.{least[1]} or later, got {version}; pip install -U {package}")


def is_older(version: str, least: tuple[int, int]) -> bool:
    """Whether a version is below the oldest one that will do; a name that is no version is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < least
