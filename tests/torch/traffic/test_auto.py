"""What "auto" makes of calls outside a model: the same on all ranks, in the same call, with the same bits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tensorwire.torch import traffic
from tensorwire.torch.traffic.attach.attachment import COUNTERS
from tensorwire.torch.traffic.choice import Auto
from tensorwire.torch.traffic.codecs.codec import Raw, same_bytes
from tensorwire.torch.traffic.counters import Row
from tests.support.sharded_models import log_of_traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.ranks import Ranks

SIZE, CALLS = 4, 10
NAME = "test-auto"


def _values(call: int, rank: int, count: int) -> torch.Tensor:
    seed = torch.Generator().manual_seed(100 * call + rank)
    return torch.randn(SIZE * count, 32, generator=seed).bfloat16()


def _all_to_all(call: int, group: dist.ProcessGroup) -> bool:
    """Whether rows and gradients have the right bits. Each call has another number of rows, and one has none."""
    mine, count = dist.get_rank(), 0 if call == 5 else 20 + call
    rows = _values(call, mine, count).requires_grad_()
    got, _ = traffic.all_to_all(rows, [count] * SIZE, codec="auto", group=group)
    (got * (1 + mine)).sum().backward()
    expected = torch.cat([_values(call, rank, count)[count * mine :][:count] for rank in range(SIZE)])
    back = torch.arange(1, SIZE + 1).repeat_interleave(count)[:, None].expand_as(rows).bfloat16()
    return same_bytes(got.detach(), expected) and same_bytes(rows.grad, back.contiguous())


def _all_reduce(call: int, group: dist.ProcessGroup) -> bool:
    """Whether the sum has the bits of one in the order of ranks. Each call has another shape."""
    values = _values(call, dist.get_rank(), 20 + call)
    dist.all_reduce(values, group=group)
    total = torch.zeros(values.shape)
    for rank in range(SIZE):
        total += _values(call, rank, 20 + call)
    return same_bytes(values, total.bfloat16())


def _new_group() -> dist.ProcessGroup:
    if NAME not in dist.Backend.backend_list:
        traffic.register_backend(NAME, "auto", minimum=1)
    return dist.new_group(backend=NAME)


# Seconds that rank 2 adds before a call: those of a message over its link, of its encoder, of its link still more.
SLOW = {1: ("link", 1e6), 3: ("encode", 1e9), 7: ("link", 1e15)}


def _decisions(do: Callable[[int, dist.ProcessGroup], bool], direction: str) -> tuple[list[str], bool, list[str]]:
    """The codec of each call, and the lines of the log. Decisions are due before the calls 2, 4, 6 and 8."""
    every = 4 if do is _all_reduce else 2  # an all_reduce has two messages
    codecs, fine, group = [], True, _new_group()
    row = Row("", "")
    with patch.object(Auto, "every", every), log_of_traffic() as lines:
        for call in range(CALLS):
            if dist.get_rank() == 2 and call in SLOW:
                name, seconds = SLOW[call]
                if name == "link":
                    row.link.add(1e6, seconds)
                else:
                    row.encode_seconds += seconds
            fine = do(call, group) and fine
            row = next(row for row in reversed(COUNTERS[group].rows()) if row.direction == direction)
            codecs.append(row.codec.partition("(")[0])
    dist.destroy_process_group(group)
    return codecs, fine, lines


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [
        (
            (1e-3, 0.1), (1.0, 1e-6),
            [
                (logging.INFO, "rows: exact messages from step 5 on: the link has 0.08 Gbit/s, and the codec saves"),
                (logging.WARNING, "rows: raw messages from step 10 on: the link has 8000.00 Gbit/s, and the"),
            ],
        ),
        ((1.0, 1e-6), (0.0, 1e-6), [(logging.INFO, "rows: raw messages from step 5 on: the link has 8000.00 Gbit/s")]),
    ],
)  # fmt: skip
def test_the_first_decision_is_news_and_a_change_is_a_warning(
    caplog: pytest.LogCaptureFixture,
    first: tuple[float, float],
    second: tuple[float, float],
    lines: list[tuple[int, str]],
) -> None:
    """Each part has the seconds of 10^6 bytes in the codec, which halves them, and those that they travel."""
    caplog.set_level(logging.INFO, "tensorwire.torch.traffic")
    row = Row("rows", "all_to_all")
    auto = Auto("rows", lambda: [row])
    for step, (codec_seconds, link_seconds) in ((5, first), (10, second)):
        row.raw_nbytes += 2_000_000
        row.sent_nbytes += 1_000_000
        row.encode_seconds += codec_seconds
        row.link.add(1e6, link_seconds)
        auto.decide(_Alone(), step)  # type: ignore[arg-type]
    assert len(caplog.records) == len(lines)
    for record, (level, text) in zip(caplog.records, lines, strict=True):
        assert record.levelno == level
        assert record.getMessage().startswith(text)


def test_a_link_whose_messages_take_as_long_whatever_their_size_is_too_fast_to_measure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tensorwire.torch.traffic")
    row = Row("rows", "all_to_all", raw_nbytes=2_000_000, sent_nbytes=1_000_000, encode_seconds=1.0)
    for nbytes in (1e5, 9e5):
        row.link.add(nbytes, 1e-3)
    Auto("rows", lambda: [row]).decide(_Alone(), 5)  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "rows: raw messages from step 5 on: the link is too fast to measure, and the codec costs more than it saves"
    ]


class _Cores:
    """What counters say on cores that are shared: raw messages wait for one, so that a codec looks cheap as long as
    none is used; exact ones do not wait. A step takes as long as it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
        self.row, self.now, self.seconds, self.byte = Row("rows", "all_gather"), 0.0, seconds, 5e-9
        self.auto = Auto("rows", lambda: [self.row])
        monkeypatch.setattr("tensorwire.torch.traffic.choice.perf_counter", lambda: self.now)

    def steps(self, first: int, last: int) -> str:
        """The codecs of these steps: E for exact ones, R for raw ones."""
        found = ""
        for step in range(first, last):
            if self.auto.due(step):
                self.auto.decide(_Alone(), step)  # type: ignore[arg-type]
            codec = self.auto.codec(step)
            exact = codec.lossless and not isinstance(codec, Raw)
            self.now += self.seconds["exact" if exact else "raw"]
            self.auto.codec(step)
            self.row.raw_nbytes += 1_000_000
            self.row.sent_nbytes += 250_000 if exact else 1_000_000
            if exact:
                self.row.encode_seconds += 1e-3
                self.row.link.add(250_000, 250_000 * (self.byte if self.byte > 1e-8 else 1e-12))
            elif codec.measured:  # type: ignore[attr-defined]
                self.row.link.add(1_000_000, 1_000_000 * self.byte)
            found += "E" if exact else "R"
        return found


