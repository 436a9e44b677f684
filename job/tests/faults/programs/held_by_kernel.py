"""Training in which the kernel holds one rank, or ends it, while the others go on to the next step."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from ..needs import FREEZER
from .common import chosen, folder
from .small_training import Training, die_with_parent, start

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


if __name__ == "__main__":
    start()
    Training().train(chosen(globals()))
