"""What travelled, by tensor and direction."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from threading import Lock

from ..._ground.copies import not_copied


@dataclass
class Link:
    """Messages and the seconds that they travelled: what a link adds to each of them, and what to each byte.

    Sums, so that those of several tensors and ranks are added up.
    """

    messages: float = 0.0
    nbytes: float = 0.0
    seconds: float = 0.0
    nbytes_squared: float = 0.0
    nbytes_seconds: float = 0.0

    def add(self, nbytes: float, seconds: float) -> None:
        self.messages += 1
        self.nbytes += nbytes
        self.seconds += seconds
        self.nbytes_squared += nbytes * nbytes
        self.nbytes_seconds += nbytes * seconds

    def fit(self) -> tuple[float, float]:
        """Seconds of a message without bytes, and of each byte. Where messages are about as large as each other the
        two cannot be told apart, and all is counted for the bytes."""
        if not self.messages or not self.nbytes:
            return 0.0, 0.0
        mean, average = self.nbytes / self.messages, self.seconds / self.messages
        spread = self.nbytes_squared / self.messages - mean * mean
        byte = average / mean
        if spread > (_SPREAD * mean) ** 2:
            byte = min(byte, max(0.0, (self.nbytes_seconds / self.messages - mean * average) / spread))
        return average - byte * mean, byte


_SPREAD = 0.3
"""The least standard deviation of sizes, as a part of their mean, by which delay and rate can be told apart."""


@dataclass
class Row:
    """One tensor in one direction, since it was attached.

    Attributes:
        tensor: name of the module or bucket whose tensors travel together.
        direction: "all_gather", "reduce_scatter", "reduce_scatter in nodes", "reduce_scatter of nodes", "all_reduce",
            "all_to_all" or "all_to_all, backward".
        codec: of the last message; `Raw` for raw ones.
        calls: how many collectives.
        raw_nbytes: what this rank would have sent to the others without a codec.
        sent_nbytes: what it did send to them.
        kept_nbytes: memory that this rank keeps between calls.
        encode_seconds, decode_seconds: in the codec.
        wait_seconds: until the slowest rank had come.
        transfer_seconds: while the payload travelled.
        link: the same message by message.
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
    link: Link = field(default_factory=Link)

    @property
    def ratio(self) -> float:
        """How many times fewer bytes were sent than without a codec; 0.0 where none were."""
        return self.raw_nbytes / self.sent_nbytes if self.sent_nbytes else 0.0


class Counters:
    """Rows that one thread adds to and others read."""

    __reduce_ex__ = not_copied("a lock", "copy its rows")

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

    def total(self) -> dict[str, float]:
        """The sums over all rows, and their ratio, by the names of a row's attributes: for a logger."""
        total = self._sum()
        return {name: getattr(total, name) for name in (*_SUMMED, "ratio")}

    def __str__(self) -> str:
        lines = [_COLUMNS, *([_text(getattr(row, name)) for name in _COLUMNS] for row in self)]
        if len(self) > 1:
            lines.append([_text(getattr(self._sum(), name)) for name in _COLUMNS])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        sides = ["<" if name in _TEXTS else ">" for name in _COLUMNS]
        return "\n".join(
            "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)).rstrip()
            for line in lines
        )

    def _sum(self) -> Row:
        return Row("all", "", **{name: sum(getattr(row, name) for row in self) for name in _SUMMED})


_TEXTS = ("tensor", "direction", "codec")
_SUMMED = tuple(each.name for each in fields(Row) if each.type in ("int", "float"))
_COLUMNS = [*_TEXTS, *_SUMMED[:3], "ratio", *_SUMMED[3:]]


def _text(value: object) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