def test_a_change_after_which_steps_take_longer_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """First behind the trial; then the rest is over, and the next one is twice as long. Another link ends it."""
    cores = _Cores(monkeypatch, {"exact": 1.0, "raw": 1.0})  # which does not gain the margin
    found = cores.steps(0, 300)
    assert found == "E" * 5 + "R" * 5 + "E" * 5 + "R" * 100 + "E" * 5 + "R" * 180
    cores.byte, cores.seconds["raw"] = 1e-7, 3.0
    assert cores.steps(300, 320) == "R" * 10 + "E" * 10
    assert cores.steps(320, 400) == "E" * 80


def test_where_exact_messages_make_steps_shorter_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = _Cores(monkeypatch, {"exact": 1.0, "raw": 1.1})
    found = cores.steps(0, 110)
    assert found == "E" * 5 + "R" * 5 + "E" * 100


class _Alone:
    """The exchange of one rank."""

    rank = 0

    def sums(self, numbers: list[float]) -> list[float]:
        return numbers


@pytest.mark.parametrize(
    ("do", "direction", "what"),
    [
        (_all_to_all, "all_to_all", "all_to_all of rows"),
        (_all_to_all, "all_to_all, backward", "all_to_all, backward of rows"),
        (_all_reduce, "all_reduce", "all_reduce"),
    ],
)
def test_all_ranks_decide_the_same_in_the_same_call_and_one_says_so(
    ranks: Ranks, do: Callable[[int, dist.ProcessGroup], bool], direction: str, what: str
) -> None:
    answers = ranks.run(_decisions, do, direction)
    for codecs, fine, _ in answers:
        assert codecs == ["Exact"] * 4 + ["Raw"] * 4 + ["Exact"] * 2
        assert fine
    lines = [line for _, _, printed in answers for line in printed if line.startswith(f"{what}:")]
    first, second = (8, 16) if do is _all_reduce else (4, 8)
    assert len(lines) == 2
    assert lines[0].startswith(f"{what}: raw messages from step {first} on")
    assert lines[1].startswith(f"{what}: exact messages from step {second} on")
