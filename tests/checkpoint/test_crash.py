"""Kills, full disks and second writers: nothing half-made appears under the final name, and the next run goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire import checkpoint
from tensorwire._ground import destination, filesystem
from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, load_file, save_file, verify
from tensorwire.checkpoint.operations import converter
from tensorwire.storage import local
from tensorwire.storage.staging import Staging
from tests.support.checkpoint_models import container, layer, tree_hashes, weights, write_model
from tests.support.processes import KILLED, OTHER_USER, exit_code, kill_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STAGES = [
    ("after", Staging, "_acquire", 1),
    ("after", Staging, "_open_journal", 1),
    *(("before", local.OutputFile, "write", step) for step in (2, 3, 4, 6, 9, 13)),
    *(("before", local.OutputFile, "sync", step) for step in (2, 3, 5)),
    *((when, Staging, "record", step) for when in ("before", "after") for step in (1, 2, 3)),
    ("before", converter.Converter, "write_manifest", 1),
    ("after", converter.Converter, "write_manifest", 1),
    ("before", Staging, "commit", 1),
    ("before", destination.Destination, "replace", 1),
]
LATE_STAGES = [
    ("after", destination, "exchange", 1),
    ("after", destination.Destination, "replace", 1),
    ("after", Staging, "commit", 1),
]
COMMITTING = ("before", Staging, "commit", 1)


def run_killed(action: str, src: Path, dst: Path, stage: tuple[str, Any, str, int], *, force: bool = False) -> None:
    """Run an operation in a process that ends at a stage: before or after so many calls."""
    when, owner, name, step = stage

    def child() -> None:
        kill_at(step, [(owner, name)], after=when == "after")
        getattr(checkpoint, f"{action}_checkpoint")(src, dst, force=force)

    assert exit_code(child) == KILLED


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "model"
    write_model(root)
    return root


@pytest.fixture(scope="module")
def packed(model: Path) -> Path:
    compress_checkpoint(model, model.parent / "packed")
    return model.parent / "packed"


@pytest.fixture(scope="module")
def other(model: Path) -> Path:
    """The same model, compressed otherwise."""
    compress_checkpoint(model, model.parent / "other", profile="compact")
    return model.parent / "other"


def each(stages: Sequence[Any]) -> list[Any]:
    """Every third stage in the quick tests; `test_killed_while_compressing` has all."""
    return [
        pytest.param(stage, id=str(stage), marks=pytest.mark.slow if i % 3 else ()) for i, stage in enumerate(stages)
    ]


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_killed_while_compressing(model: Path, packed: Path, tmp_path: Path, stage: Any) -> None:
    run_killed("compress", model, tmp_path / "x", stage)
    assert not (tmp_path / "x").exists()
    report = compress_checkpoint(model, tmp_path / "x")
    assert tree_hashes(tmp_path / "x") == tree_hashes(packed)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    num_resumed = sum(file.resumed for file in report.files)
    if stage[::2] == ("after", "record"):
        assert num_resumed == stage[3]
    if stage[::2] in (("before", "commit"), ("before", "write_manifest")):
        assert num_resumed == 3


@pytest.mark.parametrize("stage", each([stage for stage in STAGES if stage[2] != "write_manifest"]))
def test_killed_while_decompressing(model: Path, packed: Path, tmp_path: Path, stage: Any) -> None:
    run_killed("decompress", packed, tmp_path / "x", stage)
    assert not (tmp_path / "x").exists()
    decompress_checkpoint(packed, tmp_path / "x")
    assert tree_hashes(tmp_path / "x") == tree_hashes(model)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("stage", [*each(STAGES), *LATE_STAGES], ids=str)
def test_killed_while_replacing(model: Path, packed: Path, other: Path, tmp_path: Path, stage: Any) -> None:
    """With force the old checkpoint is there, whole, until the new one is."""
    dst = tmp_path / "x"
    shutil.copytree(other, dst)
    old, new = tree_hashes(dst), tree_hashes(packed)
    run_killed("compress", model, dst, stage, force=True)
    assert tree_hashes(dst) == (new if stage in LATE_STAGES else old)
    compress_checkpoint(model, dst, force=True)
    assert tree_hashes(dst) == new
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("is_new", [False, True])
def test_killed_where_directories_cannot_be_swapped(
    model: Path, packed: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Without an atomic exchange there is a moment between two renames; the next run sets it right."""
    dst = tmp_path / "x"
    shutil.copytree(other, dst)
    old = tree_hashes(dst)
    monkeypatch.setattr(filesystem, "renameat2", lambda a, b, flags: False)
    run_killed("compress", model, dst, ("after", Path, "rename", 1 + is_new), force=True)
    assert dst.exists() == is_new
    with pytest.raises(FileExistsError):
        compress_checkpoint(model, dst)
    assert tree_hashes(dst) == (tree_hashes(packed) if is_new else old)
    compress_checkpoint(model, dst, force=True)
    assert tree_hashes(dst) == tree_hashes(packed)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("change", ["profile", "source", "touch", "cut", "gone", "added"])
