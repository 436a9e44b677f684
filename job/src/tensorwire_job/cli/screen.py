"""The screen that watch draws on a terminal of any width: over ssh, in a quarter of a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from tensorwire._ground.text import escape
from tensorwire.cli.output import count

from .. import words
from ..report.codes import MEANINGS
from ..report.rank_status import lives, middle_of_rounds, slowest, status_groups, status_text, together
from ..report.stragglers import ENOUGH
from ..stacks import grouped
from .verdict import no_finding_text, thresholds_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..model import Finding, Thresholds
    from ..numbered import Family
    from ..report import History
    from ..report.rank_status import RankStatus

# A terminal's colours of paper and ink are not known. So text has the terminal's own ink. Only text on a ground that
# is set as well is coloured; red text is bold, and says the same in words.
_FINDING = "bold white on red"
_NOTICE = "bold black on cyan"
_WELL = "black on green"
_SUSPECT = "bold red"
_MAX_STATUS_GROUPS = 8
_MAX_EVIDENCE = 4
_MAX_STACK_LINES = 12
_STACK_SHARE = 4  # a stack takes one line of so many, on a low screen
_MIN_STACK_LINES = 4
_MAX_RATES = 6
_NARROW = 60
_MIN_WHICH = 28
_LEAST_LATE = 0.01
_LEAVE = "Ctrl-C leaves; the job goes on"


@contextmanager
def screen(path: Path, thresholds: Thresholds) -> Iterator[Callable[[History, Sequence[Finding], Sequence[str]], None]]:
    """The alternate screen of the terminal while the block lasts; then the old content comes back.

    Call what the block gets to draw the job, the most important first. Lines that do not fit are cut off below; the
    last one says so. The third argument has troubles of the watch itself; the last one is drawn.
    """
    console = Console(highlight=False)

    def show(history: History, findings: Sequence[Finding], troubles: Sequence[str]) -> None:
        width, height = console.size
        drawn = draw(history, findings, path, width=width, height=height, thresholds=thresholds, troubles=troubles)
        live.update(fit(console, drawn, height), refresh=True)

    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        yield show


def fit(console: Console, drawn: RenderableType, height: int) -> RenderableType:
    """As many of the first lines as there is room for, then how to leave, and how many lines are cut off."""
    lines = console.render_lines(drawn, pad=False)
    room = height - 1
    text = _LEAVE
    if len(lines) > room:
        text = f"{_LEAVE}. {count(len(lines) - room, 'line')} more below"
    last = Segment(text[: console.width], console.get_style("dim"))
    return SegmentLines([*lines[:room], [last]], new_lines=True)


def draw(
    history: History,
    findings: Sequence[Finding],
    path: Path,
    *,
    width: int,
    height: int = 50,
    thresholds: Thresholds | None = None,
    troubles: Sequence[str] = (),
) -> RenderableType:
    """The content of the screen. A narrow one has fewer columns, a low one fewer lines of stacks."""
    parts: list[RenderableType] = [_header(history, path)]
    parts += [Text(escape(trouble), style="bold") for trouble in troubles[-1:]]
    if thresholds is not None:
        parts.append(Text(f"up {words.seconds(history.up_seconds)}; {thresholds_line(thresholds)}", style="dim"))
    stack_lines = min(max(height // _STACK_SHARE, _MIN_STACK_LINES), _MAX_STACK_LINES)
    parts += [part for finding in findings for part in _finding(finding, history, stack_lines)]
    if not any(finding.level == "finding" for finding in findings):
        parts.append(_no_finding(history, thresholds))
    parts += [Text(), _rank_status(history, findings, width)]
    rates = history.rates()
    if rates:
        parts += [Text(), *_rates(rates)]
    if not history.is_over:
        parts += [Text(), _slowest(history)]
    return Group(*parts)


def _header(history: History, path: Path) -> Text:
    last = history.last
    assert last is not None, "nothing was observed"
    counts = ", ".join(f"{number:,} {life}" for life, number in lives(last).items() if number)
    text = Text.assemble((escape(str(path)), "bold"), f"  {count(last.world_size, 'rank')}: {counts}")
    if last.silent_nodes:
        text.append(f"  no reports from {escape(words.names(last.silent_nodes))}", style="bold")
    return text


def _no_finding(history: History, thresholds: Thresholds | None) -> Text:
    verdict, _, why = no_finding_text(history, thresholds).partition(": ")
    text = Text.assemble((f" {verdict} ", "bold" if why else _WELL))
    return text.append(f" {why}" if why else "")


def _finding(finding: Finding, history: History, max_stack_lines: int) -> Iterable[RenderableType]:
    is_notice = finding.level != "finding"
    title = f" {finding.code}{' notice' if is_notice else ''} {MEANINGS[finding.code].title} "
    yield Text.assemble(
        (title, _NOTICE if is_notice else _FINDING),
        f" {history.age(finding)} ({finding.confidence} confidence): ",
        escape(finding.summary),
    )
    for fact in finding.evidence[:_MAX_EVIDENCE]:
        yield Padding(Text(escape(fact)), (0, 0, 0, 2))
    if len(finding.evidence) > _MAX_EVIDENCE:
        left = count(len(finding.evidence) - _MAX_EVIDENCE, "fact")
        yield Padding(Text(f"and {left} more: tensorwire-job diagnose", style="dim"), (0, 0, 0, 2))
    for numbers, stack in grouped(finding.stacks):
        yield Padding(Text(f"stack of {words.ranks(numbers)}:", style="dim"), (0, 0, 0, 2))
        lines = [escape(line) for line in stack.splitlines()]
        if len(lines) > max_stack_lines:
            left = count(len(lines) - max_stack_lines + 1, "line")
            lines[max_stack_lines - 1 :] = [f"and {left} more: tensorwire-job diagnose"]
        yield Padding(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), (0, 0, 0, 4))


def _rank_status(history: History, findings: Sequence[Finding], width: int) -> Table:
    narrow = width < _NARROW
    named = {rank for finding in findings if finding.level == "finding" for rank in finding.suspects}
    groups = status_groups(history.statuses, apart=named)
    suspected = {together(status) for status in history.statuses.of(named)}
    table = _table(">ranks", "where they stand", ">for")
    if not narrow:
        table.add_column("which", no_wrap=True, overflow="ellipsis", max_width=max(width // 3, _MIN_WHICH))
    for group in groups[:_MAX_STATUS_GROUPS]:
        style = _SUSPECT if together(group) in suspected and group.state not in ("moves", "waits", "idle") else ""
        seconds = words.seconds(group.seconds) if group.seconds else ""
        cells: list[str | Text] = [f"{group.num_ranks:,}", Text(escape(group.text), style=style), seconds]
        table.add_row(*cells, *(() if narrow else (group.ranks,)))
    if len(groups) > _MAX_STATUS_GROUPS:
        left = groups[_MAX_STATUS_GROUPS:]
        text = f"in {count(len(left), 'other state')}, less serious"
        table.add_row(f"{sum(group.num_ranks for group in left):,}", Text(text))
    return table


def _rates(rates: Mapping[Family, float]) -> Iterable[RenderableType]:
    table = _table("process group", ">ranks each", ">operations/s")
    for family, rate in list(rates.items())[:_MAX_RATES]:
        table.add_row(Text(escape(family.name)), f"{family.size:,}", words.per_second(rate))
    yield table
    if len(rates) > _MAX_RATES:
        yield Text(f"and {count(len(rates) - _MAX_RATES, 'kind')} more of process groups, with fewer", style="dim")


def _slowest(history: History) -> Table:
    """The ranks that others wait for, and by how much: at this moment or in timed rounds, else over many polls."""
    table = _table(">slowest", "by how much")
    late = slowest(history.statuses)
    middle = middle_of_rounds(history.statuses)
    for status in late:
        table.add_row(str(status.rank), Text(escape(_lateness(status, middle))))
    if late:
        return table
    for straggler in (one for one in history.stragglers.slowest() if one.late >= _LEAST_LATE):
        text = f"waits {words.percent(straggler.late)} of the time less than the median rank"
        table.add_row(str(straggler.rank), text if straggler.is_late() else f"{text}, which may be chance")
    if not table.rows:
        polls = history.stragglers.num_polls
        table.add_row("-", "all ranks wait alike" if polls >= ENOUGH else f"known after {ENOUGH} polls; {polls} so far")
    return table


def _lateness(status: RankStatus, middle: float) -> str:
    parts = []
    if status.state != "moves":
        parts.append(status_text(status) + (f" for {words.seconds(status.seconds)}" if status.seconds else ""))
        parts += [f"{count(status.behind, 'operation')} behind"] if status.behind else []
    if status.seconds_per_round is not None:
        own, median = words.seconds(status.seconds_per_round), words.seconds(middle)
        parts.append(f"waits {own} in an operation, the median rank {median}")
    return ", ".join(parts)


def _table(*titles: str) -> Table:
    """A title that begins with ">" sets its column flush right; the others share the room."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for title in titles:
        if title.startswith(">"):
            table.add_column(title[1:], justify="right", no_wrap=True)
        else:
            table.add_column(title, overflow="fold", ratio=1)
    return table
