"""Where the native libraries of this installation are."""

from __future__ import annotations

import sys
from pathlib import Path


def find_library(name: str) -> Path:
    """Raises ImportError if this installation lacks it."""
    # An editable install has libraries in another entry of the package's path than the Python files.
    folders = list(sys.modules[__package__.partition(".")[0]].__path__)
    for folder in folders:
        path = Path(folder) / name
        if path.exists():
            return path
    raise ImportError(f"{name} is not in {', '.join(folders)}: build or reinstall tensorwire")
