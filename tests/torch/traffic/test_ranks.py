"""The ranks that the other tests here run on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from tests.support.ranks import Ranks


def _sum_of_ranks() -> int:
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    return int(total)


def _fail_on_one() -> None:
    if dist.get_rank() == 2:
        raise KeyError("the fault of rank 2")
    dist.barrier()


def _stay() -> None:
    time.sleep(60)


def test_results_come_in_the_order_of_ranks(ranks: Ranks) -> None:
    assert ranks.run(dist.get_rank) == [0, 1, 2, 3]
    assert ranks.run(_sum_of_ranks) == [6] * 4
    assert ranks.run(os.getpid) == ranks.pids


def test_a_rank_that_raises_fails_the_test_with_its_traceback_and_later_tests_have_new_ranks(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 2:.*_fail_on_one.*the fault of rank 2"):
        ranks.run(_fail_on_one)
    assert ranks.run(_sum_of_ranks) == [6] * 4


def test_a_function_that_takes_too_long_ends(ranks: Ranks) -> None:
    ranks.run(dist.get_rank)
    pids = ranks.pids
    with pytest.raises(AssertionError, match=r"ranks \[0, 1, 2, 3\] gave no result in 0.5 s"):
        ranks.run(_stay, seconds=0.5)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
