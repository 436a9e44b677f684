"""Programs of the generator under torchrun and gloo: whether ranks stand and end where the simulator says."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import environment

from . import standstill
from .play import Player
from .scripts import script

if TYPE_CHECKING:
    from .acts import RankState
    from .programs import Program
    from .standstill import Standstill

WORLDS = (2, 3, 4)
PLAYS = 40
"""A program agrees if each rank stands as in one of so many plays, which differ in speed and in what has no order."""
_SLOWNESS = (1.0, 3.0, 10.0, 30.0)
_SECONDARY = ("Connection closed", "Connection reset", "Read error", "Write error", "monitoredBarrier", "Broken pipe",
              "Connection refused", "timeout", "Timed out")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a rank stands: how it is, and its last call."""

    how: str  # "in": the call has begun; "through", "own", "aborted", "interrupted", "others": it ended so
    place: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """One program."""

    found: Standstill
    real: tuple[Stand, ...]
    plays: tuple[tuple[Stand, ...], ...]

    @property
    def agrees(self) -> bool:
        return all(stand in {play[rank] for play in self.plays} for rank, stand in enumerate(self.real))


def compare(seeds: Iterator[int], count: int, folder: Path) -> list[Comparison]:
    """Run the first so many programs that have one fault and 2 to 4 ranks."""
    chosen: list[Standstill] = []
    while len(chosen) < count:
        found = standstill.make(next(seeds), worlds=WORLDS)
        if found.num_faults == 1:
            chosen.append(found)
    shutil.rmtree(folder, ignore_errors=True)
    for found in chosen:
        own = folder / str(found.world_size)
        own.mkdir(parents=True, exist_ok=True)
        (own / f"p{found.seed}.py").write_text(script(found.program, found.fault.what))
    with ThreadPoolExecutor(len(WORLDS)) as pool:
        list(pool.map(lambda size: _torchrun(folder / str(size), size), WORLDS))
    return [_compared(found, folder / str(found.world_size) / f"p{found.seed}") for found in chosen]


def _torchrun(folder: Path, size: int) -> None:
    if not folder.exists():
        return
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={size}", "--standalone"]
    module = ["-m", "job.benchmarks.standstills.real_ranks", str(folder)]
    with (folder / "log").open("w") as log:
        subprocess.run(
            [sys.executable, *launch, *module], env=environment.child(OMP_NUM_THREADS="1"), check=True, stdout=log,
            stderr=log,
        )  # fmt: skip


def _compared(found: Standstill, told: Path) -> Comparison:
    real = tuple(_real(found.program, told, rank) for rank in range(found.world_size))
    plays = tuple(dict.fromkeys(play(found.program, number) for number in range(PLAYS)))
    return Comparison(found, real, plays)


def _real(program: Program, told: Path, rank: int) -> Stand:
    seen = json.loads((told / f"{rank}.json").read_text())
    notes = seen["told"].split()
    place = int(notes[-1][1:]) if notes else -1
    how = _how(seen["status"], seen["error"], program.calls[rank][place].key if place >= 0 else "")
    return Stand(how, len(program.calls[rank]) if how == "through" else place)


def _how(status: int | None, error: str, words: str) -> str:
    last = error.strip().splitlines()[-1] if error.strip() else ""
    if status is None and "Traceback" not in error:
        return "in"
    if "KeyboardInterrupt" in last or status in (-1, -2, -15):
        return "interrupted"
    if status == 0:
        return "own" if words == "exit 0" else "through"
    if status == -6:
        return "aborted"
    return "others" if any(each in error for each in _SECONDARY) else "own"


def play(program: Program, number: int) -> tuple[Stand, ...]:
    """The ranks at the standstill of one play, by its number."""
    player = Player(program, random.Random(number), slowness=_SLOWNESS[number % len(_SLOWNESS)])
    player.play()
    return tuple(_simulated(state, len(program.calls[rank])) for rank, state in enumerate(player.ranks))


def _simulated(state: RankState, num_calls: int) -> Stand:
    end = state.end
    if end is None:
        return Stand("in", state.place - 1)
    if state.is_done:
        return Stand("through", num_calls)
    if end.kind == "interruption":
        return Stand("interrupted", state.place - 1)
    how = ("aborted" if "SIGABRT" in end.words else "others") if end.is_of_others else "own"
    return Stand(how, state.place - 1)


def by_kind(compared: Sequence[Comparison]) -> dict[str, list[int]]:
    """Programs of each fault, and how many of these agree."""
    found: dict[str, list[int]] = {}
    for one in compared:
        counts = found.setdefault(one.found.fault.kind, [0, 0])
        counts[0] += 1
        counts[1] += one.agrees
    return dict(sorted(found.items()))


def told(one: Comparison) -> Sequence[str]:
    """For a reader: where the two differ."""
    lines = [f"{one.found.seed}: {one.found.fault.what}"]
    for rank, real in enumerate(one.real):
        plays = sorted({(play[rank].how, play[rank].place) for play in one.plays})
        call = one.found.program.calls[rank][real.place : real.place + 1]
        lines.append(f"  rank {rank}: {real.how} {real.place} {call[0].name if call else ''}; simulated {plays}")
    return lines
