"""Training in which one rank ends or is held by the kernel, between two steps, in ways that leave few words."""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..needs import FREEZER
from .common import folder, stay_away
from .small_training import between_steps, die_with_parent

run = between_steps
_PTRACE_ATTACH = 16
_WALL = 0x40000000  # waitpid: threads too
_SIGKILL_PENDING = 1 << (signal.SIGKILL - 1)


def log_to_stopped_reader() -> None:
    """Standard output is a pipe, and its reader is stopped, as by Ctrl-S."""
    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
    assert reader.stdin is not None
    reader.send_signal(signal.SIGSTOP)
    while True:
        reader.stdin.write(b"step: loss 0.1\n" * 1000)
        reader.stdin.flush()


def spawn_from_stalled_storage() -> None:
    """Starts a program whose input cannot be opened: until the child runs the program, the kernel keeps the parent."""
    fifo = folder() / "stalled"
    os.mkfifo(fifo)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)])


def be_debugged() -> None:
    """A debugger is attached, and stays there."""
    rank = os.getpid()
    if os.fork() == 0:
        die_with_parent()
        libc = ctypes.CDLL(None)
        for thread in sorted(int(entry.name) for entry in Path(f"/proc/{rank}/task").iterdir()):
            libc.ptrace(_PTRACE_ATTACH, thread, None, None)
            libc.waitpid(thread, None, _WALL)
        signal.pause()
    time.sleep(1.0)


def be_frozen() -> None:
    """The container is paused: its control group is frozen."""
    rank = os.getpid()
    group = FREEZER / f"tensorwire-faults-{rank}"
    if os.fork() == 0:
        for left in FREEZER.glob("tensorwire-faults-*"):
            with suppress(OSError):  # a process is in it
                left.rmdir()
        group.mkdir()
        (group / "cgroup.procs").write_text(str(rank))
        (group / "freezer.state").write_text("FROZEN")
        while not _is_to_die(rank):
            time.sleep(0.1)
        (group / "freezer.state").write_text("THAWED")  # it could not die otherwise
        while os.getppid() == rank:
            time.sleep(0.1)
        with suppress(OSError):
            group.rmdir()
        os._exit(0)
    time.sleep(1.0)


def _is_to_die(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    pending = status.split("ShdPnd:")[1].split()[0]
    return bool(int(pending, 16) & _SIGKILL_PENDING)


def crash_in_thread() -> None:
    """An extension reads from a null pointer in a thread of its own."""
    threading.Thread(target=ctypes.string_at, args=(0,)).start()


def end_with_uploader() -> None:
    """The script has come to its end, and a thread that uploads logs keeps the process alive."""
    threading.Thread(target=queue.Queue[str]().get).start()
    sys.exit(0)


def exceed_cpu_time() -> None:
    """The rank reaches the CPU time that its shell allows."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1, resource.RLIM_INFINITY))
    while True:
        torch.randn(64, 64) @ torch.randn(64, 64)


def overflow_stack() -> None:
    """A tree of the data set is deeper than the stack."""
    tree: list[Any] = []
    for _ in range(1_000_000):
        tree = [tree]
    sys.setrecursionlimit(1 << 30)
    pickle.dumps(tree)


def close_descriptors() -> None:
    """A helper that makes a daemon closes all descriptors that it did not open, those of connections too."""
    os.closerange(3, 4096)


def be_preempted() -> None:
    """The scheduler takes back the node of one rank, which saves and leaves as it was asked to."""

    def leave(*_: object) -> None:
        torch.save(torch.ones(64, 64), folder() / "preempted.pt")
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt() -> None:
    """Ctrl-C reaches one rank alone."""
    os.kill(os.getpid(), signal.SIGINT)


def hang_up() -> None:
    """The terminal of one rank is closed."""
    os.kill(os.getpid(), signal.SIGHUP)


def await_end() -> None:
    """The rank waits for a lock. The runner ends all ranks, one after another."""
    stay_away()


def restart_in_place() -> None:
    """One rank replaces its program by another one, as an updater does: the process lives, the rank does not."""
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])
