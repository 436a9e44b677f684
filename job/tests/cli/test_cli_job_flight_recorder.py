"""`job diagnose --flight-recorder`: a job without the probe, from what torch's Flight Recorder kept of its ranks."""

from __future__ import annotations

import json
import os
import pickle
import struct
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire_job.service import recorder_dumps, recorder_pickle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run

WRITTEN = 1_700_000_000  # when the dumps were written, in seconds
LONG_AGO = 60.0
WORLD = {"0": ("default_pg", "[0, 1, 2, 3]")}


def entry(
    name: str,
    number: int,
    *,
    ago: float = LONG_AGO,
    state: str = "completed",
    group: tuple[str, str] = ("0", "default_pg"),
    size: int = 8,
    line: int = 6,
    **more: Any,
) -> dict[str, Any]:
    """As torch writes it. A message has the number of messages of its group."""
    is_message = "send " in name or "recv " in name
    called_by = [
        {"name": name.rpartition(":")[2], "filename": "/venv/torch/distributed/distributed_c10d.py", "line": 3245},
        {"name": "train", "filename": "/code/train.py", "line": line},
    ]
    return {
        "frames": called_by,  # Python frames
        "record_id": number,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": 0 if is_message else number,
        "p2p_seq_id": number if is_message else 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": int((WRITTEN - ago) * 1e9),
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": is_message,
    } | more


def opened(name: str, number: int, **more: Any) -> dict[str, Any]:
    """One that has begun, and is not complete."""
    return entry(name, number, **{"state": "started", **more})


def of(*entries: dict[str, Any], groups: dict[str, tuple[str, str]] = WORLD, version: str = "2.10") -> bytes:
    config = {name: {"name": name, "desc": desc, "ranks": ranks} for name, (desc, ranks) in groups.items()}
    return pickle.dumps({"version": version, "pg_config": config, "pg_status": {}, "entries": list(entries)}, 2)


def write(directory: Path, *dumps: bytes, written: float = WRITTEN) -> Path:
    for rank, dump in enumerate(dumps):
        path = directory / f"nccl_trace_rank_{rank}"
        path.write_bytes(dump)
        os.utime(path, (written, written))
    return directory


