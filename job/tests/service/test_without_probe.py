"""Ranks that run without the probe are found, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tensorwire_job.service import without_probe
from tensorwire_job.service.without_probe import UnseenJob, unseen_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
WAITS = "import sys; print(flush=True); sys.stdin.read()"
HAS_A_WORKER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "worker.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdout.readline()
print(flush=True)
sys.stdin.read()
worker.communicate()
"""
HAS_THE_PROBE = "from tensorwire_job.page import native; " + WAITS


@contextlib.contextmanager
def ranks(folder: Path, scripts: dict[str, str], **environment: str) -> Iterator[None]:
    """This process is the launcher of these scripts."""
    (folder / "worker.py").write_text(WAITS)
    with contextlib.ExitStack() as stack:
        for name, text in scripts.items():
            (folder / name).write_text(text)
            process = subprocess.Popen(
                [sys.executable, "-u", name], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, **environment},
            )  # fmt: skip
            stack.enter_context(process)
            assert process.stdout is not None
            process.stdout.readline()
        yield


def test_ranks_are_found_by_their_environment(tmp_path: Path) -> None:
    """A rank that has the probe, and workers of a rank, are none of these."""
    with ranks(tmp_path, {"train.py": HAS_A_WORKER, "seen.py": HAS_THE_PROBE}, **RANK):
        ours = [job for job in unseen_jobs() if job.pid == os.getpid()]
    assert ours == [UnseenJob(os.getpid(), "train.py", 1)]


def test_other_programs_are_no_ranks(tmp_path: Path) -> None:
    with ranks(tmp_path, {"serve.py": WAITS}, RANK="0"):
        assert not [job for job in unseen_jobs() if job.pid == os.getpid()]


def test_the_name_is_the_script_or_the_module() -> None:
    for command in (b"python -u code/train.py --lr 1", b"python -m train.py"):
        assert without_probe._script(command.split()) == "train.py"
