"""Files that somebody cuts, lengthens, removes, replaces or writes to at each moment at which they are read.

Nothing is half-made then: either there is an error, which names the file, or the result is that of the file as it was
when it was opened. One that is removed or replaced stays whole for all who have it open. What is compressed of one that
is written to can be read.
"""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire import TensorwireError
from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    load_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.storage.local import InputFile
from tests.support.checkpoint_models import SHARD, container, layer, tree_hashes, write_model
from tests.support.deltas import write_next

if TYPE_CHECKING:
    from collections.abc import Callable


def write(path: Path) -> None:
    """Change a bit of the data, through a map."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[len(memory) * 3 // 4] ^= 1


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 4096),
    "removed": Path.unlink,
    "replaced": lambda path: shutil.copy(path, path.with_name("new")).replace(path),
    "written": write,
}
# Whose file changes, what else is needed, and what is done with them.
WORKS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "compress": ("model", "", lambda root: compress_checkpoint(root / "model", root / "x")),
    "compress with a base": (
        "new",
        "model",
        lambda root: compress_checkpoint(root / "new", root / "x", base=root / "model"),
    ),
    "decompress": ("packed", "", lambda root: decompress_checkpoint(root / "packed", root / "x")),
    "transcode": ("packed", "", lambda root: transcode_checkpoint(root / "packed", root / "x", profile="enec")),
    "in place": ("delta", "base", lambda root: apply_checkpoint(root / "delta", root / "base")),
    "base in place": ("base", "delta", lambda root: apply_checkpoint(root / "delta", root / "base")),
}
READS: dict[str, Callable[[Path], object]] = {
    "verify": lambda root: verify(root / "packed").ok,
    "load": lambda root: {name: a.tobytes() for name, a in load_file(root / "packed" / SHARD).items()},
    "diff": lambda root: diff(root / "model", root / "packed").num_equal,
}


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two shards and one other file, and what is made of it: each run has a copy."""
    kit = tmp_path_factory.mktemp("kit")
    write_model(kit / "model")
    (kit / "model" / SHARD).write_bytes(container(layer(0, 0), {"format": "pt"}))
    write_next(kit / "model", kit / "new")
    for root in (kit / "model", kit / "new"):
        for path in root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith(("model-", "config")):
                path.unlink()
    compress_checkpoint(kit / "model", kit / "packed")
    shutil.copytree(kit / "model", kit / "base")
    compress_checkpoint(kit / "new", kit / "delta", base=kit / "model")
    return kit


class Reads:
    """Counts the reads of a file and changes it at one of them."""

    def __init__(self, path: Path, number: int, change: Callable[[Path], object], patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = InputFile.read_into

        def read_into(file: InputFile, offset: int, out: memoryview) -> None:
            if file.path == path:
                self.count += 1
                if self.count == number:
                    change(path)
            real(file, offset, out)

        patch.setattr(InputFile, "read_into", read_into)


def outcome(work: Callable[[], object]) -> tuple[object, str | None]:
    """What comes of it, and what the error says; None if there is none."""
    try:
        return work(), None
    except (OSError, TensorwireError) as error:
        return None, str(error)


def result_of(root: Path) -> dict[str, str]:
    return tree_hashes(root / "x" if (root / "x").exists() else root / "base")


@pytest.mark.parametrize("moments", [3, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", WORKS)
def test_writers(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, change: str, moments: int
) -> None:
    """At each read in the slow test, at a few of them in the quick one."""
    place, needed, work = WORKS[what]
    root = tmp_path / "root"
    path = root / place / SHARD

    def build() -> None:
        shutil.rmtree(root, ignore_errors=True)
        for name in filter(None, (place, needed)):
            shutil.copytree(kit / name, root / name)

    build()
    with monkeypatch.context() as patch:
        reads = Reads(path, 0, CHANGES[change], patch)
        work(root)
    expected = result_of(root)
    for number in range(1, reads.count + 1, max(1, reads.count // moments)):
        build()
        with monkeypatch.context() as patch:
            Reads(path, number, CHANGES[change], patch)
            _, told = outcome(lambda: work(root))
        if told is None and change == "written" and "compress" in what.split():
            assert verify(root / "x", base=root / "model" if "base" in what else None).exact
            continue
        if told is None:
            assert result_of(root) == expected
            continue
        assert str(path) in told or "the base changed while it was read" in told
        assert not (root / "x").exists()
        assert not list(root.rglob("*.partial/result"))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", READS)
def test_readers(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, change: str) -> None:
    """What has been read whole may go: then the result is right."""
    root = tmp_path / "root"
    path = root / "packed" / SHARD
    for name in ("model", "packed"):
        shutil.copytree(kit / name, root / name)
    with monkeypatch.context() as patch:
        reads = Reads(path, 0, CHANGES[change], patch)
        expected = READS[what](root)
    for number in range(1, reads.count + 1, max(1, reads.count // 5)):
        path.unlink(missing_ok=True)
        shutil.copy(kit / "packed" / SHARD, path)
        with monkeypatch.context() as patch:
            Reads(path, number, CHANGES[change], patch)
            found, told = outcome(lambda: READS[what](root))
        if told is not None:
            assert str(path) in told
        else:
            assert found == expected or (what == "verify" and found is False)
