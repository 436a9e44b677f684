"""Jobs whose ranks a process forks that has loaded torch, and what training loads: that takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.faults.fork_server import ForkServer
from job.tests.support import probe_jobs

if TYPE_CHECKING:
    from subprocess import CompletedProcess

# Without torch._inductor the recorder gives no stacks.
IMPORTS = (
    "torch._inductor torch.distributed.device_mesh torch.distributed.fsdp torch.distributed.pipelining"
    " job.tests.support.quick_times"
)


@pytest.fixture(scope="session")
def quick_fork_server() -> Iterator[ForkServer]:
    pytest.importorskip("torch")
    with closing(ForkServer(TW_FAULTS_IMPORTS=IMPORTS, PYTHONWARNINGS="")) as server:
        yield server


@pytest.fixture
def run_script(quick_fork_server: ForkServer, tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    """Runs a script as a rank whose page lies in `pages` of the test's folder."""
    return partial(probe_jobs.run_script, quick_fork_server, tmp_path)


@pytest.fixture
def run_job(quick_fork_server: ForkServer, tmp_path: Path) -> probe_jobs.RunJob:
    """Runs a script of probe_scripts as the ranks of a job, whose pages lie in `pages` of the test's folder."""
    return partial(probe_jobs.run_job, quick_fork_server, tmp_path)
