"""What the probe costs a training step: one DDP job of two ranks, in which the probe is at work every other turn.

Two jobs side by side differ by more than the probe costs, if only by where their memory lies. So the threads of the
probe are ended and started again in one job. Each turn trains from the same state, so that its losses have to be the
same bits whether the probe is at work or not. Each rank is bound to a core of its own, which the probe has to share.
"""

from __future__ import annotations

import copy
import hashlib
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.timing import spread
from job.benchmarks.asked_job import join

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue

RANKS = 2
ROUNDS = 80
TURN_SECONDS = 0.4  # two heartbeats
GOAL = 0.02  # of a step
_PAUSE_SECONDS = 0.1  # before a turn: the heartbeat that a thread begins with is over, the next is in the middle
_WARM_UP_STEPS = 200


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Time of a step, ratios with the probe to without it, its threads' share of a core, and the losses compared."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=_work, args=(rank, folder, rounds, queue)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    answers = [queue.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    pairs = [_pair([answer[number] for answer in answers]) for number in range(rounds)]
    return {
        "ranks": RANKS,
        "milliseconds": spread([1e3 * off["wall"] for off, _ in pairs]),
        "ratios": {what: spread([on[what] / off[what] for off, on in pairs]) for what in ("wall", "cpu")},
        "goal": GOAL,
        "share_of_a_core": spread([on["probe"] for _, on in pairs]),
        "losses_are_identical": len({turn["losses"] for pair in pairs for turn in pair}) == 1,
    }


def _pair(turns: list[dict[bool, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A round of all ranks, without the probe and with it: the slowest counts for wall time, all for CPU time."""
    return [
        {
            "wall": max(turn[is_on]["wall"] for turn in turns),
            "cpu": sum(turn[is_on]["cpu"] for turn in turns),
            "probe": sum(turn[is_on]["probe"] for turn in turns) / len(turns),
            "losses": tuple(sorted(turn[is_on]["losses"] for turn in turns)),
        }
        for is_on in (False, True)
    ]


def _work(rank: int, folder: Path, rounds: int, queue: Queue[Any]) -> None:
    import torch
    import torch.distributed as dist

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    join(folder, rank, RANKS)
    probe = _Probe()
    train = _training(rank)
    train(_WARM_UP_STEPS)
    seconds = torch.tensor(train(_WARM_UP_STEPS)["wall"])
    dist.all_reduce(seconds)
    num_steps = round(TURN_SECONDS / (seconds.item() / RANKS))
    probe.stop()
    answers = []
    for number in range(rounds):
        turns = {}
        for is_on in (True, False) if number % 2 else (False, True):
            if is_on:
                probe.start()
            time.sleep(_PAUSE_SECONDS)
            before = probe.cpu_seconds()
            turns[is_on] = train(num_steps)
            turns[is_on]["probe"] = (probe.cpu_seconds() - before) / (turns[is_on]["wall"] * num_steps)
            if is_on:
                probe.stop()
        answers.append(turns)
    queue.put(answers)
    dist.barrier()
    dist.destroy_process_group()


class _Probe:
    """The probe of this process, whose threads can be ended and started again."""

    def __init__(self) -> None:
        from tensorwire_job import attach
        from tensorwire_job.page import native
        from tensorwire_job.rank import probe

        attach()
        self._native = native
        self._probe: Any = probe._probe
        self._own: set[str] = set()

    def stop(self) -> None:
        self._probe._ends.set()
        self._probe._thread.join()
        self._native.stop_pulse(self._probe._handle)

    def start(self) -> None:
        before = _threads()
        self._probe._ends = threading.Event()
        self._probe._thread = threading.Thread(target=self._probe._run, daemon=True)
        self._probe._thread.start()
        self._native.start_pulse(self._probe._handle)
        self._own = _threads() - before

    def cpu_seconds(self) -> float:
        """The CPU time of its threads."""
        facts = (Path(f"/proc/self/task/{thread}/schedstat") for thread in self._own)
        return sum(int(fact.read_text().split()[0]) for fact in facts if fact.exists()) / 1e9


def _threads() -> set[str]:
    return {thread.name for thread in Path("/proc/self/task").iterdir()}


def _training(rank: int) -> Callable[[int], dict[str, Any]]:
    """Trains for so many steps of about 3 ms, from the same state each time."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(192, 192), torch.nn.GELU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(1 + rank)
    batch = torch.randn(192, 192)

    def train(num_steps: int) -> dict[str, Any]:
        model.load_state_dict(state)
        losses = hashlib.sha256()
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.update(loss.detach().numpy().tobytes())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {"wall": wall / num_steps, "cpu": cpu / num_steps, "losses": losses.hexdigest()}

    return train
