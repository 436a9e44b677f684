"""Ranks that publish one version together: followers get the tensors of all, or the version before."""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorwire import load_file
from tensorwire.errors import FormatError
from tensorwire.sync import Follower, Published, Publisher, ranks
from tests.support.processes import KILLED, exit_code, exit_codes, kill_at
from tests.support.stores import FaultyStore, faulty_store
from tests.support.sync_runs import (
    FIRST,
    PUBLISHER,
    SECOND,
    STRIDES,
    THIRD,
    Weights,
    contents,
    fetched,
    follow,
    stepped,
    takes_new,
    weights,
)

OWNERS = {"embed": 0, "norm": 0, "nothing": 0, "layer.0.weight": 1, "scale": 1, "layer.1.weight": 2, "head": 2}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_POLL_SECONDS", 0.01)


def share(found: Weights, rank: int, num_ranks: int = 3) -> Weights:
    """The tensors of a rank."""
    return {name: array for name, array in found.items() if OWNERS.get(name, 0) % num_ranks == rank}


def make(store: Any, num_ranks: int = 3, base: Weights | None = None, **options: Any) -> list[Publisher]:
    """The publishers of all ranks."""
    options = {"timeout": 60.0, "threads": 1, **options}
    return [
        Publisher(store, base=base and share(base, rank, num_ranks), rank=rank, num_ranks=num_ranks, **options)
        for rank in range(num_ranks)
    ]


def impatient(publishers: Sequence[Publisher], seconds: float = 0.1) -> None:
    for each in publishers:
        each._ranks._timeout = seconds


