"""Where the profiler plugin for NCCL is installed; docs/nccl.md says what it does."""

from __future__ import annotations

from pathlib import Path

_LIBRARY = Path(__file__).resolve().with_name("libnccl-profiler-tensorwire.so")


def nccl_plugin_path() -> Path:
    """The library that ``NCCL_PROFILER_PLUGIN`` has to name in the environment of every rank.

    Raises:
        FileNotFoundError: this installation has none; it is built with the package, on Linux.
    """
    if not _LIBRARY.is_file():
        raise FileNotFoundError(f"no NCCL plugin at {_LIBRARY}; install tensorwire from a wheel, or build it, on Linux")
    return _LIBRARY
