"""The staging directory DST.partial: what tensorwire did not make is left as it is."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint
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
    "empty directory": lambda path: path.mkdir(),
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


def interrupt(model: Path, dst: Path) -> None:
    def stop(done: int, total: int, path: str) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress_checkpoint(model, dst, progress=stop)


def test_a_file_put_into_ours_stays(model: Path, tmp_path: Path) -> None:
    interrupt(model, tmp_path / "x")
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
    interrupt(model, tmp_path / "x")
    shards = sorted((tmp_path / "x.partial" / "result").glob("*.safetensors"))
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="lies in"):
        decompress_checkpoint(shards[0], tmp_path / "x")
    assert snapshot(tmp_path) == before


def test_a_refused_destination_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.tex").write_text("mine")
    before = snapshot(tmp_path)
    for force in (False, True):
        with pytest.raises(FileExistsError, match="never replaced"):
            compress_checkpoint(model, tmp_path / "x", force=force)
    assert snapshot(tmp_path) == before


def test_a_shard_compressed_in_its_directory_is_named_before_the_work(model: Path, tmp_path: Path) -> None:
    """That is where compressing a shard puts the result unless told."""
    shard = model / "model-00002-of-00002.safetensors"
    compress_checkpoint(shard, model / "model-00002-of-00002.tensorwire.safetensors")

    def work(*_: object) -> None:
        raise AssertionError("the work has begun")

    with pytest.raises(
        ValueError, match=r"model-00002-of-00002\.tensorwire\.safetensors; move it to another directory"
    ):
        compress_checkpoint(model, tmp_path / "x", progress=work)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    compress_checkpoint(model, tmp_path / "x", exclude=["model-00002-of-00002.tensorwire.safetensors"])
