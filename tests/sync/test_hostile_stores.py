"""Stores that lie about sizes, types and names: followers refuse, keep what they hold, and take no memory for a lie."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire import compress, frame_info, load_file
from tensorwire.errors import BaseMismatchError, CorruptDataError, FormatError
from tensorwire.files.frame_file import Stored
from tensorwire.sync import Follower, Publisher, followed_arrays, versions
from tensorwire.sync import copies as sync_copies
from tensorwire.sync.directories import making
from tests.support.frame_surgery import Surgery
from tests.support.sync_runs import FIRST, SECOND, contents, follow, follow_anew, stepped


def followed(root: Path, number: int, *, in_place: bool) -> tuple[Publisher, list[Follower], dict[str, Any]]:
    """Followers of arrays and of a directory that hold all versions before `number`; and the arrays."""
    publisher = Publisher(root / "store", threads=1)
    held: dict[str, Any] = {}
    followers = [Follower(root / "store", target, in_place=in_place, threads=1) for target in (held, root / "served")]
    for _ in range(number):
        publisher.publish(FIRST)
        for follower in followers:
            follow(follower)
    return publisher, followers, held


def forge(store: Path, number: int, change: Callable[[versions.Tensor], versions.Tensor]) -> None:
    """Change what an index says of a tensor, and correct all else."""
    place = store / versions.folder_name(number) / versions.INDEX_NAME
    version = versions.parse_index(place.read_bytes(), number)
    name = next(name for name, tensor in version.tensors.items() if len(tensor.shape) == 2 and 0 not in tensor.shape)
    tensors = {**version.tensors, name: change(version.tensors[name])}
    held = {} if version.base is None else versions.parse_index(
        (store / versions.folder_name(version.base) / versions.INDEX_NAME).read_bytes(), version.base
    ).tensors  # fmt: skip
    forged = version._replace(tensors=tensors, state=versions.state_of({**held, **tensors}))
    place.write_bytes(versions.dump_index(forged))


def take_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """No follower makes a buffer that is larger than the tensors of these tests need."""

    def bounded(nbytes: int) -> memoryview:
        assert nbytes < LITTLE
        return memoryview(bytearray(nbytes))

    for module in (followed_arrays, making):
        monkeypatch.setattr(module, "new_buffer", bounded)


LITTLE = 1 << 22
LIES: dict[str, Callable[[versions.Tensor], versions.Tensor]] = {
    "large": lambda tensor: tensor._replace(shape=(1 << 42,)),
    "far too large": lambda tensor: tensor._replace(shape=(1 << 40, 1 << 40)),
    "many dimensions": lambda tensor: tensor._replace(shape=(1,) * 65 + tensor.shape),
    "another shape": lambda tensor: tensor._replace(shape=tensor.shape[::-1]),
    "scalar": lambda tensor: tensor._replace(shape=()),
    "empty": lambda tensor: tensor._replace(shape=(0,)),
    "another dtype": lambda tensor: tensor._replace(dtype="I32"),
    "unknown dtype": lambda tensor: tensor._replace(dtype="F7"),
    "no dtype": lambda tensor: tensor._replace(dtype=""),
    "another content": lambda tensor: tensor._replace(hash="0" * 32),
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("number", [0, 1], ids=["anchor", "relative"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_index_that_lies_about_a_tensor(
    lie: Any, number: int, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, followers, held = followed(tmp_path, number, in_place=in_place)
    expected, served = contents(held), tmp_path / "served"
    publisher.publish(SECOND)
    forge(tmp_path / "store", number, lie)
    take_little(monkeypatch)
    for follower in followers:
        with pytest.raises(CorruptDataError):
            follower.stage()
        assert follower.version == (0 if number else None)
    assert contents(held) == expected
    if number == 1:
        assert contents(load_file(served)) == expected
    assert all(path.stat().st_size < LITTLE for path in tmp_path.rglob("*"))


def test_names_are_not_paths(tmp_path: Path) -> None:
    names = ["../../up", "/root", "a/b", "a\\b", "line\nfeed", "\x1b[31mred", "\u202eright", "long" * 5000, "nul\0", ""]
    store, served = tmp_path / "store", tmp_path / "served"
    current = {name: np.full((4, 4), number, np.float32) for number, name in enumerate(names)}
    Publisher(store, threads=1).publish(current)
    held: dict[str, Any] = {}
    for target in (held, served):
        follow(Follower(store, target, threads=1))
    assert contents(held) == contents(load_file(served)) == contents(current)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served", "store"]
    assert sorted(path.name for path in served.iterdir()) == [".tensorwire-sync", "model.safetensors"]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_link_is_replaced_and_what_it_leads_to_stays(in_place: bool, tmp_path: Path) -> None:
    """As in the cache of a hub, whose files other programs use too."""
    store, served, blob = tmp_path / "store", tmp_path / "served", tmp_path / "blob"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST)
    follow(Follower(store, tmp_path / "made", threads=1))
    (tmp_path / "made" / "model.safetensors").resolve().rename(blob)
    before = blob.read_bytes()
    served.mkdir()
    (served / "model.safetensors").symlink_to("../blob")
    follower = Follower(store, served, in_place=in_place, threads=1)
    follow(follower)
    current = FIRST
    for seed in range(3):
        current = stepped(current, seed)
        publisher.publish(current)
        follow(follower)
        assert contents(load_file(served)) == contents(current)
        assert (served / "model.safetensors").is_symlink() is not in_place
        assert (served / "model.safetensors").resolve().is_relative_to(served)
        assert blob.read_bytes() == before


def test_a_million_versions(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, threads=1)
    held: dict[str, Any] = {}
    follower = Follower(tmp_path, held, threads=1)
    publisher.publish(FIRST, version=999_998)
    current = FIRST
    for number in (999_999, 1_000_000, 1_000_001):
        follow(follower)
        current = stepped(current, number)
        published = publisher.publish(current)
        assert (published.version, published.is_anchor) == (number, False)
    for late in (follower, Follower(tmp_path, {}, threads=1)):
        follow(late)
        assert late.version == 1_000_001
    assert contents(held) == contents(current)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("number", [0, 1], ids=["anchor", "relative"])
def test_a_frame_that_lies_about_its_content(
    number: int, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checksums are right, and the index says what the frames say. Only the content has another hash."""
    publisher, followers, held = followed(tmp_path, number, in_place=in_place)
    expected = contents(held)

    def lying(encode: Any) -> Any:
        def encoded(*arguments: Any, **options: Any) -> bytes:
            surgery = Surgery(encode(*arguments, **options))
            if surgery.get("data_nbytes"):
                surgery.set("content_hash", b"lie" + bytes(13))
            return surgery.close()

        return encoded

    for name in ("compress", "compress_over"):
        monkeypatch.setattr(sync_copies, name, lying(getattr(sync_copies, name)))
    publisher.publish(SECOND)
    for follower, is_directory in zip(followers, (False, True), strict=True):
        with pytest.raises((FormatError, BaseMismatchError)):
            follow(follower)
        # Files are hashed then, and are found to be those of the version. What was written into is of none.
        assert follower.version == (0 if is_directory and number and not in_place else None)
    if not in_place:
        assert contents(held) == expected
        if number == 1:
            assert contents(load_file(tmp_path / "served")) == expected


