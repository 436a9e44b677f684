"""Many standstills, what is said of each, and the counts that the page of results shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import score, standstill
from .replay import explanations

_CHUNK = 50
_REPLAYED = ("local", "group", "pair")  # places where one rank explains the standstill
_APART = ("nobody", "unseen")  # places that have rows of their own
OUTCOMES = (score.RIGHT, score.OPEN, score.WRONG, score.NOTHING)


@dataclass(frozen=True, slots=True)
class Row:
    """One standstill. `explanations`: how many ranks alone would explain it, and whether the culprit is one."""

    seed: int
    kind: str
    place: str
    ranks: int
    culprits: int
    num_faults: int
    noise: str
    is_over: bool
    outcome: str = ""
    code: str = ""
    confidence: str = ""
    named: int = 0  # ranks that were named, or are in the sides
    is_alone: bool = False  # one rank was named
    is_included: bool = False  # a culprit is named, in a side, or among the explanations that the analyzer had
    explanations: int = 0
    is_explained: bool = False
    dead: str = ""  # the outcome once a person has ended the job; "" where all had ended before
    is_same: bool = False  # ranks and class, live and dead

    @property
    def is_plain(self) -> bool:
        """One fault, a rank to blame of which pages tell, and all pages as they should be."""
        return self.num_faults == 1 and not self.noise and self.place not in _APART


def seeds(seed: int, count: int) -> range:
    return range(seed * 1_000_000, seed * 1_000_000 + count)


def measure(seed: int, *, with_replay: bool = True) -> Row:
    found = standstill.make(seed)
    fault = found.fault
    noise, culprits = found.noise_kind, len(fault.culprits)
    facts = (seed, fault.kind, fault.place, found.world_size, culprits, found.num_faults, noise, found.is_over)
    if found.is_over:
        return Row(*facts)
    live = score.judge(found.player, found.noise)
    is_compared = fault.place in _REPLAYED and culprits == found.num_faults == 1 and not noise
    explaining = explanations(found.player) if with_replay and is_compared else []
    dead, is_same = "", False
    if not found.noise_kind and any(state.is_alive for state in found.player.ranks):
        score.end_all(found.player)
        told = score.judge(found.player)
        dead = told.outcome(fault.culprits)
        is_same = told.claim == live.claim
    return Row(
        *facts,
        outcome=live.outcome(fault.culprits),
        code=live.code,
        confidence=live.confidence,
        named=len(live.named or live.sides),
        is_alone=len(live.named) == 1,
        is_included=live.includes(fault.culprits),
        explanations=len(explaining),
        is_explained=not set(explaining).isdisjoint(fault.culprits),
        dead=dead,
        is_same=is_same,
    )


def measure_all(numbers: Iterable[int], processes: int, *, with_replay: bool = True) -> list[Row]:
    """In the order of the seeds, with any number of processes."""
    one = partial(measure, with_replay=with_replay)
    if processes == 1:
        return list(map(one, numbers))
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(one, numbers, chunksize=_CHUNK))


def tables(rows: Sequence[Row]) -> dict[str, Any]:
    """The counts of the page."""
    stood = [row for row in rows if not row.is_over]
    plain = [row for row in stood if row.is_plain]
    single = [row for row in stood if row.num_faults == 1 and row.place not in _APART]
    lived = [row for row in stood if row.dead]
    high = [row for row in stood if row.confidence == "high" and row.outcome == score.WRONG]
    return {
        "runs": len(rows),
        "over": dict(sorted(Counter(row.kind for row in rows if row.is_over).items())),
        "stood": len(stood),
        **_figures(plain),
        "one culprit": _figures([row for row in plain if row.culprits == 1]),  # which a chooser sees
        "by kind": _by(single, "kind"),
        "by ranks": _by(single, "ranks"),
        "by place": _by(single, "place"),
        "by pages": {noise or "fresh": _outcomes([row for row in single if row.noise == noise])
                     for noise in ("", *standstill.NOISES)},
        "nobody": _outcomes([row for row in stood if row.place == "nobody"]),
        "nobody by kind": _by([row for row in stood if row.place == "nobody"], "kind"),
        "unseen": _outcomes([row for row in stood if row.place == "unseen"]),
        "two faults": _outcomes([row for row in stood if row.num_faults == 2]),
        "by confidence": _by([row for row in plain if row.confidence], "confidence"),
        "high on an innocent": {
            "one fault, fresh pages": [row.seed for row in high if row.num_faults == 1 and not row.noise],
            "two faults": [row.seed for row in high if row.num_faults == 2 and not row.noise],
            "a page late, stale or missing": [row.seed for row in high if row.noise],
        },
        "two faults, fresh": sum(row.num_faults == 2 and not row.noise for row in stood),
        "noisy": sum(bool(row.noise) for row in stood),
        "ambiguity": _ambiguity([row for row in plain if row.culprits == 1]),
        "dead": {"runs": len(lived), "same": sum(row.is_same for row in lived),
                 "live": _outcomes(lived), "dead": dict(Counter(row.dead for row in lived))},
        "wrong": [row.seed for row in plain if row.outcome == score.WRONG][:50],
    }  # fmt: skip


def _figures(rows: Sequence[Row]) -> dict[str, Any]:
    """With one fault, a rank to blame and fresh pages."""
    return {
        "plain": _outcomes(rows),
        "named alone": sum(row.is_alone for row in rows),
        "right alone": sum(row.is_alone and row.outcome == score.RIGHT for row in rows),
        "included": sum(row.is_included for row in rows),
        "at most two": sum(row.outcome in (score.RIGHT, score.OPEN) and row.named <= 2 for row in rows),
    }


def _outcomes(rows: Sequence[Row]) -> dict[str, int]:
    counted = Counter(row.outcome for row in rows)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def _by(rows: Sequence[Row], field: str) -> dict[str, dict[str, int]]:
    parts: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        parts[getattr(row, field)].append(row)
    return {str(key): _outcomes(parts[key]) for key in sorted(parts)}


def _ambiguity(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """By place: whether the culprit is among the ranks that would explain the standstill, and how many those are."""
    found = {}
    for place in _REPLAYED:
        own = [row for row in rows if row.place == place]
        found[place] = {
            "runs": len(own),
            "culprit among them": sum(row.is_explained for row in own),
            "one": sum(row.is_explained and row.explanations == 1 for row in own),
            "two": sum(row.is_explained and row.explanations == 2 for row in own),
        }
    return found
