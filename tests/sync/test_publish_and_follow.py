"""What a publisher is given, followers get: arrays, arrays in place, and directories, through folders and URLs."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorwire import load_file, save_file
from tensorwire._ground.folder import Folder
from tensorwire.checkpoint import compress_checkpoint
from tensorwire.errors import UnsupportedTensorError
from tensorwire.sync import Follower, Publisher
from tensorwire.sync.directories import making
from tests.support.acting import acting, raising
from tests.support.sync_runs import contents, folders, follow, stepped, weights, write_plain


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_arrays_and_directories_get_every_version(store: str, tmp_path: Path) -> None:
    current = weights()
    publisher = Publisher(store, anchor_every=4, threads=1)
    arrays: dict[str, Any] = {}
    in_place = {name: array.copy() for name, array in current.items()}
    memory = dict(in_place)
    followers = [
        Follower(store, arrays, threads=1),
        Follower(store, in_place, in_place=True, threads=1),
        Follower(store, tmp_path / "served", threads=1),
        Follower(store, tmp_path / "one_copy", in_place=True, threads=1),
    ]
    assert [each.stage() for each in followers] == [None] * 4
    assert [each.state for each in followers] == ["empty"] * 4
    for number in range(11):
        published = publisher.publish(current)
        assert (published.version, published.is_anchor) == (number, number % 4 == 0)
        if number not in (2, 5, 6):  # a follower may skip versions
            for follower in followers:
                follow(follower, number)
                assert follower.stage() is None
            for found in (arrays, in_place, load_file(tmp_path / "served"), load_file(tmp_path / "one_copy")):
                assert contents(found) == contents(current)
            assert all(in_place[name] is memory[name] for name in memory)
            assert names(tmp_path / "one_copy" / ".tensorwire-sync") == ["in_place.json", "lock"]
        current = stepped(current, number)


def test_a_version_lists_what_changed_alone_and_is_a_checkpoint(tmp_path: Path) -> None:
    current = weights()
    publisher = Publisher(tmp_path / "store", threads=1)
    publisher.publish(current)
    changed = {**current, "norm": current["norm"] + np.float16(1)}
    published = publisher.publish(changed)
    assert published.num_changed == 1
    folder = tmp_path / "store" / "weight_v000001"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert list(index["weight_map"]) == ["norm"]
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) == published.nbytes
    assert contents(load_file(folder, base=current)) == contents({"norm": changed["norm"]})
    assert contents(load_file(tmp_path / "store" / "weight_v000000")) == contents(current)
    assert (tmp_path / "store" / "latest").read_text().endswith("/weight_v000001")
    assert publisher.publish(changed).num_changed == 0


def test_pairs_are_taken_one_at_a_time_and_torch_tensors_stay_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    given = {"w": torch.arange(512, dtype=torch.bfloat16), "b": torch.zeros(3)}
    publisher = Publisher(tmp_path, threads=1)
    publisher.publish(iter(given.items()))
    target = {name: torch.ones_like(tensor) for name, tensor in given.items()}
    old = target["w"]
    follower = Follower(tmp_path, target, threads=1)
    follow(follower, 0)
    assert all(torch.equal(target[name], tensor) for name, tensor in given.items())
    assert torch.equal(old, torch.ones_like(old))  # who holds the old one keeps it
    given["new"] = torch.ones(4, dtype=torch.int32)
    publisher.publish(given)
    follow(follower, 1)
    assert torch.equal(target["new"], given["new"])


def test_names_and_layouts_may_change(store: str, tmp_path: Path) -> None:
    current = weights()
    publisher = Publisher(store, threads=1)
    followers = [Follower(store, {}, threads=1), Follower(store, tmp_path / "served", threads=1)]
    arrays: dict[str, Any] = {}
    followers[0] = Follower(store, arrays, threads=1)
    changes: list[dict[str, Any]] = [
        {"norm": np.zeros(7, np.float32)},
        {"new": np.arange(300)},
        {"scale": None},
        {"embed": current["embed"].reshape(96, 64), "norm": None},
    ]
    anchors = []
    for number, change in enumerate([{}, *changes]):
        current = {name: array for name, array in {**current, **change}.items() if array is not None}
        anchors.append(publisher.publish(current).is_anchor)
        for follower in followers:
            follow(follower, number)
        assert contents(arrays) == contents(current)
        assert contents(load_file(tmp_path / "served")) == contents(current)
    assert anchors == [True, False, False, True, True]  # a relative version cannot say that a tensor is gone


def test_large_deltas_are_followed_by_an_anchor(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, threads=1)
    kinds = [publisher.publish(weights(seed)).is_anchor for seed in (0, 1, 2, 3)]
    assert kinds == [True, False, True, False]


def test_old_versions_go_once_newer_anchors_stand(store: str) -> None:
    current = weights()
    publisher = Publisher(store, anchor_every=3, keep=2, threads=1)
    for number in range(8):
        publisher.publish(current)
        current = stepped(current, number)
    arrays: dict[str, Any] = {}
    follower = Follower(store, arrays, threads=1)
    assert follower.stage(2) is None
    assert follower.stage(3) is not None
    follower.commit()
    assert follower.version == 3


def test_the_index_of_an_old_version_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path, anchor_every=1, keep=1, threads=1)
    publisher.publish(weights())

    monkeypatch.setattr("tensorwire.sync.store.shutil.rmtree", raising(OSError(errno.EIO, "killed")))
    with pytest.warns(RuntimeWarning, match="killed"):
        publisher.publish(weights())
    monkeypatch.undo()
    left = names(tmp_path / "weight_v000000")
    assert len(left) == 1
    assert left[0].endswith(".safetensors")
    publisher.publish(weights())
    assert folders(tmp_path) == ["weight_v000002"]


def test_nothing_goes_while_a_newer_version_is_not_whole(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, anchor_every=1, keep=2, threads=1)
    publisher.publish(weights())
    publisher.publish(weights())
    next((tmp_path / "weight_v000001").glob("*.safetensors")).write_bytes(b"")
    publisher.publish(weights())
    assert folders(tmp_path) == ["weight_v000000", "weight_v000001", "weight_v000002"]
    publisher.publish(weights())
    assert folders(tmp_path) == ["weight_v000002", "weight_v000003"]


def test_foreign_things_in_a_store_stay(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "note").write_text("mine")
    (tmp_path / "weight_v12").mkdir()
    publisher = Publisher(tmp_path, anchor_every=1, keep=1, threads=1)
    for _ in range(3):
        publisher.publish(weights())
    assert folders(tmp_path) == ["weight_v000002", "weight_v12", "weights"]
    assert (tmp_path / "weights" / "note").read_text() == "mine"


def test_a_directory_that_has_a_version_already_is_adopted_and_another_one_is_refused(tmp_path: Path) -> None:
    store, current = tmp_path / "store", weights()
    publisher = Publisher(store, threads=1)
    publisher.publish(current)
    for name, held in (("same", current), ("other", weights(9))):
        (tmp_path / name).mkdir()
        write_plain(tmp_path / name / "weights.safetensors", held)
        (tmp_path / name / "config.json").write_text("{}")
    follower = Follower(store, tmp_path / "same", threads=1)
    follow(follower, 0)
    publisher.publish(stepped(current, 1))
    follow(follower, 1)
    assert contents(load_file(tmp_path / "same")) == contents(stepped(current, 1))
    assert names(tmp_path / "same") == [".tensorwire-sync", "config.json", "weights.safetensors"]
    before = (tmp_path / "other" / "weights.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="name another directory"):
        Follower(store, tmp_path / "other", threads=1).stage()
    assert (tmp_path / "other" / "weights.safetensors").read_bytes() == before


def test_a_compressed_directory_is_no_target(tmp_path: Path) -> None:
    Publisher(tmp_path / "store", threads=1).publish(weights())
    (tmp_path / "served").mkdir()
    save_file(weights(), tmp_path / "served" / "model.safetensors")
    with pytest.raises(FileExistsError, match="compressed"):
        Follower(tmp_path / "store", tmp_path / "served", threads=1).stage()


def test_what_a_follower_keeps_is_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    current = weights()
    publisher = Publisher(tmp_path / "store", threads=1)
    follower = Follower(tmp_path / "store", tmp_path / "served", threads=1)
    for number in range(2):
        publisher.publish(current)
        follow(follower, number)
        current = stepped(current, number)
    publisher.publish(current)
    assert follower.stage() is not None
    report = compress_checkpoint(tmp_path / "served", tmp_path / "compressed")
    assert report is not None
    assert names(tmp_path / "compressed") == ["model.safetensors", "tensorwire.json"]
    assert set(load_file(tmp_path / "served")) == set(current)


def test_a_commit_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path / "store", threads=1)
    arrays: dict[str, Any] = {}
    followers = [Follower(tmp_path / "store", arrays, threads=1), Follower(tmp_path / "store", tmp_path / "served")]
    publisher.publish(weights())
    for follower in followers:
        assert follower.stage() is not None

    for place in ("frames.decompress", "frames.content_hash", "frames.Frames.fetch", "store.Store.read"):
        monkeypatch.setattr(f"tensorwire.sync.{place}", raising(AssertionError("a commit decodes nothing")))
    for follower in followers:
        follower.commit()
        follower.commit()  # nothing is staged: nothing is done
        assert follower.version == 0
    assert contents(arrays) == contents(weights())


def test_a_directory_is_locked_within_calls_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path / "store", threads=1)
    publisher.publish(weights())
    follower = Follower(tmp_path / "store", tmp_path / "served", threads=1)

    def is_locked() -> bool:
        with (tmp_path / "served" / ".tensorwire-sync" / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    seen: list[bool] = []
    for thing, name in ((making.Writer, "write"), (Folder, "move")):
        own = getattr(thing, name)
        monkeypatch.setattr(thing, name, lambda *given, own=own: (seen.append(is_locked()), own(*given))[1])
    follow(follower, 0)
    publisher.publish(stepped(weights(), 1))
    assert not is_locked()
    assert follower.stage() is not None
    assert not is_locked()
    follower.commit()
    assert not is_locked()
    assert len(seen) >= 3
    assert all(seen)
    with (tmp_path / "served" / ".tensorwire-sync" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        publisher.publish(weights())
        for call in (follower.stage, lambda: Follower(tmp_path / "store", tmp_path / "served")):
            with pytest.raises(BlockingIOError, match=r"another follower works .*served"):
                call()
    follow(follower, 2)


def test_files_in_place_are_written_by_the_commit_alone(tmp_path: Path) -> None:
    first, second = weights(), stepped(weights(), 1)
    publisher = Publisher(tmp_path / "store", threads=1)
    follower = Follower(tmp_path / "store", tmp_path / "served", in_place=True, threads=1)
    publisher.publish(first)
    follow(follower, 0)
    file = tmp_path / "served" / "model.safetensors"
    inode = file.stat().st_ino
    publisher.publish(second)
    assert follower.stage() is not None
    assert contents(load_file(file)) == contents(first)
    shutil.rmtree(tmp_path / "store")  # what the commit needs is here
    follower.commit()
    assert contents(load_file(file)) == contents(second)
    assert file.stat().st_ino == inode


def test_staging_leaves_what_serves_alone_until_the_commit(tmp_path: Path) -> None:
    current, after = weights(), stepped(weights(), 1)
    publisher = Publisher(tmp_path / "store", threads=1)
    publisher.publish(current)
    arrays: dict[str, Any] = {}
    kept = {name: array.copy() for name, array in current.items()}
    followers = [
        Follower(tmp_path / "store", arrays, threads=1),
        Follower(tmp_path / "store", kept, in_place=True, threads=1),
        Follower(tmp_path / "store", tmp_path / "served", threads=1),
    ]
    for follower in followers:
        follow(follower, 0)
    publisher.publish(after)
    for follower in followers:
        assert follower.stage() is not None
        assert (follower.version, follower.state) == (0, "staged")
    for found in (arrays, kept, load_file(tmp_path / "served")):
        assert contents(found) == contents(current)
    publisher.publish(current)  # a newer one takes the place of what is staged
    for follower in followers:
        follow(follower, 2)


def test_an_earlier_version_can_be_asked_for(tmp_path: Path) -> None:
    first, second = weights(), stepped(weights(), 1)
    publisher = Publisher(tmp_path / "store", threads=1)
    publisher.publish(first, version=5)
    publisher.publish(second, version=1_000_000)
    arrays: dict[str, Any] = {}
    follower = Follower(tmp_path / "store", arrays, threads=1)
    follow(follower, 1_000_000)
    assert follower.stage(7) is None
    assert follower.stage(5) is not None
    follower.commit()
    assert contents(arrays) == contents(first)
    with pytest.raises(ValueError, match="version from 1000001 on"):
        publisher.publish(first, version=1_000_000)


def test_what_is_held_can_be_kept_after_another_version_was_staged(tmp_path: Path) -> None:
    publisher, current, held = Publisher(tmp_path, threads=1), weights(), dict[str, Any]()
    publisher.publish(current)
    follower = Follower(tmp_path, held, threads=1)
    follow(follower, 0)
    publisher.publish(stepped(current, 0))
    assert follower.stage() is not None
    assert follower.stage(version=0) is None
    assert follower.state == "at"
    follower.commit()
    assert (follower.version, contents(held)) == (0, contents(current))


def test_waiting_ends_when_a_version_comes_or_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path, threads=1)
    follower = Follower(tmp_path, {}, threads=1)
    assert follower.stage(timeout=0.01) is None
    monkeypatch.setattr("tensorwire.sync.follower.time.sleep", lambda seconds: pytest.fail("by default it waits"))
    assert follower.stage() is None
    slept: list[float] = []

    def publish(seconds: float) -> None:
        slept.append(seconds)
        publisher.publish(weights())

    monkeypatch.setattr("tensorwire.sync.follower.time.sleep", publish)
    assert follower.stage(timeout=None) is not None
    assert len(slept) == 1


def test_what_the_caller_writes_meanwhile_does_not_part_publisher_and_follower(tmp_path: Path) -> None:
    current = weights()
    publisher = Publisher(tmp_path, threads=1)
    publisher.publish(current)
    arrays: dict[str, Any] = {}
    follower = Follower(tmp_path, arrays, threads=1)
    follow(follower, 0)

    def pairs() -> Iterator[tuple[str, Any]]:
        for name, array in current.items():
            yield name, array
            array[...] = 3  # what was published is what it was before

    before = contents(current)
    publisher.publish(pairs())
    follow(follower, 1)
    assert {name for name, facts in contents(arrays).items() if facts != before[name]} <= {"head"}  # it is tied
    publisher.publish(current)
    follow(follower, 2)
    assert contents(arrays) == contents(current)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"keep": 0}, ValueError, "keep"),
        ({"anchor_every": True}, ValueError, "anchor_every"),
        ({"anchor_every": 10_001}, ValueError, "at most 10,000 as anchor_every"),
        ({"profile": "resident"}, ValueError, "resident"),
        ({"profile": "fst"}, ValueError, "expected one of the profiles enec, fast, compact, resident, got 'fst'"),
    ],
)
def test_options_of_a_publisher_are_checked(options: Any, error: type, text: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=text):
        Publisher(tmp_path, **options)


@pytest.mark.parametrize("version", [-1, "1", True, 10**18])
def test_a_follower_asks_for_numbers_of_versions(version: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 0 to 999999999999999999 as version"):
        Follower(tmp_path, {}).stage(version=version, timeout=None)


def test_bad_tensors_are_refused_and_the_next_version_is_an_anchor(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, threads=1)
    publisher.publish(weights())
    array = np.zeros(3)
    for bad, error in (
        ({}, ValueError), ([("a", array), ("a", array)], ValueError), ({"__metadata__": array}, ValueError),
        ({"a": "text"}, UnsupportedTensorError), ({3: array}, TypeError),
        ({"a": array, "_a_tensorwire": array}, ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            publisher.publish(bad)  # type: ignore[arg-type]
    published = publisher.publish(weights())
    assert (published.version, published.is_anchor) == (1, True)
    assert folders(tmp_path) == ["weight_v000000", "weight_v000001"]


def test_targets_are_checked(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="expected a dict of arrays or a directory"):
        Follower(tmp_path, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got Linear; give its state_dict\(\), with in_place=True"):
        Follower(tmp_path, torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="local directory"):
        Follower(tmp_path, "memory://served")


def test_a_tensor_of_many_pieces_follows_frames_that_are_larger_than_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    words = random.normal(size=1_300_001).astype(ml_dtypes.bfloat16)  # no whole number of pieces, nor of blocks
    publisher = Publisher(tmp_path / "store", threads=1)
    follower = Follower(tmp_path / "store", tmp_path / "served", threads=2)
    publisher.publish({"words": words})
    follow(follower, 0)
    read_again: list[int] = []
    acting(monkeypatch, making, "_read_at", lambda file, position, start, out: read_again.append(start))
    for _ in range(6):
        words = (words.view(np.uint16) ^ random.integers(0, 16, words.size, np.uint16)).view(ml_dtypes.bfloat16)
        published = publisher.publish({"words": words})
        assert not published.is_anchor
        assert words.nbytes / 6 < published.nbytes < words.nbytes / 2
    follow(follower, 6)
    assert contents(load_file(tmp_path / "served")) == contents({"words": words})
    assert read_again.count(0) == 1  # six frames in two goes
