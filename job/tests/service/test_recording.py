"""Recordings: a replay finds what was found, bounded, whole up to the last line, and refuses what is none."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import resource
import tracemalloc
from contextlib import nullcontext, suppress
from io import FileIO
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from job.tests.support.analyzed import SECONDS
from job.tests.support.observations import member, observed, rank, ring
from job.tests.support.observed_jobs import hung, job_at_rate, not_entering
from tensorwire.errors import CorruptDataError
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.service import recording
from tensorwire_job.service.recording import RecordingWriter, append_whole, replay
from tests.support.drawn import drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tensorwire_job.model import Finding, Observation


def record(path: Path, at: Callable[[float], Observation], seconds: int = 30, **options: Any) -> list[list[Finding]]:
    """Record a job; returns an analyzer's findings in it, second by second."""
    analyzer, found = Analyzer(SECONDS), []
    with RecordingWriter(path, **options) as recorder:
        for time in range(seconds):
            observation = at(float(time))
            recorder.write(observation)
            analysis = analyzer.update(observation)
            found.append(analysis.findings)
            for number in analysis.stacks_of:
                analyzer.add_stack(number, f"stack of {number}")
                recorder.add_stack(number, f"stack of {number}")
    return found


def verdicts(findings: list[Finding]) -> list[Any]:
    return [(one.code, one.level, one.time, one.suspects, one.summary, one.victims, one.stacks) for one in findings]


def not_entered(culprit: int) -> Callable[[float], Observation]:
    return hung(
        not_entering(culprit),
        edges=lambda time: ring(acked_bytes=lambda a, b: int(1e5 * time)),
        states={culprit: {"state": "T", "phase": "evaluation", "cpu_seconds": 1.23}},
    )


@pytest.mark.parametrize(
    "at",
    [not_entered(2), job_at_rate({1: 0.5}, after=8.0, timed_after=0.0), job_at_rate()],
    ids=["hang", "slow", "healthy"],
)
def test_a_replay_finds_what_was_found(tmp_path: Path, at: Callable[[float], Observation]) -> None:
    path = tmp_path / "job.jsonl.gz"
    found = record(path, at)
    again = list(replay(path, SECONDS))
    assert [verdicts(findings) for _, findings in again] == [verdicts(findings) for findings in found]
    for time, (observation, _) in enumerate(again):
        original = at(float(time))
        assert observation.ranks.keys() == original.ranks.keys()
        assert observation.time == original.time
        assert observation.ranks[2].process == original.ranks[2].process
        assert observation.ranks[2].process_groups[0].enqueued == original.ranks[2].process_groups[0].enqueued


def test_a_replay_is_the_same_every_time_and_so_is_the_file(tmp_path: Path) -> None:
    record(tmp_path / "a", not_entered(1))
    record(tmp_path / "b", not_entered(1))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(replay(tmp_path / "a", SECONDS)) == list(replay(tmp_path / "a", SECONDS))


