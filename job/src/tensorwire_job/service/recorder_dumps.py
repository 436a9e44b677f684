"""Dumps of torch's Flight Recorder, one file a rank: what each rank called, on which groups, and what is not complete.

NCCL's recorder keeps messages, and tells the members of groups. gloo's does neither.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from tensorwire.errors import FormatError

from ..model import MAX_RANKS, Operation
from ..page import native
from ..page.recorder_entries import operation_info, shown_name
from .rank_files import Content, read_files
from .recorder_pickle import read_pickle

_MAX_NBYTES: Final = 1 << 25  # of a file
_MAX_ENTRIES: Final = 1 << 17
_MAX_FUNCTIONS: Final = 64
_MAX_DIMENSIONS: Final = 16  # of a tensor
_MAX_PARTS: Final = 1 << 21  # tensors and functions of all entries: rows of a pickle may share one long list
_MAX_TEXT: Final = 512  # characters of a name or path
_MAX_NUMBER: Final = 1 << 62
_VERSION = re.compile(r"2\.[0-9]+")
_MESSAGE = re.compile(r"(send|recv) ([0-9]{1,7})(?:->|<-)([0-9]{1,7})")
_RANK = re.compile(r"[0-9]{1,7}")
_TORCH = ("/torch/", "<frozen ", "<string>")
_DISTRIBUTED: Final = "distributed_c10d.py"
_COALESCED: Final = "coalesced"


class Function(NamedTuple):
    name: str
    path: str
    line: int

    @property
    def is_torch(self) -> bool:
        return any(part in self.path for part in _TORCH)

    def __str__(self) -> str:
        return f"{self.name} ({self.path}:{self.line})"


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation that a rank called.

    Attributes:
        group: torch's name of the process group.
        title: the name that a person knows the group by.
        operation: of a message with the peer's rank within the group as its root; otherwise without a root.
        is_open: whether it is not known to be complete.
        seconds: between the call and the dump.
        functions: the innermost first.
    """

    group: str
    title: str
    operation: Operation
    is_open: bool
    seconds: float
    functions: tuple[Function, ...]

    @property
    def line(self) -> Function | None:
        """The innermost function that is not torch's."""
        return next((function for function in self.functions if not function.is_torch), None)


@dataclass(frozen=True, slots=True)
class Dump:
    """What the recorder of one rank kept: the last operations, the oldest first.

    Attributes:
        members: of the groups whose members it tells, by torch's name.
        has_messages: whether the rank sent or received what the recorder does not keep: it may wait for a message.
    """

    entries: tuple[Entry, ...]
    members: Mapping[str, tuple[int, ...]]
    has_messages: bool


def read_dumps(directory: Path) -> tuple[dict[int, Dump], dict[str, str]]:
    """The dumps of the ranks, and why the other files of the directory are left out, by name; errors as of
    `read_files`."""
    found, skipped = read_files(directory, _MAX_NBYTES, _parse)
    return {rank: dump for rank, (_, dump) in found.items()}, skipped


def _parse(file: Content) -> Dump | str:
    if len(file.data) == _MAX_NBYTES:
        return f"it has {_MAX_NBYTES >> 20} MiB and more; no dump is so large"
    try:
        return _dump(read_pickle(file.data), file.written)
    except FormatError as error:
        return f"it is no dump of a Flight Recorder: {error.message}"
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        return f"it is no dump of a Flight Recorder: its entries are not as torch writes them ({type(error).__name__})"


def _dump(found: Any, written: float) -> Dump:
    if not (isinstance(found, dict) and isinstance(found.get("version"), str)):
        raise FormatError("it has no version")
    if not _VERSION.fullmatch(found["version"]):
        raise FormatError(f"expected version 2.0 or another of 2, got {found['version'][:20]!r}")
    rows = found["entries"]
    if not isinstance(rows, list) or len(rows) > _MAX_ENTRIES:
        raise FormatError(f"expected a list of at most {_MAX_ENTRIES:,} entries")
    if sum(len(row["input_sizes"]) + len(_called_by(row)) for row in rows) > _MAX_PARTS:
        raise FormatError(f"expected at most {_MAX_PARTS:,} tensors and functions")
    lists = {text: _ranks(text) for text in {each["ranks"] for each in found["pg_config"].values()}}
    members = {name[:_MAX_TEXT]: lists[each["ranks"]] for name, each in found["pg_config"].items()}
    ended = _coalesced(rows)
    entries = [_entry(row, ended.get(_region(row), row), written) for row in rows if ended.get(_region(row)) is not row]
    # gloo numbers messages with the collectives, and keeps none.
    has_messages = any(
        row["profiling_name"].startswith("gloo:") and row["op_id"] != row["collective_seq_id"] for row in rows
    )
    return Dump(tuple(entries), {name: ranks for name, ranks in members.items() if ranks}, has_messages)


def _ranks(text: Any) -> tuple[int, ...]:
    """The ranks in a list that torch has printed."""
    ranks = tuple(int(each) for each in _RANK.findall(text)[: MAX_RANKS + 1])
    if max(ranks, default=0) >= MAX_RANKS or len(set(ranks)) < len(ranks):
        raise ValueError
    return ranks


def _region(row: Any) -> tuple[str, int, int]:
    """What operations that were called as one have in common."""
    return _name(row["process_group"][0]), _number(row["collective_seq_id"]), _number(row["p2p_seq_id"])


def _coalesced(rows: list[Any]) -> dict[tuple[str, int, int], Any]:
    """The entries that end such a region: they alone tell whether its operations are complete."""
    found = {_region(row): row for row in rows if row["profiling_name"].endswith(_COALESCED)}
    counts = Counter(map(_region, rows))
    return {region: row for region, row in found.items() if counts[region] > 1}


def _entry(row: Any, end: Any, written: float) -> Entry:
    group, description = map(_name, row["process_group"])
    functions = tuple(
        Function(_name(each["name"]), _name(each["filename"]), _number(each["line"])) for each in _called_by(row)
    )
    is_open = not end["retired"] and end["state"] != "completed"
    seconds = max(written - _number(row["time_created_ns"]) / 1e9, 0.0)
    if is_open and row.get("timeout_ms"):  # a copy of the file may be younger
        seconds = min(seconds, _number(row["timeout_ms"]) / 1e3)
    return Entry(group, shown_name(group, description), _operation(row, functions), is_open, seconds, functions)


def _called_by(row: Any) -> Any:
    return (row.get("frames") or ())[:_MAX_FUNCTIONS]  # Python frames


def _operation(row: Any, functions: tuple[Function, ...]) -> Operation:
    message = _MESSAGE.fullmatch(row["profiling_name"].partition(":")[2])
    if message:
        return Operation(_number(row["p2p_seq_id"]), message[1], root=int(message[3]))
    _check(row["input_sizes"])
    called_by = next((function.name for function in functions if function.path.endswith(_DISTRIBUTED)), "")
    info = operation_info(row, function=called_by)
    return Operation(
        _number(info.sequence), native.OPERATIONS[info.operation], native.DTYPES[info.dtype], info.numel,
        signature=info.signature,
    )  # fmt: skip


def _check(sizes: Any) -> None:
    """Whether they are sizes of tensors: to multiply others may take any time."""
    if any(len(each) > _MAX_DIMENSIONS or prod(map(_number, each)) >= _MAX_NUMBER for each in sizes):
        raise ValueError


def _name(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text[:_MAX_TEXT]


def _number(value: Any) -> int:
    if not (isinstance(value, int) and 0 <= value < _MAX_NUMBER):
        raise ValueError
    return value
