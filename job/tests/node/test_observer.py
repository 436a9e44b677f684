"""A node as its observer sees it: real pages of real processes, whole, damaged, stale and gone."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire_job
from job.tests.support.fake_worker_server import worker_server
from tensorwire_job.model import REPLACED, Operation
from tensorwire_job.node import frozen_rank
from tensorwire_job.node.local_node import LocalNode
from tensorwire_job.node.observer import Observer
from tensorwire_job.page import native
from tensorwire_job.page.control import read_control
from tensorwire_job.page.directory import page_path
from tensorwire_job.protocol.decoding import Decoder
from tensorwire_job.protocol.encoding import Encoder
from tests.support.processes import bare_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tensorwire_job.model import Observation, Rank

RANK = """
import json, os, socket, sys, threading, time
from tensorwire_job.page import native
given = json.loads(sys.argv[1])
handle = native.create(given["path"], given["run"], given["rank"], given["world"], given["generation"])
slot = native.slot(handle, 0xC0FFEE, b"default_pg", given["world"])
native.counts(handle, slot, 5, 4)
def heartbeat():
    while True:
        native.heartbeat(handle)
        time.sleep(0.02)
if given["heartbeats"]:
    threading.Thread(target=heartbeat, daemon=True).start()
else:
    native.heartbeat(handle)
if given["exit_reason"]:
    native.exit_reason(handle, native.END, given["exit_reason"].encode())
if given["port"]:
    peer = socket.create_connection(("127.0.0.1", given["port"]))
    peer.sendall(bytes(1000))
elif given["listens"]:
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    accepted = server.accept()[0]
print("ready", flush=True)
if given["dies"]:
    sys.exit()
if given["becomes"]:
    input()
    os.execv(given["becomes"][0], given["becomes"])
input()
"""


class Job:
    """Ranks of a job in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, rank: int = 0, **given: Any) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"run": "run", "rank": rank, "world": 4, "generation": 0, "heartbeats": True}
        options |= {"exit_reason": "", "port": 0, "listens": False, "dies": False, "becomes": [], **given}
        options["path"] = str(self.path(rank, options["generation"]))
        command = [sys.executable, "-S", "-c", RANK, json.dumps(options)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=bare_python(tensorwire_job)
        )
        self.processes.append(process)
        if not options["listens"]:
            assert self.line(process) == "ready"
        if options["dies"]:
            process.wait()
        return process

    def line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def path(self, rank: int, generation: int = 0) -> Path:
        return page_path(self.directory, rank, generation)

    def write(self, rank: int, field: str, value: int) -> None:
        """Another value into the header of a page, which is as long."""
        place = getattr(native.Header, field)
        with self.path(rank).open("r+b") as file:  # in place: cut off, the page would take the process with it
            file.seek(place.offset)
            file.write(value.to_bytes(place.size, "little"))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[Observer]:
    observer = Observer(tmp_path, "node")
    yield observer
    observer.close()


