"""What goes wrong in a job, and what the analyzer has to say of it.

The faulty rank is rotated over all positions. A case with `mend` leaves the job as it was, and the next one has it;
the others have a job of their own.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from .quota import CpuQuota
from .services import Services
from .training_job import WORLD_SIZE
from .watch import THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Thresholds
    from tests.support.links import Network

    from .training_job import TrainingJob
    from .watch import Watch

WORLD = list(range(WORLD_SIZE))
_ROUNDS = 50  # that show that training goes on
Kind = Literal["lost", "hang", "slow", "none"]


class TrainingStoppedError(Exception):
    """The ranks do not go on, though what happened is no affair of theirs."""


@dataclass
class FaultContext:
    """A case in progress: whom it befell, and what has to be undone."""

    job: TrainingJob
    rank: int
    watch: Watch | None = None
    away_seconds: float = 7.0  # that a rank is away for: longer than it takes to see it
    undo: list[Callable[[], None]] = field(default_factory=list)

    def tell(self, do: str, ranks: list[int] | None = None, **arguments: Any) -> None:
        """Have the faulty rank, or others, do something before their next round."""
        self.job.command([self.rank] if ranks is None else ranks, do, **arguments)

    def together(self, do: str, ranks: list[int], **arguments: Any) -> int:
        """Have several ranks do something before the same round; gives its number."""
        number = self.job.next_round()
        self.job.command(ranks, do, at=number, **arguments)
        return number

    def train_on(self, rounds: int = _ROUNDS) -> None:
        """Wait until every rank has made so many more rounds.

        Raises:
            TrainingStoppedError: one does not.
        """
        last = max(self.job.rounds()) + rounds
        try:
            self.job.wait_for_round(last + 1)
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise TrainingStoppedError(f"training stopped at rounds {self.job.rounds()}: {text}") from error

    def change(self, **settings: Any) -> None:
        """Change settings of the faulty rank, until it is undone."""
        self.tell("set", **settings)
        self.undo.append(lambda: self.tell("set", **dict.fromkeys(settings, 0)))

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

    def mend(self) -> None:
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()


@dataclass(frozen=True)
class Case:
    """A fault, or something that only looks like one.

    `code` is "" where no finding may come up; then `notice` may be expected, about the faulty rank. `hang_seconds` is
    longer where one loss after another may hold up a single operation for seconds.
    """

    name: str
    code: str
    inject: Callable[[FaultContext], None]
    about: str
    mends: bool = False  # the job goes on afterwards
    settings: dict[str, Any] = field(default_factory=dict)
    needs: Literal["", "quota", "links", "loss", "services", "clock"] = ""
    suspects: Callable[[int], list[int]] = lambda rank: [rank]
    sides: Callable[[int], list[list[int]]] = lambda rank: []
    seconds: float = 6.0  # to watch where nothing is expected, else at most to wait for the verdict
    hang_seconds: float = THRESHOLDS.hang_seconds
    only_rank: int | None = None
    notice: bool = False
    stack: str = ""  # a function that the suspect's stack has to show
    evidence: str = ""  # what a fact has to say

    @property
    def kind(self) -> Kind:
        if self.code.startswith("TW-H"):
            return "hang"
        if self.code.startswith("TW-S"):
            return "slow"
        return "lost" if self.code else "none"

    @property
    def thresholds(self) -> Thresholds:
        return replace(THRESHOLDS, hang_seconds=self.hang_seconds)

    @property
    def uses_network(self) -> bool:
        return self.needs in ("links", "loss")

    @property
    def job(self) -> object:
        """The job it needs: cases with the same one can have it one after another."""
        return self.needs, self.hang_seconds, json.dumps(self.settings, sort_keys=True)

    def rank(self, run: int) -> int:
        return run % len(WORLD) if self.only_rank is None else self.only_rank


# Lost.


def _die(context: FaultContext) -> None:
    context.job.signal(context.rank, signal.SIGKILL)


# Hangs.

_AWAY = 9.0  # seconds that a checkpoint takes: there is time to get the stack where the machine is busy


def _sleep(context: FaultContext) -> None:
    context.tell("sleep", seconds=context.away_seconds)


def _send_late(context: FaultContext) -> None:
    """Its peer waits for the message, the others for both in their next collective."""
    peer = (context.rank + 1) % len(WORLD)
    number = context.together("receive", [peer], src=context.rank)
    context.tell("send_late", at=number, dst=peer, seconds=context.away_seconds)


def _stop_before(context: FaultContext) -> None:
    context.tell("stop")
    context.undo.append(lambda: context.job.signal(context.rank, signal.SIGCONT))


def _stop_inside(context: FaultContext) -> None:
    """While it waits in the operation for another rank, which comes after it was stopped."""
    number = context.together("transfer", context.others, numel=1 << 18)
    context.tell("sleep", [(context.rank + 1) % len(WORLD)], at=number, seconds=0.6)
    context.tell("stop_inside", at=number, numel=1 << 18)
    context.undo.append(lambda: context.job.signal(context.rank, signal.SIGCONT))


def _differ(do: str) -> Callable[[FaultContext], None]:
    """The faulty rank calls something else than all_reduce."""

    def inject(context: FaultContext) -> None:
        context.tell(do)

    return inject


def _other_order(context: FaultContext) -> None:
    number = context.together("two_groups", context.others, swapped=False)
    context.tell("two_groups", at=number, swapped=True)


def _wrong_root(context: FaultContext) -> None:
    number = context.together("broadcast", context.others, src=(context.rank + 3) % len(WORLD))
    context.tell("broadcast", at=number, src=(context.rank + 2) % len(WORLD))


def _split(context: FaultContext) -> None:
    context.together("other_operation", _half(context.rank))


def _half(rank: int) -> list[int]:
    return sorted((rank, (rank + 1) % len(WORLD)))


def _halves(rank: int) -> list[list[int]]:
    return [_half(rank), sorted(set(WORLD) - set(_half(rank)))]


def _link_down(context: FaultContext) -> None:
    context.network.cut(context.rank)
    context.undo.append(lambda: context.network.mend(context.rank))


def _choke(kilobits: int) -> Callable[[FaultContext], None]:
    def inject(context: FaultContext) -> None:
        context.network.shape(context.rank, kilobits)
        context.undo.append(lambda: context.network.mend(context.rank))

    return inject


# Slow.


def _late(context: FaultContext) -> None:
    context.change(late=0.2)


def _load(context: FaultContext) -> None:
    context.change(load=0.2)


def _collect_garbage(context: FaultContext) -> None:
    context.change(heap=300_000)


def _duty(context: FaultContext) -> None:
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

    def undo() -> None:
        over.set()
        thread.join()

    context.undo.append(undo)


def _quota(context: FaultContext) -> None:
    quota = CpuQuota(context.pid, 0.05)
    context.undo.append(quota.lift)


def _lose(share: float) -> Callable[[FaultContext], None]:
    def inject(context: FaultContext) -> None:
        context.network.lose(context.rank, share)
        context.undo.append(lambda: context.network.mend(context.rank))

    return inject


def _other(rank: int) -> int:
    return (rank + 2) % len(WORLD)


def _late_and_choked(context: FaultContext) -> None:
    context.change(late=0.2)
    _choke(_THROTTLED)(context)


def _late_and_another_choked(context: FaultContext) -> None:
    context.change(late=0.2)
    other = _other(context.rank)
    context.network.shape(other, _THROTTLED)
    context.undo.append(lambda: context.network.mend(other))


# Nothing wrong.


def _nothing(context: FaultContext) -> None:
    pass


def _train_long(context: FaultContext) -> None:
    context.train_on(200)


def _checkpoint_all(context: FaultContext) -> None:
    context.together("checkpoint", WORLD, seconds=5.0)


def _away(do: str, declared: bool) -> Callable[[FaultContext], None]:
    def inject(context: FaultContext) -> None:
        context.tell(do, seconds=max(_AWAY, context.away_seconds), declared=declared)

    return inject


def _uneven(context: FaultContext) -> None:
    context.change(late=0.008)


def _last_batch(context: FaultContext) -> None:
    """The ranks' data end unevenly, epoch after epoch."""
    first = context.job.next_round()
    for epoch in range(4):
        context.tell("sleep", at=first + 40 * epoch, seconds=0.12)


