"""Packages that parts of this one need, and how their absence is reported."""

from __future__ import annotations

import importlib
import re
import shlex
from importlib.metadata import PackageNotFoundError, requires


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


def how_to_install(extra: str) -> str:
    """What to type to get what an extra of this package names. An installed package names the packages themselves, so
    that nothing is built again."""
    try:
        lines = requires("tensorwire") or []
    except PackageNotFoundError:  # a source tree that is not installed
        lines = []
    found = [line.partition(";")[0].strip() for line in lines if re.search(rf"""extra == ['"]{extra}['"]""", line)]
    return f"pip install {' '.join(map(shlex.quote, found))}" if found else from_clone(f"'.[{extra}]'")


def from_clone(place: str) -> str:
    """What to type to get something of this repository. It is on no index of packages yet, where another one may bear
    its name."""
    return f"in a clone, pip install {place}"


def check_version(package: str, version: str, least: tuple[int, int], needs: str) -> None:
    """ImportError for a version that is too old; a name that is no version passes."""
    if is_older(version, least):
        raise ImportError(f"{needs} {least[0]}.{least[1]} or later, got {version}; pip install -U {package}")


def is_older(version: str, least: tuple[int, int]) -> bool:
    """Whether a version is below the oldest one that will do; a name that is no version is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < least
