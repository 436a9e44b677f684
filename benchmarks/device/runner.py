"""Sections of measurements, each in its own seconds. Every row is in a file as soon as it is known.

A section that raises, hangs, ends its process or runs over its time is written down as that, and the next one begins.
The sections run in a process of their own, since some errors leave a device unusable for the process that made them:
then another process goes on. This module must not load PyTorch, whose CUDA does not survive a fork.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import environment

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

Row = dict[str, Any]
Column = tuple[str, str, str]  # its head, its key in a row, its format
FILE = "rows.jsonl"
GRACE_SECONDS = 15.0
"""How long a row may take that was begun in time."""
_LOADING_SECONDS = 90.0
_WORTH_SECONDS = 2.0
_UNUSABLE = 3  # exit code


@dataclass(frozen=True)
class Section:
    """Measurements that answer a question.

    Attributes:
        name: on the command line and in the results.
        seconds: how long it may take.
        question: what its rows answer; its title on the page.
        text: what a reader has to know of the rows.
        columns: of the table on the page; one that no row has is left out.
        run: yields the rows. It gets a `Bench` (measure.py), whose `deadline` is when the section's time is over.
    """

    name: str
    seconds: float
    question: str
    text: str
    columns: tuple[Column, ...]
    run: Callable[[Any], Generator[Row, None, None]]


Loader = Callable[[], "tuple[Sequence[Section], Any]"]
"""Gives the sections and the `Bench` for them."""


class Journal:
    """A file of JSON lines. Each is written at once: what is there stays, however the program ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **line: Any) -> None:
        os.write(self._file, (json.dumps(line, default=str) + "\n").encode())


def lines(path: Path) -> list[Row]:
    """What a journal holds; a last line that was cut is left out."""
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def run(load: Loader, path: Path, seconds: float, names: Collection[str] = ()) -> None:
    """Run the sections that `load` gives, in its order, and write the journal `path` anew.

    Args:
        load: called in the process that measures; gives the sections and the `Bench`.
        seconds: for all of them.
        names: of the sections that are asked for; none means all.
    """
    path.unlink(missing_ok=True)
    journal, end = Journal(path), time.monotonic() + seconds
    journal.write(environment=environment.describe("make device", path.parent))
    over: list[str] = []
    while _one_process(load, path, journal, names, over, end):
        pass


def _one_process(
    load: Loader,
    path: Path,
    journal: Journal,
    names: Collection[str],
    over: list[str],
    end: float,
) -> bool:
    """Run the sections that are not yet `over` in a process, and add them. Gives whether another one is to go on."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sending, load, path, names, tuple(over), end))
    process.start()
    sending.close()
    current, limit, known = "", time.monotonic() + _LOADING_SECONDS, len(over)
    why = ""
    try:
        while receiving.poll(max(0.0, limit - time.monotonic())):
            try:
                current, limit = receiving.recv()
            except EOFError:
                break
            if not current:
                return False
            over.append(current)
        else:
            why = f"it hung: it was ended {GRACE_SECONDS:.0f} seconds after its time"
    finally:
        _end(process)
    if process.exitcode == _UNUSABLE:
        return True
    journal.write(section=current or "loading", error=why or f"its process ended with exit code {process.exitcode}")
    return len(over) > known


def _end(process: Any) -> None:
    """It, and what it started."""
    process.join(2.0 if process.exitcode is None else 0.0)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.join()


def _work(
    sending: Connection,
    load: Loader,
    path: Path,
    names: Collection[str],
    over: Collection[str],
    end: float,
) -> None:
    """What the process that measures does. It sends the name of each section that it begins and when it is to be ended,
    and an empty name when it has done all."""
    os.setpgid(0, 0)
    journal = Journal(path)
    sections, bench = load()
    for section in sections:
        if section.name in over or (names and section.name not in names):
            continue
        began = time.monotonic()
        if end - began < _WORTH_SECONDS:
            journal.write(section=section.name, error="not begun: the time of the whole run was over")
            continue
        deadline = min(end, began + section.seconds)
        sending.send((section.name, deadline + GRACE_SECONDS))
        bench.deadline = deadline
        try:
            whole = _rows(section.run(bench), section.name, journal, deadline)
            if not whole:
                journal.write(section=section.name, error=f"cut after {time.monotonic() - began:.0f} seconds")
        except Exception:
            journal.write(section=section.name, error=traceback.format_exc(limit=-4))
        journal.write(section=section.name, seconds=time.monotonic() - began)
        try:
            bench.settle()
        except Exception as error:
            journal.write(section=section.name, error=f"the device is unusable behind it: {error}")
            os._exit(_UNUSABLE)
    sending.send(("", 0.0))
    os._exit(0)  # whatever threads and finalizers of a device would do


def _rows(rows: Generator[Row, None, None], name: str, journal: Journal, deadline: float) -> bool:
    """Write them; false if the time was over, with or without a row that would have come."""
    for row in rows:
        journal.write(section=name, row=row)
        print(f"{name}: {_words(row)}", flush=True)
        if time.monotonic() > deadline:
            rows.close()
            return False
    return True


def _words(row: Row) -> str:
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())
