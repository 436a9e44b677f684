"""What watch draws on a terminal. It takes any width: over ssh, in a quarter of a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..._text import escape
from ...diagnosis import words
from ...diagnosis.report.codes import MEANINGS
from ...diagnosis.report.rank_status import lives, slowest, status_groups, status_text
from ...diagnosis.report.stack import grouped
from ..output import count
from .verdict import thresholds_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from rich.console import RenderableType

    from ...diagnosis.model import Finding, Thresholds
    from ...diagnosis.report import History
    from ...diagnosis.report.history import Family
    from ...diagnosis.report.stragglers import Straggler
from ...diagnosis.report.rank_status import RankStatus

_STYLES = {"idle": "dim", "moves": "green", "ended": "dim", "waits": "yellow", "absent": "bold red",
           "stopped": "bold magenta", "lost": "bold red"}  # fmt: skip
_MAX_STATUS_GROUPS = 8
_MAX_EVIDENCE = 4
_MAX_STACK_LINES = 12
_MAX_RATES = 6
_NARROW = 60


class Screen:
    """The alternate screen of the terminal while the block lasts; what was there before comes back."""

    def __init__(self, path: Path, thresholds: Thresholds) -> None:
        self._path = path
        self._thresholds = thresholds
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, history: History, findings: Sequence[Finding], troubles: Sequence[str] = ()) -> None:
        """Draw what is known now. Most important first: what does not fit is cut off below.

        Args:
            troubles: that the watch has with itself; the last one is drawn.
        """
        width = self._console.width
        drawn = draw(history, findings, self._path, width=width, thresholds=self._thresholds, troubles=troubles)
        self._live.update(drawn, refresh=True)


def draw(
    history: History,
    findings: Sequence[Finding],
    path: Path,
    *,
    width: int,
    thresholds: Thresholds | None = None,
    troubles: Sequence[str] = (),
) -> RenderableType:
    """What the screen shows. On a narrow one some columns are left out."""
    narrow = width < _NARROW
    parts: list[RenderableType] = [_header(history, path)]
    parts += [Text(escape(trouble), style="yellow") for trouble in troubles[-1:]]
    if thresholds is not None:
        parts.append(Text(f"up {words.seconds(history.up_seconds)}; {thresholds_line(thresholds)}", style="dim"))
    parts += [part for finding in findings for part in _finding(finding, history)]
    if not findings:
        parts.append(Text("no finding", style="green"))
    parts += [Text(), _rank_status(history, narrow)]
    rates = history.rates()
    if rates:
        parts += [Text(), _rates(rates)]
    late = slowest(history.statuses)
    if late:
        parts += [Text(), _slowest(late, narrow)]
    stragglers = history.stragglers.ranking()
    if stragglers:
        parts += [Text(), _stragglers(stragglers)]
    parts += [Text(), Text("Ctrl-C leaves; the job goes on", style="dim")]
    return Group(*parts)


def _header(history: History, path: Path) -> Text:
    last = history.last
    assert last is not None, "nothing was observed"
    counts = ", ".join(f"{number:,} {life}" for life, number in lives(last).items() if number)
    text = Text.assemble((escape(str(path)), "bold"), f"  {count(last.world_size, 'rank')}: {counts}")
    if last.silent_nodes:
        text.append(f"  no reports from {escape(', '.join(last.silent_nodes))}", style="yellow")
    return text


def _finding(finding: Finding, history: History) -> Iterable[RenderableType]:
    style = "bold red" if finding.level == "finding" else "cyan"
    yield Text.assemble(
        (f"{finding.code} {MEANINGS[finding.code].title}", style),
        f" {history.age(finding)} ({finding.confidence} confidence): ",
        escape(finding.summary),
    )
    for fact in finding.evidence[:_MAX_EVIDENCE]:
        yield Padding(Text(escape(fact)), (0, 0, 0, 2))
    for numbers, stack in grouped(finding.stacks):
        yield Padding(Text(f"stack of {words.ranks(numbers)}:", style="dim"), (0, 0, 0, 2))
        lines = [escape(line) for line in stack.splitlines()]
        if len(lines) > _MAX_STACK_LINES:
            lines[_MAX_STACK_LINES:] = [f"and {len(lines) - _MAX_STACK_LINES} lines more: tensorwire job diagnose"]
        yield Padding(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), (0, 0, 0, 4))


def _rank_status(history: History, narrow: bool) -> Table:
    groups = status_groups(history.statuses)
    table = _table()
    table.add_column(Text("ranks"), justify="right", no_wrap=True)
    table.add_column(Text("where they stand"), overflow="fold", ratio=1)
    table.add_column(Text("for"), justify="right", no_wrap=True)
    if not narrow:
        table.add_column(Text("which"), no_wrap=True, overflow="ellipsis", max_width=28)
    for group in groups[:_MAX_STATUS_GROUPS]:
        cells: list[str | Text] = [
            f"{group.num_ranks:,}",
            Text(escape(group.text), style=_STYLES[group.state]),
            words.seconds(group.seconds) if group.seconds else "",
        ]
        table.add_row(*cells, *(() if narrow else (group.ranks,)))
    if len(groups) > _MAX_STATUS_GROUPS:
        left = sum(group.num_ranks for group in groups[_MAX_STATUS_GROUPS:])
        table.add_row(f"{left:,}", Text("elsewhere", style="dim"))
    return table


def _rates(rates: Mapping[Family, float]) -> Table:
    table = _table()
    table.add_column(Text("process group"), overflow="fold", ratio=1)
    table.add_column(Text("ranks each"), justify="right", no_wrap=True)
    table.add_column(Text("operations/s"), justify="right", no_wrap=True)
    for family, rate in list(rates.items())[:_MAX_RATES]:
        table.add_row(Text(escape(family.name)), f"{family.size:,}", f"{rate:.3g}")
    return table


def _stragglers(stragglers: Sequence[Straggler]) -> Table:
    table = _table()
    table.add_column(Text("late"), justify="right", no_wrap=True)
    table.add_column(Text("waits less than the median rank by"), ratio=1)
    for one in stragglers:
        table.add_row(str(one.rank), f"{words.percent(one.late)} of the time")
    return table


def _slowest(late: Sequence[RankStatus], narrow: bool) -> Table:
    table = _table()
    table.add_column(Text("slowest"), justify="right", no_wrap=True)
    table.add_column(Text("state"), overflow="fold", ratio=1)
    table.add_column(Text("behind"), justify="right", no_wrap=True)
    if not narrow:
        table.add_column(Text("T per round"), justify="right", no_wrap=True)
    for status in late:
        cells: list[str | Text] = [
            str(status.rank),
            Text(escape(status_text(status)), style=_STYLES[status.state]),
            f"{status.behind:,}",
        ]
        inside = "-" if status.seconds_per_round is None else f"{status.seconds_per_round * 1e3:.3g} ms"
        table.add_row(*cells, *(() if narrow else (inside,)))
    return table


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
