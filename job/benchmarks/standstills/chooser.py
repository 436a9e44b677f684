"""An upper mark: a chooser of the culprit that is fitted to the generator itself, on other seeds.

It knows the mix, which no analyzer may. For each rank it has facts of the evidence; a small network gives each rank a
score, and a softmax over the ranks of a job makes shares of these. With one fault, fresh pages and one rank to blame.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from . import programs, standstill
from .replay import explanations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .acts import Act, RankState
    from .play import Player
    from .programs import Call
    from .standstill import Standstill

_MOST = max(programs.WORLDS)
_HIDDEN, _EPOCHS, _BATCH, _RATE, _DECAY = 32, 60, 64, 3e-3, 1e-4
_SURE = 0.9  # from this share on the chooser names a rank


def outcomes(fitted: Iterable[int], judged: Iterable[int]) -> dict[str, int]:
    """Standstills of the second seeds by a chooser of the first: in all, right, named, and right of those named."""
    weights = _fit(*_table(fitted))
    facts, present, culprits = _table(judged)
    shares = _shares(weights, facts, present)
    first, sure = shares.argmax(axis=1), shares.max(axis=1) >= _SURE
    right = first == culprits
    return {
        "standstills": len(culprits),
        "right": int(right.sum()),
        "named": int(sure.sum()),
        "right of those named": int((right & sure).sum()),
    }


def _table(seeds: Iterable[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Facts by standstill, rank and fact; which ranks there are; and the culprits."""
    chosen = [
        (found.fault.culprits[0], facts_of(found.player)) for found in map(standstill.make, seeds) if _fits(found)
    ]
    facts = np.zeros((len(chosen), _MOST, len(chosen[0][1][0])))
    present = np.zeros((len(chosen), _MOST), dtype=bool)
    for index, (_, own) in enumerate(chosen):
        facts[index, : len(own)], present[index, : len(own)] = own, True
    return facts, present, np.array([culprit for culprit, _ in chosen])


def _fits(found: Standstill) -> bool:
    is_plain = not found.is_over and found.num_faults == 1 and not found.noise_kind
    return is_plain and len(found.fault.culprits) == 1 and found.fault.place != "unseen"


# Facts.


def facts_of(player: Player) -> list[list[float]]:
    """For each rank."""
    explaining, size = explanations(player), len(player.ranks)
    ends = [state.end.time for state in player.ranks if state.end is not None]
    signalled = sum(bool(state.signal) for state in player.ranks)
    differing, minority = _minorities(player), _minorities(player, by_line=True)
    waited = Counter(act.call.peer for state in player.ranks if (act := state.waits_for) is not None)
    rows = []
    for rank, state in enumerate(player.ranks):
        explains = rank in explaining
        end, act = state.end, state.waits_for
        words = end.words if end is not None else ""
        rows.append(
            [
                1.0, explains, explains / max(1, len(explaining)), explains and len(explaining) == 1, not explaining,
                bool(state.local), state.local == "stop", end is not None, bool(ends) and not explains,
                end is not None and end.time == min(ends), "SIGABRT" in words, "peer" in words,
                end is not None and not words, "exit" in words,
                end is not None and "peer" not in words and end.kind == "failure",
                bool(state.signal),
                bool(state.signal) and signalled == 1, signalled / size, act is not None and act.call.is_message,
                act is not None and act.call.is_collective, waited[rank] / size, differing[rank], minority[rank],
                *_own_past(state), 1.0 / size, size == 2,
            ]
        )  # fmt: skip
    return [[float(value) for value in row] for row in rows]