def test_what_is_resumed_is_still_good(model: Path, tmp_path: Path, change: str) -> None:
    """Finished shards are used again only if neither they nor what they were made from have changed."""
    source, dst = tmp_path / "model", tmp_path / "x"
    shutil.copytree(model, source)
    run_killed("compress", source, dst, COMMITTING)
    shard = source / "model-00001-of-00002.safetensors"
    result = tmp_path / "x.partial" / "result"
    num_resumed, profile = 3, "fast"
    if change == "profile":
        num_resumed, profile = 0, "enec"
    elif change == "source":
        status = shard.stat()
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
        num_resumed = 2
    elif change == "touch":
        shard.touch()
    elif change == "cut":
        os.truncate(result / shard.name, 1000)
        num_resumed = 2
    elif change == "gone":
        shutil.rmtree(source / "vae")
        num_resumed = 2
    else:
        (result / "stray").mkdir()
        (result / "stray" / "file").write_text("not ours")
    report = compress_checkpoint(source, dst, profile=profile)  # type: ignore[arg-type]
    assert sum(file.resumed for file in report.files) == num_resumed
    compress_checkpoint(source, tmp_path / "expected", profile=profile)  # type: ignore[arg-type]
    assert tree_hashes(dst) == tree_hashes(tmp_path / "expected")
    decompress_checkpoint(dst, tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == tree_hashes(source)


def test_a_journal_cut_off_in_a_line(model: Path, packed: Path, tmp_path: Path) -> None:
    run_killed("compress", model, tmp_path / "x", COMMITTING)
    journal = tmp_path / "x.partial" / "journal.jsonl"
    lines = journal.read_bytes()
    for cut, num_resumed in (
        (lines[:-10], 2),
        (lines + b'{"path": "con', 3),
        (lines[:20], 0),
        (b"\0\0\0", 0),
        (b"", 0),
    ):
        saved = tmp_path / "saved"
        shutil.copytree(tmp_path / "x.partial", saved)
        journal.write_bytes(cut)
        report = compress_checkpoint(model, tmp_path / "x")
        assert sum(file.resumed for file in report.files) == num_resumed
        assert tree_hashes(tmp_path / "x") == tree_hashes(packed)
        shutil.rmtree(tmp_path / "x")
        saved.rename(tmp_path / "x.partial")


def test_killed_with_a_single_file(model: Path, tmp_path: Path) -> None:
    source, dst = model / "model-00001-of-00002.safetensors", tmp_path / "x"
    compress_checkpoint(source, tmp_path / "expected")
    for stage in (("before", local.OutputFile, "sync", 2), ("before", destination.Destination, "replace", 1)):
        run_killed("compress", source, dst, stage)
        assert not dst.exists()
    compress_checkpoint(source, dst)
    assert dst.read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_a_single_file_is_replaced(model: Path, tmp_path: Path, when: str) -> None:
    source, dst = model / "model-00001-of-00002.safetensors", tmp_path / "x"
    compress_checkpoint(source, dst, profile="compact")
    compress_checkpoint(source, tmp_path / "expected")
    old, new = dst.read_bytes(), (tmp_path / "expected").read_bytes()
    run_killed("compress", source, dst, (when, destination, "exchange", 1), force=True)
    assert dst.read_bytes() == (new if when == "after" else old)
    compress_checkpoint(source, dst, force=True)
    assert dst.read_bytes() == new
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["expected", "x"]


def test_a_second_writer_is_told(model: Path, packed: Path, tmp_path: Path) -> None:
    inside, release = threading.Event(), threading.Event()

    def wait(done: int, total: int, path: str) -> None:
        inside.set()
        assert release.wait(30)

    first = threading.Thread(target=compress_checkpoint, args=(model, tmp_path / "x"), kwargs={"progress": wait})
    first.start()
    try:
        assert inside.wait(30)
        with pytest.raises(BlockingIOError, match="another process") as caught:
            compress_checkpoint(model, tmp_path / "x", force=True)
        assert caught.value.filename == str(tmp_path / "x")
    finally:
        release.set()
        first.join()
    assert tree_hashes(tmp_path / "x") == tree_hashes(packed)


def test_many_writers_leave_one_whole_result(tmp_path: Path) -> None:
    """Writers that race for the same name, over and over: each fails with a named error or succeeds."""
    path = tmp_path / "x"
    tensors = {"w": np.frombuffer(weights(20_000, 1, "F32"), np.float32)}

    def work() -> int:
        num_written = 0
        for _ in range(30):
            with contextlib.suppress(BlockingIOError):
                save_file(tensors, path)
                num_written += 1
        return num_written

    with ThreadPoolExecutor(4) as pool:
        assert sum(writer.result() for writer in [pool.submit(work) for _ in range(4)]) > 0
    assert (load_file(path)["w"] == tensors["w"]).all()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    root = tmp_path / "disk"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield root
    subprocess.run(["umount", str(root)], check=True)


def test_disk_full(tmp_path: Path, small_disk: Path) -> None:
    write_model(tmp_path / "model", width=800)
    with pytest.raises(OSError, match="No space left") as caught:
        compress_checkpoint(tmp_path / "model", small_disk / "x")
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value.filename).startswith(str(small_disk / "x.partial"))
    assert not (small_disk / "x").exists()
    with pytest.raises(OSError, match="No space left"):
        save_file({"w": np.random.default_rng(1).random(500_000)}, small_disk / "y")
    assert not (small_disk / "y").exists()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    compress_checkpoint(tmp_path / "model", small_disk / "x")
    assert verify(small_disk / "x").ok
    assert [entry.name for entry in small_disk.iterdir()] == ["x"]


