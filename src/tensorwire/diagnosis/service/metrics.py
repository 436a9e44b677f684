"""The analyzer's numbers for Prometheus, as OpenMetrics text over HTTP. Needs prometheus_client (tensorwire[job]).

Metrics are of the job and of suspects: none has a label that takes as many values as there are ranks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, get_args
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

from ..model import Code, Level, Life
from ..page.deadline import DeadlineSocket

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from .service import View

_READ_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1  # until a wish to end is seen
_PREFIX = "tensorwire_"


class MetricsServer:
    """Serves what `show` was given last, from a thread of its own, one reader after another.

    Args:
        host: the address to bind; loopback unless the caller wants others in.
        port: 0 for any free one, see `address`.

    Raises OSError where the address cannot be bound.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._collector = _Collector()
        registry = CollectorRegistry()
        registry.register(self._collector)
        self._server = make_server(host, port, make_wsgi_app(registry), _Server, _Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def show(self, view: View) -> None:
        """Serve these numbers from now on."""
        self._collector.view = view

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(WSGIServer):
    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        reader = DeadlineSocket(fileno=connection.detach())
        reader.deadline = time.monotonic() + _Handler.timeout
        return reader, address

    def handle_error(self, request: object, client_address: object) -> None:
        """Readers that are too slow, or go away, are no news."""


class _Handler(WSGIRequestHandler):
    timeout = _READ_SECONDS  # for a request: a reader that sends little or nothing must not keep the others out

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Requests are no news."""


class _Collector(Collector):
    def __init__(self) -> None:
        self.view: View | None = None  # replaced whole: the other thread may be reading

    def collect(self) -> Iterator[Metric]:
        view = self.view
        if view is None:
            return
        observation, counters = view.observation, view.counters
        ranks = observation.ranks.values()
        groups = [group for rank in ranks for group in rank.communicators]
        yield _gauge("world_size", "Ranks that the job was started with.", observation.world_size)
        yield _labelled("ranks", "Ranks in view.", "life", Counter(r.process.life for r in ranks), get_args(Life))
        yield _gauge("silent_nodes", "Nodes whose agents are not heard of.", len(observation.silent_nodes))
        opened = [group.open_seconds for group in groups if group.open_seconds is not None]
        yield _gauge("open_operations", "Communicators of ranks with an operation that is not complete.", len(opened))
        yield _gauge("oldest_open_operation_seconds", "Age of the oldest of them.", max(opened, default=0.0))
        for level in get_args(Level):
            codes = Counter(finding.code for finding in view.findings if finding.level == level)
            yield _labelled(f"{level}s", f"Verdicts at present of level {level}.", "code", codes, get_args(Code))
        yield _suspects(view)
        yield _gauge("agents", "Agents that are connected.", counters.num_agents)
        yield _gauge("analysis_lag_seconds", "By how much the last analysis was late.", counters.lag_seconds)
        yield _gauge("analysis_seconds", "Duration of the last analysis.", counters.analysis_seconds)
        yield _counter("reports", "Reports of agents taken over.", counters.num_reports)
        yield _counter("refused_connections", "Connections ended for what they sent.", counters.num_refused)


def _suspects(view: View) -> Metric:
    family = GaugeMetricFamily(_PREFIX + "suspect_confidence", "Of a finding.", labels=("code", "rank"))
    confidences: dict[tuple[Code, str], float] = {}
    for finding in view.findings:
        if finding.level == "finding":
            for rank in finding.suspects:
                key = finding.code, str(rank)
                confidences[key] = max(finding.confidence, confidences.get(key, 0.0))
    for key, confidence in confidences.items():
        family.add_metric(key, confidence)
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
