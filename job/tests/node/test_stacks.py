"""Stacks of ranks that work, hold the interpreter lock, are stopped, do not listen, or are gone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tensorwire_job
from job.tests.support.fake_worker_server import worker_server
from tensorwire_job.node import stacks, workers
from tensorwire_job.node.stacks import StackTarget
from tensorwire_job.page import process, stack_file
from tensorwire_job.page.worker_server import dump_traceback, socket_path
from tests.support.processes import bare_python

RANK = """
import ctypes, os, sys, time
from pathlib import Path
from tensorwire_job.page import stack_file
def stuck_in_sleep():
    time.sleep(60)
def stuck_with_a_worker():
    def blocked_in_a_pipe():
        os.read(os.pipe()[0], 1)
    if os.fork() == 0:
        blocked_in_a_pipe()
    stuck_in_sleep()
def stuck_with_the_lock():
    while True:
        ctypes.PyDLL(None).sleep(60)  # a call that keeps the interpreter lock
if sys.argv[2] == "listens":
    stack_file.listen(Path(sys.argv[1]))
print("ready", flush=True)
globals()[sys.argv[3]]()
"""
Start = "Callable[[str, str], StackTarget]"


@pytest.fixture(autouse=True)
def no_wait_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe is there that could start one."""
    monkeypatch.setattr(stacks, "_START_SECONDS", 0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, str], StackTarget]]:
    children = []

    def run(listens: str, function: str) -> StackTarget:
        page = tmp_path / "rank-0-0.page"
        command = [sys.executable, "-S", "-c", RANK, page, listens, function]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env=bare_python(tensorwire_job))
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        calm = 0
        while calm < 5:  # it is in the call that it does not come back from
            time.sleep(0.01)
            stat = process.read_stat(child.pid)
            assert stat is not None
            calm = calm + 1 if stat.state == "S" else 0
        return StackTarget(child.pid, stat.start_ticks, page, "in operation 5 of default_pg")

    yield run
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "py-spy" else which(name))


@pytest.mark.usefixtures("no_py_spy")
def test_stacks_of_a_ranks_workers_stand_below_its_own(start: Start) -> None:
    target = start("listens", "stuck_with_a_worker")
    (worker,) = workers.read(target.pid)
    try:
        text = stacks.fetch(target)
        own, title, of_worker = text.partition(f"\nprocess {worker.pid} (")
        assert "stuck_in_sleep" in own
        assert "blocked_in_a_pipe" not in own
        assert title
        assert "blocked_in_a_pipe" in of_worker
        assert re.match(r"[^)]+\), state S( in \w+)?:\n", of_worker), of_worker
    finally:
        os.kill(worker.pid, signal.SIGKILL)


@pytest.mark.usefixtures("no_py_spy")
@pytest.mark.parametrize("function", ["stuck_in_sleep", "stuck_with_the_lock"])
def test_rank_that_listens_shows_where_it_stands(start: Start, function: str) -> None:
    target = start("listens", function)
    for _ in range(2):  # and goes on as if nothing had been
        text = stacks.fetch(target)
        assert f"in {function}" in text
        assert "most recent call first" in text
        assert text.count("<module>") == 1, "one dump, not those before"
    assert process.read_stat(target.pid) is not None


def test_py_spy_is_asked_before_a_rank_is_disturbed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_py_spy(tmp_path, monkeypatch, "echo stack of $4")
    target = start("listens", "stuck_in_sleep")
    assert stacks.fetch(target) == f"stack of {target.pid}\n"
    assert stack_file.stack_path(target.page).stat().st_size == 0


def put_py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "py-spy").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def stop(target: StackTarget) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    while (stat := process.read_stat(target.pid)) is not None and not stat.is_stopped:
        time.sleep(0.01)


def test_stack_file_is_private(start: Start) -> None:
    target = start("listens", "stuck_in_sleep")
    assert stack_file.stack_path(target.page).stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("no_py_spy")
