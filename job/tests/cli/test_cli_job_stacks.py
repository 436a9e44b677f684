"""`job diagnose --stacks`: a job without the probe, from what py-spy wrote of its ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire_job.model import MAX_RANKS
from tensorwire_job.service import dumped_stacks, rank_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.command_line import Run

# As py-spy 0.4.3 prints them.
HEAD = """Process 3823: /venv/bin/python train.py
Python v3.11.7 (/usr/bin/python3.11)

"""
IN_CALL = """Thread 3823 (idle): "MainThread"
    {call} (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:{line})
    <module> (train.py:90)
"""
ASLEEP = """Thread 3824 (idle): "MainThread"
    read (socket.py:20)
    train.<locals>.load (data.py:12)
    train (train.py:9)
    <module> (train.py:10)
"""
IN_INIT = """Thread 3825 (idle): "MainThread"
    _create_c10d_store (torch/distributed/rendezvous.py:189)
    _env_rendezvous_handler (torch/distributed/rendezvous.py:260)
    init_process_group (torch/distributed/distributed_c10d.py:1700)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    <module> (train.py:3)
"""
IN_BACKWARD = """Thread 0x7F10 (idle): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:824)
    backward (torch/_tensor.py:581)
    <module> (train.py:20)

Thread 0x7F11 (active): "pt_autograd_0"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    hook (train.py:15)
"""
IN_DDP = """Thread 2566 ({state}): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:979)
    backward (torch/autograd/__init__.py:395)
    Tensor.backward (torch/_tensor.py:623)
    train (train.py:50)
"""
LAUNCHER = """Thread 7 (idle): "MainThread"
    _invoke_run (torch/distributed/elastic/agent/server/api.py:906)
    launch_agent (torch/distributed/launcher/api.py:260)
    <module> (torchrun:8)
"""
DATA_WORKER = """Thread 3830 (idle): "MainThread"
    poll (selectors.py:415)
    get (multiprocessing/queues.py:113)
    _worker_loop (torch/utils/data/_utils/worker.py:275)
    run (multiprocessing/process.py:108)
    __iter__ (torch/utils/data/dataloader.py:439)
    <module> (train.py:10)
"""


def in_call(call: str, line: int = 6) -> str:
    return IN_CALL.format(call=call, line=line)


def write(directory: Path, *ranks: str) -> Path:
    for rank, threads in enumerate(ranks):
        (directory / f"node7-rank{rank}.txt").write_text(HEAD + threads)
    return directory


def ask(run: Run, directory: Path) -> tuple[int, list[dict[str, object]], str]:
    code, out, err = run("diagnose", "--stacks", directory, "--json")
    return code, json.loads(out)["findings"], err


def test_the_rank_that_is_elsewhere_is_named(run: Run, tmp_path: Path) -> None:
    write(tmp_path, in_call("all_reduce"), in_call("all_reduce"), ASLEEP, IN_BACKWARD)
    code, findings, err = ask(run, tmp_path)
    assert (code, len(findings), err) == (3, 1, "")
    finding = findings[0]
    assert (finding["code"], finding["suspects"], finding["confidence"]) == ("TW-H1", [2], "low")
    assert finding["summary"] == "rank 2 has not entered all_reduce; 3 ranks wait for it"
    assert finding["victims"] == 3
    assert "rank 2 is in train.<locals>.load (data.py:12)" in str(finding["evidence"])
    code, out, _ = run("diagnose", "--stacks", tmp_path)
    assert code == 3
    assert 'stack of rank 2:\n    Thread 3824 (idle): "MainThread"' in out
    assert "Process 3823" not in out
    assert "ranks 0-1: in all_reduce, called by train (train.py:6)" in out


def test_the_rank_in_another_call_is_named(run: Run, tmp_path: Path) -> None:
    write(tmp_path, in_call("all_reduce"), in_call("barrier", 8), in_call("all_reduce"))
    code, findings, _ = ask(run, tmp_path)
    assert code == 3
    assert [(each["code"], each["suspects"], each["confidence"]) for each in findings] == [("TW-H2", [1], "low")]
    assert "rank 1 is in barrier, called by train (train.py:8)" in str(findings[0]["evidence"])


def test_equal_sides_are_both_named(run: Run, tmp_path: Path) -> None:
    calls = ("all_reduce", "barrier", "barrier", "all_reduce")
    write(tmp_path, *map(in_call, calls))
    _, findings, _ = ask(run, tmp_path)
    assert [(each["code"], each["suspects"], each["sides"]) for each in findings] == [("TW-H2", [], [[0, 3], [1, 2]])]


def test_one_is_elsewhere_while_the_others_are_in_several_calls(run: Run, tmp_path: Path) -> None:
    write(tmp_path, in_call("all_reduce"), in_call("all_reduce"), in_call("recv"), ASLEEP)
    _, findings, _ = ask(run, tmp_path)
    assert [(each["code"], each["suspects"]) for each in findings] == [("TW-H1", [3])]


def test_a_rank_that_does_not_come_to_the_set_up(run: Run, tmp_path: Path) -> None:
    write(tmp_path, IN_INIT, ASLEEP)
    _, findings, _ = ask(run, tmp_path)
    assert findings[0]["summary"] == "rank 1 has not entered init_process_group; 1 rank waits for it"


def test_ranks_wait_for_gradients_inside_the_backward_pass(run: Run, tmp_path: Path) -> None:
    """DDP reduces them in C++, which no stack of Python's shows; a rank that computes does not wait."""
    waits, computes = IN_DDP.format(state="idle"), IN_DDP.format(state="active")
    write(tmp_path, waits, waits, ASLEEP)
    _, findings, _ = ask(run, tmp_path)
    assert [(each["summary"], each["suspects"]) for each in findings] == [
        ("rank 2 has not entered backward; 2 ranks wait for it", [2])
    ]
    code, findings, _ = ask(run, write(tmp_path, computes, computes, ASLEEP))
    assert (code, findings) == (0, [])