def until(observer: Observer, condition: Callable[[Observation], object], seconds: float = 5.0) -> Observation:
    deadline = time.monotonic() + seconds
    while not condition(seen := observer.observe()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    return seen


def life(seen: Observation, rank: int = 0) -> str:
    return seen.ranks[rank].process.life


def the_rank(observer: Observer) -> Rank:
    (rank,) = observer.observe().ranks.values()
    return rank


def test_empty_or_missing_directory_has_no_ranks(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        seen = Observer(folder, "node").observe()
        assert (seen.ranks, seen.edges, seen.run_id, seen.world_size) == ({}, [], "", 0)


def test_rank_is_seen_as_it_is(job: Job, observer: Observer) -> None:
    process = job.start(2)
    before = time.monotonic()
    seen = observer.observe()
    assert before <= seen.time <= time.monotonic()
    assert seen.run_id == f"{native.hash64(b'run'):016x}"
    rank = seen.ranks[2]
    assert (rank.rank, rank.world_size, rank.node, rank.pid, rank.generation) == (2, 4, "node", process.pid, 0)
    assert rank.process.life == "running"
    assert rank.process.state in "RS"
    assert 0 < rank.process.cpu_seconds < 5
    assert rank.heartbeat_seconds < 1
    (group,) = rank.process_groups
    assert (group.id, group.name, group.size) == (f"{0xC0FFEE:016x}", "default_pg", 4)
    assert (group.enqueued, group.completed) == (5, 4)
    assert group.open_seconds is not None
    assert 0 <= group.open_seconds < 5
    assert group.operation is not None
    assert (group.operation.sequence, group.operation.name, group.timing) == (5, "", None)


def test_life_and_death_of_a_rank(job: Job, observer: Observer) -> None:
    process = job.start()
    until(observer, lambda seen: life(seen) == "running")
    process.send_signal(signal.SIGSTOP)
    stopped = until(observer, lambda seen: life(seen) == "stopped" and seen.ranks[0].heartbeat_seconds > 0.2)
    assert stopped.ranks[0].process.state == "T"
    process.send_signal(signal.SIGCONT)
    until(observer, lambda seen: life(seen) == "running" and seen.ranks[0].heartbeat_seconds < 0.1)
    process.kill()
    killed = time.monotonic()
    lost = until(observer, lambda seen: life(seen) == "lost")  # a zombie: its parent has not waited for it yet
    gone = lost.ranks[0].process.gone_seconds
    assert gone is not None
    assert abs(lost.time - gone - killed) < 0.5
    assert lost.ranks[0].process.cpu_seconds > 0, "its last numbers are kept"
    process.wait()
    time.sleep(0.3)
    later = the_rank(observer).process
    assert later.life == "lost"
    assert later.gone_seconds is not None
    assert later.gone_seconds > gone + 0.25


def test_rank_that_said_good_bye_has_exited(job: Job, observer: Observer) -> None:
    job.start(exit_reason="ValueError: no", dies=True)
    process = the_rank(observer).process
    assert (process.life, process.exit_reason) == ("exited", "ValueError: no")
    assert process.gone_seconds is not None
    assert process.gone_seconds < 5


def test_good_bye_of_a_process_that_still_runs(job: Job, observer: Observer) -> None:
    job.start(exit_reason="exit 0")
    process = the_rank(observer).process
    assert (process.life, process.exit_reason, process.gone_seconds) == ("running", "exit 0", None)


def test_process_that_runs_another_program_is_not_the_rank_any_more(
    job: Job, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pid and start time are those of the rank."""
    monkeypatch.setattr("tensorwire_job.node.observer._SILENT_SECONDS", 0.5)
    process = job.start(becomes=[sys.executable, "-S", "-c", "input()"])
    until(observer, lambda seen: life(seen) == "running")
    assert process.stdin is not None
    process.stdin.write("now\n")
    process.stdin.flush()
    seen = until(observer, lambda seen: life(seen) == "exited").ranks[0].process
    assert (seen.exit_reason, seen.exit_kind) == (REPLACED, "end")
    assert seen.gone_seconds is not None
    assert 0.5 < seen.gone_seconds < 5.0


def test_silent_process_that_has_its_page(job: Job, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire_job.node.observer._SILENT_SECONDS", 0.0)
    job.start()
    assert the_rank(observer).process.life == "running"


def test_process_with_the_number_of_another(job: Job, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page names a pid that lives, but not the start time of that process."""
    monkeypatch.setattr("tensorwire_job.node.observer._ALIVE_SECONDS", 0.1)
    job.start(dies=True)
    job.write(0, "pid", os.getpid())
    time.sleep(0.2)
    assert the_rank(observer).process.life == "lost"


def test_process_that_cannot_be_seen_but_sends_heartbeats(job: Job, observer: Observer) -> None:
    """It is in another container, with numbers of its own."""
    job.start(dies=True)
    job.write(0, "heartbeat_ns", time.monotonic_ns())
    process = the_rank(observer).process
    assert (process.life, process.state) == ("running", "?")
    job.write(0, "heartbeat_ns", time.monotonic_ns() - 3 * 10**9)
    assert the_rank(observer).process.life == "lost"


def test_newest_generation_counts(job: Job, observer: Observer) -> None:
    job.start(0, dies=True)
    job.start(1, dies=True)
    job.start(0, generation=1)
    seen = observer.observe()
    assert {rank.rank: rank.generation for rank in seen.ranks.values()} == {0: 1, 1: 0}
    assert life(seen, 0) == "running"


def test_run_with_the_last_heartbeat_counts(job: Job, observer: Observer) -> None:
    job.start(0, run="first", dies=True)
    job.start(1, run="second")
    seen = observer.observe()
    assert list(seen.ranks) == [1]
    assert seen.run_id == f"{native.hash64(b'second'):016x}"


def test_of_two_runs_that_live_one_is_seen_all_the_time(
    job: Job, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two jobs have one TENSORWIRE_PROBE_DIR: each rank's heartbeat is the last one now and then."""
    job.start(0, run="first")
    first = observer.observe().run_id
    job.start(1, run="second")
    seen = []
    for _ in range(20):
        seen.append(observer.observe().run_id)
        time.sleep(0.01)
    assert set(seen) == {first}
    for process in job.processes[:1]:
        process.kill()
        process.wait()
    monkeypatch.setattr("tensorwire_job.node.observer._SILENT_SECONDS", 0.5)
    assert list(until(observer, lambda now: now.run_id != first).ranks) == [1], "once it has ended the other one is"


def test_page_of_another_boot_is_left_out(job: Job, observer: Observer) -> None:
    job.start(dies=True)
    path = job.path(0)
    data = bytearray(path.read_bytes())
    data[native.Header.boot_id.offset] ^= 1
    path.write_bytes(data)
    assert observer.observe().ranks == {}


@pytest.mark.parametrize("damage", [b"", b"x" * 100, bytes(4096), b"\xff" * 4096])
def test_damaged_page_is_told_and_the_others_are_seen(job: Job, observer: Observer, damage: bytes) -> None:
    job.start(0)
    job.path(1).write_bytes(damage)
    seen = observer.observe()
    assert list(seen.ranks) == [0]
    assert observer.damaged == [job.path(1)]


def test_rank_whose_page_gets_damaged_stays_as_it_was(job: Job, observer: Observer) -> None:
    job.start(0)
    observer.observe()
    job.write(0, "magic", 0)
    assert life(observer.observe()) == "running"
    assert observer.damaged == [job.path(0)]
    job.path(0).unlink()
    assert observer.observe().ranks == {}
    assert observer.damaged == []


@pytest.mark.parametrize(
    ("field", "value"), [("world_size", 2**32 - 1), ("world_size", 1), ("rank", 3), ("restart_count", 7)]
)
def test_page_that_lies_about_itself_is_damaged(job: Job, observer: Observer, field: str, value: int) -> None:
    """A page for each rank of a world of 2**32, or a generation that hides the others, must not come from one bit."""
    job.start(0)
    job.start(1)
    observer.observe()
    job.write(1, field, value)
    seen = observer.observe()
    assert (sorted(seen.ranks), seen.world_size, seen.ranks[1].generation) == ([0, 1], 4, 0)
    assert observer.damaged == [job.path(1)]


@pytest.mark.parametrize("seed", range(40))
def test_all_that_a_page_may_hold_can_be_reported(job: Job, seed: int) -> None:
    rng = random.Random(seed)
    handle = native.create(str(job.path(0)), "run", 0, 4, 0)
    native.counts(handle, native.slot(handle, 1, b"pg", 4), 5, 4)
    native.heartbeat(handle)
    native.close(handle)
    data = bytearray(job.path(0).read_bytes())
    for _ in range(rng.randrange(1, 40)):
        position = rng.randrange(native.Header.pid.offset, 256 + 240)
        data[position] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    job.path(0).write_bytes(data)
    observer = Observer(job.directory, "node")
    Decoder().apply(Encoder().report(observer.observe()))
    observer.target(0)
    observer.close()


def test_connections_name_their_peers(job: Job, observer: Observer) -> None:
    server = job.start(0, listens=True)
    port = int(job.line(server))
    client = job.start(1, port=port)
    assert job.line(server) == "ready"
    seen = until(observer, lambda seen: sum(edge.received_bytes for edge in seen.edges) == 1000)
    assert {(edge.rank, edge.peer) for edge in seen.edges} == {(0, 1), (1, 0)}
    (queued,) = [edge for edge in seen.edges if edge.rank == 0]
    assert queued.receive_queue == 1000
    client.kill()
    client.wait()
    seen = observer.observe()
    assert [(edge.rank, edge.peer) for edge in seen.edges] == [(0, 1)], "who the dead peer was is remembered"


def test_connection_to_no_rank_of_the_job(job: Job, observer: Observer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        job.start(0, port=server.getsockname()[1])
        assert [(edge.rank, edge.peer) for edge in observer.observe().edges] == [(0, -1)]


def test_which_process_to_ask_for_a_stack(job: Job, observer: Observer) -> None:
    process = job.start(3)
    observer.observe()
    target = observer.target(3)
    assert target is not None
    assert (target.pid, target.page) == (process.pid, job.path(3))
    assert "operation 5 of default_pg" in target.doing
    assert observer.target(0) is None


# Frozen ranks.

ENTRY = {
    "collective_seq_id": 6, "input_dtypes": ["Float", "Float"], "input_sizes": [[3, 4], [2]], "is_p2p": False,
    "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "retired": False, "state": "scheduled",
    "time_created_ns": 0,
}  # fmt: skip


@pytest.fixture
def still(job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], list[bytes]]]:
    """A rank that lives and sends no heartbeat: operation 5 of its group was open when it did. Its recorder answers."""
    monkeypatch.setattr(frozen_rank, "_STILL_SECONDS", 0.05)
    with ExitStack() as stack:

        def start(answer: bytes) -> list[bytes]:
            job.start(heartbeats=False)
            job.write(0, "flags", native.SOCKET)
            asked = stack.enter_context(worker_server(job.path(0).with_suffix(".sock"), answer))
            time.sleep(0.1)
            return asked

        yield start


@pytest.mark.parametrize(
    ("recorded", "name"),
    [("gloo:all_reduce", "all_reduce"), ("gloo:_all_gather_base", "all_gather_into_tensor")],
)
def test_what_a_still_rank_entered_since_its_last_heartbeat(
    still: Callable[[bytes], list[bytes]], observer: Observer, recorded: str, name: str
) -> None:
    """In the words that the pages of the other ranks have for it: else the calls would seem to differ."""
    entries = [
        {**ENTRY, "collective_seq_id": 5, "retired": True},
        {**ENTRY, "collective_seq_id": 9, "is_p2p": True},
        {**ENTRY, "profiling_name": recorded},
    ]
    asked = still(json.dumps({"entries": entries}).encode())
    for _ in range(3):
        rank = the_rank(observer)
        (group,) = rank.process_groups
        assert (group.enqueued, group.completed) == (6, 5)
        assert group.operation == Operation(6, name, "float32", 14)
        assert group.open_seconds is not None
        assert 0 < group.open_seconds <= rank.heartbeat_seconds, "by no wall clock"
    assert len(asked) == 1, "not at every poll"


NOTHING_NEWER = [
    b"", b"{}", b"[1]", b'{"entries": [5]}', b'{"entries": 5}', b"[" * 100_000,
    json.dumps({"entries": [{**ENTRY, "collective_seq_id": 4}]}).encode(),
    json.dumps({"entries": [{**ENTRY, "collective_seq_id": 1 << 70}]}).encode(),
    json.dumps({"entries": [{**ENTRY, "process_group": ["1", "another"]}]}).encode(),
    json.dumps({"entries": [{**ENTRY, "collective_seq_id": float("inf")}]}).encode(),
    json.dumps({"entries": [{**ENTRY, "time_created_ns": -(10**400)}]}).encode(),
    json.dumps({"entries": [{**ENTRY, "input_sizes": [[1 << 70]]}]}).encode(),
]  # fmt: skip


def test_still_rank_of_which_nothing_newer_is_known(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_rank, "_STILL_SECONDS", 0.05)
    job.start(heartbeats=False)
    job.write(0, "flags", native.SOCKET)
    time.sleep(0.1)
    path = job.path(0).with_suffix(".sock")
    for answer in NOTHING_NEWER:
        with worker_server(path, answer) as asked, closing(Observer(job.directory, "node")) as observer:
            (group,) = the_rank(observer).process_groups
            assert (group.enqueued, group.completed) == (5, 4), answer[:100]
            assert len(asked) == 1
        path.unlink()


def test_process_groups_of_the_node_come_first(job: Job) -> None:
    job.start()
    with closing(LocalNode(job.directory, "node")) as node:
        node.observe()
        node.enable_timing({f"{number:016x}": number for number in range(1, 1000)} | {f"{0xC0FFEE:016x}": 42}, 16)
    request = read_control(job.directory)
    assert request is not None
    assert request.first[0xC0FFEE] == 42
