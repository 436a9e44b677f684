"""The profiler plugin and the client of RAS against NCCL itself: four ranks that share one GPU.

Skipped without one. job/docs/nccl.md says whether it was ever run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from job.tests.support import probe_jobs
from tensorwire_job.nccl.plugin import nccl_plugin_path
from tensorwire_job.page.rank_page import read_page

torch = pytest.importorskip("torch")
if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
    pytest.skip("it needs a GPU and NCCL", allow_module_level=True)

JOB = str(Path(__file__).with_name("job_on_one_gpu.py"))
PATIENCE_SECONDS = 90.0


def start(pages: Path, *arguments: str, probe: bool, **environment: str) -> subprocess.Popen[bytes]:
    """The job under torchrun, with the plugin; its output goes to the file `log` beside the pages."""
    settings = {"NCCL_PROFILER_PLUGIN": str(nccl_plugin_path()), "NCCL_DEBUG": "INFO", **environment}
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "4", *(probe_jobs.PROBE if probe else ())]
    with pages.with_name("log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *launch, JOB, *arguments],
            env=probe_jobs.environment(pages, **settings),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def ask(pages: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """`tensorwire-job diagnose --json`, asked until it finds something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    command = [sys.executable, "-m", "tensorwire_job.cli", "diagnose", "--json", *options]
    while True:
        env = {**os.environ, "TENSORWIRE_PROBE_DIR": str(pages)}
        asked = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if asked.returncode == 3 or time.monotonic() > deadline:
            assert asked.stdout, asked.stderr
            return asked.returncode, json.loads(asked.stdout)
        time.sleep(1.0)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "pages"
    print((tmp_path / "log").read_text()[-20_000:])


def test_what_the_plugin_counts(pages: Path) -> None:
    """DDP reduces one bucket a step, and the last sum comes after: all that were called have been finished."""
    job = start(pages, "30", "works", probe=False)
    assert job.wait(180) == 0
    read = [read_page(pages / f"rank-{rank}-0.nccl.page") for rank in range(4)]
    groups = [page.process_groups(time.monotonic()) for page in read if page is not None]
    assert len(groups) == 4
    worlds = [max(each, key=lambda group: group.completed) for each in groups]
    assert len({world.id for world in worlds}) == 1
    for world in worlds:
        assert world.size == 4
        assert world.enqueued == world.completed >= 31
        assert world.open_seconds is None
        assert world.operation is not None
        assert (world.operation.name, world.operation.dtype, world.operation.numel) == ("all_reduce", "float32", 4)
        assert min(world.sent_bytes, world.received_bytes) > 30 * 256 * 256 * 4, "a ring moves 1.5 times a sum's bytes"


@pytest.mark.parametrize("probe", [True, False], ids=["beside the probe", "alone"])
def test_rank_that_hangs_in_its_loader(pages: Path, probe: bool) -> None:
    job = start(pages, "20", "hangs", probe=probe)
    try:
        code, verdict = ask(pages, "--hang-seconds", "5")
        ras_code, by_ras = ask(pages, "--ras", "127.0.0.1:28028", "--for", "3")
    finally:
        job.terminate()
        job.wait(60)
    assert code == 3, verdict
    assert [finding["code"] for finding in verdict["findings"]] == ["TW-H1"]
    assert verdict["findings"][0]["suspects"] == [2]
    assert ras_code == 3, by_ras
    assert [(finding["code"], finding["suspects"]) for finding in by_ras["findings"]] == [("TW-H1", [2])]
