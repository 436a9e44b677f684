"""Where the system starts no more threads: what needs one says so and leaves nothing; loading does without."""

from __future__ import annotations

import _thread
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    load_file,
    open_file,
    save_file,
    verify,
)
from tensorwire.storage import local
from tests.support.acting import raising
from tests.support.checkpoint_models import SHARD
from tests.support.command_line import forked
from tests.support.deltas import write_next
from tests.support.destination_cells import snapshot
from tests.support.processes import exit_code
from tests.support.refused_calls import NO_THREADS, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

LINE = "tensorwire: no more threads can be started; end other processes, or raise the limit (ulimit -u, pids.max)\n"
COMMANDS = {
    "compress": "compress model x",
    "compress a file": f"compress model/{SHARD} x",
    "compress a stream": "compress - x",
    "compress --estimate": "compress model --estimate",
    "compress --base": "compress new x --base model",
    "decompress": "decompress packed x",
    "decompress --in-place": "decompress delta --base model --in-place",
    "transcode": "transcode packed x --profile compact",
    "verify": "verify packed",
    "diff": "diff model packed",
}


@pytest.fixture
def all_of_it(model: Path, packed: Path, tmp_path: Path) -> Path:
    write_next(model, tmp_path / "new")
    compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=model)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(all_of_it: Path, command: str) -> None:
    before = snapshot(all_of_it)
    with (all_of_it / "model" / SHARD).open("rb") as stream:
        arguments = COMMANDS[command].split()
        done = forked(*arguments, first=partial(refuse, NO_THREADS), cwd=all_of_it, stdin=stream, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", LINE)
    assert snapshot(all_of_it) == before


def test_reading_does_without(all_of_it: Path) -> None:
    def child() -> None:
        refuse(NO_THREADS)
        tensors = load_file(all_of_it / "model" / SHARD)
        packed = load_file(all_of_it / "packed" / SHARD, threads=4)
        assert {name: each.tobytes() for name, each in packed.items()} == {n: a.tobytes() for n, a in tensors.items()}
        load_file(all_of_it / "packed")
        with open_file(all_of_it / "packed" / SHARD) as opened:
            opened.get_tensors()
        with pytest.raises(RuntimeError, match="can't start new thread"):
            save_file(tensors, all_of_it / "x")

    assert exit_code(child) == 0
    assert not list(all_of_it.glob("x*"))


def run(what: str, root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> tuple[str, int]:
    """Let the start of one thread fail: what the error says, and how many threads were to be started."""
    num_starts = 0
    told = ""

    def counted(start: Callable[..., object]) -> Callable[..., object]:
        def count(*arguments: Any) -> object:
            nonlocal num_starts
            num_starts += 1
            if num_starts == number + 1:
                raise RuntimeError("can't start new thread")
            return start(*arguments)

        return count

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", counted(threading.Thread.start))
        patch.setattr(_thread, "start_new_thread", counted(_thread.start_new_thread))
        try:
            WORKS[what](root)
        except RuntimeError as error:
            told = str(error)
    return told, num_starts


def apply(root: Path) -> None:
    shutil.rmtree(root / "x", ignore_errors=True)
    shutil.copytree(root / "model", root / "x")
    apply_checkpoint(root / "delta", root / "x")


WORKS: dict[str, Callable[[Path], object]] = {
    "compress": lambda root: compress_checkpoint(root / "model", root / "x", force=True),
    "decompress": lambda root: decompress_checkpoint(root / "packed", root / "x", force=True),
    "apply": apply,
    "verify": lambda root: verify(root / "packed"),
    "diff": lambda root: diff(root / "model", root / "packed"),
    "save": lambda root: save_file({"w": np.arange(70_000.0)}, root / "x"),
    "load": lambda root: load_file(root / "packed" / SHARD, threads=4),
    "load all": lambda root: load_file(root / "packed", threads=4),
}


@pytest.mark.parametrize("most", [8, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", WORKS)
def test_the_limit_is_met_in_the_middle(all_of_it: Path, monkeypatch: pytest.MonkeyPatch, what: str, most: int) -> None:
    """At each start of a thread in the slow test, at some of them in the quick one."""
    num_starts = run(what, all_of_it, monkeypatch, -1)[1]
    assert num_starts
    expected = snapshot_of_content(all_of_it)
    for number in range(0, num_starts, -(-num_starts // most)):
        told, num_started = run(what, all_of_it, monkeypatch, number)
        is_met = num_started > number  # a run that goes on after the finished files needs fewer
        assert told == ("can't start new thread" if is_met and not what.startswith("load") else "")
    assert run(what, all_of_it, monkeypatch, -1)[0] == ""
    assert snapshot_of_content(all_of_it) == expected


def snapshot_of_content(root: Path) -> list[tuple[str, bytes]]:
    return sorted((str(path), path.read_bytes() if path.is_file() else b"") for path in root.rglob("*"))


def test_writing_back_ahead_is_not_needed(all_of_it: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_FLUSH_NBYTES", 1)
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    with local.OutputFile(all_of_it / "x") as file:
        file.write(0, b"content")
        file.sync()
    assert (all_of_it / "x").read_bytes() == b"content"
