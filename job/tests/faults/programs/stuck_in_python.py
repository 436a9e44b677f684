"""Training in which one rank gets stuck in Python between two steps, while the others go on to the next one."""

from __future__ import annotations

import ctypes
import importlib.abc
import logging
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .common import folder
from .small_training import between_steps, die_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

run = between_steps


def wait_for_key() -> None:
    """The evaluator was to say which checkpoint is the best. It never does."""
    dist.distributed_c10d._get_default_store().get("best-checkpoint")


def query_with_lock() -> None:
    """The client of a database waits for an answer, in C code that keeps Python's lock."""
    client, _server = socket.socketpair()
    client.send(b"SELECT shard FROM shards")
    ctypes.PyDLL(None).recv(client.fileno(), ctypes.create_string_buffer(64), 64, 0)


def sample_forever() -> None:
    """Samples until one is good enough. None ever is."""
    while True:
        if torch.randn(4096).norm() > 1e6:
            return


def retry_on_full_disk() -> None:
    """Writes a checkpoint to a disk without room, again and again."""
    while not _could_write(Path("/dev/full")):
        time.sleep(1.0)


def _could_write(path: Path) -> bool:
    try:
        path.write_bytes(bytes(1 << 20))
    except OSError as error:
        logging.warning("cannot write the checkpoint, will try again: %s", error)
        return False
    return True


def save_in_signal_handler() -> None:
    """The scheduler's signal comes while a checkpoint is written; its handler wants to write one as well."""
    lock = threading.Lock()

    def save_checkpoint(*_: object) -> None:
        with lock:
            time.sleep(0.1)
            if signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.1)

    signal.signal(signal.SIGUSR1, save_checkpoint)
    save_checkpoint()


def import_in_circle() -> None:
    """A module waits, while it is imported, for a thread that imports it."""
    (folder() / "lazy_plugins.py").write_text(
        "import threading\n"
        "def register():\n"
        "    from lazy_plugins import threading\n"
        "thread = threading.Thread(target=register, daemon=True)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    sys.path.insert(0, str(folder()))
    __import__("lazy_plugins")


def wait_for_dead_thread() -> None:
    """The thread that prefetches batches fails; the main thread, which waits for the next one, does not learn it."""
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)

    def prefetch() -> None:
        shards = {"train-0": torch.zeros(4)}
        batches.put(shards["train-0"])
        batches.put(shards["train-1"])

    threading.Thread(target=prefetch, daemon=True).start()
    while True:
        batches.get()


def debug_in_backward_hook() -> None:
    """A breakpoint was left in a hook of the backward pass."""
    _master, slave = os.openpty()
    sys.stdin = os.fdopen(slave)
    activation = torch.ones(4, requires_grad=True)
    loss = (activation * float("nan")).sum()
    activation.register_hook(lambda gradient: breakpoint() if gradient.isnan().any() else None)
    loss.backward()


def fork_with_lock() -> None:
    """A child is forked while another thread holds a lock, which the child then waits for."""
    lock = threading.Lock()
    is_held = threading.Event()

    def refresh_cache() -> None:
        with lock:
            is_held.set()
            time.sleep(0.5)

    def read_cache() -> None:
        die_with_parent()
        with lock:
            pass

    threading.Thread(target=refresh_cache).start()
    is_held.wait()
    child = multiprocessing.get_context("fork").Process(target=read_cache, daemon=True)
    child.start()
    child.join()


def lose_pool_worker() -> None:
    """The kernel kills a worker of a pool for want of memory; the pool starts another, and the task is lost."""
    with multiprocessing.get_context("fork").Pool(1, die_with_parent) as pool:
        worker = pool.apply(os.getpid)
        result = pool.apply_async(time.sleep, (1.0,))
        time.sleep(0.3)
        os.kill(worker, signal.SIGKILL)
        result.get()


def read_slow_storage() -> None:
    """The storage answers after 8 s; then training goes on."""
    client, server = socket.socketpair()
    answer = threading.Timer(8.0, server.send, [b"batch"])
    answer.daemon = True
    answer.start()
    client.recv(64)


def wait_for_lock_file() -> None:
    """Waits until no process holds the index of the data set. The process that made the lock file is dead."""
    lock = folder() / "index.lock"
    lock.touch()
    while lock.exists():
        time.sleep(0.1)


_IMPORTED = "torch._dynamo.symbolic_convert"
_HELD = "torch._dynamo.exc"  # imported by it


class SilentStorage(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == _HELD:
            time.sleep(1000.0)
        return None


def import_from_silent_storage() -> None:
    """Imports what torch.compile needs, from storage that does not answer."""
    for name in (_IMPORTED, _HELD):  # as if nothing had needed them so far
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, SilentStorage())
    __import__(_IMPORTED)
