"""Stores that lose, lag and lie, two publishers, and what 200 versions make of it."""

from __future__ import annotations

import errno
import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorwire import load_file
from tensorwire.errors import CorruptDataError, FormatError
from tensorwire.sync import Follower, Publisher
from tests.support.acting import acting
from tests.support.stores import FaultyStore, faulty_store
from tests.support.sync_runs import FIRST, SECOND, THIRD, begun, contents, fetched, follow, one_behind, stepped, weights

INDEX = "model.safetensors.index.json"


def shard(store: Path, number: int) -> Path:
    return next((store / f"weight_v{number:06d}").glob("*.safetensors"))


def _older(path: Path) -> None:
    path.write_bytes(shard(path.parent.parent, 0).read_bytes())


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (Path.unlink, FileNotFoundError, "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), FormatError, "expected a file of"),
        (lambda path: path.write_bytes(b""), FormatError, "expected a file of 0*[1-9]"),
        (_older, FormatError, "expected a file of"),
        (_flipped, FormatError, "checksum"),
    ],
    ids=["missing", "short", "empty", "older", "flipped"],
)
def test_a_damaged_version_is_an_error_and_the_next_anchor_helps(
    damage: Callable[[Path], Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    publisher = Publisher(store, anchor_every=2, threads=1)
    arrays: dict[str, Any] = {}
    followers = [Follower(store, arrays, threads=1), Follower(store, tmp_path / "served", threads=1)]
    publisher.publish(FIRST)
    for follower in followers:
        follow(follower)
    publisher.publish(SECOND)
    damage(shard(store, 1))
    for follower in followers:
        with pytest.raises(error, match=text):
            follower.stage()
        assert (follower.version, follower.state) == (0, "at")
    for found in (arrays, load_file(tmp_path / "served")):
        assert contents(found) == contents(FIRST)
    publisher.publish(THIRD)
    for follower in followers:
        follow(follower)
    for found in (arrays, load_file(tmp_path / "served")):
        assert contents(found) == contents(THIRD)


@pytest.mark.parametrize("data", [b"", b"{}", b"\0" * 9, b'{"weight_map": {"a": "../a"}}', b"[" * 100_000])
def test_who_removes_a_damaged_index_goes_on(data: bytes, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    publisher, follower = one_behind(tmp_path, arrays)
    (tmp_path / "weight_v000001" / INDEX).write_bytes(data)
    for call in (follower.stage, lambda: publisher.publish(THIRD), lambda: Publisher(tmp_path)):
        with pytest.raises(CorruptDataError, match=r"weight_v000001.*remove the folder of this version"):
            call()
    assert contents(arrays) == contents(FIRST)
    shutil.rmtree(tmp_path / "weight_v000001")
    assert publisher.publish(THIRD).is_anchor
    follow(follower)
    assert contents(arrays) == contents(THIRD)


def test_a_hole_in_a_chain_is_named(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    publisher, follower = one_behind(tmp_path, arrays)
    publisher.publish(THIRD)
    shutil.rmtree(tmp_path / "weight_v000001")
    with pytest.raises(FileNotFoundError, match="weight_v000001"):
        follower.stage()
    assert contents(arrays) == contents(FIRST)


def test_a_version_number_that_came_back_is_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "a", threads=1)
    other = Publisher(tmp_path / "b", threads=1)
    for each, second in ((publisher, SECOND), (other, THIRD)):
        each.publish(FIRST)
        each.publish(second)
    publisher.publish(stepped(SECOND, 5))
    shutil.rmtree(tmp_path / "a" / "weight_v000001")
    shutil.copytree(tmp_path / "b" / "weight_v000001", tmp_path / "a" / "weight_v000001")
    with pytest.raises(CorruptDataError, match="another publisher"):
        Follower(tmp_path / "a", {}, threads=1).stage()


@pytest.mark.parametrize(
    "hint",
    [b"", b"lineage/weight_v000000", b"other/weight_v000009", b"r/weight_v999999999999999999", b"x" * 10_000_000, None],
)
def test_the_hint_is_not_believed(hint: bytes | None, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, threads=1)
    publisher.publish(FIRST)
    publisher.publish(SECOND)
    if hint is None:
        (tmp_path / "latest").unlink()
    else:
        (tmp_path / "latest").write_bytes(hint)
    arrays: dict[str, Any] = {}
    tracemalloc.start()
    follow(Follower(tmp_path, arrays, threads=1))
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert contents(arrays) == contents(SECOND)
    assert publisher.publish(THIRD).version == 2
    assert Publisher(tmp_path, threads=1).publish(THIRD).version == 3


def test_a_hint_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.warns(RuntimeWarning, match="version 000000 stands"):
        Publisher(tmp_path, threads=1).publish(FIRST)
    assert contents(fetched(tmp_path)) == contents(FIRST)


def test_a_listing_that_lags_takes_nobody_back() -> None:
    with faulty_store() as store:
        publisher, follower, arrays = begun("faulty://store")
        old = store.ls("/store", detail=True)
        publisher.publish(SECOND)
        follow(follower)
        FaultyStore.faults["ls"] = lambda own, path, *rest, **options: old
        assert follower.stage() is None
        publisher.publish(THIRD)
        follow(follower)  # the hint tells of it
        assert contents(arrays) == contents(THIRD)
        store.rm_file("/store/latest")
        assert follower.stage() is None


@pytest.mark.parametrize("numbers", [(None, None), (None, 7), (7, None)])
def test_the_second_publisher_fails_and_the_first_goes_on(numbers: tuple[int | None, ...], tmp_path: Path) -> None:
    first = Publisher(tmp_path, threads=1)
    first.publish(FIRST)
    second = Publisher(tmp_path, base=FIRST, threads=1)
    published = first.publish(SECOND, numbers[0])
    for _ in range(2):
        with pytest.raises(FileExistsError, match="another publisher"):
            second.publish(THIRD, numbers[1])
    assert first.publish(THIRD).version == published.version + 1
    assert contents(fetched(tmp_path)) == contents(THIRD)


def test_publishers_that_write_one_version_at_once_write_different_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Publisher(tmp_path, threads=1).publish(FIRST)
    first, second = (Publisher(tmp_path, base=FIRST, threads=1) for _ in range(2))
    acting(monkeypatch, first._store, "put_index", lambda *_: (monkeypatch.undo(), second.publish(SECOND)))
    with pytest.raises(FileExistsError, match="another publisher"):
        first.publish(THIRD)
    assert contents(fetched(tmp_path)) == contents(SECOND)
    assert len(list((tmp_path / "weight_v000001").iterdir())) == 2


def _fail(own: Any, path: str, *rest: Any, **options: Any) -> Any:
    raise OSError(errno.EIO, "no")


@pytest.mark.parametrize("what", [INDEX, ".safetensors"])
def test_a_put_that_fails_makes_the_next_version_an_anchor(what: str) -> None:
    with faulty_store() as store:
        publisher, follower, arrays = begun("faulty://store")
        FaultyStore.faults["pipe_file"] = lambda own, path, *rest, **options: (
            _fail(own, path) if path.endswith(what) else own(path, *rest, **options)
        )
        with pytest.raises(OSError, match="no"):
            publisher.publish(SECOND)
        FaultyStore.faults.clear()
        assert follower.stage() is None
        published = publisher.publish(THIRD)
        assert published.is_anchor
        follow(follower)
        assert contents(arrays) == contents(THIRD)
        assert store.exists("/store/latest")


@pytest.mark.parametrize("reads", [True, False])
def test_an_error_after_the_bytes_of_an_index_had_gone(reads: bool) -> None:
    """Where the store can be asked, the version stands; where it cannot, the next one is an anchor behind it."""
    with faulty_store():
        publisher, follower, arrays = begun("faulty://store")

        def put(own: Any, path: str, *rest: Any, **options: Any) -> None:
            own(path, *rest, **options)
            if path.endswith(INDEX):
                if not reads:
                    FaultyStore.faults["cat_file"] = _fail
                raise OSError(errno.EIO, "no")

        FaultyStore.faults["pipe_file"] = put
        if reads:
            assert publisher.publish(SECOND).version == 1
        else:
            with pytest.raises(OSError, match="no"):
                publisher.publish(SECOND)
        FaultyStore.faults.clear()
        follow(follower)
        assert contents(arrays) == contents(SECOND)
        published = publisher.publish(THIRD)
        assert (published.version, published.is_anchor) == (2, not reads)
        follow(follower)
        assert contents(arrays) == contents(THIRD)


def test_a_store_that_somebody_has_emptied_is_followed_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    publisher, follower, arrays = begun(store)
    publisher.publish(SECOND)
    follow(follower)
    shutil.rmtree(store)
    assert follower.stage() is None
    Publisher(store, threads=1).publish(THIRD)
    with pytest.warns(RuntimeWarning, match=r"its newest version is 000000, and 000001 is held; stage\(version=0\)"):
        assert follower.stage() is None
    assert follower.stage() is None  # it is said once
    assert contents(arrays) == contents(SECOND)
    assert follower.stage(version=0) is not None
    follower.commit()
    assert follower.version == 0
    assert contents(arrays) == contents(THIRD)
    shutil.rmtree(store)
    assert publisher.publish(FIRST).is_anchor
    follow(follower)
    assert contents(arrays) == contents(FIRST)


def test_a_version_that_goes_while_it_is_read_gives_way_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(tmp_path, anchor_every=1, keep=1, threads=1)
    publisher.publish(FIRST)
    arrays: dict[str, Any] = {}
    follower = Follower(tmp_path, arrays, threads=1)
    late = lambda *_: (monkeypatch.undo(), publisher.publish(SECOND))  # noqa: E731
    acting(monkeypatch, follower._store, "links", late, after=True)
    follow(follower)
    assert follower.version == 1
    assert contents(arrays) == contents(SECOND)


def test_versions_do_not_name_their_store() -> None:
    """Its URL may have a password, and it may be copied elsewhere."""
    with faulty_store() as store:
        Publisher("faulty://bucket/hidden", threads=1).publish(FIRST)
        for name in store.find("/"):
            assert not {b"bucket", b"hidden"} & set(store.cat_file(name).replace(b'"', b"/").split(b"/"))
            assert b"faulty" not in store.cat_file(name)


@pytest.mark.filterwarnings("ignore:version:RuntimeWarning")  # a hint or a removal that failed
def test_random_versions_over_a_store_that_fails_and_lags(tmp_path: Path) -> None:
    generator = random.Random(7)
    listings: list[Any] = []

    def moody(own: Any, *arguments: Any, **options: Any) -> Any:
        mood = generator.random()
        if mood < 0.03:
            raise OSError(errno.EIO, "before")
        found = own(*arguments, **options)
        if mood < 0.05:
            raise OSError(errno.EIO, "after")
        return found

    def lagging(own: Any, path: str, *rest: Any, **options: Any) -> Any:
        listings.append(moody(own, path, *rest, **options))
        return listings[-generator.choice([1, 1, 2])] if len(listings) > 1 else listings[-1]

    with faulty_store(pipe_file=moody, cat_file=moody, info=moody, ls=lagging):
        publisher = _until(lambda: Publisher("faulty://store", anchor_every=7, threads=1))
        arrays: dict[str, Any] = {}
        targets: list[Any] = [arrays, tmp_path / "served"]
        followers = [_until(lambda target=target: Follower("faulty://store", target, threads=1)) for target in targets]
        current, history, failures = weights(), {}, 0
        for number in range(60):
            current = stepped(current, number)
            try:
                published = publisher.publish(current)
                history[published.version] = contents(current)
            except OSError:
                failures += 1
                history[None] = contents(current)
            for follower, target in zip(followers, targets, strict=True):
                if generator.random() < 0.4:
                    continue
                before = follower.version
                try:
                    if follower.stage() is not None:
                        follower.commit()
                except (OSError, FormatError):
                    failures += 1
                    assert follower.version == before
                if follower.version is not None:
                    held = contents(arrays if target is arrays else load_file(target))
                    assert held in (history.get(follower.version), history.get(None))
        assert failures > 10
        FaultyStore.faults.clear()
        current = stepped(current, 1000)
        assert publisher.publish(current).version > 30
        for follower in followers:
            follow(follower)
        for held in (arrays, load_file(tmp_path / "served")):
            assert contents(held) == contents(current)


def _until(make: Callable[[], Any]) -> Any:
    """What a call returns that may fail."""
    for _ in range(100):
        try:
            return make()
        except OSError:  # noqa: PERF203 - that is the point
            continue
    raise AssertionError("it never succeeds")