def test_a_chain_of_more_versions_than_files_may_be_open(tmp_path: Path) -> None:
    store, current = tmp_path / "store", {"a": np.zeros(9, np.float32), "b": np.zeros((3, 5))}
    publisher = Publisher(store, anchor_every=1000, threads=1)
    for number in range(150):
        current["a" if number % 3 else "b"][number % 3] += 1
        publisher._anchor_nbytes = 1 << 30  # else changes of tensors so small would be large ones
        publisher.publish(current)
    before, after = resource.getrlimit(resource.RLIMIT_NOFILE), len(list(Path("/proc/self/fd").iterdir())) + 80
    resource.setrlimit(resource.RLIMIT_NOFILE, (after, before[1]))
    held: dict[str, Any] = {}
    try:
        for target in (held, tmp_path / "served"):
            follow(Follower(store, target, threads=1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert contents(held) == contents(load_file(tmp_path / "served")) == contents(current)


def test_a_chain_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.sync.store.MAX_LINKS", 1000)
    tensor = versions.Tensor("F32", (4,), "0" * 32)
    state = versions.state_of({"a": tensor})
    index = versions.Version(0, "lineage", "writer", state, 0, state, {}, {}, {})
    for number in range(1, 1002):
        folder = tmp_path / versions.folder_name(number)
        folder.mkdir()
        (folder / versions.INDEX_NAME).write_bytes(versions.dump_index(index._replace(number=number, base=number - 1)))
    with pytest.raises(CorruptDataError, match=r"an anchor among the 1,000 versions up to 001001.*publish an anchor"):
        Follower(tmp_path, {}, threads=1).stage()


@pytest.mark.parametrize("base", [1, 2])
def test_versions_that_are_relative_to_each_other_in_a_circle(base: int, tmp_path: Path) -> None:
    publisher, followers, held = followed(tmp_path, 1, in_place=False)
    expected = contents(held)
    publisher.publish(SECOND)
    publisher.publish(stepped(SECOND, 2))
    place = tmp_path / "store" / versions.folder_name(1) / versions.INDEX_NAME
    version = versions.parse_index(place.read_bytes(), 1)
    place.write_bytes(versions.dump_index(version._replace(base=base)))
    for follower in [*followers, Follower(tmp_path / "store", {}, threads=1)]:
        with pytest.raises(CorruptDataError, match="expected a base_version below 000001"):
            follower.stage()
    assert contents(held) == contents(load_file(tmp_path / "served")) == expected


def claiming(nbytes: int) -> Stored:
    """A few bytes that stand for as many as they say: a relative frame that changes nothing."""
    surgery = Surgery(compress(np.zeros(1 << 10, np.uint8), base=np.zeros(1 << 10, np.uint8)))
    surgery.set("uncompressed_nbytes", nbytes)
    surgery.set_shape(nbytes)
    frame = surgery.close()
    return Stored("claim", "U8", (nbytes,), frame, True, frame_info(frame).content_hash)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("held", "is_anchor"), [(None, True), (None, False), (9, True), (9, False), (2 * LITTLE, True)]
)
def test_a_relative_frame_where_nothing_is_its_base(
    held: int | None, is_anchor: bool, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but a base bounds what it claims: an anchor, and a tensor that is new or had another size, have none."""
    store, served, arrays = tmp_path / "store", tmp_path / "served", dict[str, Any]()
    publisher = Publisher(store, threads=1)
    before = dict(FIRST) if held is None else {**FIRST, "claim": np.ones(held, np.uint8)}
    publisher.publish(before)
    for target in (arrays, served):
        follow_anew(store, target, in_place=in_place)
    stored = sync_copies.HostCopies._stored

    def lying(copies: sync_copies.HostCopies, name: str, *arguments: Any) -> Stored:
        return claiming(2 * LITTLE) if name == "claim" else stored(copies, name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sync_copies.HostCopies, "_stored", lying)
        publisher.publish({**FIRST, "claim": np.zeros(8, np.uint8)}, anchor=is_anchor)
    take_little(monkeypatch)
    refused = r"expected a plain frame.*got a relative one.*weight_v000001/.*'claim'"
    for target in (arrays, served, {}):
        with pytest.raises(CorruptDataError, match=refused):
            Follower(store, target, in_place=in_place, threads=1).stage()
    assert contents(arrays) == contents(load_file(served)) == contents(before)
    with pytest.raises(CorruptDataError, match=refused):  # it goes on behind that version
        Publisher(store, threads=1).publish({**FIRST, "claim": np.zeros(2 * LITTLE, np.uint8)})
