"""The charts of the page as plain numbers and strings; the template draws them, and escapes what it draws."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

from .. import words
from .history import UNSEEN
from .rank_status import STATES, status_text, statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..model import Observation
    from .history import Episode, Family, History, Sample

WIDTH = 960
_LABEL, _MARGIN = 104, 16  # left and right of the lanes
_MAX_LANES = 64  # of single ranks; blocks of them, for larger jobs, are half as many
_MAX_FAMILIES = 6
_MAX_CELLS = 4096
_NUM_BINS = 6


@dataclass(frozen=True)
class Box:
    """A rectangle with what a pointer shows on it."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


@dataclass(frozen=True)
class Mark:
    """A text at a place: of an axis, a lane, a cell, or the beginning of a finding."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Lanes:
    """Who did what when: one lane per rank, or per block of ranks."""

    height: float
    lane: float
    labels: list[Mark]
    boxes: list[Box]
    ticks: list[Mark]
    findings: list[Mark]
    ranks_per_lane: int


@dataclass(frozen=True)
class Curve:
    """Rounds per second of one family of process groups."""

    title: str
    top: str
    band: str
    line: str
    ticks: list[Mark]
    findings: list[Mark]


@dataclass(frozen=True)
class HeatMap:
    """A cell per rank, or per block of ranks that shows the greatest value among them."""

    title: str
    caption: str
    width: float
    height: float
    style: str  # crowded: cells are too small for borders
    boxes: list[Box]
    suspects: list[Box]
    labels: list[tuple[Mark, str]]  # with the style of the cell
    edges: list[str]  # where the bins begin, and the greatest value


def suspects_of(episodes: Sequence[Episode]) -> list[int]:
    """The suspects of all findings, notices left out, the most suspect first and each once."""
    findings = [episode.finding for episode in episodes if episode.finding.level == "finding"]
    return list(dict.fromkeys(rank for finding in findings for rank in finding.suspects))


def lanes(history: History, suspects: Sequence[int]) -> Lanes:
    """The lanes of all ranks. Where one stands for several ranks, suspects have lanes of their own, first."""
    samples = history.samples
    world = max(len(sample.states) for sample in samples)
    step = 1 if world <= _MAX_LANES else ceil(world / (_MAX_LANES // 2))
    if step == 1:
        rows = [(f"rank {rank}", range(rank, rank + 1)) for rank in range(world)]
    else:
        rows = [(f"rank {rank}", range(rank, rank + 1)) for rank in suspects if rank < world]
        blocks = [range(first, min(first + step, world)) for first in range(0, world, step)]
        rows += [(f"ranks {ranks[0]}-{ranks[-1]}", ranks) for ranks in blocks]
    height = 22.0 if len(rows) <= 16 else 14.0
    at = _time_axis(samples)
    named = set(suspects)
    boxes = []
    for row, (label, ranks) in enumerate(rows):
        drawn = [(sample, _gravest(sample, ranks)) for sample in samples]
        for state, run in groupby(drawn, key=lambda pair: pair[1]):
            part = [sample for sample, _ in run]
            style = "unseen" if state == UNSEEN else STATES[state]
            if style == "absent" and named.isdisjoint(ranks):
                style = "behind"  # ranks come later than others all the time: that is no trouble yet
            start, end = part[0].start, part[-1].end
            title = f"{label}: {style}, {_span(start - samples[0].start, end - samples[0].start)}"
            boxes.append(Box(at(start), row * height, max(at(end) - at(start), 1.0), height - 2, style, title))
    bottom = len(rows) * height
    return Lanes(
        bottom + 24,
        height,
        [Mark(_LABEL - 8, row * height + height / 2, label) for row, (label, _) in enumerate(rows)],
        boxes,
        _ticks(samples, at, bottom + 14),
        _beginnings(history, at),
        step,
    )


def curves(history: History) -> list[Curve]:
    """Rounds per second: the families that findings name first, then the largest groups."""
    samples = history.samples
    named = {episode.finding.process_group for episode in history.episodes.values()}
    families: list[Family] = list(dict.fromkeys(family for sample in samples for family in sample.rates))
    families.sort(key=lambda family: (family.name not in named, -family.size, family.name))
    at = _time_axis(samples)
    return [_curve(history, family, at) for family in families[:_MAX_FAMILIES]]


def heat_maps(history: History, suspects: Sequence[int]) -> list[HeatMap]:
    """What tells ranks apart at the end, as far as it was measured and is not the same for all."""
    last = history.last
    assert last is not None, "a history without observations has no charts"
    waiting = {status.rank: status.seconds if status.state == "waits" else 0.0 for status in history.statuses}
    behind = {status.rank: float(status.behind) for status in history.statuses}
    maps = [
        ("Waiting", "time in the same operation", waiting, words.seconds),
        ("Behind", "operations that others of the same group have begun and this rank has not", behind, _count),
    ]
    if history.timed is not None:
        timed = statuses(history.timed)
        inside = {p.rank: p.seconds_per_round for p in timed if p.seconds_per_round is not None}
        caption = "mean time inside a round while operations were timed: the rank that waits least enters last"
        maps.append(("T", caption, inside, _milliseconds))
    starved = _cpu_wait(last, history.previous)
    if max(starved.values(), default=0.0) >= 0.01:
        maps.append(("CPU", "share of time that the process could have run and got no CPU", starved, _share))
    world = last.world_size
    return [_heat_map(*one, world, suspects) for one in maps if max(one[2].values(), default=0.0) > 0]


def rank_rows(history: History, suspects: Sequence[int]) -> list[tuple[str, ...]]:
    """One row per rank; of more than 64 ranks the suspects and the most serious ones."""
    last = history.last
    assert last is not None, "a history without observations has no charts"
    found = list(history.statuses)
    if len(found) > _MAX_LANES:
        found.sort(key=lambda status: (status.rank not in suspects, -STATES.index(status.state), -status.behind))
        found = found[:_MAX_LANES]
    rows: list[tuple[str, ...]] = []
    for status in found:
        rank = last.ranks[status.rank]
        done = sum(group.completed for group in rank.process_groups)
        text = status_text(status)
        if rank.process.exit_reason:
            text += f": {rank.process.exit_reason}"
        seconds = words.seconds(status.seconds) if status.seconds else ""
        cpu = f"{rank.process.cpu_seconds:.1f}"
        rows.append((str(status.rank), rank.node, str(rank.pid), text, seconds, f"{done:,}", str(status.behind), cpu))
    return rows


def _curve(history: History, family: Family, at: Callable[[float], float]) -> Curve:
    samples = [sample for sample in history.samples if family in sample.rates]
    rates = [sample.rates[family] for sample in samples]
    top = max((rate.high for rate in rates), default=0.0) or 1.0
    bottom = 72.0

    def y(value: float) -> float:
        return round(bottom - value / top * (bottom - 8), 1)

    xs = [at((sample.start + sample.end) / 2) for sample in samples]
    upper = [f"{x},{y(rate.high)}" for x, rate in zip(xs, rates, strict=True)]
    lower = [f"{x},{y(rate.low)}" for x, rate in zip(xs, rates, strict=True)]
    middle = [f"{x},{y(rate.middle)}" for x, rate in zip(xs, rates, strict=True)]
    return Curve(
        f"{family.name}, groups of {family.size:,}",
        f"{top:.3g}/s",
        " ".join(upper + lower[::-1]),
        " ".join(middle),
        _ticks(history.samples, at, bottom + 16),
        _beginnings(history, at),
    )


def _heat_map(
    title: str,
    caption: str,
    values: dict[int, float],
    text: Callable[[float], str],
    world: int,
    suspects: Sequence[int],
) -> HeatMap:
    block = ceil(world / _MAX_CELLS)
    cells = ceil(world / block)
    crowded = cells > 256  # neighbours of one colour become one box: the page stays small
    columns = cells if cells <= 16 else 16 if cells <= 256 else 64
    size = min(44.0, 448 / columns)
    top = max(values.values())
    blocks = [range(first, min(first + block, world)) for first in range(0, world, block)]
    worst = [max(values.get(rank, -1.0) for rank in ranks) for ranks in blocks]
    bins = [-1 if value < 0 else min(int(value / top * _NUM_BINS), _NUM_BINS - 1) for value in worst]

    def x(cell: int) -> float:
        return cell % columns * size

    def y(cell: int) -> float:
        return cell // columns * size

    boxes = []
    for row in range(ceil(cells / columns)):
        indices = range(row * columns, min((row + 1) * columns, cells))
        for _, run in groupby(indices, key=lambda i: bins[i] if crowded else i):
            part = list(run)
            known = [worst[i] for i in part if worst[i] >= 0]
            what = _range_text(known, text)
            first, last = part[0] * block, min((part[-1] + 1) * block, world) - 1
            who = f"rank {first}" if first == last else f"ranks {first}-{last}"
            style = "unseen" if bins[part[0]] < 0 else f"heat{bins[part[0]]}"
            boxes.append(Box(x(part[0]), y(part[0]), len(part) * size, size, style, f"{who}: {what}"))
    rings = [(rank, rank // block) for rank in suspects if rank < world]
    return HeatMap(
        title,
        caption if block == 1 else f"{caption}; a cell is the greatest of {block} ranks",
        columns * size,
        ceil(cells / columns) * size,
        "crowded" if crowded else "roomy",
        boxes,
        [Box(x(i), y(i), size, size, "suspect", f"suspect: rank {rank}") for rank, i in rings],
        [(Mark(x(i) + size / 2, y(i) + size / 2, str(i)), boxes[i].style) for i in range(world if world <= 64 else 0)],
        [text(top * i / _NUM_BINS) for i in range(_NUM_BINS + 1)],
    )


def _range_text(values: list[float], text: Callable[[float], str]) -> str:
    if not values:
        return "not known"
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _cpu_wait(last: Observation, previous: Observation | None) -> dict[int, float]:
    """The share of time, since the previous observation, that a process was runnable and did not run."""
    if previous is None or last.time <= previous.time:
        return {}
    shares = {}
    for number, rank in last.ranks.items():
        before = previous.ranks.get(number)
        if before is not None and before.pid == rank.pid:
            waited = rank.process.wait_seconds - before.process.wait_seconds
            shares[number] = min(max(waited / (last.time - previous.time), 0.0), 1.0)
    return shares


def _gravest(sample: Sample, ranks: range) -> int:
    seen = [state for state in sample.states[ranks.start : ranks.stop] if state != UNSEEN]
    return max(seen, default=UNSEEN)


def _time_axis(samples: Sequence[Sample]) -> Callable[[float], float]:
    start, end = samples[0].start, samples[-1].end
    scale = (WIDTH - _LABEL - _MARGIN) / ((end - start) or 1.0)
    if end <= start:  # a single poll: it fills the width
        return lambda time: float(_LABEL)
    return lambda time: round(_LABEL + min(max(time - start, 0.0), end - start) * scale, 1)


def _ticks(samples: Sequence[Sample], at: Callable[[float], float], y: float) -> list[Mark]:
    start, end = samples[0].start, samples[-1].end
    if end <= start:
        return []
    steps = [unit * factor for unit in (1, 60, 3600, 86400) for factor in (1, 2, 5, 10, 20, 30)]
    step = next((step for step in steps if (end - start) / step <= 8), 86400 * 30)
    return [Mark(at(start + t), y, _clock(t)) for t in range(0, int(end - start) + 1, step)]


def _beginnings(history: History, at: Callable[[float], float]) -> list[Mark]:
    return [
        Mark(at(episode.first), 0, episode.finding.code)
        for episode in history.episodes.values()
        if episode.finding.level == "finding"
    ]


def _clock(seconds: int) -> str:
    """12 s below a minute, else minutes and seconds as on a clock."""
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _span(start: float, end: float) -> str:
    return f"{start:.0f} s to {end:.0f} s" if end > start else "at one poll"


def _count(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms"


def _share(value: float) -> str:
    return f"{value:.0%}"
