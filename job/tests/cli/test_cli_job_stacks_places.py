"""`job diagnose --stacks`: operations that no stack of Python's shows, in any thread, and ranks that import."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tensorwire_job.service.source_lines import operation_at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run

# As py-spy 0.4.3 prints them; {here} is the folder of the script, "" where py-spy shortens its path.
SOURCE = """import threading
from time import sleep as pause

def exchange(works, lock, store, loss):
    for work in works: work.wait()
    works[0] \\
        .wait()
    lock.acquire(); works[0].wait()
    finish = works[0].wait
    finish()
    list(map(type(works[0]).wait, works))
    works[0].wait(timeout=5)
    store.wait(["key"])
    lock.acquire()
    pause(3)
    loss.item()
    with lock: works[0].wait()
    model._broadcast_coalesced(works)
"""
IN_SCRIPT = """Thread 71 (idle): "MainThread"
    exchange ({here}train.py:{line})
    <module> ({here}train.py:30)
"""
IN_CALL = """Thread 72 (idle): "MainThread"
    {call} (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    exchange ({here}train.py:20)
    <module> ({here}train.py:30)
"""
IN_FILE = """Thread 73 (idle): "MainThread"
    read (socket.py:20)
    load (data.py:12)
    <module> (train.py:10)
"""
IN_EXECUTOR = """Thread 74 (idle): "MainThread"
    EpollSelector.select (selectors.py:468)
    BaseEventLoop._run_once (asyncio/base_events.py:1884)
    run (asyncio/runners.py:190)
    <module> (train.py:20)

Thread 75 (idle): "asyncio_0"
    {thread}
    _WorkItem.run (concurrent/futures/thread.py:58)
    Thread._bootstrap (threading.py:1002)
"""
IN_POOL = "all_reduce (torch/distributed/distributed_c10d.py:3252)"
IDLE = "Condition.wait (threading.py:327)"
IMPORTS = """Thread 76 (active+gil): "MainThread"
    get_data (<frozen importlib._bootstrap_external>:1073)
    _find_and_load (<frozen importlib._bootstrap>:1176)
    <module> (numpy/__init__.py:130)
    exec_module (<frozen importlib._bootstrap>:241)
    _find_and_load (<frozen importlib._bootstrap>:1176)
    main (train.py:2)
    <module> (train.py:40)
"""


def ask(run: Run, folder: Path, *ranks: str) -> list[dict[str, object]]:
    (folder / "train.py").write_text(SOURCE)
    for rank, text in enumerate(ranks):
        (folder / f"rank{rank}.txt").write_text(text)
    _, out, _ = run("diagnose", "--stacks", folder, "--json")
    told: list[dict[str, object]] = json.loads(out)["findings"]
    return told


def claims(findings: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(each["code"], each["suspects"], each["sides"]) for each in findings]


def in_script(folder: Path | str, line: int) -> str:
    return IN_SCRIPT.format(here=f"{folder}/" if folder else "", line=line)


def in_call(call: str) -> str:
    return IN_CALL.format(call=call, here="")


def test_a_rank_that_waits_on_a_work_is_not_the_one_that_has_not_entered(run: Run, tmp_path: Path) -> None:
    """One of a ring waits to receive; another one is in the next collective, and any of them may be the cause."""
    works = in_script(tmp_path, 5)
    reduces = in_call("all_reduce")
    assert claims(ask(run, tmp_path, works, reduces, reduces, reduces)) == [("TW-H2", [], [[1, 2, 3], [0]])]
    [found] = ask(run, tmp_path, works, IN_FILE, reduces, works)
    assert (found["code"], found["suspects"]) == ("TW-H1", [1])
    assert "rank 1 has not entered all_reduce; 3 ranks wait for it" in str(found["summary"])
    [found] = ask(run, tmp_path, works, IN_FILE, works, works)
    assert found["summary"] == "rank 1 has entered no operation; 3 ranks wait for it"


def test_where_the_script_is_not_at_hand_such_a_rank_is_a_side(run: Run, tmp_path: Path) -> None:
    reduces = in_call("all_reduce")
    [found] = ask(run, tmp_path, reduces, reduces, reduces, in_script("/elsewhere", 5))
    assert (found["code"], found["suspects"], found["sides"]) == ("TW-H1", [], [[3], [0, 1, 2]])
    assert found["summary"] == "3 ranks wait in all_reduce; it is not known whether rank 3 waits too"
    [found] = ask(run, tmp_path, reduces, IN_FILE, reduces, in_script("/elsewhere", 5))
    assert (found["suspects"], found["sides"]) == ([], [[1], [3], [0, 2]])


def test_a_lock_in_the_script_is_no_operation(run: Run, tmp_path: Path) -> None:
    reduces = in_call("all_reduce")
    assert claims(ask(run, tmp_path, reduces, in_script(tmp_path, 14), reduces)) == [("TW-H1", [1], [])]


def test_a_shortened_path_is_found_beside_the_script_of_the_command(run: Run, tmp_path: Path) -> None:
    head = f"Process 5: python -u {tmp_path}/train.py --epochs 3\n\n"
    reduces = head + in_call("all_reduce")
    assert claims(ask(run, tmp_path, reduces, head + in_script("", 14), reduces)) == [("TW-H1", [1], [])]


def test_a_rank_that_holds_pythons_lock_computes(run: Run, tmp_path: Path) -> None:
    spins = in_script("/elsewhere", 5).replace("(idle)", "(active+gil)")
    assert claims(ask(run, tmp_path, in_call("barrier"), in_call("barrier"), spins)) == [("TW-H1", [2], [])]


def test_half_of_the_ranks_are_a_side(run: Run, tmp_path: Path) -> None:
    """They wait for a file that is locked, and the one in the barrier has the lock; or they train on by themselves."""
    waits, barrier = in_script(tmp_path, 14), in_call("barrier")
    assert claims(ask(run, tmp_path, waits, barrier, IN_FILE, barrier)) == [("TW-H1", [], [[0, 2], [1, 3]])]
    assert claims(ask(run, tmp_path, waits, in_call("barrier"), waits, waits)) == [("TW-H1", [], [[0, 2, 3], [1]])]


def test_collectives_of_other_threads_are_looked_at(run: Run, tmp_path: Path) -> None:
    reduces, idle = (IN_EXECUTOR.format(thread=thread) for thread in (IN_POOL, IDLE))
    [found] = ask(run, tmp_path, reduces, idle, reduces)
    assert (found["code"], found["suspects"]) == ("TW-H1", [1])
    works = IN_EXECUTOR.format(thread=f"exchange ({tmp_path}/train.py:7)")
    [found] = ask(run, tmp_path, works, idle, works)
    assert (found["code"], found["suspects"]) == ("TW-H1", [1])
    _, out, _ = run("diagnose", "--stacks", tmp_path)
    assert "ranks 0, 2: in Work.wait, called by exchange" in out


def test_a_thread_that_waits_while_the_main_thread_is_elsewhere_decides_nothing(run: Run, tmp_path: Path) -> None:
    """A checkpoint's thread gathers in a group of its own."""
    saves = IN_EXECUTOR.format(thread=IN_POOL).partition("\n\n")[2]
    reduces = in_call("all_reduce")
    found = ask(run, tmp_path, reduces, in_script(tmp_path, 14) + "\n" + saves, reduces)
    assert claims(found) == [("TW-H1", [], [[1], [0, 2]])]


def test_a_rank_that_imports_is_starting(run: Run, tmp_path: Path) -> None:
    assert ask(run, tmp_path, in_call("init_process_group"), IMPORTS) == []
    _, out, _ = run("diagnose", "--stacks", tmp_path)
    assert "rank 1: importing, in main (train.py:2)" in out
    [found] = ask(run, tmp_path, in_call("all_reduce"), IMPORTS)  # all have joined: it imports from silent storage
    assert (found["code"], found["suspects"]) == ("TW-H1", [1])
    assert "importlib" not in str(found)
    assert "numpy/__init__.py" in str(found["stacks"])


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        (5, "wait"),
        (7, "wait"),  # of several lines: it stands where the name of the method does
        (8, None),  # two statements, each of which may be the one
        (10, "wait"),
        (11, "wait"),
        (12, "wait"),
        (13, None),  # of the store
        (14, ""),
        (15, ""),
        (16, None),  # it waits for a device, if there is one
        (17, None),
        (18, "_broadcast_coalesced"),
        (3, None),  # no line of that function: another version of the file
    ],
)
def test_what_a_line_waits_in(tmp_path: Path, line: int, operation: str | None) -> None:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    assert operation_at(str(path), line, "Trainer.exchange") == operation


@pytest.mark.parametrize("text", ["def exchange(:", "\0", "(" * 5000, None])
def test_a_file_that_is_no_source_tells_nothing(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "train.py"
    path.mkdir() if text is None else path.write_text(text)
    assert operation_at(str(path), 1, "exchange") is None