def ask(run: Run, directory: Path, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    code, out, err = run("diagnose", "--flight-recorder", directory, "--json", *options)
    return code, json.loads(out)["findings"], err


FIRST = entry("nccl:all_reduce", 1)
WAITS = of(FIRST, opened("nccl:all_reduce", 2))
AWAY = of(FIRST)


def test_the_rank_that_has_not_entered_is_named(run: Run, tmp_path: Path) -> None:
    code, findings, err = ask(run, write(tmp_path, WAITS, WAITS, AWAY, WAITS))
    assert (code, err) == (3, "")
    [finding] = findings
    assert (finding["code"], finding["suspects"], finding["confidence"]) == ("TW-H1", [2], "medium")
    assert finding["summary"] == "rank 2 has not entered all_reduce #2 of default_pg; 3 ranks wait for it"
    code, out, _ = run("diagnose", "--flight-recorder", tmp_path)
    assert code == 3
    assert "train (/code/train.py:6)" in out.partition("stack of rank 2:")[2]
    assert "ranks 0-1, 3: in all_reduce #2 of default_pg, called by train (/code/train.py:6)" in out
    assert "rank 2: last called all_reduce #1 of default_pg, called by train" in out
    assert "medium confidence (TW-H1, not-entered hang)" in " ".join(out.split())
    assert "that the probe sees" not in out


@pytest.mark.parametrize("other", [opened("nccl:broadcast", 2, line=8), opened("nccl:all_reduce", 2, size=9)])
def test_the_rank_that_called_something_else_is_named(run: Run, tmp_path: Path, other: dict[str, Any]) -> None:
    code, findings, _ = ask(run, write(tmp_path, WAITS, of(FIRST, other), WAITS, WAITS))
    assert code == 3
    assert [(each["code"], each["suspects"], each["confidence"]) for each in findings] == [("TW-H2", [1], "medium")]


def test_equal_sides_are_both_told(run: Run, tmp_path: Path) -> None:
    other = of(FIRST, opened("nccl:broadcast", 2))
    _, findings, _ = ask(run, write(tmp_path, WAITS, other, other, WAITS))
    assert [(each["suspects"], each["sides"]) for each in findings] == [([], [[0, 3], [1, 2]])]


def test_no_rank_is_named_where_all_have_entered(run: Run, tmp_path: Path) -> None:
    code, findings, _ = ask(run, write(tmp_path, *[WAITS] * 4))
    assert code == 3
    assert [(each["code"], each["suspects"], each["confidence"]) for each in findings] == [("TW-H3", [], "low")]


def test_ranks_that_moved_a_moment_ago_do_not_hang(run: Run, tmp_path: Path) -> None:
    moving = of(FIRST, opened("nccl:all_reduce", 2, ago=6))
    write(tmp_path, moving, AWAY, moving, moving)
    assert ask(run, tmp_path)[:2] == (0, [])
    assert ask(run, tmp_path, "--hang-seconds", "5")[0] == 3
    _, out, _ = run("diagnose", "--flight-recorder", tmp_path)
    none = "no finding: no rank waits for more than 30 s (--hang-seconds) for another one that has a dump here"
    assert none in " ".join(out.split())


def test_a_copy_is_younger_than_what_it_tells_of(run: Run, tmp_path: Path) -> None:
    """No operation is open for longer than its time-out."""
    write(tmp_path, WAITS, WAITS, AWAY, WAITS, written=WRITTEN + 1e6)
    _, findings, _ = ask(run, tmp_path)
    assert findings[0]["suspects"] == [2]
    assert "the longest for 10 min" in findings[0]["evidence"][0]


def test_a_rank_that_is_waited_for_in_a_message_is_named(run: Run, tmp_path: Path) -> None:
    """The chain leads from the collective over the message to the rank that has not sent."""
    receives = of(FIRST, opened("nccl:recv 1<-2", 1))
    code, findings, _ = ask(run, write(tmp_path, WAITS, receives, AWAY, WAITS))
    assert code == 3
    assert [(each["code"], each["suspects"]) for each in findings] == [("TW-H1", [2])]


def test_messages_that_were_called_as_one_end_with_the_last_entry(run: Run, tmp_path: Path) -> None:
    """Entries of the messages themselves stay as they were scheduled."""
    ends = [("nccl:send 0->1", "nccl:recv 1<-0"), ("nccl:recv 0<-1", "nccl:send 1->0")]
    pair = {"0": ("default_pg", "[0, 1]")}

    def batch(rank: int, state: str) -> bytes:
        messages = [entry(names[rank], 1, state="scheduled", op_id=number) for number, names in enumerate(ends)]
        end = entry("nccl:coalesced", 1, state=state, collective_seq_id=0, p2p_seq_id=1, is_p2p=True)
        return of(*messages, end, groups=pair)

    assert ask(run, write(tmp_path, batch(0, "completed"), batch(1, "completed")))[:2] == (0, [])
    idle = of(groups=pair)
    _, findings, _ = ask(run, write(tmp_path, batch(0, "started"), idle))
    assert [(each["code"], each["suspects"]) for each in findings] == [("TW-H1", [1])]


def test_who_may_wait_for_a_message_is_a_side(run: Run, tmp_path: Path) -> None:
    """gloo counts messages and keeps none: rank 2 has made one before its last collective."""
    waits = of(entry("gloo:all_reduce", 1), opened("gloo:all_reduce", 2), groups={})
    sent = of(entry("gloo:all_reduce", 1, op_id=2), groups={})
    _, findings, _ = ask(run, write(tmp_path, waits, waits, sent))
    assert [(each["suspects"], each["sides"], each["confidence"]) for each in findings] == [([], [[2], [0, 1]], "low")]


def test_who_goes_on_elsewhere_is_a_side(run: Run, tmp_path: Path) -> None:
    """Rank 2 left the loop that the others are in; rank 1 waits for it there, and rank 0 goes on."""
    groups = WORLD | {"1": ("dp", "[0, 2]"), "2": ("tp", "[1, 2]"), "3": ("own", "[0, 3]")}
    goes_on = of(*[entry("nccl:all_reduce", 90 + n, group=("3", "own"), ago=0.1) for n in range(3)], groups=groups)
    left = of(entry("nccl:all_reduce", 5, group=("2", "tp")), opened("nccl:all_reduce", 1, group=("1", "dp")),
              groups=groups)  # fmt: skip
    waits = of(opened("nccl:all_reduce", 6, group=("2", "tp")), groups=groups)
    _, findings, _ = ask(run, write(tmp_path, goes_on, waits, left, goes_on))
    assert [each["suspects"] for each in findings] == [[]]


def test_groups_of_one_name_are_told_apart_by_their_ranks(run: Run, tmp_path: Path) -> None:
    """torch's split_group gives one name to all parts."""
    tp = ("1", "tp")
    halves = [WORLD | {"1": ("tp", ranks)} for ranks in ("[0, 1]", "[2, 3]")]
    well = entry("nccl:all_reduce", 1, group=tp)
    hangs = opened("nccl:all_gather", 1, group=tp)
    write(tmp_path, of(well, groups=halves[0]), of(well, groups=halves[0]), of(hangs, groups=halves[1]),
          of(groups=halves[1]))  # fmt: skip
    _, findings, _ = ask(run, tmp_path)
    assert [(each["code"], each["suspects"], each["process_group"]) for each in findings] == [("TW-H1", [3], "tp")]


def test_the_front_of_a_ring_may_be_lost(run: Run, tmp_path: Path) -> None:
    """A group that a rank used long ago is not one that it never entered."""
    dp = ("1", "dp")
    groups = WORLD | {"1": ("dp", "[0, 1]")}
    busy = of(*[entry("nccl:all_reduce", number) for number in range(500, 510)], groups=groups)
    used = of(entry("nccl:all_reduce", 7, group=dp), *[entry("nccl:all_reduce", n) for n in range(500, 510)],
              groups=groups)  # fmt: skip
    others = of(*[entry("nccl:all_reduce", number) for number in range(500, 510)])
    assert ask(run, write(tmp_path, busy, used, others, others))[:2] == (0, [])


def test_a_rank_without_a_dump_is_told(run: Run, tmp_path: Path) -> None:
    write(tmp_path, *[WAITS] * 4)
    (tmp_path / "nccl_trace_rank_1").unlink()
    code, findings, err = ask(run, tmp_path)
    assert code == 3
    assert err == f"tensorwire-job: {tmp_path} has no dump of rank 1\n"
    assert all(each["confidence"] == "low" and each["suspects"] in ([], [1]) for each in findings)


def test_names_of_a_dump_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    evil = ("0", "\x1b[2Jpg")
    write(tmp_path, of(opened("nccl:all_reduce", 1, group=evil)), of(groups={"0": (evil[1], "[0, 1]")}))
    _, out, _ = run("diagnose", "--flight-recorder", tmp_path)
    assert "\x1b" not in out


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


NO_PICKLE = "it is no dump of a Flight Recorder: it is no whole pickle of numbers and texts alone"
OTHER = "it is no dump of a Flight Recorder: its entries are not as torch writes them"
HOSTILE = {
    "no pickle": (b"Thread 3823 (idle)", NO_PICKLE),
    "empty": (b"", NO_PICKLE),
    "cut off": (WAITS[:-40], NO_PICKLE),
    "a global": (b"\x80\x02cos\nsystem\n.", NO_PICKLE),
    "a key that is no text": (b"\x80\x02}" + b"\x85" * 3 + b"K\x01s.", NO_PICKLE),
    "a memo that is not there": (b"\x80\x02h\x05.", NO_PICKLE),
    "a text longer than the file": (b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"abc.", NO_PICKLE),
    "marks without end": (b"\x80\x02" + b"(" * 200_000, "nested more than 100000 levels deep"),
    "lists without end": (b"\x80\x02]" + b"]" * 100_000 + b"a" * 100_000 + b".", "it has no version"),
    "another version": (of(version="1.5"), "got '1.5'"),
    "no entries": (pickle.dumps({"version": "2.10", "pg_config": {}}, 2), OTHER),
    "entries that are a number": (pickle.dumps({"version": "2.10", "pg_config": {}, "entries": 1}, 2), "a list of"),
    "an entry that is a text": (pickle.dumps({"version": "2.10", "pg_config": {}, "entries": ["a"]}, 2), OTHER),
    "a size that is a text": (of(entry("nccl:all_reduce", 1) | {"input_sizes": [["a", 1 << 40]]}), OTHER),
    "a number that is too large": (of(entry("nccl:all_reduce", 1) | {"collective_seq_id": 1 << 70}), OTHER),
    "a rank that is too large": (of(groups={"0": ("default_pg", "[9999999]")}), OTHER),
    "itself": (b"\x80\x02]q\x00h\x00a.", "it has no version"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_dump_is_told_and_left_out(run: Run, tmp_path: Path, name: str) -> None:
    data, why = HOSTILE[name]
    write(tmp_path, WAITS, WAITS, AWAY, data)
    code, findings, err = ask(run, tmp_path)
    assert (code, [each["suspects"] for each in findings][:1]) == (3, [[2]])
    assert err.startswith("tensorwire-job: nccl_trace_rank_3 is skipped: ")
    assert why in err
    assert len(err) < 300


def test_no_code_of_a_dump_runs(run: Run, tmp_path: Path) -> None:
    victim = tmp_path / "made"
    write(tmp_path, pickle.dumps(_Runs(victim)), pickle.dumps({"version": _Runs(victim)}, 2))
    code, out, err = run("diagnose", "--flight-recorder", tmp_path)
    assert (code, out) == (2, "")
    assert not victim.exists()
    assert "has no dump of a rank; set TORCH_FR_BUFFER_SIZE=2000" in err


def test_what_is_too_large_is_left_out(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_dumps, "_MAX_ENTRIES", 1)
    write(tmp_path, WAITS, AWAY)
    assert (
        "nccl_trace_rank_0 is skipped: it is no dump of a Flight Recorder: expected a list of at most 1"
        in ask(run, tmp_path)[2]
    )
    monkeypatch.setattr(recorder_pickle, "_MAX_VALUES", 10)
    assert "its pickle has more than 10 values" in run("diagnose", "--flight-recorder", tmp_path)[2]
    monkeypatch.setattr(recorder_dumps, "_MAX_NBYTES", 64)
    assert "no dump is so large" in run("diagnose", "--flight-recorder", tmp_path)[2]


@pytest.mark.parametrize(
    "shared",
    [
        {"input_sizes": [[1] * 60_000]},
        {"input_sizes": [[1 << 61] * 17]},
        {"input_sizes": [[1 << 61, 2]]},
        {"input_sizes": [[1]] * 40_000},
    ],
    ids=range(4),
)
def test_rows_that_share_a_long_list_take_no_time(run: Run, tmp_path: Path, shared: dict[str, Any]) -> None:
    """Each takes a few bytes of a pickle. The last one is refused for the sum of all."""
    row = entry("nccl:all_reduce", 1, **shared)
    _, _, err = run("diagnose", "--flight-recorder", write(tmp_path, of(*[row] * 1000), WAITS, AWAY))
    assert "it is no dump of a Flight Recorder" in err
    assert "nccl_trace_rank_0" in err


def test_a_rank_is_in_a_group_once(run: Run, tmp_path: Path) -> None:
    """Many groups may share one text of many ranks."""
    twice = of(FIRST, groups={"0": ("default_pg", "[0, 1, 1]")})
    _, _, err = run("diagnose", "--flight-recorder", write(tmp_path, twice, WAITS, AWAY))
    assert "nccl_trace_rank_0" in err


@pytest.mark.parametrize("option", ["--for", "--dir", "--slow-factor"])
def test_options_without_effect_are_refused(run: Run, tmp_path: Path, option: str) -> None:
    code, _, err = run("diagnose", "--flight-recorder", write(tmp_path, WAITS), option, "3")
    assert code == 2
    assert f"{option} has no effect with --flight-recorder" in err


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_python_writes_is_read_as_python_reads_it(protocol: int) -> None:
    values = {"a": [1, -1, 255, 70_000, -(1 << 40), 1.5, None, True, False, "é" * 300], "b": [(), (1,), (1, 2, 3, 4)]}
    data = pickle.dumps(values | {"again": values["a"]}, protocol)
    assert recorder_pickle.read_pickle(data) == pickle.loads(data)
