"""The charts of the page as plain numbers and strings; the template draws them, and escapes what it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, cos, pi, sin
from typing import TYPE_CHECKING, NamedTuple

from .. import words
from ..numbered import without_number
from .history import UNSEEN
from .rank_status import STATES, status_text, statuses

if TYPE_CHECKING:
    from ..model import CircleRank
    from ..numbered import Family
    from .history import Episode, History, Interval

_MAX_LANES = 64  # of single ranks; blocks of them, for larger jobs, are half as many
_MAX_FAMILIES = 6
_MAX_CELLS = 4096
_NUM_BINS = 6
_MAX_PARTS = 256  # of lanes, in words
_LEAST_WIDTH = 0.15  # of the plot, in percent, as all that lies along the time
_MIN_LABELLED = 12.0  # a segment that is wide enough to have its state written into it
_LABELS_APART, _MAX_LABEL_ROWS, _LABEL_ROW = 22.0, 4, 14.0
_CURVE_HEIGHT = 64.0
_MIN_CPU_WAIT = 0.1
_PLAIN = ("moves", "idle", "unseen")  # states that go without a word


_SHORT = {"behind": "missing", "absent": "missing"}  # of other states, the state itself


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
    style: str = ""


@dataclass(frozen=True)
class LanePart:
    """A part of a lane in words: who, from when to when, in what state."""

    who: str
    span: str
    state: str


@dataclass(frozen=True, kw_only=True)
class _Plot:
    """A plot over the time of the job, which is 100 wide."""

    height: float
    ticks: list[Mark]
    findings: list[Mark]

    @property
    def headroom(self) -> float:
        """The room above the plot, for the labels of findings."""
        return 18.0 - min(mark.y for mark in self.findings) if self.findings else 4.0


@dataclass(frozen=True, kw_only=True)
class Lanes(_Plot):
    """The states of ranks over time: a lane per rank, or per block of ranks."""

    lane: float
    labels: list[Mark]  # those of suspects have a style
    boxes: list[Box]
    texts: list[Mark]  # in boxes, with their styles
    parts: list[LanePart]
    num_parts: int
    ranks_per_lane: int


@dataclass(frozen=True, kw_only=True)
class Curve(_Plot):
    """Rounds per second of one family of process groups."""

    title: str
    top: str
    band: str
    line: str


@dataclass(frozen=True, kw_only=True)
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
    greatest: str  # and its ranks, for a reader who cannot see the map


@dataclass(frozen=True, kw_only=True)
class Circle:
    """Ranks that wait for each other, clockwise from the top, in a square."""

    size: float
    radius: float
    ranks: list[Mark]
    arrows: list[tuple[float, float, float]]  # between two ranks: where, and to which side in degrees
    lines: list[str]  # the same in words


def circle(links: Sequence[CircleRank]) -> Circle:
    """The drawing of a circle of waits."""
    radius = max(55.0, 8.0 * len(links))
    middle = radius + 20.0

    def at(place: float) -> tuple[float, float]:
        turn = 2 * pi * place / len(links)
        return round(middle + radius * sin(turn), 1), round(middle - radius * cos(turn), 1)

    after = [*links[1:], links[0]]
    return Circle(
        size=2 * middle,
        radius=radius,
        ranks=[Mark(*at(place), str(link.rank)) for place, link in enumerate(links)],
        arrows=[(*at(place + 0.5), round(360 * (place + 0.5) / len(links), 1)) for place in range(len(links))],
        lines=[
            f"rank {link.rank} waits in {link.waits_in} for rank {other.rank}"
            for link, other in zip(links, after, strict=True)
        ],
    )


def suspects_of(episodes: Sequence[Episode]) -> list[int]:
    """The suspects of all findings, notices left out, the most suspect first and each once."""
    findings = [episode.finding for episode in episodes if episode.finding.level == "finding"]
    return list(dict.fromkeys(rank for finding in findings for rank in finding.suspects))


def lanes(history: History, suspects: Sequence[int]) -> Lanes:
    """The lanes of all ranks. Where one stands for several ranks, suspects have lanes of their own, first."""
    intervals = history.intervals
    world = max(len(interval.states) for interval in intervals)
    step = 1 if world <= _MAX_LANES else ceil(world / (_MAX_LANES // 2))
    if step == 1:
        rows = [(f"rank {rank}", range(rank, rank + 1)) for rank in range(world)]
    else:
        rows = [(f"rank {rank}", range(rank, rank + 1)) for rank in suspects if rank < world]
        blocks = [range(first, min(first + step, world)) for first in range(0, world, step)]
        rows += [(f"ranks {ranks[0]}-{ranks[-1]}", ranks) for ranks in blocks]
    height = 22.0 if len(rows) <= 16 else 15.0
    at = _time_axis(intervals)
    accused = _accused(history)
    boxes, texts, parts = [], [], []
    for row, (label, ranks) in enumerate(rows):
        drawn = [(interval, _gravest(interval, ranks)) for interval in intervals]
        for state, run in groupby(drawn, key=lambda pair: pair[1]):
            part = [interval for interval, _ in run]
            start, end = part[0].start, part[-1].end
            style = "unseen" if state == UNSEEN else STATES[state]
            if style == "absent" and not any(_is_within(start, end, accused.get(rank, ())) for rank in ranks):
                style = "behind"  # ranks come later than others all the time: that is no trouble yet
            span = _span(start - intervals[0].start, end - intervals[0].start)
            parts.append(LanePart(label, span, style))
            if style == "unseen":
                continue
            left, width = at(start), max(round(at(end) - at(start), 2), _LEAST_WIDTH)
            top, thick = (row * height, height - 2) if style != "idle" else (row * height + height / 2 - 3, 4.0)
            boxes.append(Box(left, top, width, thick, style, f"{label}: {style}, {span}"))
            if width >= _MIN_LABELLED and style not in _PLAIN:
                texts.append(Mark(left + width / 2, row * height + height / 2 - 1, _SHORT.get(style, style), style))
    bottom = len(rows) * height
    named = set(suspects)
    return Lanes(
        height=bottom,
        lane=height,
        labels=[Mark(0, 0, label, "suspect" if len(of) == 1 and of[0] in named else "") for label, of in rows],
        boxes=boxes,
        texts=texts,
        parts=parts[:_MAX_PARTS],
        num_parts=len(parts),
        ticks=_ticks(intervals, at, bottom + 14),
        findings=_beginnings(history, at),
        ranks_per_lane=step,
    )


def _accused(history: History) -> dict[int, list[tuple[float, float]]]:
    """When a finding named each rank: from the beginning of the trouble, where that is known."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for episode in history.episodes.values():
        finding = episode.finding
        if finding.level == "finding":
            for rank in finding.suspects:
                spans.setdefault(rank, []).append((episode.begin, episode.last))
    return spans


