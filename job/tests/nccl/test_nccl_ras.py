"""The client of NCCL's RAS service against a server of our own that speaks the protocol. No NCCL is involved."""

import contextlib
import json
import socket
import threading
import time

import pytest

from tensorwire.errors import CorruptDataError, LimitExceededError, UnsupportedVersionError
from tensorwire_job.cli import diagnose
from tensorwire_job.nccl import ras
from tensorwire_job.nccl.ras import RasProcess, query_ras
from tensorwire_job.nccl.ras_findings import findings_of

HASH = "0b5a64a1f36c1fd2"


def rank(number, launched, **status):
    state = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": number,
        "host": f"10.0.0.{number // 2 + 1}",
        "pid": 1000 + number,
        "cuda_dev": number % 2,
        "nvml_dev": number % 2,
        "status": state | status,
        "collective_counts": {"Broadcast": 2, "AllReduce": launched},
    }


def missing(number, *, unresponsive=False, dead=False):
    entry = rank(number, 0)
    del entry["collective_counts"]
    return entry | {"status": {"unresponsive": unresponsive, "considered_dead": dead}}


def document(ranks, missing_ranks=()):
    communicator = {
        "hash": "0xb5a64a1f36c1fd2",
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(missing_ranks),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing_ranks),
        "ranks": ranks,
        "missing_ranks": list(missing_ranks),
    }
    return {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-01-01 00:00:00",
        "communicators_count": 1,
        "communicators": [communicator],
        "ras": {"collection_time_sec": 0.003, "timeouts_count": 0},
    }


class Server:
    """Speaks the protocol on a free port of the loopback interface, one connection after another."""

    def __init__(self, answer, *, json_known=True, greeting="SERVER PROTOCOL 2", piece=1 << 16, pause=0.0):
        self.commands = []
        self._answer, self._json_known, self._greeting = answer, json_known, greeting
        self._piece, self._pause = piece, pause
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # the client has had enough
                self._talk(connection)

    def _talk(self, connection):
        for line in connection.makefile("r", encoding="ascii", newline="\n"):
            command = line.rstrip("\n")
            self.commands.append(command)
            if command.startswith("CLIENT PROTOCOL "):
                connection.sendall(self._greeting.encode() + b"\n")
            elif command.startswith("TIMEOUT ") or (command == "SET FORMAT json" and self._json_known):
                connection.sendall(b"OK\n")
            elif command.endswith("STATUS"):
                for begin in range(0, len(self._answer), self._piece):
                    connection.sendall(self._answer[begin : begin + self._piece])
                    time.sleep(self._pause)
                return
            else:
                connection.sendall(f"ERROR: Unknown command {command}\n".encode())


def serve(answer, **options):
    return Server(answer if isinstance(answer, bytes) else json.dumps(answer).encode(), **options)


def test_json_names_the_ranks_behind_though_they_are_the_majority():
    ranks = [rank(number, 120 if number == 3 else 119) for number in range(8)]
    with serve(document(ranks)) as server:
        status = query_ras(server.address)
    (communicator,) = status.communicators
    assert (status.nccl_version, communicator.hash, communicator.size) == ("2.28.7", HASH, 8)
    assert communicator.behind() == {"AllReduce": [0, 1, 2, 4, 5, 6, 7]}
    assert communicator.ranks[3].process == RasProcess("10.0.0.2", 1003)
    assert communicator.ranks[3].device == 1
    assert server.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 9", "SET FORMAT json", "STATUS"]


@pytest.mark.parametrize("culprit", range(4))
def test_a_rank_behind_while_none_goes_on_is_found(culprit, capsys):
    stuck = document([rank(number, 119 if number == culprit else 120) for number in range(4)])
    with serve(stuck) as server:
        code = diagnose.command.main(["--ras", server.address, "--for", "0", "--json"], standalone_mode=False)
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (code, finding["code"], finding["suspects"]) == (3, "TW-H1", [culprit])
    assert f"rank {culprit} is pid {1000 + culprit} on 10.0.0.{culprit // 2 + 1}" in finding["evidence"]


def test_a_rank_behind_in_a_job_that_goes_on_is_no_finding():
    before = ras.parse_json(json.dumps(document([rank(0, 119), rank(1, 120)])).encode())
    after = ras.parse_json(json.dumps(document([rank(0, 120), rank(1, 121)])).encode())
    assert findings_of(before, after, 20.0) == []


def test_a_process_that_was_given_up_is_lost():
    answer = document([rank(0, 120), rank(1, 120)], [missing(2, dead=True)])
    status = ras.parse_json(json.dumps(answer).encode())
    (finding,) = findings_of(status, status, 20.0)
    assert (finding.code, finding.suspects) == ("TW-LOST", [2])
    assert "pid 1002 on 10.0.0.2" in finding.summary


@pytest.mark.parametrize(("timeouts", "confidence"), [(0, "medium"), (2, "low")])
def test_an_answer_that_may_be_incomplete_lowers_the_confidence(timeouts, confidence):
    answer = document([rank(0, 120), rank(1, 121)], [missing(2, dead=True)])
    answer["ras"]["timeouts_count"] = timeouts
    status = ras.parse_json(json.dumps(answer).encode())
    found = findings_of(status, status, 20.0)
    assert [finding.code for finding in found] == ["TW-LOST", "TW-H1"]
    for finding in found:
        assert finding.confidence == confidence
        assert any("RAS waited 2 times in vain" in fact for fact in finding.evidence) == bool(timeouts)


