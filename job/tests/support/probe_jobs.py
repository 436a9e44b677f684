"""Runs scripts as ranks of a job on this machine, with and without the probe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPTS = Path(__file__).resolve().parent / "probe_scripts"
PROBE = ("-m", "tensorwire_job")


def environment(directory: Path, **more: str) -> dict[str, str]:
    """That of a process that writes its page to `directory`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "TENSORWIRE"))}
    # Without the tests' own settings of warnings: a job is to be as it is at home.
    kept.pop("PYTHONWARNINGS", None)
    return kept | {"TENSORWIRE_PROBE_DIR": str(directory), "OMP_NUM_THREADS": "1", **more}


def run(
    arguments: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """python with these arguments."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False, preexec_fn=_heed_hangup
    )


def _heed_hangup() -> None:
    """Under nohup the signal is ignored, which children inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run_job(arguments: Sequence[str], directory: Path, *, world_size: int = 2) -> list[str]:
    """The same python arguments in all ranks. Returns what each printed; raises AssertionError if one failed."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(
                directory,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(world_size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    failed = [errors for rank, (_, errors) in zip(ranks, outputs, strict=True) if rank.returncode != 0]
    assert not failed, "\n".join(failed)
    return [printed for printed, _ in outputs]
