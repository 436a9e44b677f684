"""Folders of many objects: few requests for each, several at a time, in an order that readers may rely on."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tensorwire.checkpoint import compress_checkpoint, inspect, verify
from tensorwire.checkpoint.directory.paths import scan
from tensorwire.errors import CorruptDataError
from tensorwire.storage.locations import locate
from tensorwire.storage.upload import AT_ONCE, UPLOAD_NAME, in_batches
from tests.support.acting import raising
from tests.support.checkpoint_models import contents
from tests.support.stores import CountedStore, counted_store

NUM_FILES = 30
PLACE, ROOT = "counted://s/packed", "/s/packed"


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def many(model: Path, tmp_path: Path) -> Path:
    """A model with an index, and small files."""
    folder = tmp_path / "many"
    shutil.copytree(model, folder)
    for index in range(NUM_FILES):
        (folder / f"{index:04d}.txt").write_text(str(index))
    return folder


def objects(store: CountedStore) -> dict[str, bytes]:
    return {key.removeprefix(f"{ROOT}/"): data for key, data in store.objects.items()}


def changes(store: CountedStore) -> list[tuple[str, str]]:
    """Objects that were put and removed, in order."""
    return [(name, key.removeprefix(f"{ROOT}/")) for name, key in store.asked if name in ("put_file", "rm_file")]


def test_ten_thousand_objects_are_listed_with_one_request() -> None:
    with counted_store() as store:
        store.objects.update({f"{ROOT}/{index % 100:02d}/{index:06d}.txt": b"x" for index in range(10_000)})
        place = locate(PLACE)
        store.asked.clear()
        found = scan(place)
        assert len(found.files) == 10_000
        assert found.files[1234].path == "12/003412.txt"
        assert sum(file.nbytes for file in found.files) == 10_000
        assert [name for name, _ in store.asked] == ["find"]


def test_a_file_without_tensors_is_looked_at_once(many: Path) -> None:
    with counted_store() as store:
        store.objects.update({f"{ROOT}/{path}": data for path, data in contents(many).items()})
        store.asked.clear()
        inspect(PLACE)
        asked = Counter(key for name, key in store.asked if key.endswith(".txt"))
        assert len(asked) >= NUM_FILES
        assert set(asked.values()) == {1}


def test_an_object_takes_a_put_and_a_look(many: Path, tmp_path: Path) -> None:
    with counted_store() as store:
        compress_checkpoint(many, PLACE)
        compress_checkpoint(many, tmp_path / "expected")
        assert objects(store) == contents(tmp_path / "expected")
        asked = Counter(name for name, _ in store.asked)
        assert sum(asked.values()) <= 2 * len(store.objects) + 20, asked


def test_readers_meet_the_index_before_the_manifest_and_the_mark_all_the_while(many: Path) -> None:
    with counted_store() as store:
        compress_checkpoint(many, PLACE)
        order = changes(store)
        assert order[0] == ("put_file", UPLOAD_NAME)
        assert sorted(order[-5:-3]) == [("put_file", "config.json"), ("put_file", "vae/config.json")]
        assert order[-3:] == [
            ("put_file", "model.safetensors.index.json"),
            ("put_file", "tensorwire.json"),
            ("rm_file", UPLOAD_NAME),
        ]


def test_what_old_readers_go_by_goes_first_and_what_is_left_over_goes_last(many: Path) -> None:
    with counted_store() as store:
        compress_checkpoint(many, PLACE)
        store.objects[f"{ROOT}/left.txt"] = b"left"
        mark = {"token": "of another upload, which has not ended", "paths": sorted(objects(store))}
        store.objects[f"{ROOT}/{UPLOAD_NAME}"] = json.dumps(mark).encode()
        store.asked.clear()
        compress_checkpoint(many, PLACE, force=True)
        order = changes(store)
        removed = [("rm_file", name) for name in ("model.safetensors.index.json", "tensorwire.json")]
        assert order[0] == ("put_file", UPLOAD_NAME)
        assert sorted(order[1:3]) == removed
        assert order[-3:] == [
            ("put_file", "tensorwire.json"),
            ("rm_file", "left.txt"),
            ("rm_file", UPLOAD_NAME),
        ]


def test_groups_have_one_order() -> None:
    paths = ["b.json", "a", "c", "index", "manifest"]
    last = [lambda path: path.endswith(".json"), lambda path: path == "index", lambda path: path == "manifest"]
    assert in_batches(paths, last) == [["a", "c"], ["b.json"], ["index"], ["manifest"]]
    assert in_batches(["b", "a", "c"], last) == [["a", "b"], ["c"]], "the last one alone, whatever it is"
    assert in_batches([""], last) == [[""]]


def test_small_objects_go_out_several_at_a_time(many: Path) -> None:
    under_way, most, lock = 0, 0, threading.Lock()

    def slow(key: str) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.005)
        with lock:
            under_way -= 1

    with counted_store() as store:
        store.faults["put_file"] = slow
        compress_checkpoint(many, PLACE)
        assert 2 <= most <= AT_ONCE


def test_large_objects_go_alone(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.storage.upload.SMALL_NBYTES", -1)
    test_threads: set[int] = set()

    def alone(key: str) -> None:
        test_threads.add(sum(thread.name == "tensorwire-upload" for thread in threading.enumerate()))

    with counted_store() as store:
        store.faults["put_file"] = alone
        compress_checkpoint(many, PLACE)
        assert test_threads == {1}


def test_one_of_several_puts_that_fails_leaves_nothing_visible(many: Path, tmp_path: Path) -> None:
    broken = f"{ROOT}/0015.txt"

    def failing(key: str) -> None:
        time.sleep(0.002)
        if key == broken:
            raise ConnectionResetError(104, "Connection reset by peer")

    with counted_store() as store:
        store.faults["put_file"] = failing
        with pytest.raises(ConnectionResetError, match=r"counted:///s/packed/0015\.txt"):
            compress_checkpoint(many, PLACE)
        done = set(objects(store))
        assert UPLOAD_NAME in done
        assert not {"config.json", "model.safetensors.index.json", "tensorwire.json"} & done
        assert len(done) < NUM_FILES, "no put was begun after it"
        with pytest.raises(CorruptDataError, match="whose upload has not ended"):
            inspect(PLACE)
        store.faults.clear()
        store.asked.clear()
        compress_checkpoint(many, PLACE)
        assert not {key for name, key in changes(store) if name == "put_file"} & done, "nothing that stands"
        assert sum(name == "find" for name, _ in store.asked) <= 2
        compress_checkpoint(many, tmp_path / "expected")
        assert objects(store) == contents(tmp_path / "expected")
        assert verify(PLACE).ok


@pytest.mark.parametrize("mark", [b"x" * 11, b"[" * 100_000, b"[]", b"\xff"])
def test_a_mark_that_no_upload_has_made(many: Path, monkeypatch: pytest.MonkeyPatch, mark: bytes) -> None:
    """It keeps everybody out, and is not read if it is large."""
    limit = 10 if len(mark) == 11 else len(mark)
    monkeypatch.setattr("tensorwire.storage.upload._MAX_MARK_NBYTES", limit)
    with counted_store() as store:
        store.objects[f"{ROOT}/{UPLOAD_NAME}"] = mark
        with pytest.raises(FileExistsError, match="holds an upload that has not ended"):
            compress_checkpoint(many, PLACE)
        assert any(name == "cat_file" for name, _ in store.asked) == (len(mark) <= limit)


def test_an_upload_is_counted_in_the_bytes_of_its_objects(many: Path) -> None:
    """Behind the work, and from the start."""
    told: list[tuple[int, int, str]] = []
    with counted_store() as store:
        compress_checkpoint(many, PLACE, progress=lambda *each: told.append(each))
        first = next(place for place in range(1, len(told)) if told[place][0] < told[place - 1][0])
        for part, nbytes in (
            (told[:first], sum(map(len, contents(many).values()))),
            (told[first:], sum(map(len, objects(store).values()))),
        ):
            assert part[0][0] == 0
            assert part[-1][:2] == (nbytes, nbytes)
            assert all(a[0] <= b[0] for a, b in pairwise(part))
            assert len({path for _, _, path in part}) > NUM_FILES


def stop_at_the_end(many: Path, store: CountedStore) -> None:
    """Begin an upload whose last object does not come to the store."""

    def failing(key: str) -> None:
        if key.endswith("/tensorwire.json"):
            raise ConnectionResetError(104, "Connection reset by peer")

    store.faults["put_file"] = failing
    with pytest.raises(ConnectionResetError):
        compress_checkpoint(many, PLACE)
    store.faults.clear()


@pytest.mark.parametrize("size", ["large", "small"])
def test_an_upload_whose_place_was_taken_sends_no_more_than_is_under_way(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """It stalls in its first object; meanwhile another one takes the place by force, and ends."""
    if size == "large":
        monkeypatch.setattr("tensorwire.storage.upload.SMALL_NBYTES", -1)
    monkeypatch.setattr(CountedStore, "async_impl", False)  # so they go one after the other
    shutil.copytree(many, tmp_path / "theirs")
    for path in (tmp_path / "theirs").glob("0*.txt"):
        path.write_text("theirs")
    here, elsewhere = tempfile.gettempdir(), tmp_path / "elsewhere"
    elsewhere.mkdir()

    def stall(key: str) -> None:
        if key.endswith("/0000.txt"):
            store.faults.clear()
            tempfile.tempdir = str(elsewhere)
            compress_checkpoint(tmp_path / "theirs", PLACE, force=True)
            tempfile.tempdir = here

    with counted_store() as store:
        store.faults["put_file"] = stall
        with pytest.raises(FileExistsError, match="the place of another upload"):
            compress_checkpoint(many, PLACE)
        store.faults.clear()
        assert not list(elsewhere.glob("*/*/*")), "the other one has ended"
        compress_checkpoint(tmp_path / "theirs", tmp_path / "expected")
        expected = contents(tmp_path / "expected")
        assert objects(store).keys() == expected.keys()
        assert [path for path, data in objects(store).items() if data != expected[path]] == ["0000.txt"]


def test_an_object_of_another_upload_is_found_before_the_last_one(many: Path, tmp_path: Path) -> None:
    """It was under way when this one took the place. The same call puts its own in its place."""

    def late(key: str) -> None:
        if key.endswith(".index.json"):
            store.objects[f"{ROOT}/0007.txt"] = b"8"  # of the same size

    with counted_store() as store:
        store.faults["put_file"] = late
        with pytest.raises(FileExistsError, match="holds what another upload has put there meanwhile"):
            compress_checkpoint(many, PLACE)
        assert UPLOAD_NAME in objects(store)
        assert "tensorwire.json" not in objects(store)
        store.faults.clear()
        compress_checkpoint(many, PLACE)
        compress_checkpoint(many, tmp_path / "expected")
        assert objects(store) == contents(tmp_path / "expected")


@pytest.mark.parametrize("lag", ["nothing", "what stood before"])
def test_an_upload_goes_on_though_the_listing_lags(many: Path, tmp_path: Path, lag: str) -> None:
    """What has been put is looked at by itself then."""

    with counted_store() as store, pytest.MonkeyPatch.context() as patch:
        stop_at_the_end(many, store)
        before = {} if lag == "nothing" else {
            key: {"name": key, "size": 1, "type": "file", "ETag": "old"} for key in store.objects
        }  # fmt: skip
        patch.setattr(CountedStore, "find", lambda self, path, *arguments, **options: before)
        store.asked.clear()
        compress_checkpoint(many, PLACE)
        assert [key for name, key in changes(store) if name == "put_file"] == ["tensorwire.json"]
        compress_checkpoint(many, tmp_path / "expected")
        assert objects(store) == contents(tmp_path / "expected")


def test_an_object_that_was_changed_since_is_put_again(many: Path, tmp_path: Path) -> None:
    with counted_store() as store:
        stop_at_the_end(many, store)
        store.objects[f"{ROOT}/0007.txt"] = b"8"  # of the same size
        store.asked.clear()
        compress_checkpoint(many, PLACE)
        assert [key for name, key in changes(store) if name == "put_file"] == ["0007.txt", "tensorwire.json"]
        compress_checkpoint(many, tmp_path / "expected")
        assert objects(store) == contents(tmp_path / "expected")


def test_a_store_that_takes_nothing_says_so_before_the_work(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = raising(AssertionError("it has begun"))
    monkeypatch.setattr("tensorwire.checkpoint.operations.conversion.Converter.run", work)
    with counted_store() as store:
        store.faults["put_file"] = raising(PermissionError("Access Denied"))
        with pytest.raises(PermissionError, match="Access Denied"):
            compress_checkpoint(many, PLACE)
        assert not list(Path(tempfile.gettempdir()).iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ConnectionResetError])
def test_work_that_fails_leaves_no_mark(
    many: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with counted_store() as store:
        with monkeypatch.context() as patch:
            patch.setattr("tensorwire.checkpoint.operations.conversion.Converter.run", raising(error))
            with pytest.raises(error):
                compress_checkpoint(many, PLACE)
        assert changes(store) == [("put_file", UPLOAD_NAME), ("rm_file", UPLOAD_NAME)]
        assert not store.objects
        compress_checkpoint(many, PLACE)
        assert verify(PLACE).ok


def test_what_is_to_be_replaced_can_be_read_while_its_successor_is_made(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted_store():
        compress_checkpoint(many, PLACE)

        def work(*arguments: object) -> None:
            assert verify(PLACE).ok
            raise KeyboardInterrupt

        monkeypatch.setattr("tensorwire.checkpoint.operations.conversion.Converter.run", work)
        with pytest.raises(KeyboardInterrupt):
            compress_checkpoint(many, PLACE, force=True)
        assert verify(PLACE).ok


def test_keys_that_differ_by_a_slash_are_two_objects(many: Path, tmp_path: Path) -> None:
    """A path of a checkpoint can be one of them alone, so the other one is refused, or left out."""
    with counted_store() as store:
        store.objects.update({f"{ROOT}/{path}": data for path, data in contents(many).items()})
        store.objects.update({f"{ROOT}/d/x": b"one", f"{ROOT}/d//x": b"two"})
        with pytest.raises(ValueError, match=r"object 'd//x': expected a plain relative path"):
            compress_checkpoint(PLACE, tmp_path / "back")
        report = compress_checkpoint(PLACE, tmp_path / "back", exclude=["d/"])
        assert report.excluded == ("d/",)
        with pytest.raises(FileExistsError, match=r"tensorwire\.json"):
            compress_checkpoint(many, PLACE, force=True)
        assert store.objects[f"{ROOT}/d//x"] == b"two"
