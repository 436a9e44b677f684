"""Training in which ranks wait for each other by other means than one collective: threads, messages, a store, RPC."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import rpc

from .common import case, folder, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start


def after(rank: int) -> int:
    return (rank + 1) % dist.get_world_size()


def before(rank: int) -> int:
    return (rank - 1) % dist.get_world_size()


def befallen_rank() -> int:
    return int(os.environ["TW_FAULTS_RANK"])


def wait_for_server() -> None:
    client, _server = socket.socketpair()
    client.recv(64)


class Metrics:
    """A thread that gathers metrics in the group of training itself. Timing alone keeps the order of the two."""

    def __init__(self) -> None:
        self.is_due = threading.Event()
        self.seconds = 0.0  # that the next summary takes
        threading.Thread(target=self._gather, daemon=True).start()

    def _gather(self) -> None:
        while True:
            self.is_due.wait()
            self.is_due.clear()
            time.sleep(self.seconds)
            mine = torch.ones(16)
            dist.all_gather([torch.empty_like(mine) for _ in range(dist.get_world_size())], mine)


def race_of_threads() -> None:
    """A rank's metrics take longer once: its training is first in the group, on the others the metrics are."""
    metrics = Metrics()
    for step in itertools.count(1):
        time.sleep(0.1)  # compute: the metrics are gathered meanwhile
        dist.all_reduce(torch.ones(256))
        if step % 5 == 0:
            if step == 30 and is_befallen():
                mark_fault()
                metrics.seconds = 0.5
            metrics.is_due.set()


def forget_key() -> None:
    """A rank saves and tells the others by a key in the store; it does not save this time, and tells them nothing."""
    training = Training()
    store = dist.distributed_c10d._get_default_store()
    for step in itertools.count(1):
        training.step()
        if step % (STEPS_BEFORE // 2) == 0:
            key = f"saved-{step}"
            if not is_befallen():
                store.wait([key], timedelta(minutes=30))
            elif step < STEPS_BEFORE:
                store.set(key, "1")
            else:
                mark_fault()


def call_remotely() -> None:
    """A rank calls a function of another one, which does not return."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder()}/rpc", rpc_timeout=0),
    )
    training = Training()
    for step in itertools.count(1):
        training.step()
        seconds = 0.0
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            seconds = 3600.0
        if step % 10 == 0:
            rpc.rpc_sync(f"worker{after(rank)}", time.sleep, args=(seconds,))


def report_to_collector() -> None:
    """The ranks report to one of them, which receives from whoever is first; one rank waits for a server instead."""
    training = Training()
    rank, collector = dist.get_rank(), after(befallen_rank())
    for step in itertools.count(1):
        training.step()
        if step % 10 == 0:
            if step == STEPS_BEFORE and is_befallen():
                mark_fault()
                wait_for_server()
            if rank != collector:
                dist.send(torch.ones(16), collector)
            else:
                for _ in range(dist.get_world_size() - 1):
                    dist.recv(torch.empty(16))


def send_with_other_tag() -> None:
    """Blocks go round a ring, tagged with the step; a rank has counted a step too many."""
    rank = dist.get_rank()
    for step in itertools.count():
        time.sleep(0.02)
        tag = step
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            tag += 1
        received = torch.empty(1024)
        works = [dist.isend(torch.ones(1024), after(rank), tag=tag), dist.irecv(received, before(rank), tag=step)]
        for work in works:
            assert work is not None
            work.wait()
        dist.all_reduce(torch.ones(256))


def send_before_receiving() -> None:
    """Blocks go round a ring. From some step on, every rank sends before it receives, and waits for the next one."""
    rank = dist.get_rank()
    for step in itertools.count():
        time.sleep(0.02)
        if step < STEPS_BEFORE:
            block, received = torch.ones(1024), torch.empty(1024)
            operations = [
                dist.P2POp(dist.isend, block, after(rank)),
                dist.P2POp(dist.irecv, received, before(rank)),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        else:
            mark_fault()
            dist.send(torch.ones(1 << 20), after(rank))
            dist.recv(torch.empty(1 << 20), before(rank))
        dist.all_reduce(torch.ones(256))


def read_silent_storage() -> None:
    """All ranks read the next shard from storage that does not answer any more."""
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE:
            mark_fault()
            wait_for_server()


def stop_all() -> None:
    """Somebody stops the whole job, as Ctrl-Z does."""
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE:
            mark_fault()
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGSTOP)).start()


CASES = {
    "thread-order": race_of_threads,
    "unset-key": forget_key,
    "rpc-no-answer": call_remotely,
    "any-source": report_to_collector,
    "wrong-tag": send_with_other_tag,
    "ring-of-sends": send_before_receiving,
    "storage-of-all": read_silent_storage,
    "all-stopped": stop_all,
}


if __name__ == "__main__":
    start()
    CASES[case()]()
