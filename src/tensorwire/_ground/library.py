"""Where the native libraries of an installation are."""

from __future__ import annotations

import sys
from pathlib import Path


def find_library(package: str, name: str) -> Path:
    """The path of a library at the top of an imported package. Raises ImportError if the installation lacks it."""
    # An editable install has libraries in another entry of the package's path than the Python files.
    folders = list(sys.modules[package].__path__)
    for folder in folders:
        path = Path(folder) / name
        if path.exists():
            return path
    raise ImportError(f"{name} is not in {', '.join(folders)}: build or reinstall {package.replace('_', '-')}")