def _slow_step(context: FaultContext) -> None:
    context.tell("sleep", seconds=1.5)


def _huge_transfer(context: FaultContext) -> None:
    """On a network so slow that it takes longer than the hang gate."""
    for rank in WORLD:
        context.network.shape(rank, 40_000)
        context.undo.append(lambda rank=rank: context.network.mend(rank))  # type: ignore[misc]
    context.together("transfer", WORLD, numel=5 << 20)


def _restart(context: FaultContext) -> None:
    """As the elastic launcher does it: a rank fails, the others are ended, all are started again."""
    context.job.signal(context.rank, signal.SIGKILL)
    context.job.restart()
    context.job.wait_for_round(3)


def _kill_service(name: str) -> Callable[[FaultContext], None]:
    """Training is to go on while it is away, and when it is back."""

    def inject(context: FaultContext) -> None:
        assert isinstance(context.watch, Services)
        back = time.monotonic() + 4.0
        context.watch.kill(name)
        context.train_on()
        time.sleep(max(0.0, back - time.monotonic()))
        context.watch.start(name)
        context.train_on()

    return inject


def _corrupt(context: FaultContext) -> None:
    """The page of a rank is overwritten, and stays so as far as its probe does not write it again."""
    for path in context.job.nodes[0].glob(f"rank-{context.rank}-*.page"):
        with path.open("r+b") as page:
            page.write(os.urandom(path.stat().st_size))
    context.train_on()


