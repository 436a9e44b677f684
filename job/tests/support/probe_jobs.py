"""Runs scripts as ranks of a job on this machine, with and without the probe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from job.tests.faults.fork_server import ForkServer

SCRIPTS = Path(__file__).resolve().parent / "probe_scripts"
PROBE = ("-m", "tensorwire_job")
RunJob = Callable[..., list[str]]


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
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=_heed_hangup if is_ignored else None,  # which makes the start of a process slow
    )


def _heed_hangup() -> None:
    """Under nohup the signal is ignored, which children inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run_job(
    server: ForkServer,
    folder: Path,
    script: str,
    *arguments: str,
    probe: bool = True,
    world_size: int = 2,
    ends: str = "quickly",
) -> list[str]:
    """Returns what each rank printed; raises AssertionError if one failed. `ends`: "as usual" takes 0.3 s a rank."""
    module = f"{__package__}.probe_scripts.{script}"
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    job |= {"TENSORWIRE_PROBE_DIR": str(folder / "pages"), "TW_FAULTS_ENDS": ends}
    ranks = [
        server.start(
            [*(("tensorwire_job", "-m") if probe else ()), module, *arguments],
            {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            folder / f"output-{rank}",
            errors=folder / f"errors-{rank}",
        )
        for rank in range(world_size)
    ]
    failed = [rank for rank, status in enumerate(_await(server, ranks)) if status != 0]
    assert not failed, "\n".join((folder / f"errors-{rank}").read_text() for rank in failed)
    return [(folder / f"output-{rank}").read_text() for rank in range(world_size)]


def run_script(server: ForkServer, folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Has a process that is forked with torch in it run this as rank 3 of 8, with the probe."""
    script, output, errors = folder / "train.py", folder / "output", folder / "errors"
    script.write_text(text)
    rank = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TW_FAULTS_ENDS": "quickly"}
    rank |= {"TENSORWIRE_PROBE_DIR": str(folder / "pages"), **variables}
    pid = server.start(["tensorwire_job", str(script)], rank, output, errors=errors)
    (status,) = _await(server, [pid])
    assert status is not None
    return subprocess.CompletedProcess(script, status, output.read_text(), errors.read_text())


def _await(server: ForkServer, pids: list[int]) -> list[int | None]:
    """How each has ended; those that do not end are ended, soon where another one has failed."""
    try:
        deadline = time.monotonic() + 240
        while None in (found := [server.status(pid) for pid in pids]) and time.monotonic() < deadline:
            if any(found):
                deadline = min(deadline, time.monotonic() + 5)
            time.sleep(0.01)
    finally:
        server.kill(pids)
    return [server.status(pid) for pid in pids]
