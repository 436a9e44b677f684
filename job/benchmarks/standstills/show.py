"""One standstill, for a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import score, standstill
from .evidence import as_told, observe
from .replay import explanations
from .shrink import shrink

if TYPE_CHECKING:
    from .evidence import Noise
    from .play import Player
    from .programs import Call

_MOST = 12  # calls of a rank that are shown


def show(seed: int) -> None:
    """Print where a program stood and what was said of it; then the same of the smallest one with that outcome."""
    found = standstill.make(seed)
    culprits = found.fault.culprits
    print(f"{found.fault.what}; culprits {list(culprits)}; page: {found.noise_kind or 'fresh'}")
    _tell(found.player, found.noise)
    print(score.judge(found.player, found.noise).outcome(culprits))
    if not found.is_over and not found.noise:
        print("\nthe smallest with this outcome:")
        _, player = shrink(found, lambda player: score.judge(player).outcome(culprits))
        _tell(player, None)


def _tell(player: Player, noise: Noise | None) -> None:
    for rank, own in enumerate(player.program.calls):
        place = player.ranks[rank].place
        made = [call for call in own[:place] if call.name not in ("init", "new_group")]
        print(f"rank {rank}: {'... ' if len(made) > _MOST else ''}{'; '.join(map(_told, made[-_MOST:]))}")
    for rank, line in as_told(observe(player, player.now + 31.0, noise)).items():
        print(f"  rank {rank}: {line}")
    print("  would explain it:", explanations(player))
    print(" ", score.judge(player, noise))


def _told(call: Call) -> str:
    """What has its default is left out."""
    facts = [f"group {call.group}"] if call.is_collective else []
    facts += [f"{name} {value}" for name in ("root", "peer") if (value := getattr(call, name)) >= 0]
    facts += [f"{name} {value}" for name in ("numel", "key", "handle") if (value := getattr(call, name))]
    return f"{call.name}({', '.join(facts)})"
