"""One standstill of a seed: a program, its fault, where it stood, and what is known of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import checks, faults, programs
from .acts import Fault
from .caught import catch
from .evidence import Noise
from .play import Player

if TYPE_CHECKING:
    from .programs import Program

NOISES = ("late", "stale", "missing")
SHARE_OF_NOISE = 0.05
"""Standstills with each of these in one page."""
SHARE_OF_TWO = 0.05
"""Standstills with a second fault."""
SHARE_OF_TWO_RANKS = 0.35
SHARE_OF_CAUGHT = 0.1
"""Jobs of which ranks have caught a signal before, where the fault is none and no process dies by itself."""
SHARE_OF_LAUNCHERS = 0.5
"""Jobs of which all processes are ended once one has failed, as torchrun does."""
ENDS = ("die", "signal to one", "signal to some", "signal to all", *checks.KINDS)
"""Faults that end a process, or are signals themselves."""
LATE_SECONDS = 34.0
"""For so long after the standstill a late page shows an earlier time: the first looks see it."""


@dataclass(slots=True)
class Standstill:
    """Attributes:
    healthy, program: without and with the fault.
    fault: the first; of two faults the culprits of both count.
    noise_kind: "" where all pages are as they should be.
    is_over: no rank waits or stands still: the program has come through.
    """

    seed: int
    healthy: Program
    program: Program
    fault: Fault
    num_faults: int
    player: Player
    noise_kind: str
    noise: Noise | None
    is_over: bool

    @property
    def world_size(self) -> int:
        return self.program.world_size


def make(seed: int, kinds: Sequence[str] = faults.KINDS, worlds: Sequence[int] = programs.WORLDS) -> Standstill:
    """The standstill of this seed."""
    source = random.Random(f"standstill {seed}")
    kind, befallen = source.choice(kinds), None
    while befallen is None:  # a program may lack what this kind befalls
        larger = [size for size in worlds if size > 2]
        is_pair = 2 in worlds and (not larger or source.random() < SHARE_OF_TWO_RANKS)
        healthy = programs.make(source.randrange(1 << 32), worlds=[2] if is_pair else larger)
        befallen = faults.befall(healthy, source, kind)
    program, fault = befallen
    num_faults = 1
    if fault.culprits and source.random() < SHARE_OF_TWO:
        again = faults.befall(program, source, source.choice(kinds))
        if again is not None and again[1].culprits:
            program, second = again
            culprits = tuple(sorted({*fault.culprits, *second.culprits}))
            fault = Fault(fault.kind, culprits, fault.place, f"{fault.what}; {second.what}")
            num_faults = 2
    player = Player(program, source, has_launcher=source.random() < SHARE_OF_LAUNCHERS)
    player.play()
    signals = random.Random(f"caught {seed}")  # its own: other standstills stay as they are
    if kind not in ENDS and signals.random() < SHARE_OF_CAUGHT:
        catch(player, signals)
    noise_kind, noise = _noise(player, source)
    return Standstill(seed, healthy, program, fault, num_faults, player, noise_kind, noise, is_over(player))


def is_over(player: Player) -> bool:
    """Whether all ranks came to the end of their calls."""
    return all(state.is_done for state in player.ranks)


def _noise(player: Player, source: random.Random) -> tuple[str, Noise | None]:
    drawn = source.random()
    if drawn >= SHARE_OF_NOISE * len(NOISES):
        return "", None
    kind = NOISES[int(drawn / SHARE_OF_NOISE)]
    rank = source.randrange(len(player.ranks))
    if kind == "missing":
        return kind, Noise(rank, None)
    at = player.now * source.uniform(0.3, 1.0)
    return kind, Noise(rank, at, float("inf") if kind == "stale" else player.now + LATE_SECONDS)