def _is_within(start: float, end: float, spans: Iterable[tuple[float, float]]) -> bool:
    return any(start <= last and end >= first for first, last in spans)


def curves(history: History) -> tuple[list[Curve], list[Family]]:
    """Rounds per second, the families that findings name first, then the largest groups; and families that stood
    still."""
    intervals = history.intervals
    named = {episode.finding.process_group for episode in history.episodes.values()}
    named |= {without_number(name) for name in named}
    families: list[Family] = list(dict.fromkeys(family for interval in intervals for family in interval.rates))
    families.sort(key=lambda family: (family.name not in named, -family.size, family.name))
    moved = [family for family in families if any(s.rates[family].high > 0 for s in intervals if family in s.rates)]
    at = _time_axis(intervals)
    return [_curve(history, family, at) for family in moved[:_MAX_FAMILIES]], [
        family for family in families if family not in moved
    ]


def heat_maps(history: History, suspects: Sequence[int], hang_seconds: float) -> list[HeatMap]:
    """The measures that differ between ranks at the end. A wait that is no hang yet is not as dark as one that is."""
    last = history.last
    assert last is not None, "a history without observations has no charts"
    waiting = {status.rank: status.seconds if status.state == "waits" else 0.0 for status in history.statuses}
    # Counts of ranks that complete operations were read one after the other: that they differ says nothing.
    behind = {s.rank: 0.0 if s.state == "moves" else float(s.behind) for s in history.statuses}
    longest = max(hang_seconds, *waiting.values(), 0.0)
    caption = "operations that others of the same group have begun and this rank has not"
    found = [
        _Measure("Waiting", "time in the same operation", waiting, words.seconds, longest),
        _Measure("Behind", caption, behind, _count),
    ]
    if history.timed is not None:
        timed = statuses(history.timed)
        inside = {p.rank: p.seconds_per_round for p in timed if p.seconds_per_round is not None}
        caption = "mean time inside a round while operations were timed: the rank that waits least enters last"
        found.append(_Measure("T", caption, inside, _milliseconds))
    starved = history.cpu_wait()
    if max(starved.values(), default=0.0) >= _MIN_CPU_WAIT:
        caption = "share of the last polls' time that the process could have run and got no CPU"
        found.append(_Measure("CPU", caption, starved, words.percent, 1.0))
    return [_heat_map(one, last.world_size, suspects) for one in found if max(one.values.values(), default=0.0) > 0]


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
    intervals = [interval for interval in history.intervals if family in interval.rates]
    rates = [interval.rates[family] for interval in intervals]
    top = max((rate.high for rate in rates), default=0.0) or 1.0

    def points(values: Iterable[float]) -> list[str]:
        """A interval is a step: its rate is the mean over its time."""
        ys = [round(_CURVE_HEIGHT - value / top * (_CURVE_HEIGHT - 2), 1) for value in values]
        return [
            f"{at(x)},{y}" for interval, y in zip(intervals, ys, strict=True) for x in (interval.start, interval.end)
        ]

    upper, lower = points(rate.high for rate in rates), points(rate.low for rate in rates)
    return Curve(
        title=f"{family.name}, groups of {family.size:,}",
        top=f"{words.per_second(top)}/s",
        height=_CURVE_HEIGHT,
        band=" ".join(upper + lower[::-1]),
        line=" ".join(points(rate.middle for rate in rates)),
        ticks=_ticks(history.intervals, at, _CURVE_HEIGHT + 15),
        findings=_beginnings(history, at),
    )


