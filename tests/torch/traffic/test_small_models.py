"""The models of `make traffic` whose rows travel by all_to_all: what they claim, in a few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
import torch

from benchmarks import gpt
from benchmarks.traffic import clusters, dlrm, moe
from tensorwire.torch.traffic import Bounded, Exact, Grid
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from benchmarks.traffic.moe import Way
    from tensorwire.torch.traffic.choice import Choice
    from tensorwire.torch.traffic.codecs.codec import Codec
    from tests.support.ranks import Ranks


TABLES, EXAMPLES = np.geomspace(30, 3000, 8).astype(int), 256


@patch.multiple(dlrm, TABLES=TABLES, EXAMPLES=EXAMPLES, VALIDATION_STEPS=1)
def _train(codec: Choice, steps: int) -> dlrm.Result:
    """With smaller tables."""
    return dlrm.train(codec, steps, 0)


def test_tables_on_other_ranks_with_exact_train_as_with_raw_messages(ranks: Ranks) -> None:
    raw, exact = (ranks.run(_train, codec, 2) for codec in (Raw(), Exact()))
    assert exact == raw == [raw[0]] * 4
    # In two steps each of four ranks sends its two tables to three others.
    assert raw[0].sent_nbytes == raw[0].raw_nbytes == 2 * 4 * 2 * 3 * EXAMPLES * dlrm.DIM * 4


def looser_first(name: str, step: int) -> Codec:
    assert name in {f"table {i}" for i in range(8)}
    return Bounded(0.03 * (2 if step == 0 else 1), relative=True, row=dlrm.DIM)


def test_bounded_vectors_take_a_part_of_the_bytes(two: Ranks) -> None:
    entropy, rows = (two.run(_train, codec, 2)[0] for codec in (Bounded(0.03, relative=True), looser_first))
    assert rows.sent_nbytes < entropy.sent_nbytes < entropy.raw_nbytes / 6
    assert abs(rows.loss - entropy.loss) < 0.01


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    logits = torch.randn(60, generator=torch.Generator().manual_seed(0))
    clicked = (torch.rand(60, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    pairs = [bool(one > zero) for one in logits[clicked == 1] for zero in logits[clicked == 0]]
    assert dlrm.area(logits, clicked) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.slow
def test_experts_with_exact_have_the_bits_of_raw_messages(ranks: Ranks) -> None:
    raw, exact, grid = (ranks.run(moe.train, codec, 2, 0) for codec in (Raw(), Exact(), Grid(4, 128)))
    assert [each.digest for each in exact] == [each.digest for each in raw] == [raw[0].digest] * 4
    assert exact[0].loss == raw[0].loss
    assert exact[0].sent_nbytes < 0.75 * raw[0].sent_nbytes
    assert grid[0].digest != raw[0].digest
    assert abs(grid[0].loss - raw[0].loss) < 0.05
    assert grid[0].sent_nbytes / grid[0].raw_nbytes == pytest.approx(4.25 / 16)


@patch.object(gpt, "_text", lambda *, validation: np.random.default_rng(0).integers(0, gpt.BYTES, 4096))
def _leak(codec: Choice, way: Way | None = None) -> float:
    return clusters.leak(codec, way)


def test_a_later_byte_changes_no_earlier_logit_but_through_clusters(two: Ranks) -> None:
    for codec in (Raw(), Exact(), Grid(4, 128)):
        assert two.run(_leak, codec) == [0.0] * 2
    for way in (clusters.Clusters(), clusters.Clusters(random=True), clusters.Clusters(compensated=False)):
        assert min(two.run(_leak, Raw(), way)) > 0.01


@pytest.mark.slow
def test_clusters_send_fewer_rows(ranks: Ranks) -> None:
    ways = (None, clusters.Clusters(), clusters.Clusters(random=True))
    direct, *clustered = (ranks.run(moe.train, Raw(), 1, 0, way)[0].sent_nbytes for way in ways)
    assert max(clustered) < 0.5 * direct
