"""Findings about a job without the probe, from what ``py-spy dump`` wrote of its ranks, one file a rank."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .. import words
from ..analyzer.graph import Graph, Need, explain
from ..analyzer.view.confidence import Basis, confidence_of
from ..analyzer.view.verdict import MAX_SUSPECTS
from ..model import Finding
from .rank_files import read_files

if TYPE_CHECKING:
    from ..model import Code

_MAX_NBYTES: Final = 1 << 18  # of a file
_MAX_KEPT: Final = 1 << 14  # characters of a stack; every rank's is kept until it is known who is shown
_MAX_STACKS: Final = 3
_MAX_LINE: Final = 4096  # longer ones are of no stack, and would take long to match
_NUMBER = re.compile(r"[0-9]+")
_THREAD = re.compile(r"^Thread (?:0x)?[0-9A-Fa-f]+ \(", re.MULTILINE)
_COMMAND = re.compile(r"^Process [0-9]+: (?P<command>.*)$", re.MULTILINE)
_FUNCTION = re.compile(r" {4}(?P<name>\S.*) \((?P<path>.+):(?P<line>[0-9]+)\)$")
_DISTRIBUTED: Final = "torch/distributed/"
_WAITING: Final = ("distributed_c10d.py", "rendezvous.py", "_functional_collectives.py")
_WRAPPER: Final = "c10d_logger.py"  # stands around all calls
_LAUNCHER: Final = ("torch/distributed/launcher/", "torch/distributed/elastic/")
_DATA_WORKER: Final = "torch/utils/data/_utils/worker.py"  # a child of a rank, with its command and its environment
_BACKWARD: Final = "backward"
_ANY: Final = frozenset({"send", "recv", "send_object_list", "recv_object_list"})  # one peer is enough
_LIBRARIES: Final = ("torch/", "<frozen ", "<string>")


@dataclass(frozen=True, slots=True)
class StackPlace:
    """Where a rank stands.

    Attributes:
        call: the function of torch.distributed that it waits in, or the backward pass; "" if it waits in none.
        line: the innermost function that is the user's: "load (data.py:12)".
        stack: its threads, as they were dumped.
        program: words of its command that say which program it runs, numbers left out; none if the dump lacks it.
    """

    call: str
    line: str
    stack: str
    program: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """ "in all_reduce, called by train (train.py:6)"; "in load (data.py:12)"."""
        return f"in {self.call}, called by {self.line}" if self.call else f"in {self.line}"


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    path: str
    line: str

    @property
    def of_torch(self) -> str:
        """The path below torch/distributed/; "" of other files and of what stands around all calls."""
        _, found, file = self.path.rpartition(_DISTRIBUTED)
        return file if found and file != _WRAPPER else ""

    @property
    def is_user(self) -> bool:
        """Neither torch's nor Python's own. py-spy shortens paths to what an import would find."""
        path = self.path
        top = path.partition("/")[0].removesuffix(".py")
        return not (path.startswith(_LIBRARIES) or "/torch/" in path or "/lib/python3" in path) and (
            top not in sys.stdlib_module_names
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.path}:{self.line})"


def read_places(directory: Path) -> tuple[dict[int, StackPlace], dict[str, str]]:
    """Where the ranks stand, and why the other files of the directory are left out, by name; errors as of
    `read_files`."""
    found, skipped = read_files(directory, _MAX_NBYTES, lambda file: _place(file.data.decode(errors="replace")))
    places = {rank: place for rank, (_, place) in found.items()}
    waiting = {word for place in places.values() if place.call for word in place.program}
    for rank, place in list(places.items()):
        if waiting and not place.call and place.program and place.program.isdisjoint(waiting):
            skipped[found[rank][0]] = f"it is of another program ({', '.join(sorted(place.program))})"
            del places[rank]
    return places, dict(sorted(skipped.items()))


def findings_of(places: dict[int, StackPlace]) -> list[Finding]:
    """TW-H1 for ranks that others wait for, TW-H2 where ranks wait in different calls, both of low confidence.

    The graph is that of a job with the probe. Stacks tell neither process groups nor the numbers of operations, so all
    ranks count as members of one group, and the same call as the same operation.
    """
    calls: dict[str, list[int]] = defaultdict(list)
    for rank, place in places.items():
        calls[place.call].append(rank)
    elsewhere = set(calls.pop("", []))
    needs: dict[int, list[Need]] = {}
    for call, inside in calls.items():
        others = [rank for rank in places if places[rank].call != call]
        if others:
            need = Need(others, is_any=call in _ANY)
            needs.update((rank, [need]) for rank in inside)
    found = explain(Graph(needs))
    ranks = [*(found.single or found.together or found.partly)]
    named = [rank for rank in ranks if rank in elsewhere]
    if not needs:
        return []
    told = [f"{words.ranks(inside)} {words.verb(inside, 'waits', 'wait')} in {call}" for call, inside in calls.items()]
    if named:
        waits = max(calls, key=lambda call: len(calls[call]))
        summary = (
            f"{words.ranks(named)} {words.verb(named, 'has', 'have')} not entered {waits}; "
            f"{words.count(len(needs), 'rank')} {words.verb(needs, 'waits', 'wait')} for "
            f"{words.verb(named, 'it', 'them')}"
        )
        told += [f"rank {rank} is {places[rank].text}" for rank in named[:MAX_SUSPECTS]]
        return [_finding("TW-H1", places, named, [], summary, told)]
    sides = sorted(calls.values(), key=len, reverse=True)
    suspects = ranks if len(ranks) == 1 else []
    told = [f"{words.ranks(side)} {words.verb(side, 'is', 'are')} {places[side[0]].text}" for side in sides]
    summary = f"ranks wait in different operations: {', '.join(_short(side, places) for side in sides[:4])}"
    return [_finding("TW-H2", places, suspects, [] if suspects else sides, summary, told)]


def _finding(
    code: Code,
    places: dict[int, StackPlace],
    suspects: list[int],
    sides: list[list[int]],
    summary: str,
    told: list[str],
) -> Finding:
    waiting = [rank for rank, place in places.items() if place.call and rank not in suspects]
    shown = suspects or [side[0] for side in sides]
    return Finding(
        code, "finding", 0.0, suspects[:MAX_SUSPECTS], sides, "", summary, told,
        confidence_of(code, Basis.REMAINDER, suspects, sides, is_incomplete=True), len(waiting),
        stacks={rank: places[rank].stack for rank in shown[:_MAX_STACKS]},
    )  # fmt: skip


def _short(side: list[int], places: dict[int, StackPlace]) -> str:
    return f"{words.ranks(side)} in {places[side[0]].call}"


def _place(text: str) -> StackPlace | str:
    """Where a rank stands, or why this is no dump of one."""
    first = _THREAD.search(text)
    command = _COMMAND.search(text)
    program = _program(command["command"][:_MAX_LINE]) if command else frozenset()
    text = text[first.start() :].strip() if first else ""  # without the words about the process
    threads: list[tuple[str, list[_Function]]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append((line, []))
        elif threads and len(line) <= _MAX_LINE and (found := _FUNCTION.match(line)):
            threads[-1][1].append(_Function(**found.groupdict()))
    threads = sorted((thread for thread in threads if thread[1]), key=lambda thread: '"MainThread"' not in thread[0])
    if not threads:
        return "it has no Python stack"
    paths = {function.path for _, functions in threads for function in functions}
    if any(launcher in path for path in paths for launcher in _LAUNCHER):
        return "it is the launcher's"
    if any(path.endswith(_DATA_WORKER) for path in paths):
        return "it is a data loader's worker"
    head, functions = threads[0]  # the main thread's
    call = ""
    if "torch/autograd/" in functions[0].path:
        # Collectives of the backward pass are called by its threads; or by DDP, in C++, which no stack of Python's has.
        functions = next((each for _, each in threads if _call(each)), functions)
        call = _BACKWARD if "(idle)" in head else ""
    user = next((function for function in functions if function.is_user), functions[-1])
    return StackPlace(_call(functions) or call, str(user), text[:_MAX_KEPT], program)


def _program(command: str) -> frozenset[str]:
    """The script or module of a command, and what it runs in turn: the first two words, options of Python left out."""
    words_before_options = takewhile(lambda word: not word.startswith("--"), command.split()[1:])
    found = [_NUMBER.sub("", word) for word in words_before_options if not word.startswith("-")]
    return frozenset(found[:2])


def _call(functions: list[_Function]) -> str:
    """The function of torch.distributed that the user called and that waits; "" if none does."""
    found = ""
    for function in functions:
        if function.is_user:
            break
        if function.of_torch in _WAITING:
            found = function.name
        elif function.of_torch and not found:
            break
    return found
