"""Findings about a job without the probe, from what ``py-spy dump`` wrote of its ranks, one file a rank."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .. import words
from ..analyzer.graph import Graph, Need, explain
from ..confidence import Basis, confidence_of
from ..model import MAX_SUSPECTS, Finding
from .rank_files import read_files
from .source_lines import operation_at

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
_PACKAGES: Final = ("site-packages/", "dist-packages/")
_IMPORTLIB: Final = "<frozen importlib."
_DDP: Final = "torch/nn/parallel/distributed.py"  # its constructor and forward pass call collectives in C++
# The main thread waits for another one of its process there, by one of these modules.
_JOINS: Final = ("threading", "queue", "selectors", "asyncio", "concurrent")
_UNKNOWN: Final = "Work.wait"  # an operation whose kind is not known
_SET_UP: Final = frozenset({"init_process_group", "_verify_params_across_processes"})


class State(Enum):
    """Whether a rank waits in an operation."""

    WAITS = auto()
    ELSEWHERE = auto()
    UNCLEAR = auto()  # in C, where no source tells in what
    IMPORTS = auto()


@dataclass(frozen=True, slots=True)
class StackPlace:
    """Where a rank stands.

    Attributes:
        state: whether it waits in an operation.
        call: the function of torch.distributed that it waits in, "Work.wait", or the backward pass; "" if in none.
        line: the innermost function that is the user's: "load (data.py:12)".
        stack: its threads, as they were dumped, without the calls of importlib.
        program: words of its command that say which program it runs, numbers left out; none if the dump lacks it.
    """

    state: State
    call: str
    line: str
    stack: str
    program: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """ "in all_reduce, called by train (train.py:6)"; "in load (data.py:12)"."""
        if self.state is State.IMPORTS:
            return f"importing, in {self.line}"
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
        return not (path.startswith(_LIBRARIES) or "/torch/" in path or "/lib/python3" in path or self.python_module)

    @property
    def python_module(self) -> str:
        """The module or package of Python's own library that it is of; "" of others."""
        path = self.path
        if "/lib/python3" in path and not any(packages in path for packages in _PACKAGES):
            path = path.rpartition("/lib/python3")[2].partition("/")[2]
        top = path.partition("/")[0].removesuffix(".py")
        return top if top in sys.stdlib_module_names else ""

    @property
    def may_wait_in_c(self) -> bool:
        """Whether it may have called `Work.wait()` or a collective of C++: none of Python, nor a layer of torch."""
        is_torch = self.path.startswith("torch/") or "/torch/" in self.path
        return (
            not self.python_module
            and not self.path.startswith("<")
            and (not is_torch or bool(self.of_torch) or self.path.endswith(_DDP))
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.path}:{self.line})"


