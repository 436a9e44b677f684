"""What is counted is what travels, and what "auto" makes of it is the same on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch

from tensorwire.torch import traffic
from tensorwire.torch.traffic.choice import Auto
from tensorwire.torch.traffic.codecs.codec import Raw
from tensorwire.torch.traffic.codecs.exact import Exact
from tensorwire.torch.traffic.counters import Link, Row, Table
from tensorwire.torch.traffic.exchange import Exchange
from tests.support.sharded_models import Case, attached, digest, log_of_traffic, loss_of, sharded, train_alone

if TYPE_CHECKING:
    from tests.support.ranks import Ranks

# Elements of a shard on each of four ranks: rows are filled up to a multiple of four.
BLOCK = 10 * 23 + 10 + 6 * 37 + 6 + 1
ROOT = 16 * 23 + 16 * 23
MODULES = {"root": ROOT, "blocks.0": BLOCK, "blocks.1": BLOCK}
STEPS = 2


def _rows(weights: Any, gradients: Any) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    with attached(Case(gradients=torch.bfloat16), weights=weights, gradients=gradients) as (model, _, train_by):
        for step in range(STEPS - 1):
            train_by(step)
        early = str(before := traffic.counters(model))
        train_by(STEPS - 1)
        rows = traffic.counters(model)
        assert str(before) == early
        assert [row.link.messages for row in before] != [row.link.messages for row in rows]
        assert {"tensor", "sent_nbytes", "ratio", "all_gather", "blocks.1", "all"} <= set(str(rows).split())
    total = rows.total()
    sums = {name: sum(getattr(row, name) for row in rows) for name in total if name != "ratio"}
    assert total == sums | {"ratio": sums["raw_nbytes"] / sums["sent_nbytes"]}
    last = [f"{total[name]:,}" for name in ("calls", "raw_nbytes", "sent_nbytes")]
    assert str(rows).splitlines()[-1].split()[1:5] == [*last, f"{total['ratio']:.3f}"]
    return {(row.tensor, row.direction): (row.calls, row.raw_nbytes, row.sent_nbytes, row.kept_nbytes) for row in rows}


def test_bytes_of_raw_messages(ranks: Ranks) -> None:
    """Parameters are gathered twice in a step. A number has 2 bytes, and a rank 3 others."""
    expected = {}
    for name, numel in MODULES.items():
        reduced = STEPS * numel * 2 * 3
        expected[name, "all_gather"] = (2 * STEPS, 2 * reduced, 2 * reduced, 2 * numel * 4 + 2 * numel)
        expected[name, "reduce_scatter"] = (STEPS, reduced, reduced, 0)
    assert ranks.run(_rows, Raw(), Raw()) == [expected] * 4


def test_bytes_of_quantized_messages(ranks: Ranks) -> None:
    """The gathers of the first step are one exact message and one without changes. Then backward sends nothing."""
    message = 4 + 2048 // 2  # a scale and 2,048 codes of 4 bits
    gradients = traffic.Grid(8, 128)
    for found in ranks.run(_rows, traffic.Grid(4, 2048), gradients):
        first = found["blocks.0", "all_gather"][2] - 3 * message * STEPS
        assert 0 < first <= 3 * 2 * BLOCK
        assert found["blocks.0", "all_gather"][1] == 2 * STEPS * BLOCK * 2 * 3
        assert found["blocks.0", "reduce_scatter"][2] == STEPS * 3 * 4 * (4 + 128)
        assert found["root", "reduce_scatter"][2] == STEPS * 3 * 6 * (4 + 128)


def test_exact_differences_keep_one_copy_and_the_own_shard(ranks: Ranks) -> None:
    for found in ranks.run(_rows, traffic.Exact(), None):
        assert {key: kept for key, (_, _, _, kept) in found.items()} == {
            (name, "all_gather"): 2 * numel * (4 + 1) for name, numel in MODULES.items()
        }
        assert all(sent < raw for _, raw, sent, _ in found.values())


def _decisions() -> tuple[list[str], bool, list[str]]:
    """The codecs of each step. Rank 1 finds its link slow in steps 1 and 7, and its encoder in step 3."""
    codecs = []
    with (
        patch.object(Auto, "every", 2),
        attached(Case(), weights="auto") as (model, attachment, train_by),
        log_of_traffic() as lines,
    ):
        for step in range(10):
            row = attachment.counters.row("root", "all_gather")
            if torch.distributed.get_rank() == 1:
                row.encode_seconds += 1e3 * (step == 3)
                if step in (1, 7):  # or what this machine measures decides
                    row.link.add(1e6, 10.0 ** (step + 2))
            train_by(step)
            codecs.append(row.codec.partition("(")[0])
    return codecs, digest(model) == train_alone(Case(), 10)[-1], lines


def test_auto_decides_the_same_on_all_ranks_and_says_so_once(two: Ranks) -> None:
    """Decisions are due in steps 2, 4, 6 and 8."""
    answers = two.run(_decisions)
    for codecs, fine, _ in answers:
        assert codecs == ["Exact"] * 4 + ["Raw"] * 4 + ["Exact"] * 2
        assert fine
    lines = [line for _, _, printed in answers for line in printed]
    assert len(lines) == 2
    assert lines[0].startswith("all_gather: raw messages from step 4 on")
    assert lines[1].startswith("all_gather: exact messages from step 8 on")


def _sent_by_torch() -> tuple[int, bool, list[bool]]:
    """How often our exchange sent raw messages; whether the bits are those of torch; in which steps less was sent."""
    gather = Exchange.all_gather
    asked: list[Any] = []
    sent: list[bool] = []

    def counted(exchange: Exchange, *arguments: Any, **options: Any) -> None:
        asked.append(arguments)
        gather(exchange, *arguments, **options)

    before = (0, 0)
    with (
        patch.object(Auto, "codec", lambda _, step: Exact() if step in (0, 1, 4) else Raw(direct=step != 3)),
        patch.object(Exchange, "all_gather", counted),
        attached(Case(), weights="auto") as (model, attachment, train_by),
    ):
        for step in range(6):
            train_by(step)
            rows = attachment.counters.rows()
            now = sum(row.raw_nbytes for row in rows), sum(row.sent_nbytes for row in rows)
            sent.append(now[0] - before[0] > now[1] - before[1])
            before = now
    return len(asked), digest(model) == train_alone(Case(), 6)[-1], sent


def test_where_no_codec_pays_torch_sends_itself(two: Ranks) -> None:
    """In all but one of the raw steps; exact messages are relative to what torch has gathered, or plain."""
    calls = 2 * len(MODULES)
    assert two.run(_sent_by_torch) == [(calls, True, [True, True, False, False, True, False])] * 2


def test_a_table_prints_numbers_to_the_right_and_a_ratio() -> None:
    rows = Table([Row("root", "all_gather", "Exact", 12, 1_234_567, 123_456, 7, 0.5), Row("b", "all_gather", "Raw")])
    lines = str(rows).splitlines()
    assert [line.index("1,234,567") for line in lines[1::2]] == [lines[0].index("raw_nbytes") + 1] * 2
    assert [each.split()[-7:-4] for each in lines[1:3]] == [["123,456", "10.000", "7"], ["0", "0.000", "0"]]
    assert Table().total() == dict.fromkeys(rows.total(), 0)
    assert str(Table()).split()[:3] == ["tensor", "direction", "codec"]


def test_delay_and_rate_of_a_link_are_told_apart() -> None:
    link = Link()
    for nbytes in (0, 1000, 50_000, 0, 2_000_000):
        link.add(nbytes, 3e-3 + 2e-9 * nbytes)
    assert link.fit() == pytest.approx((3e-3, 2e-9))


def test_where_messages_are_alike_all_counts_for_the_bytes() -> None:
    link = Link()
    for nbytes in (1000, 1100, 900):
        link.add(nbytes, 1e-3)
    assert link.fit() == pytest.approx((0.0, 1e-6))
    assert Link().fit() == (0.0, 0.0)


def test_a_rate_is_never_below_zero_nor_above_the_mean() -> None:
    falling, steep = Link(), Link()
    for nbytes, seconds in ((0, 1.0), (1e6, 0.5)):
        falling.add(nbytes, seconds)
    for nbytes, seconds in ((1, 0.0), (1e6, 1.0)):
        steep.add(nbytes, seconds)
    assert falling.fit() == pytest.approx((0.75, 0.0))
    assert steep.fit()[0] >= 0


def _two_optimizers() -> list[int]:
    """The step behind each of three, which two optimizers make together."""
    model = sharded(Case())
    parameters = list(model.parameters())
    optimizers = [torch.optim.SGD(parameters[::2], lr=0.1), torch.optim.AdamW(parameters[1::2], lr=0.1)]
    attachment = traffic.attach_fsdp(model)
    found = []
    for step in range(3):
        loss_of(model, step).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found.append(attachment.step)
    attachment.detach()
    return found


def test_optimizers_that_share_the_parameters_make_one_step(two: Ranks) -> None:
    assert two.run(_two_optimizers) == [[1, 2, 3]] * 2
