"""How everything that a person reads speaks of ranks, times and operations."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from .model import REPLACED

if TYPE_CHECKING:
    from .model import Operation, Rank

_MAX_RANGES = 6
# "rank 1", "Rank 1]", "(RANK 1)", "process 0", "ranks 1, 3", "ranks:dict_keys([1])". A tensor has a rank too, so has
# an adapter, and a local rank is one of a node.
_RANK = re.compile(r"(?<!\d)\d{1,9}(?!\d)")
_NAMED = re.compile(
    r"(?<!local[ _-])(?<!lora[ _-])(?<!tensor of )(?<!matrix of )\b(?:ranks?|process)(?:[ :=]|dict_keys|[(\[])+"
    r"(\d+(?:(?:, ?| and |-)\d+)*)\b(?!\.\d|[ -](?:tensor|matrix|array|adapter|update))",
    re.IGNORECASE,
)
_MESSAGES = {"send": "to", "recv": "from"}


def ranges(numbers: Iterable[int], limit: int | None = None) -> str:
    """Numbers in short: [0, 1, 2, 4] is "0-2, 4". Ranges beyond `limit` are counted: "0, 2, 4 and 58 more"."""
    ends: list[list[int]] = []
    for number in sorted(numbers):
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends[:limit])
    more = sum(last - first + 1 for first, last in ends[limit:]) if limit else 0
    return f"{text} and {more} more" if more else text


def ranks(numbers: Collection[int]) -> str:
    """ "no rank", "rank 3", "ranks 0-2, 4"."""
    if not numbers:
        return "no rank"
    return f"{verb(numbers, 'rank', 'ranks')} {ranges(numbers, _MAX_RANGES)}"


def ranks_named(text: str) -> set[int]:
    """The ranks that a text names; the ends alone where it says "ranks 4-7"."""
    return {int(number) for found in _NAMED.findall(text) for number in _RANK.findall(found)}


def shortened(text: str, room: int) -> str:
    """As much of the text as `room` characters hold, dots for the rest. Where a second rank is named behind them, or
    the first one, the part from there on takes the second half."""
    if len(text) <= room:
        return text
    head, known = text[: room - 3], ranks_named(text[: room - 3])
    behind = next((found.start() for found in _NAMED.finditer(text) if ranks_named(found[0]) - known), None)
    if behind is None or len(known) > 1:
        return head + "..."
    half = room // 2
    part = text[behind:]
    return f"{text[: half - 3]}...{part if len(part) <= room - half else part[: room - half - 3] + '...'}"


def names(texts: Sequence[str], limit: int = 4) -> str:
    """ "a, b", or the first few of many: "a, b, c, d and 12 more"."""
    text = ", ".join(texts[:limit])
    return f"{text} and {len(texts) - limit} more" if len(texts) > limit else text


def verb(numbers: Collection[int], one: str, more: str) -> str:
    return one if len(numbers) == 1 else more


def does(numbers: Collection[int], one: str, more: str) -> str:
    """ "rank 3 waits", "ranks 0-2 wait"."""
    return f"{ranks(numbers)} {verb(numbers, one, more)}"


def waiting(numbers: Collection[int]) -> str:
    """ "1 rank waits", "3 ranks wait"."""
    return f"{count(len(numbers), 'rank')} {verb(numbers, 'waits', 'wait')}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def seconds(value: float) -> str:
    """ "120 ms", "6.1 s", "12 s", "5 min 3 s", "2 h 5 min"; "an unknown time" where it is no number."""
    if not math.isfinite(value):
        return "an unknown time"
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


BY_CHANCE = "two threads use one group, and chance orders them"
"""Why the calls of ranks differ, where some made a call in another thread than the main one."""


def percent(share: float) -> str:
    """A share of the time: never more than all of it, though two clocks may differ by a little."""
    return f"{100 * min(share, 1.0):.0f} %"


def per_second(value: float) -> str:
    """Operations per second: three digits, or all digits of a large number."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def nbytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def numbered(operation: Operation | None, sequence: int, group: str) -> str:
    """ "all_reduce #121 of default_pg", "recv from rank 3 of tp"; "operation #121 of tp" where only counts are known.

    Args:
        group: the title of the process group.
    """
    if operation is None or not operation.name or operation.sequence != sequence:
        return f"operation #{sequence} of {group}"
    if operation.name in _MESSAGES and operation.root >= 0:  # their numbers differ between the two ends
        return f"{operation.name} {_MESSAGES[operation.name]} rank {operation.root} of {group}"
    return f"{operation.name} #{sequence} of {group}"


def call(operation: Operation) -> str:
    """The operation as it was called: "broadcast(BF16, 1024 elements, root 2)"."""
    parts = [operation.dtype] if operation.dtype else []
    if operation.numel >= 0:
        parts.append(count(operation.numel, "element"))
    if operation.root >= 0:
        parts.append(f"root {operation.root}")
    return f"{operation.name or 'an operation'}({', '.join(parts)})"


def ended(rank: Rank, ago: str = "") -> str:
    """How the process of a rank ended; when, only where that is asked for: a finding is shown with its age."""
    process = rank.process
    if process.is_alive and not process.exit_reason:
        return f"got {process.signal} and has completed nothing since"
    if process.is_alive:
        return f"failed with {process.exit_reason}{ago}, and its process lives on"
    if process.exit_reason == REPLACED:
        return REPLACED + (f", last heard of{ago}" if ago else "")
    if process.exit_kind == "crash":
        return f"was {process.exit_reason}{ago}"
    return (f"ended ({process.exit_reason})" if process.exit_reason else "ended without an exit reason") + ago


def state(rank: Rank) -> str:
    """ "its process is in state S"; "" where that is not known, as of the past."""
    if rank.process.is_stopped:
        return "its process is stopped"
    return f"its process is in state {rank.process.state}" if rank.process.state else ""


def activity(rank: Rank) -> str:
    """What its stack says, "torch.save for 9 s"."""
    since = "" if rank.activity_seconds is None else f" for {seconds(rank.activity_seconds)}"
    return rank.activity + since


def where(rank: Rank) -> str:
    """The operation that a rank has been in for the longest; if in none, what its stack or its set-up say."""
    if group := rank.longest_open:
        operation = numbered(group.operation, group.open_sequence, group.title)
        return f"is in {operation} for {seconds(group.open_seconds or 0.0)}"
    if rank.is_waiting:
        return f"is in {activity(rank)}"
    return {"before init": "has not called init_process_group", "in init": "is in init_process_group"}.get(
        rank.setup, "is in no operation that the probe sees"
    )


def last_operation(rank: Rank) -> str:
    """The operation that it was in when it was last heard of, or had been in."""
    if group := rank.longest_open:
        return f", in {numbered(group.operation, group.open_sequence, group.title)}"
    groups = sorted(rank.process_groups, key=lambda group: group.id)
    done = [group for group in groups if group.completed and group.idle_seconds is not None]
    if not done:
        return ", before its first operation" if groups else ""
    group = min(done, key=lambda group: group.idle_seconds or 0.0)
    return f", after {numbered(group.operation, group.completed, group.title)}"
