"""What travelled, by tensor and direction."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Row:
    """One tensor in one direction, since it was attached.

    Attributes:
        tensor: name of the module or bucket whose tensors travel together.
        direction: "all_gather", "reduce_scatter", "all_reduce" or "all_to_all".
        codec: of the last message.
        calls: how many collectives.
        raw_nbytes: what this rank would have sent to the others without a codec.
        sent_nbytes: what it did send to them.
        kept_nbytes: memory that this rank keeps between calls.
        encode_seconds, decode_seconds: in the codec.
        wait_seconds: until the slowest rank had come.
        transfer_seconds: while the payload travelled.
    """

    tensor: str
    direction: str
    codec: str = ""
    calls: int = 0
    raw_nbytes: int = 0
    sent_nbytes: int = 0
    kept_nbytes: int = 0
    encode_seconds: float = 0.0
    wait_seconds: float = 0.0
    transfer_seconds: float = 0.0
    decode_seconds: float = 0.0


class Counters:
    """Rows that one thread adds to and others read."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self._lock = Lock()

    def row(self, tensor: str, direction: str) -> Row:
        with self._lock:
            return self._rows.setdefault((tensor, direction), Row(tensor, direction))

    def rows(self) -> list[Row]:
        with self._lock:
            return list(self._rows.values())


class Table(list[Row]):
    """Rows that print as a table."""

    def __str__(self) -> str:
        names = [field.name for field in fields(Row)]
        lines = [names, *([_text(getattr(row, name)) for name in names] for row in [*self, *self._sum()])]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )

    def _sum(self) -> Iterator[Row]:
        if len(self) > 1:
            total = Row("all", "")
            for name in (
                "calls",
                "raw_nbytes",
                "sent_nbytes",
                "kept_nbytes",
                "encode_seconds",
                "wait_seconds",
                "transfer_seconds",
                "decode_seconds",
            ):
                setattr(total, name, sum(getattr(row, name) for row in self))
            yield total


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