class _Measure(NamedTuple):
    """The values of a heat map."""

    title: str
    caption: str
    values: dict[int, float]  # by rank
    text: Callable[[float], str]
    whole: float | None = None  # what the darkest colour stands for; None: the greatest value


def _heat_map(measure: _Measure, world: int, suspects: Sequence[int]) -> HeatMap:
    title, caption, values, text, whole = measure
    block = ceil(world / _MAX_CELLS)
    cells = ceil(world / block)
    crowded = cells > 256  # neighbours of one colour become one box: the page stays small
    columns = cells if cells <= 16 else 16 if cells <= 256 else 64
    size = min(44.0, 448 / columns)
    greatest = max(values.values())
    of_greatest = words.ranks([rank for rank, value in values.items() if value == greatest])
    top = whole or greatest
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
        title=title,
        caption=caption if block == 1 else f"{caption}; a cell is the greatest of {block} ranks",
        width=columns * size,
        height=ceil(cells / columns) * size,
        style="crowded" if crowded else "roomy",
        boxes=boxes,
        suspects=[Box(x(i), y(i), size, size, "suspect", f"suspect: rank {rank}") for rank, i in rings],
        labels=[
            (Mark(x(i) + size / 2, y(i) + size / 2, str(i)), boxes[i].style) for i in range(world if world <= 64 else 0)
        ],
        edges=[text(top * i / _NUM_BINS) for i in range(_NUM_BINS + 1)],
        greatest=f"at most {text(greatest)}, at {of_greatest}",
    )


def _range_text(values: list[float], text: Callable[[float], str]) -> str:
    if not values:
        return "not known"
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _gravest(interval: Interval, ranks: range) -> int:
    seen = [state for state in interval.states[ranks.start : ranks.stop] if state != UNSEEN]
    return max(seen, default=UNSEEN)


def _time_axis(intervals: Sequence[Interval]) -> Callable[[float], float]:
    start, end = intervals[0].start, intervals[-1].end
    scale = 100.0 / ((end - start) or 1.0)
    return lambda time: round(min(max(time - start, 0.0), end - start) * scale, 2)


def _ticks(intervals: Sequence[Interval], at: Callable[[float], float], y: float) -> list[Mark]:
    start, end = intervals[0].start, intervals[-1].end
    if end <= start:
        return []
    steps = [unit * factor for unit in (1, 60, 3600, 86400) for factor in (1, 2, 5, 10, 20, 30)]
    step = next((step for step in steps if (end - start) / step <= 8), 86400 * 30)
    return [Mark(at(start + t), y, _clock(t)) for t in range(0, int(end - start) + 1, step)]


def _beginnings(history: History, at: Callable[[float], float]) -> list[Mark]:
    """A mark for each finding, where the trouble began if that is known.

    A label that would lie on another goes up by a row, or is left out when there is no row left.
    """
    marks: list[Mark] = []
    for episode in sorted(history.episodes.values(), key=lambda episode: episode.begin):
        if episode.finding.level != "finding":
            continue
        x, text = at(episode.begin), episode.finding.code
        if any(mark.x == x and mark.text == text for mark in marks):
            continue
        taken = {mark.y for mark in marks if mark.text and abs(mark.x - x) < _LABELS_APART}
        free = [-_LABEL_ROW * row for row in range(_MAX_LABEL_ROWS) if -_LABEL_ROW * row not in taken]
        marks.append(Mark(x, free[0], text) if free else Mark(x, 0.0, ""))
    return marks


def _clock(seconds: int) -> str:
    """12 s below a minute, else minutes and seconds as on a clock."""
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _span(start: float, end: float) -> str:
    return f"{_clock(round(start))} to {_clock(round(end))}" if end > start else "at one poll"


def _count(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms"