def in_vain(publish: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Publish on a rank that raises; then the time of those who wait for it is over."""
    try:
        return publish()
    finally:
        monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: math.inf, sleep=time.sleep))


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
    """What calls in threads of their own come to."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [pool.submit(call) for call in calls]


def publish(publishers: Sequence[Publisher], found: Weights, version: int) -> list[Published]:
    """What each rank says of a version that all publish."""
    num = len(publishers)
    calls = [lambda each=each, rank=rank: each.publish(share(found, rank, num), version)
             for rank, each in enumerate(publishers)]  # fmt: skip
    return [each.result() for each in at_once(calls)]


def begun(store: Any, num_ranks: int = 2) -> tuple[list[Publisher], Follower, Weights]:
    """Ranks that have published `FIRST`, and a follower that has it, with its arrays."""
    publishers, arrays = make(store, num_ranks), dict[str, Any]()
    publish(publishers, FIRST, 0)
    follower = Follower(store, arrays, threads=1)
    follow(follower, 0)
    return publishers, follower, arrays


def test_followers_get_the_tensors_of_all_ranks(store: str, tmp_path: Path) -> None:
    publishers, current = make(store, anchor_every=4), FIRST
    arrays: dict[str, Any] = {}
    followers = [Follower(store, arrays, threads=1), Follower(store, tmp_path / "served", threads=1)]
    for number in range(10):
        published = publish(publishers, current, number)
        assert published[0].is_anchor == (number % 4 == 0)
        assert all(each[:4] == published[0][:4] for each in published)  # of the version, but for the seconds
        assert [each.version for each in publishers] == [number] * 3
        for follower in followers:
            follow(follower, number)
        for found in (arrays, load_file(tmp_path / "served")):
            assert contents(found) == contents(current)
        if number != 5:  # of that one nothing changes
            current = stepped(current, number)
    with pytest.warns(RuntimeWarning, match="base is not what version 000009 holds"):  # nobody published that step
        publisher = Publisher(store, base=current, threads=1)
    published = publisher.publish(current)
    assert (published.is_anchor, published.num_changed) == (False, 1)
    for follower in followers:
        follow(follower, 10)
    assert contents(arrays) == contents(load_file(tmp_path / "served")) == contents(current)


def test_files_have_the_number_of_their_rank_and_the_folder_is_as_ever(tmp_path: Path) -> None:
    publishers = make(tmp_path)
    publish(publishers, FIRST, 3)
    folder = tmp_path / "weight_v000003"
    files = sorted(path.name for path in folder.iterdir())
    assert [name[:12] for name in files] == ["model-00001-", "model-100001", "model-200001", "model.safete"]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert {name: int(file[6:12].rstrip("-")) // 100_000 for name, file in index["weight_map"].items()} == OWNERS
    assert contents(load_file(folder)) == contents(FIRST)


def test_a_tensor_that_moves_to_another_rank_and_one_that_is_gone(store: str) -> None:
    publishers, arrays = make(store, num_ranks=2), dict[str, Any]()
    follower = Follower(store, arrays, threads=1)
    shares = [{"a": np.arange(9.0), "b": np.arange(8.0)}, {"c": np.arange(7.0), "d": np.arange(6.0)}]

    def step(number: int) -> bool:
        calls = [lambda rank=rank: publishers[rank].publish(shares[rank], number) for rank in range(2)]
        published = [each.result() for each in at_once(calls)]
        follow(follower, number)
        assert contents(arrays) == contents(shares[0] | shares[1])
        assert published[0][:4] == published[1][:4]
        return published[0].is_anchor

    assert step(0)
    shares[0]["c"] = shares[1].pop("c")
    assert not step(1)
    del shares[1]["d"]
    assert step(2)  # without a tensor on rank 1
    shares[1]["e"] = np.ones(3)
    assert not step(3)
    del shares[0]["a"]
    assert step(4)


def test_ranks_that_do_not_come_are_named_and_the_next_version_is_an_anchor(store: str) -> None:
    publishers, follower, arrays = begun(store, 3)
    impatient(publishers)
    with pytest.raises(TimeoutError, match=r"a part from each rank, got none from rank 1, 2 within 0.1 sec.*_v000001"):
        publishers[0].publish(share(SECOND, 0), 1)
    with pytest.raises(TimeoutError, match="an offer of rank 0 for version 000001"):
        publishers[1].publish(share(SECOND, 1), 1)
    assert follower.stage() is None
    impatient(publishers, 60)
    published = publish(publishers, THIRD, 2)
    assert [each.is_anchor for each in published] == [True] * 3
    follow(follower, 2)
    assert contents(arrays) == contents(THIRD)


def test_an_error_of_rank_0_ends_the_others(tmp_path: Path) -> None:
    publishers, follower, arrays = begun(tmp_path, 3)
    twice = [{**share(SECOND, 0), "scale": SECOND["scale"]}, share(SECOND, 1), share(SECOND, 2)]
    futures = at_once(
        [lambda each=each, rank=rank: each.publish(twice[rank], 1) for rank, each in enumerate(publishers)]
    )
    with pytest.raises(ValueError, match="'scale' from one rank, got it from 0 and 1"):
        futures[0].result()
    for future in futures[1:]:
        with pytest.raises(OSError, match=r"rank 0 has withdrawn this version.*weight_v000001"):
            future.result()
    left = [path.name[:8] for path in (tmp_path / "weight_v000001").iterdir()]
    assert sorted(left) == ["model-10", "model-20"]  # it goes with the folder; nothing of rank 0
    assert publish(publishers, SECOND, 1)[2].is_anchor
    follow(follower, 1)
    assert contents(arrays) == contents(SECOND)


def test_a_rank_that_is_at_another_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publishers = make(tmp_path, num_ranks=2)
    publish(publishers, FIRST, 4)
    for number, text in ((None, "the same on all ranks"), (True, "the same on all"), (4, "from 5 on")):
        with pytest.raises(ValueError, match=text):
            publishers[0].publish(share(SECOND, 0, 2), number)
    for number in (None, -1, 4, 10**18):
        with pytest.raises(ValueError, match="a version that does not exist yet"):
            publishers[1].publish(share(SECOND, 1, 2), number)
    calls = [lambda rank=rank: publishers[rank].publish(share(SECOND, rank, 2), 6 - rank) for rank in range(2)]
    with monkeypatch.context() as patched:
        futures = at_once([calls[0], partial(in_vain, calls[1], patched)])
    with pytest.raises(TimeoutError, match="from rank 1"):
        futures[0].result()
    with pytest.raises(ValueError, match="expected version 000006, at which rank 0 is, got 000005"):
        futures[1].result()
    assert publish(publishers, SECOND, 7)[0].version == 7


@pytest.mark.parametrize("with_base", [(True, True), (True, False), (False, True), (False, False)])
def test_ranks_that_were_made_anew_go_on(with_base: tuple[bool, bool], store: str) -> None:
    _, follower, arrays = begun(store)
    publishers = [make(store, num_ranks=2, base=FIRST if is_there else None)[rank]
                  for rank, is_there in enumerate(with_base)]  # fmt: skip
    published = publish(publishers, SECOND, 1)
    assert [each.is_anchor for each in published] == [False, False]  # what they do not have they read
    assert published[0].num_changed == sum(contents(FIRST)[name] != each for name, each in contents(SECOND).items())
    follow(follower, 1)
    assert contents(arrays) == contents(SECOND)
    assert not publish(publishers, THIRD, 2)[1].is_anchor
    for late in ({}, arrays):
        follow(Follower(store, late, threads=1), 2)
        assert contents(late) == contents(THIRD)


@pytest.mark.parametrize("anchor", [False, True])
def test_a_rank_that_waits_takes_the_offer_of_a_rank_0_that_begins_anew(anchor: bool, tmp_path: Path) -> None:
    publishers, follower, arrays = begun(tmp_path)

    def child() -> None:
        publishers[0]._ranks.parts = lambda offer: os._exit(KILLED)  # type: ignore[method-assign, assignment]
        publishers[0].publish(share(SECOND, 0, 2), 1)

    assert exit_code(child) == KILLED
    waiting = threading.Thread(target=lambda: publishers[1].publish(share(SECOND, 1, 2), 1))
    waiting.start()
    while len({json.loads((tmp_path / f"rank-0000{rank}.json").read_text())["token"] for rank in range(2)}) > 1:
        time.sleep(0.01)  # until its part is there, relative to version 0, as the dead process had said
    again = make(tmp_path, num_ranks=2)[0]
    assert again.publish(share(SECOND, 0, 2), 1, anchor=anchor).is_anchor == anchor
    waiting.join()
    assert publishers[1].version == 1
    follow(follower, 1)
    assert contents(arrays) == contents(SECOND)


def test_a_part_of_an_earlier_attempt_is_nobodys(tmp_path: Path) -> None:
    """A rank that died behind its part does not add to a later attempt, though its part is whole and of the number."""
    publishers = make(tmp_path, num_ranks=2)
    publish(publishers, FIRST, 0)
    old, now = stepped(FIRST, 8), stepped(FIRST, 9)

    def child() -> None:
        publishers[1]._ranks.await_outcome = lambda offer: os._exit(KILLED)  # type: ignore[method-assign, assignment]
        publishers[1].publish(share(old, 1, 2), 1)

    def leader() -> None:
        publishers[0]._ranks.parts = lambda offer: os._exit(KILLED)  # type: ignore[method-assign, assignment]
        publishers[0].publish(share(old, 0, 2), 1)

    assert (exit_code(leader), exit_code(child)) == (KILLED, KILLED)
    assert (tmp_path / "rank-00001.json").exists()
    again = make(tmp_path, num_ranks=2, base=FIRST)
    impatient(again)
    with pytest.raises(TimeoutError, match="from rank 1"):
        again[0].publish(share(now, 0, 2), 1)
    impatient(again, 60)
    publish(again, now, 1)
    assert contents(fetched(tmp_path, 1)) == contents(now)


def test_a_part_counts_when_its_files_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network's file system a list may be seen before the files that it names."""
    publishers, seen = make(tmp_path, num_ranks=2), list[str]()
    own = publishers[1]._ranks.put

    def put(part: Any) -> None:
        [file] = (tmp_path / "weight_v000000").glob("model-1*")
        file.rename(tmp_path / "late")
        own(part)
        time.sleep(0.2)
        seen.extend(path.name for path in (tmp_path / "weight_v000000").glob("*.json"))
        (tmp_path / "late").rename(file)

    monkeypatch.setattr(publishers[1]._ranks, "put", put)
    publish(publishers, FIRST, 0)
    assert seen == []
    assert contents(load_file(tmp_path / "weight_v000000")) == contents(FIRST)


def test_a_rank_with_another_base_sends_all_it_has(tmp_path: Path) -> None:
    _, follower, arrays = begun(tmp_path)
    other = {**FIRST, "layer.0.weight": SECOND["layer.0.weight"] * 2}
    with pytest.warns(RuntimeWarning, match="base is not what version 000000 holds"):
        publishers = [make(tmp_path, num_ranks=2, base=base)[rank] for rank, base in enumerate((FIRST, other))]
    assert not publish(publishers, other, 1)[0].is_anchor
    follow(follower, 1)
    assert contents(arrays) == contents(other)


def test_what_a_rank_holds_after_an_error_is_nobodys_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publishers, follower, arrays = begun(tmp_path)
    bad = [*share(SECOND, 1, 2).items(), ("scale", SECOND["scale"])]
    with monkeypatch.context() as patched:
        calls = [lambda: publishers[0].publish(share(SECOND, 0, 2), 1), lambda: publishers[1].publish(bad, 1)]
        futures = at_once([calls[0], partial(in_vain, calls[1], patched)])
    with pytest.raises(TimeoutError, match="from rank 1"):
        futures[0].result()
    with pytest.raises(ValueError, match="'scale' twice"):
        futures[1].result()
    again = make(tmp_path, num_ranks=2, base=FIRST)[0]
    assert not publish([again, publishers[1]], THIRD, 1)[1].is_anchor
    follow(follower, 1)
    assert contents(arrays) == contents(THIRD)


def test_a_rank_whose_part_is_not_in_the_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has started a rank twice."""
    publishers, twin = make(tmp_path, num_ranks=2), make(tmp_path, num_ranks=2)[1]
    own, done = publishers[0]._ranks.parts, list[Future[Any]]()
    pool = ThreadPoolExecutor(1)

    def parts(offer: Any) -> Any:
        found = own(offer)
        before = (tmp_path / "rank-00001.json").read_bytes()
        done.append(pool.submit(twin.publish, share(SECOND, 1, 2), 0))
        while (tmp_path / "rank-00001.json").read_bytes() == before:
            time.sleep(0.01)
        return found

    monkeypatch.setattr(publishers[0]._ranks, "parts", parts)
    publish(publishers, FIRST, 0)
    with pool, pytest.raises(FileExistsError, match="stands without what rank 1 has put"):
        done[0].result()
    assert contents(fetched(tmp_path, 0)) == contents(FIRST)


def test_an_old_offer_of_a_later_version_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        make(tmp_path, num_ranks=2, timeout=0.1)[0].publish(share(FIRST, 0, 2), 9)
    old = {"token": "t", "number": 9, "lineage": "r", "base": None}
    (tmp_path / "rank-00000.json").write_text(json.dumps(old))
    publishers = make(tmp_path, num_ranks=2)
    calls = [
        lambda: (time.sleep(0.2), publishers[0].publish(share(FIRST, 0, 2), 1)),
        lambda: publishers[1].publish(share(FIRST, 1, 2), 1),
    ]
    assert [future.exception() for future in at_once(calls)] == [None, None]


def test_a_store_that_cannot_be_read_for_a_while_is_asked_again() -> None:
    with faulty_store():
        publishers, left = make("faulty://store", num_ranks=2), [7]

        def failing(own: Any, path: str, *rest: Any, **options: Any) -> Any:
            if "rank-" in path and left[0]:
                left[0] -= 1
                raise OSError(5, "no")
            return own(path, *rest, **options)

        FaultyStore.faults["cat_file"] = failing
        assert publish(publishers, FIRST, 0)[1].is_anchor
        assert left == [0]


@pytest.mark.parametrize(
    "text", ["[", "{}", '{"token": 3}', '{"token": "t", "number": "1", "lineage": "r"}', '{"token": "t", "number": 1}']
)
def test_damaged_lists_are_none(text: str, tmp_path: Path) -> None:
    publish(make(tmp_path, num_ranks=2), FIRST, 0)
    for rank in range(2):
        (tmp_path / f"rank-0000{rank}.json").write_text(text)
    publishers = make(tmp_path, num_ranks=2, base=FIRST)
    assert not publish(publishers, SECOND, 1)[1].is_anchor
    assert contents(fetched(tmp_path, 1)) == contents(SECOND)


@pytest.mark.parametrize("change", [{"names": None}, {"names": ["a", 3]}, {"index": None}, {"index": "{}"}])
def test_a_part_that_breaks_a_rule_is_an_error(change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publishers = make(tmp_path, num_ranks=2)
    own = publishers[1]._ranks._put
    monkeypatch.setattr(publishers[1]._ranks, "_put", lambda body: own({**body, **change}))
    futures = at_once([partial(each.publish, share(FIRST, rank, 2), 0) for rank, each in enumerate(publishers)])
    with pytest.raises(FormatError, match=r"rank-00001\.json"):
        futures[0].result()
    assert isinstance(futures[1].exception(), OSError)
    assert Publisher(tmp_path).version is None


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("stride", STRIDES)
def test_a_rank_killed_at_any_step_leaves_a_version_or_the_next_one(stride: int, killed: int, tmp_path: Path) -> None:
    place, current = tmp_path / "store", FIRST
    _, follower, arrays = begun(place)
    step, codes, seen = 1 - stride, {KILLED}, set()
    while codes != {0}:
        step += stride
        assert step < 200, "the ranks never have the time"
        number, following = int(follower.version or 0) + 1, stepped(current, step)

        def child(
            rank: int, step: int = step, number: int = number, current: Any = current, after: Any = following
        ) -> None:
            base = share(current, rank, 2) if step % 3 or rank != killed else None
            options: Any = {"anchor_every": 2, "keep": 1, "timeout": 0.4, "threads": 1}
            publisher = Publisher(place, base=base, rank=rank, num_ranks=2, **options)
            if rank == killed:
                kill_at(step, PUBLISHER)
            try:
                publisher.publish(share(after, rank, 2), number)
            except OSError as error:
                os._exit(5 if isinstance(error, TimeoutError) or "withdrawn" in str(error) else 6)

        codes = set(exit_codes([partial(child, rank) for rank in range(2)]))
        assert codes <= {KILLED, 0, 5}
        stands = takes_new(follower, arrays, current, following)
        seen.add(stands)
        current = following if stands else current
        assert Follower(place, dict[str, Any](), threads=1).stage() is not None
    assert step > 10
    assert seen == {True, False}
    publishers = make(place, num_ranks=2, base=current, keep=1)
    for number in range(2):
        publish(publishers, THIRD, int(follower.version or 0) + 1 + number)


@pytest.mark.filterwarnings("ignore:version:RuntimeWarning")  # a hint or a removal that failed
def test_random_versions_of_ranks_over_a_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a rank has failed, the time of the others is over."""
    generator, over = random.Random(11), threading.Event()
    clock = SimpleNamespace(monotonic=lambda: math.inf if over.is_set() else time.monotonic(), sleep=time.sleep)
    monkeypatch.setattr(ranks, "time", clock)

    def moody(own: Any, *arguments: Any, **options: Any) -> Any:
        mood = generator.random()
        if mood < 0.01:
            raise OSError(5, "before")
        found = own(*arguments, **options)
        if mood < 0.02:
            raise OSError(5, "after")
        return found

    def attempt(each: Publisher, part: Weights, number: int) -> None:
        try:
            each.publish(part, number)
        except Exception:
            over.set()
            raise

    with faulty_store():
        publishers, arrays = make("faulty://store", anchor_every=5), dict[str, Any]()
        follower = Follower("faulty://store", arrays, threads=1)
        FaultyStore.faults.update(pipe_file=moody, cat_file=moody, info=moody)
        current, history, failures, came = weights(), {}, 0, 0
        for number in range(45):
            current = stepped(current, number)
            history[number] = contents(current)
            calls = [partial(attempt, each, share(current, rank), number) for rank, each in enumerate(publishers)]
            over.clear()
            failures += sum(isinstance(each.exception(), OSError) for each in at_once(calls))
            try:
                if follower.stage() is not None:
                    follower.commit()
            except (OSError, FormatError):
                failures += 1
            if follower.version is not None:
                assert contents(arrays) == history[follower.version]
                came += follower.version == number
        assert failures > 5
        assert came > 20
        FaultyStore.faults.clear()
        current = stepped(current, 1000)
        over.clear()
        publish(publishers, current, 100)
        follow(follower, 100)
        assert contents(arrays) == contents(current)


@pytest.mark.parametrize(
    "options",
    [{"rank": 1}, {"rank": -1, "num_ranks": 2}, {"rank": True, "num_ranks": 2}, {"num_ranks": 0}, {"timeout": 0}],
)
def test_options_of_ranks_are_checked(options: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rank|timeout"):
        Publisher(tmp_path, **options)
