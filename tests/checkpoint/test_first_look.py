"""Each file of a directory is opened once: what is read before the work serves the work."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import compress_checkpoint
from tensorwire.checkpoint.directory.manifest import COPIED
from tensorwire.checkpoint.directory.paths import scan
from tensorwire.checkpoint.directory.sources import originals
from tests.support.acting import raising
from tests.support.checkpoint_models import tree_hashes
from tests.support.processes import exit_code
from tests.support.stores import counted_store

if TYPE_CHECKING:
    from pathlib import Path


def test_each_file_is_opened_once(model: Path, tmp_path: Path) -> None:
    (model / "large.txt").write_bytes(b"x" * 100_000)

    def child() -> None:
        opened: Counter[str] = Counter()
        sys.addaudithook(lambda event, given: opened.update([str(given[0])] if event == "open" else []))
        compress_checkpoint(model, tmp_path / "packed")
        files = {str(path): 1 for path in model.rglob("*") if path.is_file()}
        assert {path: count for path, count in opened.items() if path.startswith(f"{model}{os.sep}")} == files

    assert exit_code(child) == 0


def test_files_for_which_there_is_no_room_are_opened_again(
    model: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_KEPT", "MAX_KEPT_NBYTES"):
        monkeypatch.setattr(f"tensorwire.checkpoint.directory.sources.{limit}", 2)
    compress_checkpoint(model, tmp_path / "again")
    assert tree_hashes(tmp_path / "again") == tree_hashes(packed)


def test_a_config_that_got_large_since_it_was_listed_is_not_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, *others = scan(model)
    listed = ([file._replace(nbytes=1) for file in found], *others)
    monkeypatch.setattr("tensorwire.checkpoint.directory.sources.scan", lambda *arguments: listed)
    monkeypatch.setattr("tensorwire.checkpoint.directory.sources.MAX_JSON_NBYTES", 1)
    read = raising(AssertionError("it is read"))
    monkeypatch.setattr("tensorwire.checkpoint.directory.sources.is_compressed_config", read)
    assert {file.path: file.kind for file in originals(model, ()).files}["config.json"] == COPIED


@pytest.mark.parametrize("how", ["replaced", "appended to"])
def test_a_file_that_changes_after_the_first_look_is_read_as_it_is_then(model: Path, tmp_path: Path, how: str) -> None:
    """With its own permissions: what was secret is not copied to where the new file may be read."""
    path = model / "train.log"
    path.write_text("secret")
    path.chmod(0o600)

    def change(done: int, total: int, name: str) -> None:
        if how == "appended to":
            path.write_text("secret, and more")
        elif path.stat().st_mode & 0o777 == 0o600:
            (tmp_path / "new").write_text("another text")
            (tmp_path / "new").chmod(0o644)
            (tmp_path / "new").replace(path)

    compress_checkpoint(model, tmp_path / "again", progress=change)
    copy = tmp_path / "again" / "train.log"
    assert (copy.read_text(), copy.stat().st_mode & 0o777) == (
        ("another text", 0o644) if how == "replaced" else ("secret, and more", 0o600)
    )


def test_what_a_store_is_asked_for(model: Path, tmp_path: Path) -> None:
    """The first look takes the first 7 KiB. A larger object takes what is left, and each one a last look whether it is
    the same; but for those that were read whole at once for what stands in them."""
    (model / "large.txt").write_bytes(b"x" * 100_000)
    with counted_store() as store:
        store.objects.update({
            f"/m/{path.relative_to(model).as_posix()}": path.read_bytes()
            for path in model.rglob("*") if path.is_file()
        })  # fmt: skip
        compress_checkpoint("counted://m", tmp_path / "again")
        asked = {key: Counter(name for name, each in store.asked if each == key) for key in store.objects}
    for key, requests in asked.items():
        assert requests["info"] == (0 if key.endswith(("config.json", "index.json")) else 1), key
        expected = 2 if key.endswith((".safetensors", "large.txt")) else 0 if key.endswith("empty.txt") else 1
        assert requests["cat_file"] == expected, key