def test_json_states_and_errors():
    ranks = [rank(0, 1, abort_flag=True), rank(1, 1, finalize_called=True), rank(2, 1, init_state=7)]
    ranks += [rank(3, 1, async_error=6), rank(4, 1, async_error=7)]
    with serve(document(ranks)) as server:
        members = query_ras(server.address).communicators[0].ranks
    assert [member.status for member in members] == ["ABORT", "FINALIZE", "INIT", "RUNNING", "RUNNING"]
    assert [member.error for member in members] == ["", "", "", "Remote process error", ""]


def test_json_missing_ranks():
    absent = [missing(1, unresponsive=True), missing(2, unresponsive=True, dead=True), missing(3)]
    with serve(document([rank(0, 1)], absent)) as server:
        status = query_ras(server.address)
    assert status.unresponsive == [RasProcess("10.0.0.1", 1001)]
    assert status.dead == [RasProcess("10.0.0.2", 1002)]
    not_there = [(member.rank, member.status) for member in status.communicators[0].missing]
    assert not_there == [(1, ""), (2, ""), (3, "NOCOMM")]


def test_a_job_of_an_older_nccl_is_told_which_one_it_needs():
    with serve(b"", json_known=False) as old, pytest.raises(UnsupportedVersionError, match=r"NCCL 2\.28\.7") as caught:
        query_ras(old.address)
    assert old.address in str(caught.value)


def test_an_answer_in_small_pieces_of_a_job_in_step():
    with serve(document([rank(number, 7) for number in range(2)]), piece=7) as server:
        (communicator,) = query_ras(server.address).communicators
    assert (len(communicator.ranks), communicator.behind()) == (2, {})


def test_the_address_comes_from_the_environment(monkeypatch):
    with serve(document([])) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        assert query_ras().communicators[0].ranks == []


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":28028", "localhost:0", "localhost:65536", "h:x"])
def test_an_address_that_makes_no_sense(address):
    with pytest.raises(ValueError, match="host:port"):
        query_ras(address)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_makes_no_sense(timeout):
    with pytest.raises(ValueError, match="timeout"):
        query_ras("localhost:1", timeout=timeout)


def test_no_service_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionRefusedError, match=r"no RAS service .* NCCL_RAS_ENABLE") as caught:
        query_ras(address)
    assert caught.value.filename == address


def test_a_server_that_accepts_and_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TimeoutError):
        query_ras(f"127.0.0.1:{listener.getsockname()[1]}", timeout=0.2)


def test_a_server_that_never_ends_its_answer_meets_the_deadline_for_all_of_it():
    with serve(b" " * 1000, piece=1, pause=0.02) as server, pytest.raises(TimeoutError):
        query_ras(server.address, timeout=0.3)


def test_an_answer_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(ras, "_MAX_ANSWER", 1000)
    with serve(b" " * 100_000) as server, pytest.raises(LimitExceededError, match="1000"):
        query_ras(server.address)


@pytest.mark.parametrize("greeting", ["SSH-2.0-OpenSSH_9.2", "HTTP/1.1 400 Bad Request", "", "x" * 5000])
def test_another_service_listens_there(greeting):
    with serve(b"", greeting=greeting) as server, pytest.raises(CorruptDataError, match="NCCL_RAS_ADDR"):
        query_ras(server.address)


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"null", b'{"communicators": 3}', b"\xff\xfe", b"[" * 100_000])
def test_garbage_instead_of_json(answer):
    with serve(answer) as server, pytest.raises(CorruptDataError):
        query_ras(server.address)


def replace_one(value, number, replacement):
    """The document with its nth value, counted depth first, replaced; and how many values it has."""
    if number == 0:
        return replacement, 1
    seen = 1
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    changed = value.copy() if items else value
    for key, item in items:
        changed[key], count = replace_one(item, number - seen, replacement)
        seen += count
    return changed, seen


@pytest.mark.parametrize("replacement", [None, "x", -5, 10**30, [], {}, [[1]], True], ids=repr)
def test_a_value_of_the_wrong_type_anywhere(replacement):
    whole = document([rank(0, 1), rank(1, 2)], [missing(2)])
    _, count = replace_one(whole, -1, None)
    assert count > 40
    for number in range(count):
        changed, _ = replace_one(whole, number, replacement)
        try:
            status = ras.parse_json(json.dumps(changed).encode())
        except CorruptDataError:
            continue
        for communicator in status.communicators:
            communicator.behind()


def test_a_large_job_that_died_is_told_of_at_once():
    """Each process is missing in several communicators: analysis for every one of them in a list would take minutes."""
    one = document([], [missing(number, dead=True) for number in range(16384)])
    answer = json.dumps(one | {"communicators": one["communicators"] * 5})
    status = ras.parse_json(answer.encode())
    assert len(status.dead) == 16384
    (finding,) = findings_of(status, status, 1.0)
    assert (finding.code, finding.suspects) == ("TW-LOST", [0, 1, 2, 3, 4])
