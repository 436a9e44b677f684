"""How faults befall the training of job.py, from outside or by commands, and what only looks like one.

The functions are those that cases.csv names; each takes the fault's context and the arguments that stand there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .quota import CpuQuota
from .services import Services
from .training_job import WORLD, WORLD_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.links import Network

    from .training_job import TrainingJob
    from .watch import Watch

_ROUNDS = 50  # that show that training goes on
_SAVE_SECONDS = 9.0  # that a checkpoint takes: there is time to get the stack where the machine is busy
_THROTTLED = 40_000  # kilobits a second: 1 MiB of gradients take a quarter of a second and more


class TrainingStoppedError(Exception):
    """The ranks do not go on, though what happened is no affair of theirs."""


@dataclass
class FaultContext:
    """A case in progress: whom it befell, and what has to be undone."""

    job: TrainingJob
    rank: int
    watch: Watch | None = None
    away_seconds: float = 7.0  # that a rank is away for: longer than it takes to see it
    undo: list[Callable[[], object]] = field(default_factory=list)

    def tell(self, do: str, ranks: list[int] | None = None, **arguments: Any) -> None:
        """Have the faulty rank, or others, do something before their next round."""
        self.job.command([self.rank] if ranks is None else ranks, do, **arguments)

    def together(self, do: str, ranks: list[int], **arguments: Any) -> int:
        """Have several ranks do something before the same round; gives its number."""
        number = self.job.next_round()
        self.job.command(ranks, do, at=number, **arguments)
        return number

    @property
    def network(self) -> Network:
        assert self.job.network is not None
        return self.job.network

    @property
    def others(self) -> list[int]:
        return [rank for rank in WORLD if rank != self.rank]

    @property
    def pid(self) -> int:
        return self.job.pids[self.rank]

    def after(self, distance: int = 1) -> int:
        """A rank that is further on."""
        return (self.rank + distance) % WORLD_SIZE

    def mend(self) -> None:
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()


def tell(context: FaultContext, do: str) -> None:
    """The rank ends, or calls something else than all_reduce."""
    context.tell(do)


def train_on(context: FaultContext, rounds: int = _ROUNDS) -> None:
    """Wait until every rank has made so many more rounds.

    Raises:
        TrainingStoppedError: one does not.
    """
    last = max(context.job.rounds()) + rounds
    try:
        context.job.wait_for_round(last + 1)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise TrainingStoppedError(f"training stopped at rounds {context.job.rounds()}: {text}") from error


def die(context: FaultContext) -> None:
    context.job.signal(context.rank, signal.SIGKILL)


# Hangs.


def sleep(context: FaultContext) -> None:
    context.tell("sleep", seconds=context.away_seconds)


def go_away(context: FaultContext, do: str, declared: str = "") -> None:
    context.tell(do, seconds=max(_SAVE_SECONDS, context.away_seconds), declared=bool(declared))


def send_late(context: FaultContext) -> None:
    """Its peer waits for the message, the others for both in their next collective."""
    number = context.together("receive", [context.after()], src=context.rank)
    context.tell("send_late", at=number, dst=context.after(), seconds=context.away_seconds)


def stop_before(context: FaultContext) -> None:
    context.tell("stop")
    context.undo.append(lambda: context.job.signal(context.rank, signal.SIGCONT))


def stop_inside(context: FaultContext) -> None:
    """While it waits in the operation for another rank, which comes after it was stopped."""
    number = context.together("transfer", context.others, numel=1 << 18)
    context.tell("sleep", [context.after()], at=number, seconds=0.6)
    context.tell("stop_inside", at=number, numel=1 << 18)
    context.undo.append(lambda: context.job.signal(context.rank, signal.SIGCONT))


def change_order(context: FaultContext) -> None:
    number = context.together("two_groups", context.others, swapped=False)
    context.tell("two_groups", at=number, swapped=True)


def take_wrong_root(context: FaultContext) -> None:
    number = context.together("broadcast", context.others, src=context.after(3))
    context.tell("broadcast", at=number, src=context.after(2))


def split(context: FaultContext) -> None:
    context.together("other_operation", [context.rank, context.after()])


def cut_link(context: FaultContext) -> None:
    context.network.cut(context.rank)
    context.undo.append(lambda: context.network.mend(context.rank))


def choke(context: FaultContext, kilobits: int, distance: int = 0) -> None:
    """The egress of the rank, or of one further on."""
    rank = context.after(distance)
    context.network.shape(rank, kilobits)
    context.undo.append(lambda: context.network.mend(rank))


# Slow.


def change(context: FaultContext, name: str, value: float) -> None:
    """A setting of the rank, until it is undone."""
    context.tell("set", **{name: value})
    context.undo.append(lambda: context.tell("set", **{name: 0}))


def stop_and_go(context: FaultContext) -> None:
    """The rank runs for a moment, then is stopped for longer, again and again."""
    over = threading.Event()

    def toggle() -> None:
        while not over.is_set():
            os.kill(context.pid, signal.SIGSTOP)
            time.sleep(0.25)
            os.kill(context.pid, signal.SIGCONT)
            over.wait(0.03)

    thread = threading.Thread(target=toggle)
    thread.start()
    context.undo += [thread.join, over.set]


def limit_cpu(context: FaultContext) -> None:
    context.undo.append(CpuQuota(context.pid, 0.05).lift)


def lose_packets(context: FaultContext, share: float) -> None:
    context.network.lose(context.rank, share)
    context.undo.append(lambda: context.network.mend(context.rank))


def be_late_and_choke(context: FaultContext, distance: int) -> None:
    change(context, "late", 0.2)
    choke(context, _THROTTLED, distance)


# Nothing wrong.


def save_on_all(context: FaultContext) -> None:
    context.together("checkpoint", WORLD, seconds=5.0)


def end_unevenly(context: FaultContext) -> None:
    """The ranks' data end unevenly, epoch after epoch."""
    first = context.job.next_round()
    for epoch in range(4):
        context.tell("sleep", at=first + 40 * epoch, seconds=0.12)


def be_slow_once(context: FaultContext) -> None:
    context.tell("sleep", seconds=1.5)


def transfer_much(context: FaultContext) -> None:
    """On a network so slow that it takes longer than the hang gate."""
    for rank in WORLD:
        context.network.shape(rank, 40_000)
        context.undo.append(partial(context.network.mend, rank))
    context.together("transfer", WORLD, numel=5 << 20)


def restart(context: FaultContext) -> None:
    """As the elastic launcher does it: a rank fails, the others are ended, all are started again."""
    context.job.signal(context.rank, signal.SIGKILL)
    context.job.restart()
    context.job.wait_for_round(3)


def kill_service(context: FaultContext, name: str) -> None:
    """Training is to go on while it is away, and when it is back."""
    assert isinstance(context.watch, Services)
    back = time.monotonic() + 4.0
    context.watch.kill(name)
    train_on(context)
    time.sleep(max(0.0, back - time.monotonic()))
    context.watch.start(name)
    train_on(context)


def corrupt_page(context: FaultContext) -> None:
    """The page of a rank is overwritten, and stays so as far as its probe does not write it again."""
    for path in context.job.nodes[0].glob(f"rank-{context.rank}-*.page"):
        with path.open("r+b") as page:
            page.write(os.urandom(path.stat().st_size))
    train_on(context)


def step_clock(context: FaultContext) -> None:
    context.tell("step_clock", seconds=3600)
    context.undo.append(lambda: context.tell("step_clock", seconds=0))
