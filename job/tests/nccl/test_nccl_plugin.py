"""The NCCL plugin and the Python side of diagnosis agree on the page: its place, its name, its contents.

job/core/tests has the tests of its events.
"""

import os
import subprocess
import sys
import time

import pytest

import tensorwire_job
from tensorwire_job.nccl.plugin import nccl_plugin_path
from tensorwire_job.node.observer import Observer
from tensorwire_job.page import directory as pages
from tensorwire_job.page import native
from tensorwire_job.page.process import read_stat
from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import probe

# A process that does what NCCL 2.28 does with the first communicator: it calls init, the second member of the table.
RANK = """
import ctypes, os, sys
if len(sys.argv) > 2:
    from tensorwire_job.page import native
    probe = native.create(sys.argv[2], os.environ["TORCHELASTIC_RUN_ID"], 1, 4, 0)
    native.slot(probe, 0xC0FFEE, b"default_pg", 4)
table = (ctypes.c_void_p * 6).in_dll(ctypes.CDLL(sys.argv[1]), "ncclProfiler_v5")
init = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.POINTER(ctypes.c_int), ctypes.c_char_p,
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
)(table[1])
context, mask = ctypes.c_void_p(), ctypes.c_int()
print(init(context, 0x0B5A64A1F36C1FD2, mask, b"data_parallel", 2, 4, 1, None), flush=True)
input()
"""


@pytest.fixture
def rank(tmp_path):
    """Starts a process that has made its first communicator, and ends it."""
    started = []

    def start(*arguments, **environment):
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("TENSORWIRE", "TORCHELASTIC"))
        }
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, nccl_plugin_path(), *arguments],
            env=inherited | {"TENSORWIRE_PROBE_DIR": str(tmp_path / "job" / "pages")} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "0\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.communicate("\n", timeout=30)


def test_the_page_reads_as_any_other(rank, tmp_path):
    process = rank(RANK="9", WORLD_SIZE="16", LOCAL_RANK="1", TORCHELASTIC_RESTART_COUNT="2", TORCHELASTIC_RUN_ID="abc")
    directory = tmp_path / "job" / "pages"
    assert directory.stat().st_mode & 0o777 == 0o700
    read = read_page(directory / "rank-9-2.nccl.page")
    header = read.header
    assert (header.rank, header.world_size, header.restart_count) == (9, 16, 2)
    assert header.pid == process.pid
    assert read.is_alive
    (group,) = read.process_groups(time.monotonic())
    assert (group.id, group.name, group.size) == ("0b5a64a1f36c1fd2", "data_parallel", 4)
    assert (group.enqueued, group.completed, group.open_seconds) == (0, 0, None)
    assert (group.sent_bytes, group.baseline_rate, group.timing) == (-1, None, None)


def test_an_observer_joins_the_pages_of_one_process(rank, tmp_path):
    directory = tmp_path / "job" / "pages"
    directory.mkdir(0o700, parents=True)
    process = rank(str(directory / "rank-1-0.page"), RANK="1", WORLD_SIZE="4", TORCHELASTIC_RUN_ID="abc")
    (directory / "rank-2-0.nccl.page").write_bytes((directory / "rank-1-0.nccl.page").read_bytes()[:100])  # damaged
    observer = Observer(directory, "here")
    observation = observer.observe()
    assert observation.ranks.keys() == {1}
    assert observation.ranks[1].pid == process.pid
    names = [group.name for group in observation.ranks[1].process_groups]
    assert names == ["default_pg", "data_parallel"]
    assert observer.target(1).page == directory / "rank-1-0.page"

    whole = (directory / "rank-1-0.page").read_bytes()
    (directory / "rank-1-0.page").write_bytes(whole[:100])  # seen as it was before, and nothing twice
    names = [group.name for group in observer.observe().ranks[1].process_groups]
    assert names == ["default_pg", "data_parallel"]

    (directory / "rank-1-0.page").unlink()  # the plugin alone
    names = [group.name for group in observer.observe().ranks[1].process_groups]
    assert names == ["data_parallel"]
    observer.close()


def test_a_page_left_behind_is_swept(rank, tmp_path):
    path = tmp_path / "job" / "pages" / "rank-1-0.nccl.page"
    process = rank(RANK="1")
    pages.sweep(path.parent, before_ns=time.monotonic_ns())
    assert path.exists()
    process.communicate("\n", timeout=30)
    pages.sweep(path.parent, before_ns=time.monotonic_ns())
    assert not path.exists()


@pytest.mark.parametrize(
    "run_id",
    [f"test {os.getpid()}/x", f"..test.{os.getpid()}-_", f"tést{os.getpid()}" + "é" * 120],
    ids=["slash", "dots", "long"],
)
def test_both_find_the_directory_of_a_run(rank, run_id, monkeypatch):
    monkeypatch.delenv("TENSORWIRE_PROBE_DIR", raising=False)
    directory = pages.job_directory(run_id)
    assert str(os.getpid()) in directory.name
    path = directory / "rank-1-0.nccl.page"
    try:
        rank(TENSORWIRE_PROBE_DIR="", TORCHELASTIC_RUN_ID=run_id)
        assert read_page(path).header.rank == 1
        pages.make_directory(directory)
    finally:
        path.unlink(missing_ok=True)
        if directory.exists():
            directory.rmdir()


def test_both_name_a_run_without_an_id(rank, tmp_path):
    process = rank(RANK="1", TORCHELASTIC_RUN_ID="none")
    read = read_page(tmp_path / "job" / "pages" / "rank-1-0.nccl.page")
    start_ticks = read_stat(os.getpid()).start_ticks
    assert process.pid == read.header.pid
    assert read.header.run == native.hash64(f"run-{os.getpid()}-{start_ticks}".encode())


@pytest.mark.parametrize("local", [{"LOCAL_WORLD_SIZE": "2"}, {}], ids=["torchrun", "another launcher"])
def test_both_name_a_run_of_several_nodes_alike(rank, tmp_path, local, monkeypatch):
    meeting = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    launcher = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", **meeting, **local}
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    rank(RANK="1", TORCHELASTIC_RUN_ID="none")
    read = read_page(tmp_path / "job" / "pages" / "rank-1-0.nccl.page")
    assert read.header.run == native.hash64(probe._run_id().encode()) == native.hash64(b"node0:29500")


def test_an_installation_without_the_library_says_so(monkeypatch):
    monkeypatch.setattr(tensorwire_job, "__path__", ["/nowhere"])
    with pytest.raises(ImportError, match="/nowhere"):
        nccl_plugin_path()
