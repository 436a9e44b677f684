"""Checkpoints by URL: read by ranges, written whole or not at all, gone on with where an upload has stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire
from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    estimate_ratio,
    inspect,
    load_file,
    open_file,
    save_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.checkpoint.operations.stream import convert_stream
from tensorwire.errors import CorruptDataError
from tensorwire.storage.locations import locate
from tests.support.acting import raising
from tests.support.checkpoint_models import contents
from tests.support.stores import FaultyStore, faulty_store


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def left_behind() -> list[str]:
    return sorted(path.name for path in Path(tempfile.gettempdir()).iterdir())


def objects(store: FaultyStore, root: str) -> dict[str, bytes]:
    return {path[len(root) + 1 :]: store.store[path].getvalue() for path in store.store if path.startswith(f"{root}/")}


def change(model: Path) -> None:
    """Other bits in the last tensor of the first shard."""
    shard = model / "model-00001-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-100:] = bytes(byte ^ 1 for byte in data[-100:])
    shard.write_bytes(data)


def tensors() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return {f"layer.{index}": random.normal(0, 0.02, (300, 400)).astype(np.float32) for index in range(3)}


def test_one_file() -> None:
    with faulty_store() as store:
        sizes = save_file(tensors(), "faulty://m/a.safetensors")
        assert sizes.keys() == tensors().keys()
        assert list(store.store) == ["/m/a.safetensors"]
        found = load_file("faulty://m/a.safetensors")
        assert all(np.array_equal(found[name], array) for name, array in tensors().items())
        with open_file("faulty://m/a.safetensors") as reader:
            assert np.array_equal(reader.get_slice("layer.1")[7:9], tensors()["layer.1"][7:9])
        assert verify("faulty://m/a.safetensors").ok
        assert left_behind() == []


def test_standard_input_and_output(model: Path, tmp_path: Path) -> None:
    shard, back = model / "model-00001-of-00002.safetensors", tmp_path / "back"
    url = "faulty://m/a.safetensors"
    with faulty_store():
        with shard.open("rb") as stream:
            assert convert_stream(compress_checkpoint, stream, locate(url)).src == "-"
        with back.open("wb") as stream:
            assert convert_stream(decompress_checkpoint, locate(url), stream).dst == "-"
        assert back.read_bytes() == shard.read_bytes()
        assert left_behind() == []


def test_tensors_stay_compressed_in_memory() -> None:
    pytest.importorskip("torch")
    import torch

    with faulty_store():
        save_file(tensors(), "faulty://m/a.safetensors")
        found = load_file("faulty://m/a.safetensors", framework="pt", compressed=True)
        for name, array in tensors().items():
            assert isinstance(found[name], tensorwire.torch.CompressedTensor)
            assert torch.equal(found[name].decode(), torch.from_numpy(array))
        with pytest.raises(ValueError, match="resident_nbytes leaves frames in files of this machine"):
            load_file("faulty://m/a.safetensors", framework="pt", compressed=True, resident_nbytes=0)


def test_a_directory_there_and_back(model: Path, packed: Path, tmp_path: Path) -> None:
    with faulty_store() as store:
        report = compress_checkpoint(model, "faulty://s/packed")
        assert report.dst == "faulty://s/packed"
        assert objects(store, "/s/packed") == contents(packed)
        assert [arguments[1] for name, arguments in store.asked if name == "put_file"][-1].endswith("/tensorwire.json")
        assert verify("faulty://s/packed").ok
        decompress_checkpoint("faulty://s/packed", "faulty://s/plain")
        assert objects(store, "/s/plain") == contents(model)
        compress_checkpoint("faulty://s/plain", tmp_path / "again")
        assert contents(tmp_path / "again") == contents(packed)
        transcode_checkpoint("faulty://s/packed", "faulty://s/compact", profile="compact")
        decompress_checkpoint("faulty://s/compact", tmp_path / "back")
        assert contents(tmp_path / "back") == contents(model)
        assert diff("faulty://s/plain", "faulty://s/compact").num_different_elements == 0
        assert inspect("faulty://s/packed").tensors == inspect(packed).tensors
        assert estimate_ratio("faulty://s/plain").nbytes_in == estimate_ratio(model).nbytes_in
        assert left_behind() == []


def test_a_delta_and_its_base(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "next")
    change(tmp_path / "next")
    with faulty_store() as store:
        decompress_checkpoint(_compressed(model, tmp_path), "faulty://s/old")
        compress_checkpoint(tmp_path / "next", "faulty://s/delta", base="faulty://s/old")
        assert sum(map(len, objects(store, "/s/delta").values())) > 0
        decompress_checkpoint("faulty://s/delta", tmp_path / "back", base="faulty://s/old")
        assert contents(tmp_path / "back") == contents(tmp_path / "next")
        assert verify("faulty://s/delta", base="faulty://s/old").ok
        apply_checkpoint("faulty://s/delta", model)
        assert contents(model) == contents(tmp_path / "next")


def _compressed(model: Path, tmp_path: Path) -> Path:
    compress_checkpoint(model, tmp_path / "compressed")
    return tmp_path / "compressed"


def test_what_is_excluded(model: Path) -> None:
    with faulty_store() as store:
        store.pipe({f"/s/plain/{path}": data for path, data in contents(model).items()})
        store.pipe({"/s/plain/.git/config": b"x", "/s/plain/logs/a.txt": b"y", "/s/plain/logs/b.txt": b"z"})
        report = compress_checkpoint("faulty://s/plain", "faulty://s/packed", exclude=["logs/"])
        assert report.excluded == (".git/", "logs/")
        assert not any("logs" in path or ".git" in path for path in objects(store, "/s/packed"))


def test_nothing_is_replaced_without_force(model: Path) -> None:
    with faulty_store() as store:
        store.pipe_file("/s/packed/notes.txt", b"mine")
        for force in (False, True):
            with pytest.raises(FileExistsError, match=r"tensorwire\.json.*'faulty:///s/packed'"):
                compress_checkpoint(model, "faulty://s/packed", force=force)
        assert objects(store, "/s/packed") == {"notes.txt": b"mine"}
        compress_checkpoint(model, "faulty://s/other")
        before = objects(store, "/s/other")
        with pytest.raises(FileExistsError, match="already exists; pass force=True"):
            compress_checkpoint(model, "faulty://s/other")
        store.pipe_file("/s/other/notes.txt", b"mine")
        with pytest.raises(FileExistsError, match=r"holds an object that the result does not replace: 'notes\.txt'"):
            compress_checkpoint(model, "faulty://s/other", force=True)
        assert objects(store, "/s/other") == {**before, "notes.txt": b"mine"}


def test_what_is_replaced_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    with faulty_store() as store:
        compress_checkpoint(model, "faulty://s/packed")
        (model / "extra.txt").write_text("new")
        compress_checkpoint(model, "faulty://s/packed", force=True, profile="compact")
        compress_checkpoint(model, "faulty://s/packed", force=True)
        compress_checkpoint(model, tmp_path / "expected")
        assert objects(store, "/s/packed") == contents(tmp_path / "expected")


def test_what_holds_another_content_stays(model: Path) -> None:
    """Its sizes are the same, so the result is whole before it is known, and waits on this machine."""
    shard = model / "model-00001-of-00002.safetensors"
    with faulty_store() as store:
        compress_checkpoint(model, "faulty://s/packed")
        compress_checkpoint(shard, "faulty://s/alone")
        before = objects(store, "/s")
        change(model)
        for source, place in ((model, "packed"), (shard, "alone")):
            with pytest.raises(FileExistsError, match="compressed and holds another content than the source"):
                compress_checkpoint(source, f"faulty://s/{place}", force=True)
            assert objects(store, "/s") == before
        change(model)  # back to what it was
        for source, place in ((model, "packed"), (shard, "alone")):
            compress_checkpoint(source, f"faulty://s/{place}", force=True, profile="compact")


def test_a_base_in_a_store_is_not_changed_in_place(model: Path) -> None:
    with faulty_store(), pytest.raises(ValueError, match="expected a base on this machine"):
        apply_checkpoint(model, "faulty://s/base")


def test_a_source_is_never_its_own_destination(model: Path) -> None:
    with faulty_store():
        compress_checkpoint(model, "faulty://s/packed")
        for place in ("faulty://s/packed", "faulty://s/packed/inside"):
            with pytest.raises(ValueError, match="are the same or lie in each other"):
                decompress_checkpoint("faulty://s/packed", place)


def _fails_at(number: int, done: list[str], *, after: bool) -> Any:
    """A put that fails for the n-th object, before or after the bytes have gone; `done` gets those that do not."""

    def put(own: Any, local: str, key: str, **options: Any) -> Any:
        if len(done) + 1 == number and not after:
            raise ConnectionResetError(104, "Connection reset by peer")
        own(local, key, **options)
        if len(done) + 1 == number:
            raise ConnectionResetError(104, "Connection reset by peer")
        done.append(key)

    return put


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(1, 13))
def test_an_upload_goes_on_where_it_stopped(model: Path, packed: Path, number: int, after: bool) -> None:
    expected = contents(packed)
    assert len(expected) == 11, "and the mark: so many puts"
    done: list[str] = []
    with faulty_store(put_file=_fails_at(number, done, after=after)) as store:
        with pytest.raises(ConnectionResetError, match="faulty:///s/packed"):
            compress_checkpoint(model, "faulty://s/packed")
        assert after or "tensorwire.json" not in objects(store, "/s/packed"), "visible whole or not at all"
        store.faults.clear()
        store.asked.clear()
        report = compress_checkpoint(model, "faulty://s/packed")
        assert objects(store, "/s/packed") == expected
        assert number == 1 or all(file.resumed for file in report.files if file.path.endswith(".safetensors"))
        again = [arguments[1] for name, arguments in store.asked if name == "put_file"]
        assert not [key for key in again if key in done and key.endswith(".safetensors")]
        assert left_behind() == []


def stop_at_the_fourth(model: Path, store: FaultyStore) -> None:
    """Begin an upload that fails with its fourth object."""
    store.faults["put_file"] = _fails_at(4, [], after=False)
    with pytest.raises(ConnectionResetError):
        compress_checkpoint(model, "faulty://s/packed")
    store.faults.clear()


def _another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str = "elsewhere") -> None:
    """One that knows nothing of an upload which was begun here."""
    (tmp_path / name).mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))


@pytest.mark.parametrize("force", [False, True])
def test_readers_refuse_a_folder_until_its_upload_has_ended(model: Path, tmp_path: Path, force: bool) -> None:
    """Old and new weights may stand there."""
    readers: list[Any] = [
        verify, load_file, open_file, inspect,
        lambda place: decompress_checkpoint(place, tmp_path / "restored"),
        lambda place: compress_checkpoint(model, tmp_path / "delta", base=place),
    ]  # fmt: skip
    with faulty_store() as store:
        if force:
            compress_checkpoint(model, "faulty://s/packed", profile="compact")
        store.faults["put_file"] = _fails_at(3, [], after=False)
        with pytest.raises(ConnectionResetError):
            compress_checkpoint(model, "faulty://s/packed", force=force)
        store.faults.clear()
        for read in readers:
            with pytest.raises(CorruptDataError, match="whose upload has not ended"):
                read("faulty://s/packed")
        compress_checkpoint(model, "faulty://s/packed", force=force)
        compress_checkpoint(model, tmp_path / "expected")
        assert objects(store, "/s/packed") == contents(tmp_path / "expected")


def test_the_place_of_an_upload_that_nobody_goes_on_with_is_taken_by_force(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_store() as store:
        stop_at_the_fourth(model, store)
        _another_machine(monkeypatch, tmp_path)
        with pytest.raises(FileExistsError, match="an upload that has not ended"):
            compress_checkpoint(model, "faulty://s/packed")
        store.store["/s/packed/notes.txt"] = store.store["/s/packed/.tensorwire-upload"]
        with pytest.raises(FileExistsError, match=r"does not replace: 'notes\.txt'"):
            compress_checkpoint(model, "faulty://s/packed", force=True)
        del store.store["/s/packed/notes.txt"]
        compress_checkpoint(model, "faulty://s/packed", force=True)
        compress_checkpoint(model, tmp_path / "expected")
        assert objects(store, "/s/packed") == contents(tmp_path / "expected")


@pytest.mark.parametrize("ended", [False, True])
def test_an_upload_does_not_go_on_over_another_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """The other one took its place by force, and is still under way or has ended."""
    with faulty_store() as store:
        stop_at_the_fourth(model, store)
        here = tempfile.gettempdir()
        _another_machine(monkeypatch, tmp_path)
        change(model)
        if not ended:
            store.faults["put_file"] = _fails_at(3, [], after=True)
        with contextlib.suppress(ConnectionResetError):
            compress_checkpoint(model, "faulty://s/packed", force=True)
        store.faults.clear()
        before = objects(store, "/s/packed")
        change(model)  # back to what it was
        monkeypatch.setattr(tempfile, "tempdir", here)
        for _ in range(2):
            with pytest.raises(FileExistsError, match="another content" if ended else "another upload"):
                compress_checkpoint(model, "faulty://s/packed")
        assert objects(store, "/s/packed") == before


def test_an_upload_goes_on_over_no_other_content(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has put that there since, whole, where nothing stood when this one began."""
    shard = model / "model-00001-of-00002.safetensors"
    for source, place, number in ((model, "packed", 4), (shard, "alone", 1)):
        with faulty_store() as store:
            store.faults["put_file"] = _fails_at(number, [], after=False)
            here = tempfile.gettempdir()
            with pytest.raises(ConnectionResetError):
                compress_checkpoint(source, f"faulty://s/{place}")
            store.faults.clear()
            _another_machine(monkeypatch, tmp_path, place)
            change(model)
            compress_checkpoint(source, f"faulty://s/{place}", force=source is model)
            change(model)  # back to what it was
            before = objects(store, "/s")
            monkeypatch.setattr(tempfile, "tempdir", here)
            for force in (False, True):
                with pytest.raises(FileExistsError, match="compressed and holds another content than the source"):
                    compress_checkpoint(source, f"faulty://s/{place}", force=force)
                assert objects(store, "/s") == before


