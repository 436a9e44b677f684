"""A new publisher goes on behind a store, and followers are told more: how far they are, which arrays to make."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire.checkpoint import compress_checkpoint
from tensorwire.errors import TensorwireError
from tensorwire.sync import Follower, Publisher
from tensorwire.sync.frames import Frames
from tests.support.acting import acting
from tests.support.sync_runs import contents, follow, stepped, weights, write_plain


@pytest.mark.parametrize("kind", ["arrays", "plain", "compressed"])
def test_a_publisher_resumes_behind_what_it_is_given(kind: str, tmp_path: Path) -> None:
    store, current = tmp_path / "store", weights()
    Publisher(store, threads=1).publish(current)
    base: Any = current
    if kind != "arrays":
        (tmp_path / "plain").mkdir()
        write_plain(tmp_path / "plain" / "model.safetensors", current)
        base = tmp_path / "plain"
        if kind == "compressed":
            compress_checkpoint(base, tmp_path / "compressed")
            base = tmp_path / "compressed"
    publisher = Publisher(store, base=base, threads=1)
    assert not publisher.publish(stepped(current, 1)).is_anchor
    with pytest.warns(RuntimeWarning, match="base is not what version 000001 holds, the newest one"):
        publisher = Publisher(store, base=current, threads=1)
    published = publisher.publish(current)
    assert (published.version, published.is_anchor, published.num_changed) == (2, False, 2)
    arrays: dict[str, Any] = {}
    follow(Follower(store, arrays, threads=1), 2)
    assert contents(arrays) == contents(current)


def test_a_publisher_goes_on_behind_the_store(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a base it reads what a tensor was, and nothing of one that did not change or travels whole."""
    current, arrays = weights(), dict[str, Any]()
    follower = Follower(store, arrays, threads=1)
    sizes = [Publisher(store, threads=1).publish(current).nbytes]
    for number in range(4):
        fetched = set[str]()
        acting(monkeypatch, Frames, "fetch", lambda _, name, *__, fetched=fetched: fetched.add(name))
        before, current = current, stepped(current, number)
        if number == 2:
            current["norm"] = np.ones(7, np.float32)
        published = Publisher(store, threads=1).publish(current)
        monkeypatch.undo()
        changed = {name for name, each in contents(current).items() if contents(before)[name] != each}
        assert fetched == {name for name in changed if current[name].shape == before[name].shape}
        assert (published.version, published.is_anchor, published.num_changed) == (number + 1, False, len(changed))
        sizes.append(published.nbytes)
        follow(follower, number + 1)
        assert contents(arrays) == contents(current)
    assert max(sizes[1:]) < sizes[0] / 4
    again = Publisher(store, threads=1)
    assert (again.publish(current, anchor=True).is_anchor, again.publish(current).is_anchor) == (True, False)
    arrays = {}
    follow(Follower(store, arrays, threads=1), 6)
    assert contents(arrays) == contents(current)


def test_anchors_are_as_far_apart_as_with_one_publisher(tmp_path: Path) -> None:
    kinds = [Publisher(tmp_path / "few", anchor_every=3, threads=1).publish(weights()).is_anchor for _ in range(7)]
    assert kinds == [True, False, False, True, False, False, True]
    kinds = [Publisher(tmp_path / "large", threads=1).publish(weights(seed)).is_anchor for seed in (0, 1, 2, 3)]
    assert kinds == [True, False, True, False]


@pytest.mark.parametrize("damage", ["an index is gone", "a file is gone", "content is damaged"])
def test_nothing_is_relative_to_what_is_damaged(damage: str, tmp_path: Path) -> None:
    current = weights()
    publisher = Publisher(tmp_path, threads=1)
    publisher.publish(current)
    publisher.publish(stepped(current, 1))
    folder = tmp_path / "weight_v000000"
    [shard] = folder.glob("*.safetensors")
    index = folder / "model.safetensors.index.json"
    following = stepped(stepped(current, 1), 2)
    if damage == "content is damaged":
        content = bytearray(shard.read_bytes())
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
        shard.write_bytes(content)
        publisher = Publisher(tmp_path, threads=1)
        with pytest.raises(TensorwireError, match="publish an anchor"):
            publisher.publish(following)
    else:
        (index if damage == "an index is gone" else shard).unlink()
        with pytest.warns(RuntimeWarning, match="nothing can be relative to version 000001, so the next one has all"):
            publisher = Publisher(tmp_path, threads=1)
    assert publisher.publish(following).is_anchor
    arrays: dict[str, Any] = {}
    follow(Follower(tmp_path, arrays, threads=1))
    assert contents(arrays) == contents(following)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_follower_gives_arrays_of_the_framework_that_is_asked_for(in_place: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    publisher, arrays = Publisher(tmp_path, threads=1), dict[str, Any]()
    follower = Follower(tmp_path, arrays, framework="pt", in_place=in_place, threads=1)
    for number, given in enumerate((weights(), stepped(weights(), 1))):
        publisher.publish(given)
        follow(follower, number)
        assert {type(each) for each in arrays.values()} == {torch.Tensor}
        assert contents(arrays) == contents(given)
    assert arrays["layer.0.weight"].dtype == torch.bfloat16
    if not in_place:
        publisher.publish({**given, "norm": np.ones(48, np.float16)})
        follow(Follower(tmp_path, arrays, framework="np", threads=1), 2)
        assert {name for name, each in arrays.items() if isinstance(each, np.ndarray)} == {"norm"}


def test_a_framework_is_one_of_two_and_for_a_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='expected "np" or "pt" as framework'):
        Follower(tmp_path, {}, framework="bytes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="with a dict alone"):
        Follower(tmp_path, tmp_path / "served", framework="pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="torch"):
        Follower(tmp_path, {}, framework="pt")


def test_progress_counts_the_tensors_that_are_made(store: str, tmp_path: Path) -> None:
    publisher = Publisher(store, threads=1)
    followers = [Follower(store, {}, threads=1), Follower(store, tmp_path / "served", in_place=True, threads=1)]
    for given in (weights(), {**weights(), "norm": np.ones(48, np.float16)}):
        publisher.publish(given)
        for follower in followers:
            told = list[tuple[int, int, str]]()
            assert follower.stage(progress=lambda *each, told=told: told.append(each)) is not None
            follower.commit()
            done = [each[0] for each in told]
            assert done == sorted(done)
            assert {each[1] for each in told} == {done[-1]}
    assert (done[-1], told[0][2]) == (96, "norm")
