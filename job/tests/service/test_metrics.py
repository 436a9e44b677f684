"""The metrics, written and read as Prometheus has them."""

from __future__ import annotations

import socket
import urllib.request

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from job.tests.support.observations import member, observed, rank
from tensorwire_job.model import Confidence, Finding
from tensorwire_job.service.metrics import JobCollector, serve
from tensorwire_job.service.service import Counters, View

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(*views: View) -> Samples:
    """What is exported once these have been shown."""
    collector = JobCollector()
    for each in views:
        collector.show(each)
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name.removeprefix("tensorwire_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def view(num_ranks: int = 4) -> View:
    ranks = [
        rank(number, member(5, waits=10.0 + number, group="pg"), member(1, group="tp", size=2))
        for number in range(num_ranks)
    ]
    ranks[2] = rank(2, member(4, group="pg"), life="lost")
    finding = Finding("TW-LOST", "finding", 1.0, [2], [], "pg", "rank 2 is lost", [], Confidence.HIGH)
    notice = Finding("TW-H1", "notice", 1.0, [0], [], "pg", "rank 0 writes a checkpoint", [], Confidence.LOW)
    observation = observed(1.0, ranks, silent_nodes=["node7"])
    return View(observation, [finding, finding, notice], Counters(12, 3, 1, 0.25, 0.05))


def test_before_there_is_a_job() -> None:
    assert read() == {}


def test_numbers_of_a_job() -> None:
    samples = read(view())
    assert samples["world_size", ()] == 4
    assert {labels[0][1]: value for (name, labels), value in samples.items() if name == "ranks"} == {
        "running": 3, "stopped": 0, "exited": 0, "lost": 1,
    }  # fmt: skip
    assert samples["open_operations", ()] == 3
    assert samples["oldest_open_operation_seconds", ()] == 13.0
    assert samples["findings", (("code", "TW-LOST"),)] == 2
    assert samples["findings", (("code", "TW-H1"),)] == 0
    assert samples["notices", (("code", "TW-H1"),)] == 1
    assert [(labels, value) for (name, labels), value in samples.items() if name == "suspects"] == [
        ((("code", "TW-LOST"), ("confidence", "high"), ("rank", "2")), 1)
    ]
    assert samples["silent_nodes", ()] == 1
    assert samples["agents", ()] == 1
    assert samples["reports_total", ()] == 12
    assert samples["refused_connections_total", ()] == 3
    assert samples["analysis_lag_seconds", ()] == 0.25
    assert samples["analysis_seconds", ()] == 0.05


def test_series_do_not_grow_with_the_job() -> None:
    assert read(view(4), view(400)).keys() == read(view(4)).keys()


def test_findings_that_end_go() -> None:
    samples = read(view(), View(view().observation))
    assert samples["findings", (("code", "TW-LOST"),)] == 0
    assert not [name for name, _ in samples if name == "suspects"]


def test_a_reader_that_says_nothing_is_let_go(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a thread and a descriptor."""
    monkeypatch.setattr("tensorwire_job.service.metrics._REQUEST_SECONDS", 0.5)
    server = serve(JobCollector(), "127.0.0.1", 0)
    try:
        readers = [socket.create_connection(server.server_address[:2], timeout=20) for _ in range(3)]
        for reader in readers:
            reader.sendall(b"GET /metr")
        assert [reader.recv(1) for reader in readers] == [b"", b"", b""]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=20) as answer:
            assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()
    for reader in readers:
        reader.close()
    assert capfd.readouterr().err == ""
