"""Agents and the analyzer as services, over real connections: what comes through, and what outlives what."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from job.tests.support.observations import WORLD, member, observed, rank
from tensorwire_job.analyzer import Analysis
from tensorwire_job.model import Thresholds
from tensorwire_job.node import agent as agents
from tensorwire_job.node.agent import Agent
from tensorwire_job.page.control import ControlRequest, read_control
from tensorwire_job.protocol.listener import Listener
from tensorwire_job.service import service as services
from tensorwire_job.service.journal import Journal, read_state
from tensorwire_job.service.recording import replay
from tensorwire_job.service.service import JobService, LocalJob, View
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tensorwire_job.model import Observation

KEY = b"0123456789abcdef0123456789abcdef"
HANG = Thresholds(hang_seconds=0.5, slow_seconds=5.0, lost_seconds=1.0)
RATE = 300.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (agents, services):
        monkeypatch.setattr(module, "_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(agents, "_BACKOFF_SECONDS", (0.05, 0.2))


class Node:
    """Ranks that are told, not seen: all in their fifth all_reduce, but for those that have not entered it."""

    def __init__(self, name: str, ranks: tuple[int, ...], missing: tuple[int, ...] = (), run_id: str = "run") -> None:
        self.name, self.ranks, self.missing, self.run_id = name, ranks, missing, run_id
        self.start = time.monotonic()
        self.timed: list[tuple[dict[str, int], int]] = []
        self.asked: list[int] = []

    def observe(self) -> Observation:
        now = time.monotonic()
        waited = now - self.start
        inside = member(5, waits=waited, group="c0", baseline_rate=RATE)
        outside = member(4, idle=waited, group="c0", baseline_rate=RATE)
        ranks = [rank(n, outside if n in self.missing else inside, node=self.name) for n in self.ranks]
        return observed(now, ranks, run_id=self.run_id)

    def enable_timing(self, first: dict[str, int], num_rounds: int) -> None:
        self.timed.append((first, num_rounds))

    def request_stack(self, rank: int) -> None:
        self.asked.append(rank)

    def stacks(self) -> dict[int, str]:
        answers = {rank: f"rank {rank} sleeps in train.py:7" for rank in self.asked}
        self.asked = []
        return answers

    def close(self) -> None:
        pass


class Running:
    """An agent in a thread of its own."""

    def __init__(self, node: Node, address: tuple[str, int], key: bytes = KEY) -> None:
        self.node = node
        self.log: list[str] = []
        self._agent = Agent(node, address, key, self.log.append)  # type: ignore[arg-type]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._agent.step()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._agent.close()


Start = "Callable[..., Running]"


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def run(node: Node, address: tuple[str, int], key: bytes = KEY) -> Running:
        running.append(Running(node, address, key))
        return running[-1]

    yield run
    for one in running:
        one.stop()


@pytest.fixture
def service() -> Iterator[JobService]:
    service = JobService(Listener(KEY), HANG)
    yield service
    service.close()


def address(service: JobService) -> tuple[str, int]:
    return service._listener.address


def until(service: JobService, condition: Callable[[View], object], seconds: float = 10.0) -> View:
    deadline = time.monotonic() + seconds
    while not condition(view := service.step()):
        assert time.monotonic() < deadline, (view.observation, view.findings, view.counters)
    return view


def two_nodes(start: Start, where: tuple[str, int]) -> list[Running]:
    return [start(Node("a", (0, 1)), where), start(Node("b", (2, 3), missing=(2,)), where)]


def test_hang_over_two_nodes_is_found_and_the_stack_is_fetched(service: JobService, start: Start) -> None:
    two_nodes(start, address(service))
    view = until(service, lambda view: view.findings and view.findings[0].stacks)
    assert sorted(view.observation.ranks) == [0, 1, 2, 3]
    assert view.observation.world_size == WORLD
    (finding,) = view.findings
    assert (finding.code, finding.suspects) == ("TW-H1", [2])
    assert finding.stacks == {2: "rank 2 sleeps in train.py:7"}
    assert view.counters.num_agents == 2
    assert view.counters.num_reports > 2


def test_all_agents_are_asked_to_time_and_late_ones_too(service: JobService, start: Start) -> None:
    first = start(Node("a", (0, 1)), address(service))
    until(service, lambda view: len(view.observation.ranks) == 2)
    time_from = {"c0": 12}
    service._controller._analyzer.update = lambda _: Analysis([], time_from, [])  # type: ignore[method-assign]
    service.step()
    second = start(Node("b", (2, 3)), address(service))
    until(service, lambda _: second.node.timed)
    time_from = {}
    until(service, lambda _: ({}, 0) in first.node.timed and ({}, 0) in second.node.timed)
    num_rounds = round(RATE / HANG.slow_factor * HANG.slow_seconds / 10)
    assert first.node.timed == second.node.timed == [({"c0": 12}, num_rounds), ({}, 0)]


def test_ranks_are_not_timed_for_an_analyzer_that_is_gone(start: Start) -> None:
    service = JobService(Listener(KEY), HANG)
    running = start(Node("a", (0, 1)), address(service))
    until(service, lambda view: len(view.observation.ranks) == 2)
    service._controller._analyzer.update = lambda _: Analysis([], {"c0": 12}, [])  # type: ignore[method-assign]
    until(service, lambda _: running.node.timed)
    service.close()
    wait_for(lambda: len(running.node.timed) >= 2)
    assert running.node.timed[1] == ({}, 0)


def test_agents_survive_a_restart_of_the_analyzer(start: Start) -> None:
    service = JobService(Listener(KEY), HANG)
    where = address(service)
    running = two_nodes(start, where)
    until(service, lambda view: len(view.observation.ranks) == WORLD)
    service.close()
    time.sleep(0.3)
    with closing(JobService(Listener(KEY, *where), HANG)) as service:
        view = until(service, lambda view: len(view.observation.ranks) == WORLD)
        assert view.observation.ranks[1].pid == 101
        assert sum(line.startswith("connected") for line in running[0].log) == 2


def test_agent_waits_for_an_analyzer_that_comes_later(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = taken.getsockname()
    running = start(Node("a", (0, 1)), where)
    time.sleep(0.3)
    assert sum("refused" in line for line in running.log) == 1, "said once, however often it is tried"
    with closing(JobService(Listener(KEY, *where), HANG)) as service:
        until(service, lambda view: len(view.observation.ranks) == 2)


def test_agent_that_starts_again_takes_its_place(service: JobService, start: Start) -> None:
    running = two_nodes(start, address(service))
    until(service, lambda view: len(view.observation.ranks) == WORLD)
    running[1].stop()
    start(Node("b", (3,)), address(service))
    view = until(service, lambda view: sorted(view.observation.ranks) == [0, 1, 3])
    assert not [f for f in view.findings if f.code == "TW-LOST"]


def test_second_agent_of_a_node_stays_outside(
    service: JobService, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = two_nodes(start, address(service))
    until(service, lambda view: len(view.observation.ranks) == WORLD)
    second = start(Node("b", (3,)), address(service))
    until(service, lambda _: any("has an agent already" in line for line in second.log))
    assert sorted(service.step().observation.ranks) == [0, 1, 2, 3]
    assert len(running[1].log) == 1
    monkeypatch.setattr(services, "_TAKEN_SECONDS", 0.0)  # the first one is silent, for all the analyzer knows
    until(service, lambda view: sorted(view.observation.ranks) == [0, 1, 3])


def test_silent_node_is_named(service: JobService, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire_job.service.merge._SILENT_SECONDS", 0.5)
    running = two_nodes(start, address(service))
    until(service, lambda view: len(view.observation.ranks) == WORLD)
    running[1].stop()
    view = until(service, lambda view: view.observation.silent_nodes)
    assert view.observation.silent_nodes == ["b"]
    assert sorted(view.observation.ranks) == [0, 1, 2, 3]


def test_agent_of_another_run_is_told_so(service: JobService, start: Start) -> None:
    first = start(Node("a", (0, 1)), address(service))
    until(service, lambda view: len(view.observation.ranks) == 2)
    other = start(Node("b", (2, 3), run_id="other"), address(service))
    until(service, lambda _: any("is for run 'run'" in line for line in other.log))
    assert any("--rdzv-id" in line for line in other.log)
    assert sorted(service.step().observation.ranks) == [0, 1]
    first.stop()
    view = until(service, lambda view: sorted(view.observation.ranks) == [2, 3])
    assert view.observation.run_id == "other", "once no rank of the first run is there"


def test_agent_that_sees_no_rank_keeps_nobody_out(service: JobService, start: Start) -> None:
    early = start(Node("a", (), run_id=""), address(service))
    for _ in range(5):
        service.step()
    start(Node("b", (2, 3)), address(service))
    until(service, lambda view: sorted(view.observation.ranks) == [2, 3])
    early.node.ranks, early.node.run_id = (0, 1), "run"
    until(service, lambda view: len(view.observation.ranks) == WORLD)


def test_agent_tells_of_a_new_run(service: JobService, start: Start) -> None:
    """In the directory of the one before."""
    running = start(Node("a", (0, 1)), address(service))
    until(service, lambda view: len(view.observation.ranks) == 2)
    running.node.run_id = "another"
    view = until(service, lambda view: view.observation.run_id == "another" and view.observation.ranks)
    assert sorted(view.observation.ranks) == [0, 1]


def test_agent_with_a_wrong_key_stays_outside(service: JobService, start: Start) -> None:
    start(Node("a", (0, 1)), address(service), b"another key, also long enough...")
    good = start(Node("b", (2, 3)), address(service))
    view = until(service, lambda view: len(view.observation.ranks) == 2 and view.counters.num_refused)
    assert sorted(view.observation.ranks) == [2, 3]
    assert good.log == [f"connected to the analyzer at 127.0.0.1:{address(service)[1]}"]


@pytest.mark.parametrize(
    "message",
    [
        {}, {"type": "report"}, {"type": "hello"}, {"type": "hello", "node": "", "run": "run"}, {"type": 5},
        {"type": "hello", "node": "x" * 1000, "run": "run"}, {"type": "hello", "node": ["a"], "run": {}},
    ],
)  # fmt: skip
def test_agent_that_does_not_introduce_itself_is_refused(service: JobService, message: dict[str, object]) -> None:
    peer = Peer(service)
    peer.say(message)
    assert peer.is_cut_off()


@pytest.mark.parametrize(
    "message",
    [{}, {"type": "report"}, {"type": "report", "full": True, "ranks": "?"}, {"type": ["x"]}, {"type": "stacks"}],
)
def test_member_that_talks_nonsense_is_refused(service: JobService, message: dict[str, object]) -> None:
    peer = Peer(service)
    peer.say({"type": "hello", "node": "n", "run": "run"})
    peer.say(message)
    assert peer.is_cut_off()
    assert service.step().counters.num_agents == 0


def test_stacks_that_nobody_asked_for_are_not_kept(service: JobService, start: Start) -> None:
    kept: list[int] = []
    add = service._add_stack
    service._add_stack = lambda rank, text: (kept.append(rank), add(rank, text))  # type: ignore[method-assign]
    node = Node("a", (0, 1))
    node.asked = [0, 1]  # so it thinks
    start(node, address(service))
    start(Node("b", (2, 3), missing=(2,)), address(service))
    until(service, lambda view: view.findings and view.findings[0].stacks)
    assert (node.asked, kept) == ([], [2])


def test_stack_is_taken_from_the_ranks_own_node_only(service: JobService, start: Start) -> None:
    two_nodes(start, address(service))
    until(service, lambda view: len(view.observation.ranks) == WORLD)
    peer = Peer(service)
    peer.say({"type": "hello", "node": "n", "run": "run"})
    for number in (2, 99, "2", None):
        peer.say({"type": "stack", "rank": number, "text": "lies"})
    view = until(service, lambda view: view.findings and view.findings[0].stacks)
    assert view.findings[0].stacks == {2: "rank 2 sleeps in train.py:7"}
    peer.connection.close()


class Peer:
    """An agent made by hand: it has the key, and may say anything."""

    def __init__(self, service: JobService) -> None:
        from tensorwire_job.protocol.connection import Connection

        self.service = service
        self.connection = Connection(socket.create_connection(address(service)), KEY, is_server=False)

    def say(self, message: dict[str, object]) -> None:
        self.connection.send(message)
        for _ in range(2):
            self.service.step()
            self._hear()

    def _hear(self) -> bool:
        try:
            self.connection.receive()
        except OSError:
            return False
        return True

    def is_cut_off(self) -> bool:
        with closing(self.connection):
            wait_for(lambda: self.service.step() and not self._hear())
            return True


def test_agent_of_an_impostor_analyzer_does_nothing(start: Start) -> None:
    """A process without the key listens at the analyzer's address."""
    listener = Listener(b"not the key of this job, at all!")
    running = start(Node("a", (0, 1)), listener.address)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert list(listener.poll(0.02)) == []
    listener.close()
    assert running.node.timed == []
    assert not any(line.startswith("connected") for line in running.log)