def _minorities(player: Player, *, by_line: bool = False) -> dict[int, float]:
    """Ranks that called something else than most at the first number of a group where calls differ; ties half."""
    found: dict[int, float] = defaultdict(float)
    calls: dict[tuple[int, int], dict[int, Act]] = defaultdict(dict)
    for state in player.ranks:
        for act in state.acts:
            if act.call.is_collective:
                calls[act.call.group, act.number][act.rank] = act
    done: set[int] = set()
    for (group, _), acts in sorted(calls.items()):
        values = {rank: act.call.line if by_line else _what(act.call) for rank, act in acts.items()}
        counted = Counter(values.values())
        if group in done or len(counted) < 2:
            continue
        done.add(group)
        most = max(counted.values())
        for rank, value in values.items():
            found[rank] += 1.0 if counted[value] < most else 0.5 if list(counted.values()).count(most) > 1 else 0.0
    return found


def _what(call: Call) -> tuple[object, ...]:
    return call.name, call.numel if call.name != "all_to_all" else 0, call.root


def _own_past(state: RankState) -> Iterator[float]:
    """What is new in the last calls of a rank: another line behind a known one, other arguments in a known line."""
    calls = [act.call for act in state.acts]
    seen: dict[int, set[int]] = defaultdict(set)
    arguments: dict[int, set[tuple[object, ...]]] = defaultdict(set)
    new_lines, new_arguments = [], []
    for before, call in pairwise(calls):
        new_lines.append(bool(seen[before.line]) and call.line not in seen[before.line])
        seen[before.line].add(call.line)
        told = _what(call), call.peer, call.counts
        new_arguments.append(bool(arguments[call.line]) and told not in arguments[call.line])
        arguments[call.line].add(told)
    for news in (new_lines, new_arguments):
        yield from (sum(news[-1:]), sum(news[-3:]), sum(news[-8:]), sum(news) / (1 + len(news)))


# The network: one hidden layer, by gradients with Adam's steps.

_Weights = list[np.ndarray]


def _fit(facts: np.ndarray, present: np.ndarray, culprits: np.ndarray) -> _Weights:
    source = np.random.default_rng(0)
    width = facts.shape[2] * 2
    weights = [source.normal(0.0, width**-0.5, (width, _HIDDEN)), np.zeros(_HIDDEN), np.zeros(_HIDDEN)]
    first, second = [np.zeros_like(each) for each in weights], [np.zeros_like(each) for each in weights]
    step = 0
    for _ in range(_EPOCHS):
        order = source.permutation(len(culprits))
        for chosen in np.array_split(order, max(1, len(order) // _BATCH)):
            step += 1
            for index, gradient in enumerate(_gradients(weights, facts[chosen], present[chosen], culprits[chosen])):
                first[index] = 0.9 * first[index] + 0.1 * gradient
                second[index] = 0.999 * second[index] + 0.001 * gradient**2
                mean, spread = first[index] / (1 - 0.9**step), second[index] / (1 - 0.999**step)
                weights[index] = weights[index] * (1 - _RATE * _DECAY) - _RATE * mean / (np.sqrt(spread) + 1e-8)
    return weights


def _with_others(facts: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Facts of a rank, and the means over the ranks of its job."""
    mean = (facts * present[..., None]).sum(axis=1, keepdims=True) / present.sum(axis=1)[:, None, None]
    return np.concatenate([facts, np.broadcast_to(mean, facts.shape)], axis=2)


def _shares(weights: _Weights, facts: np.ndarray, present: np.ndarray) -> np.ndarray:
    hidden = np.maximum(_with_others(facts, present) @ weights[0] + weights[1], 0.0)
    scores = np.where(present, hidden @ weights[2], -np.inf)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _gradients(weights: _Weights, facts: np.ndarray, present: np.ndarray, culprits: np.ndarray) -> _Weights:
    rows = _with_others(facts, present)
    hidden = np.maximum(rows @ weights[0] + weights[1], 0.0)
    error = _shares(weights, facts, present)
    error[np.arange(len(culprits)), culprits] -= 1.0
    error /= len(culprits)
    back = error[..., None] * weights[2] * (hidden > 0)
    return [np.einsum("brf,brh->fh", rows, back), back.sum(axis=(0, 1)), (error[..., None] * hidden).sum(axis=(0, 1))]
