"""The report: one HTML page that needs nothing else, for a person who was not there.

Everything that came from a job (names, last words, stacks) is escaped where it is written: the template engine escapes
all that it inserts, drawings included, and the page forbids itself scripts and resources of any kind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorwire._ground.text import escape

from .. import words
from ..stacks import grouped
from ..version import __version__
from . import charts
from .codes import MEANINGS, advice, circle_text, confidence_text, finding_line
from .history import History
from .rank_status import lives, status_groups, together

if TYPE_CHECKING:
    from ..model import Thresholds
    from .history import Episode

__all__ = ["History", "render"]

_MAX_STATUS_GROUPS = 24


def render(history: History, thresholds: Thresholds, *, source: str, whose: str = "") -> str:
    """The page, as text.

    Args:
        history: with at least one observation.
        thresholds: those that the findings were made with.
        source: where the observations came from, for the reader.
        whose: says whose thresholds they are, where they are not the command's.

    Raises:
        ValueError: the history is empty.
    """
    import jinja2

    last = history.last
    if last is None:
        raise ValueError("nothing was observed: there is nothing to report")
    episodes = sorted(history.episodes.values(), key=lambda one: _weight(history, one))
    suspects = charts.suspects_of(episodes)
    groups = status_groups(history.statuses, apart=suspects)
    start = history.intervals[0].start
    curves, still = charts.curves(history)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        version=__version__,
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        last=last,
        source=source,
        span=last.time - start,
        watched=last.time - history.polled_from,
        past=history.polled_from - start,
        start=start,
        lives=lives(last),
        nodes=len(set(history.ranks.places.nodes.tolist())),
        episodes=episodes,
        meanings=MEANINGS,
        advice=advice,
        circle=charts.circle,
        circle_text=circle_text,
        suspects=suspects,
        status_groups=groups[:_MAX_STATUS_GROUPS],
        num_status_groups=len(groups),
        suspected={together(status) for status in history.statuses.of(suspects)},
        together=together,
        lanes=charts.lanes(history, suspects) if last.time > start and last.world_size else None,
        curves=curves,
        still=still,
        heat_maps=charts.heat_maps(history, suspects, thresholds.hang_seconds),
        rows=charts.rank_rows(history, suspects),
        thresholds=thresholds,
        whose=whose,
        headline=_headline(history, episodes),
        seconds=words.seconds,
        age=history.age,
        stragglers=[one for one in history.stragglers.ranking() if one.rank not in suspects],
        percent=words.percent,
        ended=history.ago(history.ended_seconds) if history.is_over else "",
        names=words.names,
        confidence=confidence_text,
        ranks=words.ranks,
        grouped=grouped,
    )


def _weight(history: History, episode: Episode) -> tuple[bool, bool, float]:
    """Findings come before notices, what stands before what is over, and what began first before the rest."""
    return episode.finding.level != "finding", not history.stands(episode.finding), episode.first


def _headline(history: History, episodes: Sequence[Episode]) -> str:
    """The verdict in one line, as the commands print it."""
    found = [episode.finding for episode in episodes if episode.finding.level == "finding"]
    num_notices = len(episodes) - len(found)
    if found:
        more = f"; and {words.count(len(found) - 1, 'more finding')}" if len(found) > 1 else ""
        return finding_line(found[0], history) + more
    notices = f", {words.count(num_notices, 'notice')}" if num_notices else ""
    if history.is_over:
        return f"No finding{notices}: the job ended {history.ago(history.ended_seconds)}"
    watched = (history.last.time if history.last else 0.0) - history.polled_from
    return f"No finding{notices}" + (f" in {words.seconds(watched)}" if watched else "")


def _visible(value: object) -> object:
    """A value for the page. Characters of a text that are invisible or move others are escaped; lines stay lines."""
    return "\n".join(map(escape, value.split("\n"))) if type(value) is str else value