def test_what_the_service_keeps_gives_the_same_findings_again(tmp_path: Path, start: Start) -> None:
    with closing(JobService(Listener(KEY), HANG, Journal(tmp_path))) as service:
        two_nodes(start, address(service))
        # Writing takes its share of the time, no more: on a busy machine it comes seconds after the finding.
        view = until(service, lambda _: any(finding.stacks for finding in read_state(tmp_path)[1]), seconds=60.0)
    assert read_state(tmp_path)[1][0].suspects == [2]
    *_, (observation, findings) = replay(tmp_path / "recording.jsonl.gz", HANG)
    assert sorted(observation.ranks) == [0, 1, 2, 3]
    assert [(f.code, f.suspects) for f in findings] == [("TW-H1", [2])]
    assert findings[0].stacks == view.findings[0].stacks


def test_full_disk_does_not_stop_the_service(
    service: JobService, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk:
        def write(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

        add_stack = close = write

    service._journal = FullDisk()  # type: ignore[assignment]
    two_nodes(start, address(service))
    view = until(service, lambda view: view.findings and view.findings[0].stacks)
    assert view.findings[0].suspects == [2]
    assert [record.message for record in caplog.records] == [
        "the recording cannot be written: [Errno 28] No space left on device"
    ]


def test_job_that_cannot_be_timed_is_watched_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Shared memory is full, or something is in the way of the request."""
    (tmp_path / "control").mkdir()
    with closing(LocalJob(tmp_path)) as job:
        job._controller._analyzer.update = lambda _: Analysis([], {"c0": 12}, [])  # type: ignore[method-assign]
        assert job.poll()[1] == []
        assert job.poll()[1] == []
    assert len(caplog.records) == 1
    assert "operations cannot be timed" in caplog.records[0].message


def test_operations_of_a_job_on_this_machine_are_timed_while_it_is_watched(tmp_path: Path) -> None:
    job = LocalJob(tmp_path)
    job._controller._analyzer.update = lambda _: Analysis([], {"c0": 12}, [])  # type: ignore[method-assign]
    job.poll()
    assert read_control(tmp_path) == ControlRequest(1, {0xC0: 12}, 12)
    job.poll()
    assert read_control(tmp_path) == ControlRequest(1, {0xC0: 12}, 12), "once"
    job.close()
    assert read_control(tmp_path) == ControlRequest(2, {}, 0)
