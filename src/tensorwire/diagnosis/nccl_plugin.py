"""Where the profiler plugin for NCCL is installed; docs/nccl.md says what it does."""

from __future__ import annotations

import sys
from pathlib import Path

_NAME = "libnccl-profiler-tensorwire.so"


def nccl_plugin_path() -> Path:
    """The library that ``NCCL_PROFILER_PLUGIN`` has to name in the environment of every rank.

    Raises:
        FileNotFoundError: this installation has none.
    """
    # An editable install has the library in another entry of the package's path than the Python files.
    folders = list(sys.modules[__package__].__path__)
    for folder in folders:
        path = Path(folder) / _NAME
        if path.exists():
            return path.resolve()
    raise FileNotFoundError(f"{_NAME} is not in {', '.join(folders)}: build or reinstall tensorwire")