_Thread = tuple[str, list[_Function]]  # its first line, and its calls, the innermost first


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
    ranks count as members of one group, and the same call as the same operation. An operation of unknown kind may wait
    for any other rank. Where it is not known whether a rank waits, it is no suspect, but a side. A rank that
    imports modules while the others join, or make their models DDP's, is starting: nothing is wrong.
    """
    by_state: dict[State, list[int]] = defaultdict(list)
    calls: dict[str, list[int]] = defaultdict(list)
    for rank, place in places.items():
        by_state[place.state].append(rank)
        if place.call:
            calls[place.call].append(rank)
    needs: dict[int, list[Need]] = {}
    for call, inside in calls.items():
        if call == _UNKNOWN:
            needs.update((rank, [Need([each for each in places if each != rank], is_any=True)]) for rank in inside)
        elif others := [rank for rank in places if places[rank].call != call]:
            need = Need(others, is_any=call in _ANY)
            needs.update((rank, [need]) for rank in inside)
    if not needs or len(places) < 2 or (by_state[State.IMPORTS] and _SET_UP.issuperset(calls)):
        return []
    found = explain(Graph(needs))
    ranks = [*(found.single or found.together or found.partly)]
    away = {*by_state[State.ELSEWHERE], *by_state[State.IMPORTS]}
    named = [rank for rank in ranks if rank in away]
    unclear = by_state[State.UNCLEAR]
    waits = max(calls, key=lambda call: (call != _UNKNOWN, len(calls[call])))
    told = [f"{words.does(inside, 'waits', 'wait')} in {call}" for call, inside in calls.items()]
    if named and not unclear:
        # Half of the ranks do not hang of themselves, each alone: those that wait may be the ones that are wrong.
        sides = [named, sorted(needs)] if len(named) > 1 and 2 * len(named) >= len(places) else []
        entered = f"not entered {waits}" if waits != _UNKNOWN else "entered no operation"
        whom = words.verb(named, "it", "them")
        summary = f"{words.does(named, 'has', 'have')} {entered}; {words.waiting(needs)} for {whom}"
        told += [f"rank {rank} is {places[rank].text}" for rank in named[:MAX_SUSPECTS]]
        return [_finding("TW-H1", places, [] if sides else named, sides, summary, told)]
    if unclear:
        sides = list(filter(None, [sorted(away), unclear, sorted(needs)]))
        summary = (
            f"{words.waiting(needs)} in {waits}; it is not known whether {words.does(unclear, 'waits', 'wait')} too"
        )
        told += [f"rank {rank} is {places[rank].text}" for rank in [*sorted(away), *unclear][:MAX_SUSPECTS]]
        told.append("a line that waits is told by its source, which is not here or does not say it")
        return [_finding("TW-H1", places, [], sides, summary, told)]
    sides = sorted(calls.values(), key=len, reverse=True)
    suspects = ranks if len(ranks) == 1 else []
    told = [f"{words.does(side, 'is', 'are')} {places[side[0]].text}" for side in sides]
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
    threads: list[_Thread] = []
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
    state, call, functions = _state(threads, _roots(command["command"] if command else ""))
    # What a pool of threads calls may be a function of torch itself.
    user = next((each for each in [*functions, *threads[0][1]] if each.is_user), functions[-1])
    stack = "\n".join(line for line in text.splitlines() if _IMPORTLIB not in line)
    return StackPlace(state, call, str(user), stack[:_MAX_KEPT], program)


def _state(threads: list[_Thread], roots: tuple[str, ...]) -> tuple[State, str, list[_Function]]:
    """Whether a rank waits in an operation, in which, and the stack of the thread that says so."""
    head, functions = threads[0]  # the main thread's
    if call := _waits_in(head, functions, roots):
        return State.WAITS, call, functions
    others = ((_waits_in(head, functions, roots), functions) for head, functions in threads[1:])
    call, other = next(((call, functions) for call, functions in others if call), ("", functions))
    if "torch/autograd/" in functions[0].path:
        # Collectives of the backward pass are called by its threads; or by DDP, in C++, which no stack of Python's has.
        call = call or (_BACKWARD if "(idle)" in head else "")
        return State.WAITS if call else State.ELSEWHERE, call, other
    if call and "(idle)" in head and functions[0].python_module in _JOINS:
        return State.WAITS, call, other
    imports = [index for index, function in enumerate(functions) if function.path.startswith(_IMPORTLIB)]
    if imports:
        return State.IMPORTS, "", functions[imports[-1] + 1 :] or functions
    is_unclear = bool(call) or (_in_c(head, functions[0]) and _source_says(functions[0], roots) is None)
    return State.UNCLEAR if is_unclear else State.ELSEWHERE, "", functions


def _waits_in(head: str, functions: list[_Function], roots: tuple[str, ...]) -> str:
    """The operation that a thread waits in; "" if it waits in none."""
    found = _call(functions) or (_in_c(head, functions[0]) and _source_says(functions[0], roots)) or ""
    return _UNKNOWN if found == "wait" else found


def _in_c(head: str, innermost: _Function) -> bool:
    """Whether a thread may be in a function of C++ that waits: one that has Python's lock is not."""
    return "gil" not in head and innermost.may_wait_in_c


def _source_says(function: _Function, roots: tuple[str, ...]) -> str | None:
    return operation_at(function.path, int(function.line), function.name, roots)


def _roots(command: str) -> tuple[str, ...]:
    """Where shortened paths may lead from: this folder, and that of the command's script."""
    scripts = (word for word in command[:_MAX_LINE].split()[1:] if word.endswith(".py"))
    return (os.curdir, *(str(Path(script).parent) for script in islice(scripts, 1)))


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
