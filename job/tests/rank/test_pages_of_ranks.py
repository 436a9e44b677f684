"""Pages and their directories: whose they are, and what becomes of those of earlier jobs."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from job.tests.support.one_rank import left, living_rank, run_rank
from job.tests.support.probe_jobs import PROBE, environment
from tensorwire_job.page import directory as pages
from tensorwire_job.page import native
from tensorwire_job.page.control import read_control, write_control
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.process import read_stat
from tensorwire_job.page.rank_page import read_page
from tests.support.waiting import wait_for


def train_without_a_page(script: Path, directory: Path, limit: int = resource.RLIM_INFINITY) -> None:
    """One line on stderr, and the script runs."""
    script.write_text("from tensorwire_job import attach, phase\nwith phase('x'):\n    attach(); print('trained')")
    done = subprocess.run(
        [sys.executable, *PROBE, str(script)],
        env=environment(directory, RANK="3"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=None if limit < 0 else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    for line in done.stderr.splitlines():
        assert re.fullmatch(r"tensorwire-job: the probe is off \(\w+: .+\)", line), done.stderr
    assert done.stderr


def test_jobs_go_on_without_a_page(directory: Path, script: Path, tmp_path: Path) -> None:
    train_without_a_page(script, Path("/proc/pages"))
    (tmp_path / "file").touch()
    train_without_a_page(script, tmp_path / "file")
    train_without_a_page(script, directory, limit=1024)  # as where memory is full
    assert not list(directory.iterdir())
    directory.chmod(0o777)
    train_without_a_page(script, directory)


def test_a_page_of_a_living_process_stays_its_own(directory: Path, script: Path) -> None:
    directory.mkdir(0o700)
    with living_rank(directory) as other:
        train_without_a_page(script, directory)
        assert left(directory).header.pid == other.pid


def test_generations_do_not_mix(directory: Path, script: Path) -> None:
    """A page of a process that died is not written again but replaced; another generation has its own."""
    run_rank(script, "import sys; sys.exit(1)", directory)
    first, written = left(directory), page_path(directory, 3, 0).read_bytes()
    run_rank(script, "", directory, TORCHELASTIC_RESTART_COUNT="1")
    assert page_path(directory, 3, 0).read_bytes() == written
    second = read_page(page_path(directory, 3, 1))
    assert second is not None
    assert second.header.restart_count == 1
    run_rank(script, "", directory)
    assert left(directory).exit_reason == "exit 0"
    assert left(directory).header.pid != first.header.pid


def test_a_page_that_was_damaged_makes_room(directory: Path, script: Path) -> None:
    """A run may have the name of an earlier one."""
    directory.mkdir(0o700)
    page_path(directory, 3, 0).write_bytes(bytes(4096))
    assert run_rank(script, "", directory).stderr == ""
    assert left(directory).exit_reason == "exit 0"


def test_pages_of_an_earlier_job_are_swept(directory: Path, script: Path) -> None:
    """By a job whose launcher was started later; here that is a shell."""
    run_rank(script, "", directory)
    write_control(directory, {}, 5)
    time.sleep(0.1)
    env = environment(directory, RANK="0")
    command = f"{sys.executable} -m tensorwire_job {script}; true"
    subprocess.run(["sh", "-c", command], env=env, check=True)
    assert [path.name for path in directory.glob("*.page")] == ["rank-0-0.page"]
    assert read_control(directory) is None


def test_request_stays_with_ranks_that_may_live_and_where_it_is_new(directory: Path) -> None:
    with living_rank(directory):
        write_control(directory, {}, 5)
        pages.sweep(directory, before_ns=2**62)
    pages.sweep(directory)
    assert read_control(directory) is not None
    pages.sweep(directory, before_ns=2**62)
    assert read_control(directory) is None
    write_control(directory, {}, 5)
    pages.sweep(directory, before_ns=time.monotonic_ns() - 60 * 10**9)
    assert read_control(directory) is not None


def test_old_directories_are_swept(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "root_directory", lambda: tmp_path)
    monkeypatch.setattr(pages, "MAX_AGE_SECONDS", 60.0)  # a machine need not be up for a day
    for name in ("old", "young", "lives", "ended"):
        (tmp_path / name).mkdir(0o700)
    for name in ("old", "ended"):  # the latter now, after a day and more
        run_rank(script, "", tmp_path / name)
    with page_path(tmp_path / "old", 3, 0).open("r+b") as file:
        file.seek(native.Header.heartbeat_ns.offset)
        file.write((1).to_bytes(8, "little"))
    with living_rank(tmp_path / "lives"):
        for name in ("old", "lives", "ended"):
            for path in (*(tmp_path / name).iterdir(), tmp_path / name):
                os.utime(path, (0, time.time() - 25 * 3600))
        tmp_path.chmod(0o755)
        pages.sweep(tmp_path / "mine")
        assert (tmp_path / "old").exists(), "it may be another user's"
        tmp_path.chmod(0o700)
        pages.sweep(tmp_path / "mine")
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"young", "lives", "ended"}


MEETING = {"MASTER_ADDR": "node0.example", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("launcher", "run_id"),
    [
        ({"TORCHELASTIC_RUN_ID": "mine", **MEETING}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4", **MEETING}, "node0.example:29500"),
        ({"LOCAL_WORLD_SIZE": "", **MEETING}, "node0.example:29500"),  # srun and mpirun do not tell
        (MEETING, "node0.example:29500"),
        ({"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8", **MEETING}, None),
        ({"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4"}, None),
    ],
    ids=["its id", "torchrun on two nodes", "empty", "another launcher", "torchrun on one node", "nowhere to meet"],
)
def test_ranks_of_one_job_name_the_same_run(
    launcher: dict[str, str], run_id: str | None, directory: Path, script: Path
) -> None:
    """On all of its nodes, where the launcher has no id; on one node, apart from other jobs."""
    if run_id is None:
        parent = read_stat(os.getpid())
        assert parent is not None
        run_id = f"run-{os.getpid()}-{parent.start_ticks}"
    done = run_rank(script, "", directory, **launcher)
    assert (done.stderr, done.returncode) == ("", 0)
    assert left(directory).header.run == native.hash64(run_id.encode())


def test_run_directories_are_named_safely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORWIRE_PROBE_DIR", raising=False)
    for run_id in ("../../etc", "a/b", "..", "x" * 300):
        path = pages.job_directory(run_id)
        assert path.parent == pages.root_directory()
        assert path.name not in ("", ".", "..")
        assert len(path.name) <= 100


def test_a_stopped_process_keeps_its_page(directory: Path) -> None:
    with living_rank(directory) as rank:
        before = left(directory)
        assert before.is_alive
        wait_for(lambda: left(directory).header.heartbeats != before.header.heartbeats)
        rank.send_signal(signal.SIGSTOP)
    assert left(directory).exit_reason == ""
    assert not left(directory).is_alive


def test_pages_that_cannot_be_believed(directory: Path, script: Path) -> None:
    run_rank(script, "", directory)
    path = page_path(directory, 3, 0)
    good = path.read_bytes()
    layout, lock = 8, 12
    for bad in (
        b"",
        good[:-1],
        good + b"\0",
        bytes(len(good)),
        os.urandom(len(good)),
        good[:layout] + b"\xff" + good[layout + 1 :],
    ):
        path.write_bytes(bad)
        assert read_page(path) is None
    path.write_bytes(good[:lock] + b"\1" + good[lock + 1 :])  # died while it wrote a text
    torn = read_page(path)
    assert torn is not None
    assert torn.exit_reason == ""
    assert read_page(directory) is None
    assert read_page(directory / "none") is None