def test_a_disk_without_any_room_is_named(tmp_path: Path, small_disk: Path) -> None:
    with (small_disk / "other").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError, match="No space left") as caught:
        save_file({"w": np.ones(1000, np.float32)}, small_disk / "y")
    assert caught.value.filename == str(small_disk / "y.partial")
    assert [entry.name for entry in small_disk.iterdir()] == ["other"]


@pytest.mark.parametrize("nbytes", [0, 1000, 40_000, 150_000])
def test_no_space_left(model: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """As on a full disk: so many bytes are written, the last of them by a short write, then none."""
    real = os.pwrite
    remaining = 0

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        nonlocal remaining
        if remaining == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, data[:remaining], offset)
        remaining -= done
        return done

    monkeypatch.setattr(os, "pwrite", pwrite)
    for operation in (
        lambda: compress_checkpoint(model, tmp_path / "x"),
        lambda: save_file({"w": np.random.default_rng(1).random(500_000)}, tmp_path / "y"),
    ):
        remaining = nbytes
        with pytest.raises(OSError, match="No space left") as caught:
            operation()
        assert caught.value.errno == errno.ENOSPC
        assert str(caught.value.filename).startswith((str(tmp_path / "x.partial"), str(tmp_path / "y.partial")))
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "y").exists()
    monkeypatch.undo()
    compress_checkpoint(model, tmp_path / "x")
    assert tree_hashes(tmp_path / "x") == tree_hashes(packed)


def test_an_error_of_writing_back_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports a failed write-back once, perhaps to the sync in the background."""
    monkeypatch.setattr(local, "_FLUSH_NBYTES", 50_000)
    real = os.fdatasync

    def fail(fd: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    (tmp_path / "a").write_bytes(container(layer(0, 1)))
    with pytest.raises(OSError, match="error") as caught:
        compress_checkpoint(tmp_path / "a", tmp_path / "b")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "b.partial" / "result"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_file_size_limit(tmp_path: Path) -> None:
    """A quota: writing fails in the middle of a file."""
    (tmp_path / "a").write_bytes(container([*layer(0, 1, 300)]))

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(OSError, match="File too large") as caught:
            compress_checkpoint(tmp_path / "a", tmp_path / "b")
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "b.partial" / "result"))

    assert exit_code(child) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_no_permission() -> None:
    with tempfile.TemporaryDirectory() as name:  # tmp_path is its owner's alone
        root = Path(name)
        root.chmod(0o755)
        source, locked, free = root / "a.safetensors", root / "locked", root / "free"
        source.write_bytes(container(layer(0, 1)))
        source.chmod(0o444)
        locked.mkdir()
        locked.chmod(0o555)
        free.mkdir()
        free.chmod(0o777)

        def refused(dst: Path, place: Path) -> None:
            def child() -> None:
                if os.geteuid() == 0:  # may do anything
                    os.setuid(OTHER_USER)
                with pytest.raises(PermissionError) as caught:
                    compress_checkpoint(source, dst)
                assert caught.value.filename == str(place)

            assert exit_code(child) == 0

        refused(locked / "x", locked)  # the directory whose permissions are to be changed
        source.chmod(0)
        refused(free / "y", source)
        assert sorted(path.name for path in root.rglob("*")) == ["a.safetensors", "free", "locked"]


def test_a_missing_parent(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        compress_checkpoint(model, tmp_path / "none" / "x")
    assert caught.value.filename == str(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        save_file({"a": np.zeros(2)}, tmp_path / "none" / "f")