@pytest.mark.parametrize("threads", [in_call("all_reduce"), ASLEEP], ids=["all in one call", "none waits"])
def test_where_nobody_waits_for_another_nothing_is_found(run: Run, tmp_path: Path, threads: str) -> None:
    write(tmp_path, threads, threads)
    code, out, _ = run("diagnose", "--stacks", tmp_path)
    assert code == 0
    assert "no finding" in out


def test_files_of_other_programs_are_told_and_skipped(run: Run, tmp_path: Path) -> None:
    write(tmp_path, in_call("all_reduce"), ASLEEP)
    (tmp_path / "empty-2.txt").touch()
    (tmp_path / "core.3").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "gdb4.txt").write_text("#0 0x7f in futex_wait ()\n#1 main () at main.c:3\n")
    (tmp_path / "torchrun5.txt").write_text(HEAD + LAUNCHER)
    (tmp_path / "notes.txt").write_text(HEAD + ASLEEP)
    (tmp_path / "worker-0.txt").write_text(HEAD + DATA_WORKER)
    (tmp_path / "old6").mkdir()
    code, findings, err = ask(run, tmp_path)
    assert (code, findings[0]["suspects"]) == (3, [1])
    assert sorted(err.splitlines()) == [
        "tensorwire-job: core.3 is skipped: it has no Python stack",
        "tensorwire-job: empty-2.txt is skipped: it has no Python stack",
        "tensorwire-job: gdb4.txt is skipped: it has no Python stack",
        "tensorwire-job: notes.txt is skipped: its name has no number of a rank",
        "tensorwire-job: torchrun5.txt is skipped: it is the launcher's",
        "tensorwire-job: worker-0.txt is skipped: it is a data loader's worker",
    ]


def test_the_newest_of_two_files_of_a_rank_is_taken(run: Run, tmp_path: Path) -> None:
    """Stacks are taken again after a minute, and it is told which of the two is judged."""
    write(tmp_path, in_call("all_reduce"), ASLEEP)
    (tmp_path / "again-rank1.txt").write_text(HEAD + in_call("all_reduce"))
    for name, seconds in (("node7-rank1.txt", 1000), ("again-rank1.txt", 1060)):
        os.utime(tmp_path / name, (seconds, seconds))
    code, findings, err = ask(run, tmp_path)
    assert (code, findings) == (0, [])
    assert err == "tensorwire-job: node7-rank1.txt is skipped: again-rank1.txt is of rank 1 too, and is no older\n"


