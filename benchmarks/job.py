"""Jobs of real ranks: started here, and what a function needs that runs in one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from benchmarks.environment import child, log
from tests.support.links import Network
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
RANKS = 4
_RATE = "rate "


def run(function: Callable[[Any], Any], settings: Any, *, ranks: int = RANKS, linked: bool = False) -> Any:
    """What a function of a module gives on rank 0, where the default process group has all ranks.

    Args:
        function: called in each rank; what it gives is plain data.
        settings: plain data, which it takes.
        linked: each rank has a host of its own, and a link, whose rate `set_rate` sets. Otherwise they share this host.
    """
    network = Network(ranks) if linked else None
    processes = []
    try:
        port = free_port()
        code = f"from {function.__module__} import {function.__name__} as do; from benchmarks import job; job.rank(do)"
        line = [sys.executable, "-c", code, json.dumps(settings)]
        processes += [_start(line, rank, ranks, network, port) for rank in range(ranks)]
        answer = None
        for line in processes[0].stdout or ():
            if line.startswith(_RATE) and network is not None:
                network.set_rates(json.loads(line.removeprefix(_RATE)))
                assert processes[0].stdin is not None
                processes[0].stdin.write("done\n")
                processes[0].stdin.flush()
            else:
                answer = json.loads(line)
        if any(process.wait() for process in processes):
            raise RuntimeError(f"a rank of {function.__module__} has failed")
        return answer
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        if network is not None:
            network.close()


def _start(line: list[str], rank: int, ranks: int, network: Network | None, port: int) -> subprocess.Popen[str]:
    own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
    own |= {"MASTER_ADDR": network.addresses[0] if network else "127.0.0.1", "OMP_NUM_THREADS": "1"}
    own |= {"GLOO_SOCKET_IFNAME": network.interface if network else "lo"}
    return subprocess.Popen(
        network.inside(rank, line) if network else line,
        env=child(**own), stdin=subprocess.PIPE, stdout=subprocess.PIPE if rank == 0 else None, text=True,
    )  # fmt: skip


def rank(function: Callable[[Any], Any]) -> None:
    """In a rank: what `run` has it do."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        found = function(json.loads(sys.argv[1]))
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def say(text: str) -> None:
    """In a rank: how far the work is; rank 0 says it."""
    if dist.get_rank() == 0:
        log(text)


def set_rate(megabits: float | None) -> None:
    """In all ranks: all links have this rate when it returns, or none."""
    dist.barrier()
    if dist.get_rank() == 0:
        print(_RATE + json.dumps(megabits), flush=True)
        sys.stdin.readline()
    dist.barrier()


def of_all(own: T) -> list[T]:
    """In all ranks: what each of them has."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def interface_nbytes() -> int:
    """In a rank: bytes that its host has sent, headers of packets included."""
    name = os.environ["GLOO_SOCKET_IFNAME"]
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.partition(":")[2].split()[8]) for line in lines if line.strip().startswith(f"{name}:"))


def measured(work: Callable[[], None], counted: Callable[[], int]) -> dict[str, float]:
    """In all ranks: seconds of the slowest, CPU seconds of all, and bytes of the mean rank: those of its interface, and
    those that are `counted`."""
    dist.barrier()
    before = time.process_time(), interface_nbytes(), counted()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    after = time.process_time(), interface_nbytes(), counted()
    dist.barrier()
    cpu, sent, ours = (sum(of_all(end - start)) for start, end in zip(before, after, strict=True))
    return {
        "seconds": max(of_all(seconds)), "cpu_seconds": cpu,
        "interface_nbytes": sent / dist.get_world_size(), "counted_nbytes": ours / dist.get_world_size(),
    }  # fmt: skip
