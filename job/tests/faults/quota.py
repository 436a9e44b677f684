"""Limits of CPU time."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path


class CpuQuota:
    """A cgroup that limits the CPU time of a process; both versions."""

    def __init__(self, pid: int, share: float) -> None:
        controller = cpu_controller()
        assert controller is not None, "look at missing first"
        _sweep(controller)
        self._parent = controller
        self._folder = controller / f"tensorwire-faults-{os.getpid()}-{pid}"
        self._pid = pid
        self._folder.mkdir()
        period = 50_000
        quota = int(period * share)
        if (self._folder / "cpu.max").exists():
            (self._folder / "cpu.max").write_text(f"{quota} {period}")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(period))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota))
        (self._folder / "cgroup.procs").write_text(str(pid))

    def lift(self) -> None:
        with suppress(ProcessLookupError):
            (self._parent / "cgroup.procs").write_text(str(self._pid))
        self._folder.rmdir()


@cache
def cpu_controller() -> Path | None:
    """Where cgroups that limit CPU time can be made."""
    for folder in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        made = folder / f"tensorwire-faults-{os.getpid()}-try"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            if any((made / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us")):
                return folder
        finally:
            made.rmdir()
    return None


def _sweep(controller: Path) -> None:
    """Remove what a killed process of ours has left."""
    for folder in controller.glob("tensorwire-faults-*"):
        if not Path(f"/proc/{folder.name.split('-')[2]}").exists():
            with suppress(OSError):
                folder.rmdir()