def test_a_rank_without_a_file_is_told(run: Run, tmp_path: Path) -> None:
    write(tmp_path, *[in_call("all_reduce")] * 4)
    (tmp_path / "node7-rank1.txt").unlink()
    code, findings, err = ask(run, tmp_path)
    assert (code, findings) == (0, [])
    assert err == f"tensorwire-job: {tmp_path} has no stack of rank 1\n"


def test_numbers_that_are_no_ranks_are_told(run: Run, tmp_path: Path) -> None:
    for process in (3823, 3824):
        (tmp_path / f"{process}.txt").write_text(HEAD + in_call("all_reduce"))
    _, _, err = ask(run, tmp_path)
    assert (
        err == f"tensorwire-job: {tmp_path} has no stack of ranks 0-3822: is the last number in each name the rank?\n"
    )


def test_what_was_right_with_a_probe_is_not_said_of_stacks(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("diagnose", "--stacks", write(tmp_path, in_call("all_reduce"), ASLEEP))
    assert "\n  low confidence (TW-H1, not-entered hang)\n" in out
    assert "next:" not in out


OTHER = """Process 77: /venv/bin/python /venv/bin/tensorboard --logdir runs
Python v3.11.7 (/usr/bin/python3.11)

Thread 77 (idle): "MainThread"
    wait (threading.py:327)
    main (tensorboard/main.py:40)
    <module> (tensorboard:8)
"""


def test_another_program_of_python_is_no_rank(run: Run, tmp_path: Path) -> None:
    """It waits in no call either, and would be the one that all wait for."""
    write(tmp_path, in_call("all_reduce"), in_call("all_reduce"), ASLEEP)
    (tmp_path / "board-3.txt").write_text(OTHER)
    code, findings, err = ask(run, tmp_path)
    assert (code, [each["suspects"] for each in findings]) == (3, [[2]])
    assert err == "tensorwire-job: board-3.txt is skipped: it is of another program (/venv/bin/tensorboard)\n"


@pytest.mark.parametrize("command", ["python -u -m pdb train.py", "/opt/python3.12 train.py --rank 3", ""])
def test_a_rank_that_was_started_otherwise_is_one(run: Run, tmp_path: Path, command: str) -> None:
    write(tmp_path, in_call("all_reduce"), in_call("all_reduce"))
    (tmp_path / "rank2.txt").write_text((f"Process 9: {command}\n\n" if command else "") + ASLEEP)
    code, findings, err = ask(run, tmp_path)
    assert (code, [each["suspects"] for each in findings], err) == (3, [[2]], "")


def test_a_directory_without_a_stack_says_how_to_take_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").touch()
    code, out, err = run("diagnose", "--stacks", tmp_path)
    assert (code, out) == (2, "")
    assert "rank0.txt is skipped" in err
    assert "py-spy dump --pid PID > DIR/rank0.txt" in err


@pytest.mark.parametrize("option", ["--for", "--hang-seconds", "--dir"])
def test_options_without_effect_are_refused(run: Run, tmp_path: Path, option: str) -> None:
    code, _, err = run("diagnose", "--stacks", write(tmp_path, ASLEEP), option, "3")
    assert code == 2
    assert f"{option} has no effect with --stacks" in err


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rank0.txt", "rank1.txt"):
        (tmp_path / name).write_text("no stack")

    def refuse(path: os.DirEntry[str], flags: int) -> None:
        raise PermissionError(13, "Permission denied", path.name)

    monkeypatch.setattr(os, "open", refuse)
    assert dumped_stacks.read_places(tmp_path) == ({}, dict.fromkeys(["rank0.txt", "rank1.txt"], "Permission denied"))


def test_what_is_no_file_is_told_and_not_waited_for(run: Run, tmp_path: Path) -> None:
    write(tmp_path, in_call("all_reduce"), ASLEEP)
    os.mkfifo(tmp_path / "rank2.txt")
    for rank, target in ((3, "rank3.txt"), (4, "nowhere"), (5, "/dev/zero"), (6, "rank2.txt")):
        (tmp_path / f"rank{rank}.txt").symlink_to(target)
    code, findings, err = ask(run, tmp_path)
    assert (code, [each["suspects"] for each in findings]) == (3, [[1]])
    assert err.splitlines() == [
        "tensorwire-job: rank2.txt is skipped: not a regular file",
        "tensorwire-job: rank3.txt is skipped: Too many levels of symbolic links",
        "tensorwire-job: rank4.txt is skipped: No such file or directory",
        "tensorwire-job: rank5.txt is skipped: not a regular file",
        "tensorwire-job: rank6.txt is skipped: not a regular file",
    ]


def test_a_file_that_is_written_later_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link may lead to a file of /proc that looks regular, and gives its bytes once there are some."""
    opened: list[int] = []

    def note(file: os.DirEntry[str], flags: int, real: Callable[..., int] = os.open) -> int:
        opened.append(flags)
        return real(file, flags)

    write(tmp_path, ASLEEP)
    monkeypatch.setattr(os, "open", note)
    dumped_stacks.read_places(tmp_path)
    assert opened
    assert all(flags & os.O_NONBLOCK for flags in opened)


def test_a_number_beyond_all_ranks_is_none(run: Run, tmp_path: Path) -> None:
    """To list all ranks below it that lack a file would take memory."""
    write(tmp_path, in_call("all_reduce"))
    (tmp_path / f"{MAX_RANKS}.txt").write_text(HEAD + in_call("all_reduce"))
    (tmp_path / "rank00000000001.txt").write_text(HEAD + in_call("all_reduce"))
    code, findings, err = ask(run, tmp_path)
    assert (code, findings) == (0, [])
    assert err == f"tensorwire-job: {MAX_RANKS}.txt is skipped: its name has no number of a rank\n"


def test_a_line_that_is_of_no_stack_takes_no_time(tmp_path: Path) -> None:
    """To match it would take a time that grows with the square of its length: minutes."""
    (tmp_path / "rank0.txt").write_text('Thread 1 (idle): "MainThread"\n    a' + " (a:1" * 100_000)
    places, skipped = dumped_stacks.read_places(tmp_path)
    assert not places
    assert list(skipped) == ["rank0.txt"]


def test_a_directory_of_too_many_files_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_files, "MAX_FILES", 2)
    code, out, err = run("diagnose", "--stacks", write(tmp_path, ASLEEP, ASLEEP, ASLEEP))
    assert (code, out) == (2, "")
    assert "has more than 2 files, expected one of each rank" in err


def test_of_many_files_a_few_are_told_by_name(run: Run, tmp_path: Path) -> None:
    write(tmp_path, in_call("all_reduce"), ASLEEP)
    for number in range(30):
        (tmp_path / f"log.{number}").write_text("no stack")
    _, findings, err = ask(run, tmp_path)
    assert findings[0]["suspects"] == [1]
    assert len(err.splitlines()) == 21
    assert "tensorwire-job: 10 more files are skipped" in err


def test_of_many_places_a_few_are_told(run: Run, tmp_path: Path) -> None:
    write(tmp_path, in_call("all_reduce"), *[ASLEEP.replace("train.<locals>.load", f"load{i}") for i in range(30)])
    _, out, _ = run("diagnose", "--stacks", tmp_path)
    assert out.endswith("rank 19: in load18 (data.py:12)\n11 more places; --json lists all\n")


def test_a_large_file_is_read_in_part(tmp_path: Path) -> None:
    """So is what is kept of it: of every rank, until it is known which ones are shown."""
    (tmp_path / "rank0.txt").write_text(HEAD + ASLEEP + ASLEEP.replace("Main", "Other") * 10_000)
    places, skipped = dumped_stacks.read_places(tmp_path)
    assert not skipped
    assert places[0].text == "in train.<locals>.load (data.py:12)"
    assert len(places[0].stack) < 100_000
