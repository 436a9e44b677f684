"""Which codec a tensor has in a step: always the same, what a function says, or what pays on this link."""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from .codecs.codec import Raw
from .codecs.exact import Exact
from .counters import Counters, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from .codecs.codec import Codec
    from .counters import Row
    from .exchange import Exchange

    Choice = Codec | Callable[[str, int], Codec] | Literal["auto"]

_log = logging.getLogger("tensorwire.torch.traffic")


def is_codec(found: object) -> bool:
    return hasattr(found, "encode") and hasattr(found, "lossless")


def chosen(choice: Codec | Callable[[str, int], Codec], name: str, step: int, size: int) -> Codec:
    """The codec of a tensor in this step. Where a function fails, the other ranks, if there are any, have to learn of
    it: they wait for a message."""
    if not callable(choice):
        return choice
    try:
        codec = choice(name, step)
        if not is_codec(codec):
            raise TypeError(f"expected a codec for {name} in step {step}, got {codec!r}")
    except Exception as error:
        if size == 1:
            raise
        return NoCodec(error)
    return codec


@dataclass(frozen=True)
class NoCodec:
    """Encodes nothing but raises the error."""

    error: Exception
    lossless = True

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        raise self.error

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        raise self.error


class Auto:
    """`Exact` while the link is slower than the codec, else raw messages.

    Every few steps, or calls outside a model, the ranks add up what their counters say: how long the messages took
    since the last time, and how long they would have taken the other way at the rate of the link. What the link adds to
    each message, however small, is the same both ways. All ranks decide by the same sums, in the same step.

    Where ranks share cores, what counters say may be wrong: a codec takes time from the rest of the step, and a message
    waits for a core. So a change is on trial until the next decision, which compares the shortest steps of both times,
    each from its first to its last call. If raw messages made steps longer, or exact ones did not make them shorter by
    the margin, the ranks go back. Then they rest: they look half as often, and try no more until another link is seen
    or the rest is over. Each rest is twice as long as the one before.

    Attributes:
        every: steps between decisions.
        sample: one of so many calls tells of the link.
        margin: the gain, as a part of the time, for which ranks change their mind.
        rest: steps of the first rest.
        other: by which factor what counters say differs, if it is not for the cores but for the link.
    """

    every, sample, margin, rest, other = 5, 4, 0.05, 100, 2.0

    def __init__(self, what: str, rows: Callable[[], Iterable[Row]]) -> None:
        self._what, self._rows = what, rows
        self._on, self._decided = True, False
        self._step, self._decides = 0, True
        self._before = [0.0] * 9
        # Seconds a raw byte in the codec, and bytes sent for each: known once it was on.
        self._codec_seconds = self._share = 0.0
        self._at, self._first, self._calls = -1, 0.0, 0  # the last step, when its first call came, how many did
        self._spans: dict[int, float] = {}  # from there to the last call so far, of the steps since the last decision
        self._trial = 0.0  # the span before the change that is on trial; 0 if none is
        self._rest, self._rests_until = self.rest, 0
        self._rests_at = 0.0  # the seconds of a raw byte at first

    def calls(self) -> int:
        """So far: the step of what has no other one. All ranks have the same."""
        return sum(row.calls for row in self._rows())

    def due(self, step: int) -> bool:
        """Whether the ranks decide before the next call."""
        return step >= self._step + self.every * (2 if self._step < self._rests_until else 1)

    def codec(self, step: int) -> Codec:
        """In this step. In the last one before a decision, some raw messages tell of the link, which takes longer. In
        the first call behind one, ranks hear whether all of them are there. In the others torch may do without us."""
        now = perf_counter()
        if step != self._at:
            self._at, self._first, self._calls = step, now, 0
        self._calls += 1
        self._spans[step] = now - self._first
        first, self._decides = self._decides, False
        measured = self.due(step + 1) and self._calls % self.sample == 1
        return Exact() if self._on else Raw(measured=measured, direct=not (measured or first))

    def decide(self, exchange: Exchange, step: int) -> None:
        """In the first call of a step, on all ranks."""
        self._step, self._decides = step, True
        found = [0.0] * len(self._before)
        for row in self._rows():
            parts = (row.raw_nbytes, row.sent_nbytes, row.encode_seconds, row.decode_seconds, *astuple(row.link))
            found = [a + b for a, b in zip(found, parts, strict=True)]
        news = [a - b for a, b in zip(found, self._before, strict=True)]
        shortest, self._spans = min(self._spans.values(), default=0.0), {}
        span, raw, sent, encode, decode, *sums = exchange.sums([shortest, *news])
        self._before = found
        messages = Link(*sums)
        if not raw or not sent or not messages.nbytes or not messages.seconds:
            return
        if self._on:
            self._codec_seconds, self._share = (encode + decode) / raw, sent / raw
        delay, link = messages.fit()
        always = delay * messages.messages / messages.nbytes * sent / raw
        coded, plain = always + self._codec_seconds + self._share * link, always + link
        now, then = (coded, plain) if self._on else (plain, coded)
        changes = then < now * (1 - self.margin)
        # Where the counters are sure of what is on trial, the link has changed meanwhile.
        limit = self._trial * (1 - self.margin if self._on else 1)
        failed = 0 < limit < span and then < now * self.other
        if failed:
            changes, self._rests_until, self._rests_at = True, step + self._rest, 0.0
            self._rest *= 2
        elif step < self._rests_until:
            self._rests_at = self._rests_at or plain
            if 1 / self.other < plain / self._rests_at < self.other:
                changes = False
            else:
                self._rest, self._rests_until = self.rest, 0
        self._trial = span if changes and not failed else 0.0
        self._on ^= changes
        if exchange.rank == 0 and (changes or not self._decided):
            _log.log(
                logging.WARNING if self._decided else logging.INFO,
                "%s: %s from step %d on: the link %s, and the codec %s",
                self._what, "exact messages" if self._on else "raw messages", step,
                f"has {8e-9 / link:.2f} Gbit/s" if link else "is too fast to measure",
                "saves more than it costs" if self._on else "costs more than it saves",
            )  # fmt: skip
        self._decided = True


class DecidingCounters(Counters):
    """Counters with what "auto" decides by them."""

    def __init__(self) -> None:
        super().__init__()
        self._autos: dict[tuple[str | None, str, tuple[int, ...]], Auto] = {}

    def auto(self, direction: str, tensor: str | None = None, ranks: Sequence[int] = ()) -> Auto:
        """For all tensors of a direction, or for one of them; each group of ranks decides for itself. One thread asks
        for it."""

        def rows() -> list[Row]:
            return [row for row in self.rows() if row.direction == direction and tensor in (None, row.tensor)]

        key = tensor, direction, tuple(ranks)
        if key not in self._autos:
            self._autos[key] = Auto(direction if tensor is None else f"{direction} of {tensor}", rows)
        return self._autos[key]
