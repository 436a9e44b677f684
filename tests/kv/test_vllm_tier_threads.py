"""The compressed tier under load: threads, forks, and what it does when it ends. ``make vllm`` has the environment."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is missing, which make vllm installs apart from everything else")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.kv_offload.base import LookupResult

    from tests.support.vllm_chunks import CHUNK_NBYTES, REQUEST, Tier, chunks, files, key_of

from tests.support.processes import exit_code
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


def test_drain_waits_and_nothing_gets_lost(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    tier, given = make_tier(40, capacity_bytes=1 << 24, **place), chunks(40)
    tier.memory.view(np.uint8)[:] = given
    for first in range(0, 40, 4):
        tier.tier.submit_store(tier.job(range(first, first + 4), range(first, first + 4)))
    tier.tier.drain_jobs()
    results = list(tier.tier.get_finished_jobs())
    assert sorted(each.job_id for each in results) == list(range(1, 11))
    assert all(each.success for each in results)
    assert list(tier.tier.get_finished_jobs()) == []
    assert tier.held(range(40)) == list(range(40))
    tier.tier.drain_jobs()


class _Slow:
    """A codec that waits for the test."""

    def __init__(self, codec: Any) -> None:
        self._codec, self.may_go_on, self.has_begun = codec, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.has_begun.set()
            assert self.may_go_on.wait(60)
            return getattr(self._codec, name)(*arguments)

        return call


def slow(tier: Tier) -> _Slow:
    tier.tier._codec = made = _Slow(tier.tier._codec)  # type: ignore[assignment]
    return made


def test_no_call_waits_for_a_codec(make_tier: Callable[..., Tier]) -> None:
    tier, given = make_tier(8, threads=1), chunks(2)
    tier.store(given)
    codec = slow(tier)
    tier.tier.submit_store(tier.job([2, 3], [0, 1]))
    tier.tier.submit_store(tier.job([3, 4], [1, 2]))
    tier.tier.submit_load(tier.job([0, 1], [4, 5], load=True))
    assert codec.has_begun.wait(60)
    looked_up = [tier.tier.lookup(key_of(number), REQUEST) for number in range(6)]
    assert looked_up == [LookupResult.HIT] * 2 + [LookupResult.RETRY] * 3 + [LookupResult.MISS]
    assert list(tier.tier.get_finished_jobs()) == []
    tier.tier.touch([key_of(0)], REQUEST)
    assert tier.counted("chunks") == 2
    codec.may_go_on.set()
    tier.tier.drain_jobs()
    assert {each.job_id: each.success for each in tier.tier.get_finished_jobs()} == {2: True, 3: True, 4: True}
    assert tier.held(range(6)) == [0, 1, 2, 3, 4]


def test_a_load_does_not_wait_for_stores(make_tier: Callable[..., Tier]) -> None:
    tier, given = make_tier(8, threads=1), chunks(1)
    tier.store(given)
    codec = slow(tier)
    tier.tier._codec = type("Codec", (), {"encode": codec.encode, "decode": codec._codec.decode})()  # type: ignore[assignment]
    tier.tier.submit_store(tier.job(range(1, 8), range(1, 8)))
    tier.tier.submit_load(tier.job([0], [7], load=True))
    with tier.tier._changed:
        assert tier.tier._changed.wait_for(lambda: tier.tier._finished, 60)
    (loaded,) = tier.tier.get_finished_jobs()
    assert (loaded.job_id, loaded.success) == (3, True)
    codec.may_go_on.set()


def test_it_closes_with_jobs_under_way(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    """A chunk that was begun is ended, all others fail, and every job is told of."""
    tier, given = make_tier(8, threads=1, **place), chunks(8)
    tier.memory.view(np.uint8)[:] = given
    codec = slow(tier)
    for first in (0, 4):
        tier.tier.submit_store(tier.job(range(first, first + 4), range(first, first + 4)))
    tier.tier.submit_load(tier.job([9], [0], load=True))
    assert codec.has_begun.wait(60)
    closing = threading.Thread(target=tier.tier.shutdown)
    closing.start()
    wait_for(lambda: tier.tier._closed)
    codec.may_go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    tier.tier.drain_jobs()
    results = {each.job_id: each.success for each in tier.tier.get_finished_jobs()}
    assert results == {1: False, 2: False, 3: False}
    assert tier.held(range(8)) == []
    assert not tier.store(given).success
    assert not tier.load([0], [0]).success
    tier.tier.shutdown()


def test_a_forked_process_has_nothing_and_touches_nothing(
    make_tier: Callable[..., Tier], place: dict[str, Any], tmp_path: Path
) -> None:
    tier, given = make_tier(8, **place), chunks(4)
    tier.store(given)
    before = files(tmp_path)

    def child() -> None:
        assert tier.held(range(4)) == []
        assert not tier.store(given).success
        assert not tier.load([0], [0]).success
        tier.tier.shutdown()

    with tier.tier._changed:  # as another thread may have it
        assert exit_code(child) == 0
    assert files(tmp_path) == before
    assert tier.load([0, 1, 2, 3], [4, 5, 6, 7]).success
    assert (tier.slots([4, 5, 6, 7]) == given).all()


def test_eight_threads_use_it_at_once(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    """With less room than they need, so that chunks go while others are read: no wrong bit, every job told of."""
    tier, given = make_tier(64, capacity_bytes=12 * CHUNK_NBYTES, threads=8, **place), chunks(32)
    tier.memory.view(np.uint8)[:32] = given
    lock = threading.Lock()

    def use(number: int) -> None:
        generator = np.random.default_rng(number)
        for _ in range(12):
            wanted = generator.choice(32, 4, replace=False).tolist()
            with lock:
                store, load = (
                    tier.job(wanted, wanted),
                    tier.job(wanted, [32 + 4 * number + i for i in range(4)], load=True),
                )
            tier.tier.submit_store(store)
            tier.tier.touch(store.keys, REQUEST)
            tier.tier.drain_jobs()
            tier.tier.submit_load(load)
            while not (done := [each for each in finished() if each.job_id == load.job_id]):
                tier.tier.drain_jobs()
            for key in done[0].successful_keys:
                index = wanted.index(int.from_bytes(key[:32], "big"))
                assert (tier.slots([32 + 4 * number + index])[0] == given[wanted[index]]).all()
            loaded.extend(done[0].successful_keys)

    results, loaded = list[Any](), list[bytes]()

    def finished() -> list[Any]:
        results.extend(tier.tier.get_finished_jobs())
        return list(results)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert len({each.job_id for each in results}) == 8 * 12 * 2
    assert loaded
    assert tier.counted("damaged") == 0
