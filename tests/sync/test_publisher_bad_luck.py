"""A publisher whose disk is full, or whose base goes away: followers never see what it could not finish."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorwire.sync import Follower, Publisher, checkpoints, store
from tests.support.acting import acting
from tests.support.processes import killing
from tests.support.sync_runs import FIRST, PUBLISHER, SECOND, THIRD, begun, contents, follow, stepped, takes_new


@pytest.mark.parametrize("put", range(3), ids=["shard", "index", "hint"])
def test_a_full_disk_touches_no_version_that_stands(put: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "store"
    publisher, follower, arrays = begun(place)
    own, done = store.put_bytes, []

    def full(data: bytes, to: Any, **options: Any) -> None:
        if len(done) == put:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to))
        own(data, to, **options)
        done.append(to)

    monkeypatch.setattr(store, "put_bytes", full)
    if put == 2:
        with pytest.warns(RuntimeWarning, match=r"version 000001 stands.*No space left"):
            publisher.publish(SECOND)
        follow(follower, 1)
    else:
        with pytest.raises(OSError, match="No space left"):
            publisher.publish(SECOND)
        assert follower.stage() is None
        # If the index cannot be put, nobody knows whether it stands, so its files stay until an anchor is two back.
        assert (place / "weight_v000001").exists() == (put == 1)
    monkeypatch.undo()
    published = publisher.publish(THIRD)
    assert published.is_anchor == (put < 2)
    follow(follower, published.version)
    assert contents(arrays) == contents(THIRD)


@pytest.mark.parametrize("version", [SECOND, FIRST], ids=["shard", "index"])
def test_a_folder_that_a_failing_rank_removes_while_it_is_empty_is_made_again(
    version: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file of a version comes into it: a shard, or the index where nothing has changed."""
    publisher, follower, arrays = begun(tmp_path)
    own, removed = store.put_bytes, list[Path]()

    def put(data: bytes, to: Any, **options: Any) -> None:
        if not removed:
            removed.append(to)
            to.parent.rmdir()
        own(data, to, **options)

    monkeypatch.setattr(store, "put_bytes", put)
    publisher.publish(version)
    assert removed[0].parent.name == "weight_v000001"
    follow(follower, 1)
    assert contents(arrays) == contents(version)


def test_a_base_that_goes_while_it_is_read_is_an_error_and_the_store_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, served = tmp_path / "store", tmp_path / "served"
    Publisher(place, threads=1).publish(FIRST)
    follow(Follower(place, served, threads=1), 0)
    before = sorted(path.relative_to(place) for path in place.rglob("*"))
    acting(monkeypatch, checkpoints, "find_shards", lambda root: shutil.rmtree(served), after=True)
    with pytest.raises(FileNotFoundError, match="served"):
        Publisher(place, base=served, threads=1)
    assert sorted(path.relative_to(place) for path in place.rglob("*")) == before


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_publisher_killed_at_any_step_leaves_a_version_or_the_next_one(stride: int, tmp_path: Path) -> None:
    place, current = tmp_path / "store", FIRST
    _, follower, arrays = begun(place)
    seen = set()
    for step, kill in enumerate(killing(PUBLISHER, stride), 1):
        following = stepped(current, step)
        publisher = Publisher(place, base=current, anchor_every=1, keep=1, threads=1)
        kill(partial(publisher.publish, following))
        stands = takes_new(follower, arrays, current, following)
        seen.add(stands)
        current = following if stands else current
        assert Follower(place, dict[str, Any](), threads=1).stage() is not None
    assert seen == {True, False}
    Publisher(place, base=current, anchor_every=1, keep=1, threads=1).publish(THIRD)
    folders = [path for path in place.iterdir() if path.is_dir()]
    assert len(folders) == 1  # with what was half written the others are gone
    assert len(list(folders[0].iterdir())) == 2
