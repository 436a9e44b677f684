"""Which file lock the main thread waits for, and who holds it: of real locks, and of what /proc/locks might say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire_job.rank import file_locks

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN = os.getpid()
_HELD = f"1: FLOCK  ADVISORY  WRITE 4711 fe:00:12 0 EOF\n1: -> FLOCK  ADVISORY  WRITE {_OWN} fe:00:12 0 EOF\n"

_WAITER = """
import fcntl, os, struct, sys, threading, time
sys.path[:0] = {path!r}
from tensorwire_job.rank.activity import main_activity
def look():
    while not (found := main_activity()):
        time.sleep(0.01)
    print(found, flush=True)
    os._exit(0)
threading.Thread(target=look).start()
file = open({name!r}, "r+")
{call}
"""
_OFD = "fcntl.fcntl(file, {}, struct.pack('hhqqixxxx', fcntl.F_WRLCK, 0, 0, 0, 0))"
_POLL = "from filelock import FileLock; FileLock({name!r}).acquire()"


def _ask(tmp_path: Path, held: str, call: str) -> tuple[str, int]:
    """What a process says that waits for a lock, and the pid of the one that holds it."""
    name = str(tmp_path / "a.lock")
    Path(name).touch()
    hold = f"import fcntl, struct; file = open({name!r}, 'r+'); {held}; print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        text = _WAITER.format(path=sys.path, name=name, call=call.format(name=name))
        ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
        holder.kill()
    return ran.stdout.strip(), holder.pid


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel has no list of file locks")
@pytest.mark.parametrize(
    ("held", "call"),
    [
        ("fcntl.flock(file, fcntl.LOCK_EX)", "fcntl.flock(file, fcntl.LOCK_SH)"),
        ("fcntl.lockf(file, fcntl.LOCK_EX)", "fcntl.lockf(file, fcntl.LOCK_EX)"),
        ("fcntl.flock(file, fcntl.LOCK_EX)", _POLL),
    ],
    ids=["flock", "POSIX", "polled"],
)
def test_the_process_that_holds_the_lock_is_told(tmp_path: Path, held: str, call: str) -> None:
    if "filelock" in call:
        pytest.importorskip("filelock")
    said, pid = _ask(tmp_path, held, call)
    assert said == f"file lock (pid {pid})"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel has no list of file locks")
def test_of_a_lock_of_an_open_file_the_kernel_tells_no_holder(tmp_path: Path) -> None:
    assert _ask(tmp_path, _OFD.format(37), _OFD.format(38))[0] == "file lock"


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What is said where /proc has these contents."""

    def say(locks: str | bytes, *, channel: str = "locks_lock_inode_wait", own: int = _OWN) -> str:
        text = locks.encode() if isinstance(locks, str) else locks
        contents = {"/proc/self/wchan": channel.encode(), "/proc/locks": text}
        monkeypatch.setattr(file_locks, "_read", lambda path, nbytes: contents[path][:nbytes])
        monkeypatch.setattr(os, "readlink", lambda path: str(own))
        return file_locks.waited_for([])

    return say


def test_who_waits_behind_another_waits_for_the_same_holder(proc: Callable[..., str]) -> None:
    first = "1: FLOCK  ADVISORY  WRITE 4711 fe:00:12 0 EOF\n1: -> FLOCK  ADVISORY  READ 12 fe:00:12 0 EOF\n"
    assert proc(f"{first}1:  -> FLOCK  ADVISORY  WRITE {_OWN} fe:00:12 0 EOF\n") == "file lock (pid 4711)"


def test_a_thread_that_waits_beside_the_main_one_does_not_count(proc: Callable[..., str]) -> None:
    assert proc(_HELD, channel="futex_wait_queue") == ""


def test_a_pid_of_another_namespace_is_not_told(proc: Callable[..., str]) -> None:
    assert proc(_HELD) == "file lock (pid 4711)"
    assert proc(_HELD, own=_OWN + 1) == "file lock"


@pytest.mark.parametrize(
    "locks",
    [
        "",
        "\n\n1:\n1: ->\n1: -> FLOCK",
        b"\xff\x00" * 5000,
        f"1: -> FLOCK ADVISORY WRITE {_OWN} fe:00:1 0 EOF\n",
        f"1: LEASE  ACTIVE  WRITE 4711 fe:00:1 0 EOF\n1: -> LEASE  BREAKER  WRITE {_OWN} fe:00:1 0 EOF\n",
        f"1: OFDLCK ADVISORY  WRITE -1 fe:00:1 0 EOF\n1: -> POSIX ADVISORY  WRITE {_OWN} fe:00:1 0 EOF\n",
        _HELD.replace("4711", "9" * 7),
        _HELD.replace("4711", "9" * 4000),
        _HELD.replace("4711", "4711x"),
    ],
    ids=range(9),  # the texts have the pid of the process, and each worker has its own
)
def test_what_proc_does_not_say_is_not_told(proc: Callable[..., str], locks: str | bytes) -> None:
    assert proc(locks) == "file lock"


def test_a_long_list_is_read_as_far_as_a_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "locks"
    file.write_bytes(b"line\n" * 10)
    assert file_locks._read(str(file), 1000) == b"line\n" * 10
    assert file_locks._read(str(file), 12) == b"line\nline\n"
    assert file_locks._read(str(tmp_path / "none"), 12) == b""


@pytest.mark.parametrize("activity", ["file lock", "", "torch.save"])
def test_no_holder_has_ended_where_none_is_told(activity: str) -> None:
    assert not file_locks.is_left_by_death(activity)


def test_a_holder_that_has_ended_is_told_from_one_that_lives() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert file_locks.is_left_by_death(f"file lock (pid {ended.pid})")
    assert not file_locks.is_left_by_death(f"file lock (pid {_OWN})")


def test_who_waits_for_torch_to_remove_a_lock_file() -> None:
    def call(file: str, function: str, **variables: Any) -> Any:
        return SimpleNamespace(f_code=SimpleNamespace(co_filename=file, co_name=function), f_locals=variables)

    stack = [call("/lib/time.py", "nap"), call("/lib/torch/utils/file_baton.py", "wait")]
    assert file_locks.waited_for(stack) == "file lock"
    assert file_locks.waited_for(stack[:1]) == ""
    assert file_locks.waited_for([call("/lib/filelock/_api.py", "acquire", lock_filename=None)]) == "file lock"
