"""The metrics endpoint, read as Prometheus reads it."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tensorwire.diagnosis.model import Communicator, Finding, Observation, Process, Rank
from tensorwire.diagnosis.service import metrics
from tensorwire.diagnosis.service.metrics import MetricsServer
from tensorwire.diagnosis.service.service import Counters, View

if TYPE_CHECKING:
    from collections.abc import Iterator

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer()
    yield server
    server.close()


def read(server: MetricsServer) -> Samples:
    host, port = server.address
    request = urllib.request.Request(f"http://{host}:{port}/metrics", headers={"Accept": OPENMETRICS})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("tensorwire_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def rank(number: int, life: Any, open_seconds: float | None) -> Rank:
    groups = [
        Communicator("c", "pg", 4, 5, 4, open_seconds, None, None),
        Communicator("d", "tp", 2, 1, 1, None, 1.0, None),
    ]
    return Rank(number, 4, "n", number, 0, Process(life), groups)


def view(num_ranks: int = 4) -> View:
    ranks = {n: rank(n, "lost" if n == 2 else "running", None if n == 2 else 10.0 + n) for n in range(num_ranks)}
    finding = Finding("TW-LOST", "finding", 1.0, [2], [], "pg", "rank 2 is lost", [], 0.75)
    notice = Finding("TW-H1", "notice", 1.0, [0], [], "pg", "rank 0 writes a checkpoint", [], 0.5)
    observation = Observation(1.0, "run", 4, ranks, [], ["node7"])
    return View(observation, [finding, notice], Counters(12, 3, 1, 0.25, 0.05))


def test_before_there_is_a_job(server: MetricsServer) -> None:
    assert read(server) == {}


def test_numbers_of_a_job(server: MetricsServer) -> None:
    server.show(view())
    samples = read(server)
    assert samples["world_size", ()] == 4
    assert {labels[0][1]: value for (name, labels), value in samples.items() if name == "ranks"} == {
        "running": 3, "stopped": 0, "exited": 0, "lost": 1,
    }  # fmt: skip
    assert samples["open_operations", ()] == 3
    assert samples["oldest_open_operation_seconds", ()] == 13.0
    assert samples["findings", (("code", "TW-LOST"),)] == 1
    assert samples["findings", (("code", "TW-H1"),)] == 0
    assert samples["notices", (("code", "TW-H1"),)] == 1
    assert samples["suspect_confidence", (("code", "TW-LOST"), ("rank", "2"))] == 0.75
    assert samples["silent_nodes", ()] == 1
    assert samples["agents", ()] == 1
    assert samples["reports_total", ()] == 12
    assert samples["refused_connections_total", ()] == 3
    assert samples["analysis_lag_seconds", ()] == 0.25
    assert samples["analysis_seconds", ()] == 0.05


def test_series_do_not_grow_with_the_job(server: MetricsServer) -> None:
    server.show(view(4))
    few = read(server).keys()
    server.show(view(400))
    assert read(server).keys() == few


def test_findings_that_end_go(server: MetricsServer) -> None:
    server.show(view())
    server.show(View(view().observation))
    samples = read(server)
    assert samples["findings", (("code", "TW-LOST"),)] == 0
    assert not [name for name, _ in samples if name == "suspect_confidence"]


def test_listens_on_loopback_unless_told(server: MetricsServer) -> None:
    assert server.address[0] == "127.0.0.1"


def test_reader_that_says_nothing_does_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._Handler, "timeout", 0.3)
    server = MetricsServer()
    try:
        server.show(view())
        with socket.create_connection(server.address), socket.create_connection(server.address):
            start = time.monotonic()
            assert read(server)
            assert time.monotonic() - start < 4
    finally:
        server.close()


def test_reader_that_drips_does_not_keep_others_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics._Handler, "timeout", 0.3)
    server = MetricsServer()
    server.show(view())
    served = threading.Event()
    with socket.create_connection(server.address) as slow:

        def drip() -> None:
            try:
                while not served.wait(0.05):
                    slow.sendall(b"x")
            except OSError:  # it was cut off
                return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert read(server)
        finally:
            served.set()
            thread.join()
            server.close()
    assert capfd.readouterr().err == ""
