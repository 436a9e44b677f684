"""A follower of a directory that ends at any step holds one version or the next, and the next run goes on."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorwire import load_file
from tensorwire.sync import Follower, Publisher
from tensorwire.sync.directories import making
from tests.support.processes import killing
from tests.support.sync_runs import FOLLOWER, STRIDES, catch_up, contents, follow, follow_anew, stepped, weights


@pytest.mark.parametrize(
    ("stride", "layout", "copies"),
    [
        pytest.param(4, "same", False, id="4-same-links"),
        pytest.param(4, "new", True, id="4-new-copies"),
        pytest.param(1, "same", False, id="1-same-links", marks=pytest.mark.slow),
        pytest.param(1, "same", True, id="1-same-copies", marks=pytest.mark.slow),
        pytest.param(1, "new", False, id="1-new-links", marks=pytest.mark.slow),
        pytest.param(1, "new", True, id="1-new-copies", marks=pytest.mark.slow),
    ],
)
def test_a_follower_killed_at_any_step_goes_on(
    stride: int, layout: str, copies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_FILE_NBYTES", 20_000)  # several files
    store, served = tmp_path / "store", tmp_path / "served"
    versions = [weights()]
    publisher = Publisher(store, anchor_every=1000, threads=1)
    publisher.publish(versions[0])
    follower = Follower(store, served, copies=copies, threads=1)
    follow(follower)
    assert len(list(served.glob("*.safetensors"))) > 2
    states = {"old": 0, "new": 0}
    for step, kill in enumerate(killing(FOLLOWER, stride, first=stride), 1):
        following = stepped(versions[-1], step)
        if layout == "new":
            following = {**following, f"added.{step % 2}": following["norm"]}
            following.pop(f"added.{1 - step % 2}", None)
        versions.append(following)
        published = publisher.publish(following)
        kill(partial(follow_anew, store, served, copies=copies))
        if layout == "same" and not copies:  # a reader need not wait until a follower has finished anything
            assert contents(load_file(served)) in (contents(versions[-2]), contents(following))
        after = Follower(store, served, copies=copies, threads=1)  # finishes what had begun
        assert after.version in (published.version, published.version - 1)
        states["new" if after.version == published.version else "old"] += 1
        assert contents(load_file(served)) == contents(versions[after.version])
        catch_up(after, published.version)
        assert contents(load_file(served)) == contents(following)
    assert stride * states["old"] > 20
    assert not copies or states["new"] >= 3  # of links one rename is nearly the last call; the last round is not killed


@pytest.mark.parametrize("stride", STRIDES)
def test_a_follower_killed_while_it_writes_in_place_makes_the_version_anew(stride: int, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    current = weights()
    publisher = Publisher(store, anchor_every=10, threads=1)
    publisher.publish(current)
    follow_anew(store, served, in_place=True)
    seen = set()
    for step, kill in enumerate(killing(FOLLOWER, stride), 1):
        before, current = current, stepped(current, step)
        number = publisher.publish(current).version
        mine = Follower(store, served, in_place=True, threads=1)
        assert mine.stage() is not None
        kill(mine.commit)
        after = Follower(store, served, in_place=True, threads=1)
        known = {None: None, number: contents(current), number - 1: contents(before)}
        assert known[after.version] in (None, contents(load_file(served)))  # it says nothing, or the truth
        seen.add(after.version is None)
        catch_up(after, number)
        assert contents(load_file(served)) == contents(current)
    assert seen == {True, False}


def test_a_commit_in_place_that_fails_is_repaired_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    follower = Follower(store, served, in_place=True, threads=1)
    publisher.publish(weights())
    follow(follower)
    after = {name: array + 1 for name, array in weights().items()}
    publisher.publish(after)
    assert follower.stage() is not None
    write, written = making.write_at, []

    def full(*arguments: Any) -> None:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(write(*arguments))

    monkeypatch.setattr(making, "write_at", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        follower.commit()
    monkeypatch.undo()
    assert follower.version is None
    assert contents(load_file(served)) != contents(weights())
    follow(follower)
    assert contents(load_file(served)) == contents(after)
