"""The page of a rank that crashes, also where the signal has other handlers."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import PROBE, environment, run
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import read_page

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tensorwire_job.page.rank_page import RankPage


def crashed(folder: Path, text: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], RankPage]:
    """A rank that ran this, and its page."""
    script = folder / "train.py"
    script.write_text(text)
    done = run([*PROBE, str(script)], environment(folder / "pages", RANK="3", WORLD_SIZE="8", **variables))
    page = read_page(page_path(folder / "pages", 3, 0))
    assert page is not None
    return done, page


@pytest.mark.parametrize(
    ("crash", "name"),
    [("import ctypes; ctypes.string_at(0)", "SIGSEGV"), ("import os; os.abort()", "SIGABRT")]
    + [(f"import os, signal; os.kill(os.getpid(), signal.{name})", name) for name in ("SIGBUS", "SIGFPE", "SIGILL")],
)
def test_a_crash_names_its_signal(crash: str, name: str, tmp_path: Path) -> None:
    done, page = crashed(tmp_path, crash)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.Signals[name], "", "")
    assert (page.exit_reason, page.exit_kind, page.signal) == (f"killed by {name}", "crash", "")
    assert page.header.exit_ns != 0


@pytest.mark.parametrize("is_first", [False, True], ids=["after the probe", "before it"])
@pytest.mark.parametrize(("crash", "name"), [("ctypes.string_at(0)", "SIGSEGV"), ("os.abort()", "SIGABRT")])
def test_faulthandler_and_the_probe_both_tell_of_a_crash(crash: str, name: str, is_first: bool, tmp_path: Path) -> None:
    variables = {"PYTHONFAULTHANDLER": "1"} if is_first else {}
    done, page = crashed(tmp_path, f"import ctypes, os, faulthandler\nfaulthandler.enable()\n{crash}", **variables)
    assert done.returncode == -signal.Signals[name]
    assert done.stderr.count("Fatal Python error") == 1
    assert 'train.py", line 3' in done.stderr
    assert page.exit_reason == f"killed by {name}"


@pytest.mark.xdist_group("probe")
def test_what_an_aborted_rank_had_called_last_is_in_its_page(
    run_script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """As a transport aborts: in C, without the interpreter's lock, right after the call."""
    text = f"""
import ctypes, time, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
for _ in range(20):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.02)
dist.all_reduce(torch.ones(6, dtype=torch.float64))
ctypes.CDLL(None).abort()
"""
    done, page = run_script(text), read_page(page_path(tmp_path / "pages", 3, 0))
    assert page is not None
    assert (done.returncode, page.exit_reason) == (-signal.SIGABRT, "killed by SIGABRT")
    (group,) = page.process_groups(time.monotonic())
    assert group.operation is not None
    assert (group.operation.sequence, group.operation.name) == (21, "all_reduce")
    assert (group.operation.dtype, group.operation.numel) == ("float64", 6)
