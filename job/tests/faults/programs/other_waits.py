"""Training in which ranks wait for each other by other means than one collective: threads, messages, a store, RPC."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import rpc

from .common import STEPS_BEFORE, befallen_rank, befalls, folder, is_befallen, mark_fault, stay_away, wait_for_server
from .small_training import Training, after, before, pass_on, steps


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
            if befalls(step, 30):
                metrics.seconds = 0.5
            metrics.is_due.set()


def forget_key() -> None:
    """A rank saves and tells the others by a key in the store; it does not save this time, and tells them nothing."""
    training = Training()
    store = dist.distributed_c10d._get_default_store()
    for step in training.steps(1):
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
    for step in Training().steps(1):
        seconds = 3600.0 if befalls(step) else 0.0
        if step % 10 == 0:
            rpc.rpc_sync(f"worker{after()}", time.sleep, args=(seconds,))


def report_to_collector() -> None:
    """The ranks report to one of them, which receives from any rank; one rank waits for a server instead."""
    training = Training()
    rank, collector = dist.get_rank(), (befallen_rank() + 1) % dist.get_world_size()
    for step in training.steps(1):
        if step % 10 == 0:
            if befalls(step):
                wait_for_server()
            if rank != collector:
                dist.send(torch.ones(16), collector)
            else:
                for _ in range(dist.get_world_size() - 1):
                    dist.recv(torch.empty(16))


def send_with_other_tag() -> None:
    """Blocks go round a ring, tagged with the step; a rank has counted a step too many."""
    for step in steps():
        send = dist.isend(torch.ones(1024), after(), tag=step + befalls(step))
        works = [send, dist.irecv(torch.empty(1024), before(), tag=step)]
        for work in works:
            assert work is not None
            work.wait()
        dist.all_reduce(torch.ones(256))


def send_before_receiving() -> None:
    """Blocks go round a ring. From some step on, every rank sends before it receives, and waits for the next one."""
    for step in steps():
        if step < STEPS_BEFORE:
            for work in pass_on(torch.ones(1024), torch.empty(1024)):
                work.wait()
        else:
            mark_fault()
            dist.send(torch.ones(1 << 20), after())
            dist.recv(torch.empty(1 << 20), before())
        dist.all_reduce(torch.ones(256))


def read_silent_storage() -> None:
    """All ranks read the next shard from storage that does not answer any more."""
    Training().train(then=wait_for_server)


def stop_all() -> None:
    """The whole job is stopped, as by Ctrl-Z."""
    Training().train(then=threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGSTOP)).start)


def two_at_once() -> None:
    """One rank waits for a lock that is never released, the next one for a server that never answers."""
    for step in Training().steps():
        if befalls(step):
            stay_away()
        if step == STEPS_BEFORE and before() == befallen_rank():
            mark_fault()
            wait_for_server()