def test_a_whole_folder_with_a_mark_is_replaced_by_no_other_content(model: Path, packed: Path) -> None:
    """The mark was to go last of all, and did not."""
    with faulty_store() as store:
        compress_checkpoint(model, "faulty://s/packed")
        store.pipe_file("/s/packed/.tensorwire-upload", b'{"token": "1", "paths": ["config.json"]}')
        before = objects(store, "/s/packed")
        change(model)
        with pytest.raises(FileExistsError, match="compressed and holds another content than the source"):
            compress_checkpoint(model, "faulty://s/packed", force=True)
        assert objects(store, "/s/packed") == before
        change(model)  # back to what it was
        compress_checkpoint(model, "faulty://s/packed", force=True)
        assert objects(store, "/s/packed") == contents(packed)


def test_a_single_file_whose_upload_was_interrupted_at_its_end(model: Path) -> None:
    shard = model / "model-00001-of-00002.safetensors"

    with faulty_store(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorwire.storage.staging.Staging.drop", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            compress_checkpoint(shard, "faulty://s/a.safetensors")
        patch.undo()
        compress_checkpoint(shard, "faulty://s/a.safetensors")
        assert verify("faulty://s/a.safetensors").ok


def test_a_changed_source_is_put_anew(model: Path, tmp_path: Path) -> None:
    with faulty_store() as store:
        stop_at_the_fourth(model, store)
        change(model)
        compress_checkpoint(model, "faulty://s/packed")
        compress_checkpoint(model, tmp_path / "expected")
        assert objects(store, "/s/packed") == contents(tmp_path / "expected")


def test_another_process_that_was_first_wins(model: Path) -> None:
    def late(own: Any, local: str, key: str, **options: Any) -> Any:
        if key.endswith("tensorwire.json"):
            store.pipe_file(key, b"theirs")
        own(local, key, **options)

    with faulty_store(put_file=late) as store:
        for _ in range(2):  # the second time it does not take the other's for what it has sent itself
            with pytest.raises(FileExistsError):
                compress_checkpoint(model, "faulty://s/packed")
            store.faults.clear()
        assert objects(store, "/s/packed")["tensorwire.json"] == b"theirs"


def test_a_store_that_keeps_other_bytes_is_told() -> None:
    def short(own: Any, local: str, key: str, **options: Any) -> Any:
        store.pipe_file(key, Path(local).read_bytes()[:-1])

    with faulty_store(put_file=short) as store, pytest.raises(OSError, match="after writing it, got"):
        save_file(tensors(), "faulty://m/a.safetensors")


def test_no_right_to_list(model: Path) -> None:
    with faulty_store() as store:
        compress_checkpoint(model, "faulty://s/packed")
        store.faults["find"] = raising(PermissionError("Access Denied"))
        with pytest.raises(
            PermissionError, match="Access Denied; look at your credentials for this store: 'faulty:///s/packed'"
        ):
            verify("faulty://s/packed")


def test_a_listing_that_lags_changes_nothing(model: Path) -> None:
    """What is read is what the manifest and the index name."""
    with faulty_store() as store:
        compress_checkpoint(model, "faulty://s/packed")
        expected = verify("faulty://s/packed")
        store.faults["find"] = lambda own, *arguments, **options: {}
        assert replace(verify("faulty://s/packed"), seconds=expected.seconds) == expected
        assert load_file("faulty://s/packed").keys() == load_file(model).keys()


def test_bytes_that_differ_the_second_time_are_told() -> None:
    asked = 0

    def other(own: Any, path: str, start: int, stop: int) -> bytes:
        nonlocal asked
        asked += 1
        data: bytes = own(path, start, stop)
        middle = len(data) // 2
        return data if asked < 2 else data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    with faulty_store() as store:
        save_file(tensors(), "faulty://m/a.safetensors")
        store.faults["cat_file"] = other
        with pytest.raises(tensorwire.FormatError):
            load_file("faulty://m/a.safetensors")


def test_many_objects() -> None:
    with faulty_store() as store:
        save_file(tensors(), "faulty://m/a.safetensors")
        data = store.store["/m/a.safetensors"].getvalue()
        store.pipe({f"/many/{index:05d}.txt": b"" for index in range(10_000)} | {"/many/a.safetensors": data})
        assert verify("faulty://many").ok
        assert sum(name == "find" for name, _ in store.asked) <= 2


def test_nothing_is_left_if_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_store() as store:
        monkeypatch.setattr("tensorwire.storage.local.write_at", raising(OSError(28, "No space left on device", "x")))
        with pytest.raises(OSError, match="No space left"):
            save_file(tensors(), "faulty://m/a.safetensors")
        assert not store.store
        assert left_behind() == []


def test_the_directory_for_uploads_is_ours_alone(model: Path) -> None:
    place = Path(tempfile.gettempdir()) / f"tensorwire-uploads-{os.geteuid()}"
    place.mkdir()
    place.chmod(0o777)
    with faulty_store(), pytest.raises(FileExistsError, match="expected a directory that is yours alone"):
        compress_checkpoint(model, "faulty://s/packed")


def test_reports_say_nothing_secret(model: Path) -> None:
    with faulty_store():
        report = compress_checkpoint(model, "faulty://s/packed?token=hunter2")
        assert report.dst == "faulty://s/packed"
        assert "hunter2" not in repr(verify("faulty://s/packed?token=hunter2"))


def test_objects_and_journals_hold_nothing_secret(model: Path, tmp_path: Path) -> None:
    """The base of a delta is told by the last part of its URL."""
    shutil.copytree(model, tmp_path / "next")
    change(tmp_path / "next")
    base = "faulty://s/old?token=hunter2"
    with faulty_store(put_file=_fails_at(4, [], after=False)) as store:
        store.pipe({f"/s/old?token=hunter2/{path}": data for path, data in contents(model).items()})
        with pytest.raises(ConnectionResetError):
            compress_checkpoint(tmp_path / "next", "faulty://s/delta?token=hunter2", base=base)
        kept = contents(Path(tempfile.gettempdir()))
        assert kept, "an upload that stopped has left its journal"
        store.faults.clear()
        compress_checkpoint(tmp_path / "next", "faulty://s/delta?token=hunter2", base=base)
        put = objects(store, "/s/delta?token=hunter2")
        assert b'"old"' in put["tensorwire.json"]
        assert not [path for path, data in (*kept.items(), *put.items()) if b"hunter2" in data]