def test_nodes_and_ranks_that_come_and_go(tmp_path: Path) -> None:
    def at(time: float) -> Observation:
        ranks = [rank(n, member(int(10 * time) + 1), generation=int(time) // 10) for n in range(8)]
        there = [one for one in ranks if one.rank < 4 or int(time) % 3]
        return observed(time, there, world=8, silent_nodes=["node1"] if int(time) % 7 == 5 else [])

    path = tmp_path / "job"
    record(path, at)
    for time, (observation, _) in enumerate(replay(path, SECONDS)):
        assert observation.ranks.keys() == at(float(time)).ranks.keys()
        assert observation.silent_nodes == at(float(time)).silent_nodes
        assert {one.generation for one in observation.ranks.values()} == {time // 10}


def test_the_file_is_bounded_and_both_parts_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "job"
    record(path, not_entered(1), 200, max_nbytes=4000)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job", "job.1"]
    assert all(file.stat().st_size < 5500 for file in tmp_path.iterdir())
    times = [observation.time for name in ("job.1", "job") for observation, _ in replay(tmp_path / name, SECONDS)]
    assert times == [float(time) for time in range(200 - len(times), 200)]
    assert len(times) > 20


def test_an_earlier_recording_is_kept(tmp_path: Path) -> None:
    record(tmp_path / "job", not_entered(1), 12)
    record(tmp_path / "job", not_entered(1), 3)
    assert len(list(replay(tmp_path / "job.1"))) == 12
    assert len(list(replay(tmp_path / "job"))) == 3


def test_a_recording_that_breaks_off_ends_with_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "job"
    recorder = RecordingWriter(path)
    for time in range(10):
        recorder.write(not_entered(1)(float(time)))
    data = path.read_bytes()  # its writer still writes
    complete = list(replay(path, SECONDS))
    assert len(complete) == 10
    recorder.close()
    lengths = []
    for cut in range(200, len(data), 37):
        path.write_bytes(data[:cut])
        part = list(replay(path, SECONDS))
        assert part == complete[: len(part)]
        lengths.append(len(part))
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_a_disk_that_was_full_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "job"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with RecordingWriter(path) as recorder:
            for time in range(20):
                room = path.stat().st_size + 10 if 5 <= time < 10 else soft
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
                with pytest.raises(OSError, match="large") if 5 <= time < 10 else nullcontext():
                    recorder.write(not_entered(1)(float(time)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    times = [int(observation.time) for observation, _ in replay(path, SECONDS)]
    assert times == [*range(5), *range(10, 20)]


def test_stack_that_comes_while_no_file_could_be_begun_is_dropped(tmp_path: Path) -> None:
    path, aside = tmp_path / "job", tmp_path / "job.1"
    with RecordingWriter(path, max_nbytes=1) as recorder:
        recorder.write(not_entered(1)(0.0))
        aside.unlink()
        aside.mkdir()  # the file has grown and cannot be moved
        with pytest.raises(FileExistsError, match="not a regular file"):
            recorder.write(not_entered(1)(1.0))
        recorder.add_stack(1, "a stack")
        aside.rmdir()
        recorder.write(not_entered(1)(2.0))
    assert [observation.time for file in (aside, path) for observation, _ in replay(file, SECONDS)] == [0.0, 2.0]


def interrupted_write(file: FileIO, data: bytes) -> None:
    class Interrupted(FileIO):
        def write(self, data: bytes) -> int:
            super().write(data[: len(data) // 2])
            raise KeyboardInterrupt

    with Interrupted(os.dup(file.fileno()), "w") as other:
        append_whole(other, data)


def interrupt_after_the_write(file: FileIO, data: bytes) -> None:
    append_whole(file, data)
    raise KeyboardInterrupt


@pytest.mark.parametrize(("append", "num_lines"), [(interrupted_write, 5), (interrupt_after_the_write, 6)])
def test_recording_whose_writer_is_interrupted_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, append: Callable[[FileIO, bytes], None], num_lines: int
) -> None:
    with RecordingWriter(tmp_path / "job") as recorder:
        for time in range(5):
            recorder.write(not_entered(1)(float(time)))
        with monkeypatch.context() as patch:
            patch.setattr(recording, "append_whole", append)
            with pytest.raises(KeyboardInterrupt):
                recorder.write(not_entered(1)(5.0))
    assert [observation.time for observation, _ in replay(tmp_path / "job")] == [float(n) for n in range(num_lines)]


def whole(*entries: Any) -> bytes:
    return gzip.compress(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))


HEAD = {"format": "tensorwire recording", "version": 1}
SOME = {"time": 1.0, "run": "r", "world_size": 4, "silent_nodes": [], "nodes": {}}


NO_RECORDINGS = {
    "empty": b"",
    "not gzip": b"not gzip at all",
    "another version": whole({"format": "tensorwire recording", "version": 2}),
    "no head": whole([]),
    "a number": whole(HEAD, 7),
    "an empty node": whole(HEAD, {**SOME, "nodes": {"n": {}}}),
    "time": whole(HEAD, {**SOME, "time": "soon"}),
    "no time": whole(HEAD, {**SOME, "time": float("nan")}),
    "another age": whole(HEAD, {**SOME, "time": 1e300}),
    "more ranks than there are": whole(HEAD, {**SOME, "world_size": 1 << 40}),
    "ranks without end": whole(HEAD, {**SOME, "world_size": float("inf")}),
    "silent nodes": whole(HEAD, {**SOME, "silent_nodes": 3}),
    "no nodes": whole(HEAD, {"time": 1.0}),
    "half JSON": gzip.compress(b'{"format"\n'),
    "deep JSON": gzip.compress(b"[" * 100_000 + b"\n"),
}


@pytest.mark.parametrize("data", NO_RECORDINGS.values(), ids=NO_RECORDINGS)
def test_what_is_no_recording_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "job"
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"recording|report of an agent"):
        list(replay(path))


LATER = {**SOME, "time": 2.0}
NODE = {"n": {"clock": 1, "full": True}}


BAD_LINES: dict[str, tuple[int, list[Any]]] = {
    "head": (1, [b"x" * 4096]),
    "time": (3, [HEAD, LATER, SOME]),
    "long": (3, [HEAD, SOME, b"x" * 3000]),
    "many values": (4, [HEAD, SOME, LATER, {"a": [0] * 500}]),
    "no text": (3, [HEAD, SOME, b"\xff"]),
    "many nodes": (3, [HEAD, SOME, {**LATER, "nodes": NODE | {"o": {"clock": 1}, "p": {"clock": 1}}}]),
    "many numbers": (3, [HEAD, SOME, {**LATER, "nodes": {"n": {"clock": 1, "groups": [["a", "b", 1]] * 30}}}]),
}


@pytest.mark.parametrize(("number", "lines"), BAD_LINES.values(), ids=BAD_LINES)
def test_the_line_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, lines: list[Any]
) -> None:
    for name, value in (("_MAX_LINE_NBYTES", 3000), ("_MAX_VALUES", 400), ("MAX_NODES", 2), ("MAX_INTEGERS", 100)):
        monkeypatch.setattr(recording, name, value)
    path = tmp_path / "job"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(gzip.compress(b"\n".join([*texts, b""])))
    with pytest.raises(CorruptDataError, match=f"line {number} is none"):
        list(replay(path))


def test_line_of_many_small_values_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_bytes(gzip.compress(json.dumps(HEAD).encode() + b"\n" + b"[]," * (1 << 24) + b"\n"))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match="values"):
            list(replay(path))
        assert tracemalloc.get_traced_memory()[1] < 4 * 3 * (1 << 24)
    finally:
        tracemalloc.stop()


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 65) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
heads = st.tuples(st.integers(-1, 5), st.integers(-1, 9), *[st.integers(-1, 5)] * 3, *[st.text(max_size=2)] * 2)
packed = st.binary(max_size=99).map(lambda data: base64.b64encode(data).decode())
nodes = st.dictionaries(
    st.text(max_size=2),
    st.fixed_dictionaries(
        {"clock": st.integers(0, 99) | anything},
        optional={
            "full": st.booleans(), "heads": st.lists(heads.map(list), max_size=3),
            "ranks": packed | st.text(max_size=9), "gone": anything, "states": anything, "members": anything,
        },
    ),
    max_size=3,
)  # fmt: skip
entries = st.fixed_dictionaries(
    {
        "time": st.floats(0, 100) | anything, "run": anything, "world_size": st.integers(0, 9) | anything,
        "silent_nodes": st.lists(st.text(max_size=2), max_size=2) | anything, "nodes": nodes | anything,
    },
    optional={"thresholds": anything, "stack": anything, "rank": anything},
)  # fmt: skip


@drawn(30, 100, deadline=2000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(lines=st.lists(entries | anything, max_size=4), rest=st.binary(max_size=20))
def test_whatever_lines_there_are_it_is_a_recording_or_none(tmp_path: Path, lines: list[Any], rest: bytes) -> None:
    path = tmp_path / "job"
    path.write_bytes(gzip.compress(b"".join(json.dumps(each).encode() + b"\n" for each in [HEAD, *lines]) + rest))
    with suppress(CorruptDataError):
        for observation, _ in replay(path, SECONDS):
            assert math.isfinite(observation.time)


def test_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "job"
    record(path, not_entered(1))
    data = bytearray(path.read_bytes())
    num_refused = 0
    for place in range(60, len(data) - 8, 101):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            list(replay(path, SECONDS))
        except CorruptDataError:
            num_refused += 1
    assert num_refused > 0