def _step_clock(context: FaultContext) -> None:
    context.tell("step_clock", seconds=3600)
    context.undo.append(lambda: context.tell("step_clock", seconds=0))


_THROTTLED = 40_000  # kilobits a second: 1 MiB of gradients take a quarter of a second and more
_BULK = {"numel": [1 << 18]}
_MIXED = {"numel": [1, 100, 4096, 1 << 16, 1 << 18], "pairs": True}
_PAIRS = {"pairs": True}

CASES = [
    Case("lost-sigkill", "TW-LOST", _die, "SIGKILL"),
    Case("lost-exit", "TW-LOST", _differ("exit"), "sys.exit(1)"),
    Case("lost-exception", "TW-LOST", _differ("fail"), "an uncaught ValueError"),
    Case("h1-sleep", "TW-H1", _sleep, "sleeps instead of entering", mends=True, stack="sleep"),
    Case("h1-gil", "TW-H1", _differ("hold_gil"), "busy loop in C that holds the GIL", stack="hold_gil"),
    Case("h1-sigstop", "TW-H1", _stop_before, "SIGSTOP before it enters", mends=True),
    Case("h1-other-group", "TW-H1", _sleep, "sleeps; its pair hangs in the pair's group, the others in the world's",
         mends=True, settings=_PAIRS, stack="sleep"),
    # The job could go on, but only a longer pause than those here tells messages that some ranks count from
    # collectives.
    Case("h1-recv", "TW-H1", _send_late, "sleeps instead of sending; its peer hangs in recv, the others in the next "
         "collective", stack="sleep"),
    Case("h1-two-nodes", "TW-H1", _sleep, "sleeps; agents and analyzer of two nodes find it", mends=True,
         needs="services", seconds=8, stack="sleep"),
    Case("h1-undeclared", "TW-H1", _away("checkpoint", False), "rank 0 writes a checkpoint and nobody said so",
         mends=True, only_rank=0, stack="checkpoint"),
    Case("h2-operation", "TW-H2", _differ("other_operation"), "broadcast instead of all_reduce"),
    Case("h2-order", "TW-H2", _other_order, "two groups in opposite order"),
    Case("h2-smaller", "TW-H2", _differ("smaller_size"), "128 elements instead of 256; gloo aborts the culprit itself"),
    Case("h2-size", "TW-H2", _differ("other_size"), "512 elements instead of 256; gloo aborts a victim"),
    Case("h2-dtype", "TW-H2", _differ("other_dtype"), "float64 instead of float32; gloo aborts a victim"),
    Case("h2-root", "TW-H2", _wrong_root, "broadcast from another root"),
    Case("h2-split", "TW-H2", _split, "two ranks call broadcast, two all_reduce: no culprit to name",
         suspects=lambda rank: [], sides=_halves),
    Case("h3-sigstop", "TW-H3", _stop_inside, "SIGSTOP within all_reduce", mends=True),
    Case("h3-link", "TW-H3", _link_down, "link down", needs="links", settings=_BULK),
    Case("h3-choke", "TW-H3", _choke(8), "egress choked to 8 kbit/s", needs="links", settings=_BULK),
    Case("s1-sleep", "TW-S1", _late, "sleeps 0.2 s in each step", mends=True, seconds=20),
    Case("s1-duty", "TW-S1", _duty, "stopped 9/10 of the time", mends=True, seconds=20),
    Case("s1-gc", "TW-S1", _collect_garbage, "garbage collection in each step", mends=True, seconds=20),
    Case("s1-loader", "TW-S1", _load, "data loader takes 0.2 s for a batch", mends=True, seconds=20),
    Case("s1-quota", "TW-S1", _quota, "CPU quota of 5 %", needs="quota", settings={"spin": 0.02}, mends=True,
         seconds=20, evidence="throttled by its CPU quota"),
    Case("s2-egress", "TW-S2", _choke(_THROTTLED), "egress throttled to 40 Mbit/s", needs="links", settings=_BULK,
         mends=True, seconds=20),
    Case("s2-loss", "TW-S2", _lose(0.1), "10 % of the packets to it are lost", needs="loss", settings=_BULK,
         mends=True, seconds=20, hang_seconds=10.0),
    Case("s3-one", "TW-S3", _late_and_choked, "late by 0.2 s, and egress throttled", needs="links", settings=_BULK,
         mends=True, seconds=20),
    Case("s3-two", "TW-S3", _late_and_another_choked, "late by 0.2 s, and another rank's egress throttled",
         needs="links", settings=_BULK, mends=True, seconds=20, suspects=lambda rank: [rank, _other(rank)]),
    Case("healthy", "", _train_long, "200 rounds and more of mixed sizes, two groups", settings=_MIXED, mends=True,
         seconds=4),
    Case("checkpoint-all", "", _checkpoint_all, "all ranks write a checkpoint for 5 s", mends=True, seconds=8),
    Case("checkpoint-one", "", _away("checkpoint", True), "rank 0 writes a checkpoint and declares it", mends=True,
         only_rank=0, notice=True, stack="checkpoint", seconds=_AWAY + 1),
    Case("evaluation-one", "", _away("evaluate", True), "rank 0 evaluates and declares it", mends=True, only_rank=0,
         notice=True, stack="evaluate", seconds=_AWAY + 1),
    Case("compile", "", _nothing, "a first step of 5 s", settings={"compile": 5.0}, seconds=9),
    Case("last-batch", "", _last_batch, "an uneven last batch, four times", mends=True),
    Case("uneven", "", _uneven, "40 % more compute in one rank", mends=True),
    Case("slow-step", "", _slow_step, "one step takes 1.5 s", mends=True),
    Case("huge-transfer", "", _huge_transfer, "one all_reduce that takes longer than the hang gate", needs="links",
         mends=True, seconds=9),
    Case("little-loss", "", _lose(0.01), "1 % of the packets lost", needs="loss", settings=_BULK, mends=True),
    Case("elastic", "", _restart, "a rank is killed, and the elastic launcher starts all again", seconds=8),
    Case("agent-killed", "", _kill_service("node1"), "an agent is killed, and started again after 4 s; training "
         "goes on", needs="services", mends=True),
    Case("analyzer-killed", "", _kill_service("analyzer"), "the analyzer is killed, and started again after 4 s; "
         "training goes on", needs="services", mends=True),
    Case("clock-step", "", _step_clock, "a rank's wall clock steps by an hour, back and forth", needs="clock",
         mends=True),
    Case("corrupt-page", "", _corrupt, "the page of a rank is overwritten with noise; training goes on",
         settings={"compute": 0.001}),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
