"""The staging directory DST.partial: what tensorwire did not make is left as it is."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tensorwire._ground.filesystem import mark_of
from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, save_file
from tensorwire.errors import FormatError
from tensorwire.storage import staging
from tests.support.acting import interrupt, raising
from tests.support.destination_cells import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def lookalike(path: Path) -> None:
    path.mkdir()
    (path / "lock").touch()
    (path / "journal.jsonl").write_text("{}\n")
    (path / "result").mkdir()
    (path / "result" / "thesis.tex").write_text("mine")


def link(path: Path) -> None:
    lookalike(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def with_link_to_lock(path: Path) -> None:
    path.mkdir()
    path.with_name("mine").write_text("mine")
    (path / "lock").symlink_to("../mine")


def with_pipe(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "lock")


def with_socket(path: Path) -> None:
    path.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path / "lock"))


FOREIGN: dict[str, Callable[[Path], object]] = {
    "directory of the same names": lookalike,
    "link": link,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "file": lambda path: path.write_text("mine"),
    "pipe": os.mkfifo,
    "link for a lock": with_link_to_lock,
    "pipe for a lock": with_pipe,
    "socket for a lock": with_socket,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_partial_path_that_is_not_ours(model: Path, tmp_path: Path, kind: str) -> None:
    FOREIGN[kind](tmp_path / "x.partial")
    before = snapshot(tmp_path)
    for force in (False, True):
        with pytest.raises(FileExistsError, match="tensorwire did not make all of it; move it") as caught:
            compress_checkpoint(model, tmp_path / "x", force=force)
        assert caught.value.filename == str(tmp_path / "x.partial")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("lock", [None, b"", staging._LOCK_TEXT])
def test_what_a_kill_in_the_first_or_last_moment_leaves(model: Path, tmp_path: Path, lock: bytes | None) -> None:
    """The directory, its lock, and what the lock says are made one after the other, and removed so."""
    (tmp_path / "x.partial").mkdir()
    if lock is not None:
        (tmp_path / "x.partial" / "lock").write_bytes(lock)
    compress_checkpoint(model, tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "x"]


def test_a_file_put_into_ours_stays(model: Path, tmp_path: Path) -> None:
    interrupt(compress_checkpoint, model, tmp_path / "x")
    (tmp_path / "x.partial" / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match="move it"):
        compress_checkpoint(model, tmp_path / "x")
    assert snapshot(tmp_path) == before
    (tmp_path / "x.partial" / "notes.txt").rename(tmp_path / "notes.txt")
    assert any(file.resumed for file in compress_checkpoint(model, tmp_path / "x").files)


def test_a_file_put_in_while_it_is_used_stays(model: Path, tmp_path: Path) -> None:
    def put(*_: object) -> None:
        (tmp_path / "x.partial" / "notes.txt").write_text("mine")

    compress_checkpoint(model, tmp_path / "x", progress=put)
    assert [path.name for path in (tmp_path / "x.partial").iterdir()] == ["notes.txt"]


def test_a_source_in_the_staging_directory_is_refused(model: Path, tmp_path: Path) -> None:
    interrupt(compress_checkpoint, model, tmp_path / "x")
    shards = sorted((tmp_path / "x.partial" / "result").glob("*.safetensors"))
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="lies in"):
        decompress_checkpoint(shards[0], tmp_path / "x")
    assert snapshot(tmp_path) == before


def test_a_shard_compressed_in_its_directory_is_named_before_the_work(model: Path, tmp_path: Path) -> None:
    """That is where compressing a shard puts the result unless told."""
    shard = model / "model-00002-of-00002.safetensors"
    compress_checkpoint(shard, model / "model-00002-of-00002.tensorwire.safetensors")

    with pytest.raises(
        ValueError, match=r"model-00002-of-00002\.tensorwire\.safetensors; move it to another directory"
    ):
        compress_checkpoint(model, tmp_path / "x", progress=raising(AssertionError("the work has begun")))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    compress_checkpoint(model, tmp_path / "x", exclude=["model-00002-of-00002.tensorwire.safetensors"])


def plant(partial: Path, journal: object) -> None:
    """A staging directory that somebody else has made, to be unpacked beside a model."""
    partial.mkdir()
    (partial / "lock").write_bytes(staging._LOCK_TEXT)
    (partial / "journal.jsonl").write_text(json.dumps(journal) + "\n")


def refused(dst: Path, match: str = "tensorwire did not make all of it; move it") -> None:
    before = snapshot(dst.parent)
    with pytest.raises(FileExistsError, match=match) as caught:
        save_file({"a": np.zeros(4, np.float32)}, dst)
    assert caught.value.filename == f"{dst}.partial"
    assert snapshot(dst.parent) == before


@pytest.mark.parametrize("way", ["../../victim.txt", "{}/victim.txt", "sub/../../../victim.txt", "./x", ""])
def test_a_journal_that_names_files_outside(tmp_path: Path, way: str) -> None:
    (tmp_path / "victim.txt").write_text("mine")
    (tmp_path / "x").write_text("replaced")
    old = tmp_path / "x.partial" / "old"
    plant(tmp_path / "x.partial", None)
    old.mkdir()
    inside = {way.format(tmp_path): mark_of(tmp_path / "victim.txt")}
    replacing = {"new": mark_of(tmp_path / "x"), "old": {"mark": mark_of(old), "mode": 0o755, "inside": inside}}
    (tmp_path / "x.partial" / "journal.jsonl").write_text(json.dumps({"replacing": replacing}) + "\n")
    refused(tmp_path / "x")


@pytest.mark.parametrize(
    "journal", [5, None, [], {"replacing": 5}, {"replacing": {"new": "1"}}, {"replacing": {"old": {}}}]
)
def test_a_journal_that_we_do_not_write(tmp_path: Path, journal: object) -> None:
    plant(tmp_path / "x.partial", journal)
    refused(tmp_path / "x")


@pytest.mark.parametrize("name", ["result", "old", "journal.jsonl", "result/sub"])
def test_a_link_in_a_staging_directory(tmp_path: Path, name: str) -> None:
    """Permissions were changed behind it, and files there removed."""
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine" / "letters.txt").write_text("mine")
    plant(tmp_path / "x.partial", {"action": "save"})
    place = tmp_path / "x.partial" / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(tmp_path / "mine", target_is_directory=True)
    refused(tmp_path / "x")


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_line_of_a_journal_that_is_no_json_counts_for_nothing(tmp_path: Path, text: str) -> None:
    plant(tmp_path / "x.partial", {})
    (tmp_path / "x.partial" / "journal.jsonl").write_text(f"{text}\n")
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_pipe_for_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    plant(tmp_path / "x.partial", {"action": "save"})
    (tmp_path / "x.partial" / "journal.jsonl").unlink()
    os.mkfifo(tmp_path / "x.partial" / "journal.jsonl")
    refused(tmp_path / "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_staging_directory_of_another_user(tmp_path: Path) -> None:
    plant(tmp_path / "x.partial", {"action": "save"})
    os.chown(tmp_path / "x.partial", 65534, 65534)
    refused(tmp_path / "x", "belongs to another user")


def test_what_is_large_is_not_left_where_nobody_looks(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails removes what it has written; if it is killed meanwhile, the next one does."""
    (packed / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"damaged")
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (packed / name).write_bytes(b"damaged")

    with monkeypatch.context() as patch:
        patch.setattr(staging.shutil, "rmtree", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            decompress_checkpoint(packed, tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "packed", "x.partial"]
    with pytest.raises(FormatError):
        decompress_checkpoint(packed, tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "packed"]
