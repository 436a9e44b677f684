"""The analyzer's numbers for Prometheus, served by prometheus_client.

Metrics are of the job and of suspects: none has a label that takes as many values as there are ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..columns import RankColumns
from ..model import LIVES, Code, Level
from ..report.stragglers import Stragglers

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

    from ..report.stragglers import Straggler
    from .service import View

_PREFIX = "tensorwire_"
_REQUEST_SECONDS: Final = 5.0


class JobCollector(Collector):
    """Gives the view that it was shown last to its registry, from any thread."""

    def __init__(self) -> None:
        self._view: View | None = None  # replaced whole: another thread may be reading
        self._stragglers = Stragglers()
        self._late: list[Straggler] = []

    def show(self, view: View) -> None:
        """Give these numbers from now on."""
        self._stragglers.add(view.observation)
        self._late = self._stragglers.ranking()
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view
        if view is None:
            return
        observation, counters = view.observation, view.counters
        ranks = RankColumns.of(observation.ranks)
        lives = np.bincount(ranks.places.lives, minlength=len(LIVES)).tolist()
        opened = ranks.rows.open_seconds[~np.isnan(ranks.rows.open_seconds)]
        yield _gauge("world_size", "Ranks that the job was started with.", observation.world_size)
        yield _labelled("ranks", "Ranks in view.", "life", dict(zip(LIVES, lives, strict=True)), LIVES)
        yield _gauge("silent_nodes", "Nodes whose agents are silent.", len(observation.silent_nodes))
        yield _gauge("open_operations", "Process groups in which a rank has an open operation.", len(opened))
        yield _gauge("oldest_open_operation_seconds", "Age of the oldest of them.", opened.max(initial=0.0))
        for level in get_args(Level):
            codes = Counter(finding.code for finding in view.findings if finding.level == level)
            yield _labelled(f"{level}s", f"Verdicts at present of level {level}.", "code", codes, get_args(Code))
        yield _suspects(view)
        yield _late(self._late)
        yield _gauge("agents", "Agents that are connected.", counters.num_agents)
        yield _gauge("analysis_lag_seconds", "By how much the last analysis was late.", counters.lag_seconds)
        yield _gauge("analysis_seconds", "Duration of the last analysis.", counters.analysis_seconds)
        yield _counter("reports", "Reports received from agents.", counters.num_reports)
        yield _counter("refused_connections", "Connections that the analyzer refused.", counters.num_refused)


def serve(collector: JobCollector, host: str, port: int) -> WSGIServer:
    """Answer requests in threads. A client that sends none, or does not read the answer, for 5 s is disconnected."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, _ = start_http_server(port, host, registry)
    handler: Any = server.RequestHandlerClass

    class Impatient(handler):  # type: ignore[misc]
        timeout = _REQUEST_SECONDS

        def handle(self) -> None:
            with suppress(OSError):  # nothing to tell the operator of
                super().handle()

    server.RequestHandlerClass = Impatient
    return server


def _suspects(view: View) -> Metric:
    family = GaugeMetricFamily(
        _PREFIX + "suspects", "1 for each suspect of a finding.", labels=("code", "rank", "confidence")
    )
    found = [finding for finding in view.findings if finding.level == "finding"]
    for labels in {(f.code, str(rank), f.confidence.value): None for f in found for rank in f.suspects}:
        family.add_metric(labels, 1)
    return family


def _late(stragglers: list[Straggler]) -> Metric:
    text = "Share of the time by which a rank waits less than the median rank; the latest ranks only."
    family = GaugeMetricFamily(_PREFIX + "straggler_share", text, labels=("rank",))
    for one in stragglers:
        family.add_metric((str(one.rank),), one.late)
    return family


def _labelled(name: str, text: str, label: str, values: Mapping[Any, int], known: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=(label,))
    for value in known:
        family.add_metric((value,), values.get(value, 0))
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)