def test_stopped_rank_gives_its_last_operation(start: Start) -> None:
    target = start("listens", "stuck_in_sleep")
    stop(target)
    text = stacks.fetch(target)
    assert text == ("in operation 5 of default_pg\nstack unavailable: the process is stopped, py-spy is not installed")
    os.kill(target.pid, signal.SIGCONT)
    assert "in stuck_in_sleep" in stacks.fetch(target), "no signal was left behind, and none is lost"


def test_stopped_rank_is_read_by_py_spy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is not activated: py-spy lies beside the interpreter, and not on PATH."""
    if shutil.which("py-spy", path=sysconfig.get_path("scripts")) is None:
        pytest.skip("py-spy is not installed")
    monkeypatch.setenv("PATH", os.defpath)
    target = start("silent", "stuck_in_sleep")
    stop(target)
    text = stacks.fetch(target)
    if "py-spy failed" in text:
        pytest.skip("ptrace is not allowed here")
    assert "stuck_in_sleep" in text


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Error: Permission Denied: no' >&2; exit 1", "py-spy failed: Error: Permission Denied: no"),
        ("exec sleep 30", "py-spy took more than 0.5 s"),
    ],
)
def test_py_spy_that_fails_is_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(stacks, "_PY_SPY_SECONDS", 0.5)
    put_py_spy(tmp_path, monkeypatch, script)
    target = start("silent", "stuck_in_sleep")
    stop(target)
    text = stacks.fetch(target)
    assert text.startswith("in operation 5 of default_pg\nstack unavailable: the process is stopped, py-spy")
    assert reason in text


@pytest.mark.usefixtures("no_py_spy")
def test_rank_that_does_not_listen_is_not_signalled(start: Start) -> None:
    target = start("silent", "stuck_in_sleep")
    text = stacks.fetch(target)
    assert text.endswith(
        "stack unavailable: it has no worker server, py-spy is not installed, it has no handler for the signal"
    )
    time.sleep(0.05)
    stat = process.read_stat(target.pid)
    assert stat is not None
    assert stat.is_alive, "the signal would have ended it"


def test_dead_rank_and_process_of_another_start(start: Start) -> None:
    target = start("listens", "stuck_in_sleep")
    other = StackTarget(target.pid, target.start_ticks + 1, target.page, target.doing)
    assert stacks.fetch(other) == "in operation 5 of default_pg\nstack unavailable: the process is gone"
    assert stack_file.stack_path(target.page).stat().st_size == 0
    os.kill(target.pid, signal.SIGKILL)
    while (stat := process.read_stat(target.pid)) is not None and stat.is_alive:
        time.sleep(0.01)
    assert stacks.fetch(target).endswith("stack unavailable: the process is gone")


@pytest.mark.usefixtures("no_py_spy")
def test_stack_file_that_is_a_link_is_left_alone(start: Start, tmp_path: Path) -> None:
    target = start("listens", "stuck_in_sleep")
    victim = tmp_path / "precious"
    victim.write_text("data")
    path = stack_file.stack_path(target.page)
    path.unlink()
    path.symlink_to(victim)
    assert "stack unavailable" in stacks.fetch(target)
    assert victim.read_text() == "data"


@pytest.mark.usefixtures("no_py_spy")
def test_stack_file_that_becomes_a_link_is_left_alone(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start("listens", "stuck_in_sleep")
    victim = tmp_path / "precious"
    victim.write_text("data")
    path, owner = stack_file.stack_path(target.page), stacks._owner

    def swap(pid: int) -> int:
        path.unlink()
        path.symlink_to(victim)
        return owner(pid)

    monkeypatch.setattr(stacks, "_owner", swap)
    stacks.fetch(target)
    assert victim.read_text() == "data"


def test_rank_that_does_not_listen_is_asked_through_its_worker_server(start: Start) -> None:
    target = start("silent", "stuck_in_sleep")
    with worker_server(socket_path(target.page), b"stack"):
        assert stacks.fetch(target) == "stack"


def test_worker_server_that_drips_is_given_up(tmp_path: Path) -> None:
    """No byte is late; the answer is."""
    page = tmp_path / "rank-0-0.page"
    with worker_server(socket_path(page), b"stack", pause=0.02), pytest.raises(TimeoutError):
        dump_traceback(page, timeout=0.2)
