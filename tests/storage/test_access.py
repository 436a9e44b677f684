"""Permissions travel: a compressed file can be read by nobody who cannot read its source, at no moment."""

from __future__ import annotations

import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, transcode_checkpoint
from tests.support.acting import interrupt
from tests.support.checkpoint_models import SHARD, container, layer, write_model
from tests.support.processes import OTHER_USER, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACL = "system.posix_acl_access"


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mode & 0o7777 for path in (root, *root.rglob("*"))}


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """With which whatever is not closed on purpose is open to all."""
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.fixture
def closed_model(tmp_path: Path) -> Path:
    """Directories and files of many modes."""
    root = tmp_path / "closed"
    write_model(root)
    for name, mode in {
        "model-00001-of-00002.safetensors": 0o600,
        "model-00002-of-00002.safetensors": 0o640,
        "config.json": 0o604,
        "tokenizer.json": 0o444,
        "training_args.bin": 0o755,
        "model.safetensors.index.json": 0o666,
        "vae": 0o700,
        "assets/deep": 0o555,
        "assets": 0o751,
        ".": 0o710,
    }.items():
        (root / name).chmod(mode)
    return root


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755, 0o400])
def test_modes_of_files_travel(tmp_path: Path, mode: int) -> None:
    source = tmp_path / "a.safetensors"
    source.write_bytes(container(layer(0, 1)))
    source.chmod(mode)
    compress_checkpoint(source, tmp_path / "b")
    transcode_checkpoint(tmp_path / "b", tmp_path / "c", profile="enec")
    decompress_checkpoint(tmp_path / "c", tmp_path / "d")
    assert [(tmp_path / name).stat().st_mode & 0o7777 for name in "bcd"] == [mode] * 3


def test_modes_of_directories_travel(closed_model: Path, tmp_path: Path) -> None:
    before = modes(closed_model)
    compress_checkpoint(closed_model, tmp_path / "b")
    decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert modes(tmp_path / "c") == before
    packed = modes(tmp_path / "b")
    assert packed.pop("tensorwire.json") == 0o400, "it tells of all files: it allows what all of them do"
    assert packed == before


def test_set_id_bits_do_not_travel(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    source.write_bytes(container(layer(0, 1)))
    source.chmod(0o6755)
    compress_checkpoint(source, tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o7777 == 0o755


def test_a_result_is_as_open_as_its_source_and_not_as_what_it_replaces(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    source.write_bytes(container(layer(0, 1)))
    compress_checkpoint(source, tmp_path / "b")
    (tmp_path / "b").chmod(0o666)
    source.chmod(0o600)
    compress_checkpoint(source, tmp_path / "b", force=True)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


def test_nobody_else_reads_it_in_the_making(closed_model: Path, tmp_path: Path) -> None:
    seen = set()

    def look(*_: object) -> None:
        assert not (tmp_path / "b").exists()
        for path in tmp_path.iterdir():
            if path.name != "closed":
                seen.add((path.name, path.stat().st_mode & 0o777))

    compress_checkpoint(closed_model, tmp_path / "b", progress=look)
    assert seen == {("b.partial", 0o700)}, "nobody else comes through"


def test_a_run_that_goes_on_takes_the_modes_of_today(closed_model: Path, tmp_path: Path) -> None:
    interrupt(compress_checkpoint, closed_model, tmp_path / "b")
    result = tmp_path / "b.partial" / "result"
    for path in result.rglob("*.*"):
        source = closed_model / path.relative_to(result)
        assert not path.stat().st_mode & ~source.stat().st_mode & 0o777, "no more than its source"
    (closed_model / "model-00001-of-00002.safetensors").chmod(0o400)
    report = compress_checkpoint(closed_model, tmp_path / "b")
    assert any(file.resumed for file in report.files)
    assert (tmp_path / "b" / "model-00001-of-00002.safetensors").stat().st_mode & 0o777 == 0o400


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_what_is_dropped_is_told(model: Path, tmp_path: Path) -> None:
    """With an access control list the bits of the group are its mask: taken for the group they would let it in."""
    nobody = 0xFFFFFFFF
    rights = acl((1, 6, nobody), (2, 6, 1234), (4, 0, nobody), (0x10, 6, nobody), (0x20, 0, nobody))
    try:
        os.setxattr(model / SHARD, ACL, rights)
        os.setxattr(model / SHARD, "user.origin", b"a hub")
        os.setxattr(model / "config.json", "user.origin", b"a hub")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    assert stat.S_IMODE((model / SHARD).stat().st_mode) == 0o660
    report = compress_checkpoint(model, tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "b" / SHARD).stat().st_mode) == 0o600
    assert sorted(report.notices) == [
        f"not kept: its access control list of {SHARD}",
        f"not kept: user.origin of {SHARD} and 1 other file",
    ]
    assert not compress_checkpoint(model / "vae", tmp_path / "c").notices


def run_as_another(*conversions: Callable[[], object]) -> None:
    def child() -> None:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        for conversion in conversions:
            conversion()

    assert exit_code(child) == 0


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that another user may write to."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as name:  # tmp_path is its owner's alone
        Path(name).chmod(0o777)
        yield Path(name)


def test_another_group_gets_what_everybody_gets(shared: Path) -> None:
    """The group of the source cannot be kept, and nobody knows who is in the other one."""
    source = shared / "a.safetensors"
    source.write_bytes(container(layer(0, 1)))
    source.chmod(0o664)
    run_as_another(lambda: compress_checkpoint(source, shared / "b"))
    status = (shared / "b").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o644, OTHER_USER, OTHER_USER)


def test_root_keeps_the_owner(shared: Path) -> None:
    source = shared / "a.safetensors"
    source.write_bytes(container(layer(0, 1)))
    os.chown(source, OTHER_USER, OTHER_USER)
    source.chmod(0o600)
    compress_checkpoint(source, shared / "b")
    status = (shared / "b").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o600, OTHER_USER, OTHER_USER)


def test_read_only_directories_of_another_user(shared: Path) -> None:
    """They travel, are replaced, and a run that failed at the end goes on with them."""
    source = shared / "model"
    write_model(source, num_shards=1)
    paths = [source, *source.rglob("*")]
    for path in paths:
        os.chown(path, OTHER_USER, OTHER_USER)
        path.chmod(0o555 if path.is_dir() else 0o444)
    run_as_another(
        lambda: compress_checkpoint(source, shared / "b"), lambda: decompress_checkpoint(shared / "b", shared / "c")
    )
    assert modes(shared / "c") == modes(source)
    (shared / "b").chmod(0o755)  # a directory that changes its place is written to, says the system
    run_as_another(lambda: compress_checkpoint(source, shared / "b", force=True))
    assert sorted(path.name for path in shared.iterdir()) == ["b", "c", "model"]
