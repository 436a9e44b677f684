"""The report: one HTML page that needs nothing else, for a person who was not there.

Everything that came from a job (names, last words, stacks) is escaped where it is written: the template engine escapes
all that it inserts, drawings included, and the page forbids itself scripts and resources of any kind.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from ..._version import __version__
from .. import words
from . import charts
from .codes import MEANINGS, advice, confidence_text
from .history import History
from .rank_status import lives, status_groups
from .stack import grouped

if TYPE_CHECKING:
    from ..model import Thresholds

__all__ = ["History", "render"]

_MAX_STATUS_GROUPS = 24


def render(history: History, thresholds: Thresholds, *, source: str, whose: str = "") -> str:
    """The page, as text.

    Args:
        history: with at least one observation.
        thresholds: what was told with.
        source: where the observations came from, for the reader.
        whose: whose thresholds these are, where they are not those of the command.

    Raises:
        ValueError: the history is empty.
    """
    import jinja2

    last = history.last
    if last is None:
        raise ValueError("nothing was observed: there is nothing to report")
    episodes = sorted(
        history.episodes.values(), key=lambda episode: (episode.finding.level != "finding", episode.first)
    )
    suspects = charts.suspects_of(episodes)
    groups = status_groups(history.statuses)
    start = history.samples[0].start
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
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
        nodes=len({rank.node for rank in last.ranks.values()}),
        episodes=episodes,
        meanings=MEANINGS,
        advice=advice,
        suspects=suspects,
        status_groups=groups[:_MAX_STATUS_GROUPS],
        num_status_groups=len(groups),
        lanes=charts.lanes(history, suspects) if last.time > start and last.world_size else None,
        curves=charts.curves(history),
        heat_maps=charts.heat_maps(history, suspects),
        rows=charts.rank_rows(history, suspects),
        thresholds=dataclasses.asdict(thresholds),
        whose=whose,
        width=charts.WIDTH,
        seconds=words.seconds,
        age=history.age,
        stragglers=history.stragglers.ranking(),
        percent=words.percent,
        ended=words.seconds(history.ended_seconds) if history.is_over else "",
        confidence=confidence_text,
        ranks=words.ranks,
        grouped=grouped,
    )
