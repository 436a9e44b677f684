"""Where the profiler plugin for NCCL is installed; job/docs/nccl.md says what it does.

Experimental: it may change or go with any version.
"""

from __future__ import annotations

from pathlib import Path

from tensorwire._ground.library import find_library

__all__ = ["nccl_plugin_path"]


def nccl_plugin_path() -> Path:
    """The library that ``NCCL_PROFILER_PLUGIN`` has to name in the environment of every rank.

    Raises:
        ImportError: this installation has none.
    """
    return find_library("tensorwire_job", "libnccl-profiler-tensorwire.so").resolve()
