"""What a delta makes of the files of its base is decided without a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorwire.checkpoint.directory.manifest import COPIED, REPLACED, SAFETENSORS, ManifestFile
from tensorwire.checkpoint.directory.paths import FoundFile, Listing
from tensorwire.checkpoint.directory.sources import SourceFile, Sources
from tensorwire.checkpoint.operations.steps import has_content, is_whole_new, listed, tensors_first, unlisted

NOWHERE = Path("nowhere")


def source(path: str, kind: str = COPIED, base_sha256: str | None = None) -> SourceFile:
    known = ManifestFile(path, kind, 1, "new", base_sha256=base_sha256)
    return SourceFile(path, NOWHERE / path, kind, 1, known)


def test_files_of_tensors_come_first() -> None:
    files = [source("a.txt"), source("z", SAFETENSORS), source("config.json", REPLACED), source("b", SAFETENSORS)]
    assert [file.path for file in tensors_first(files)] == ["b", "z", "a.txt", "config.json"]


def test_a_history_is_never_listed() -> None:
    assert listed(Sources((source("a"),), ("empty/",))) == ["a", "empty/"]
    for sources in (Sources((source("x/.git/hooks/post-merge"),)), Sources((), (".git/",))):
        with pytest.raises(ValueError, match="history of a clone"):
            listed(sources)


def test_what_a_delta_does_not_list() -> None:
    files = [FoundFile(path, NOWHERE / path, 1) for path in ("deep/a", "mine.txt")]
    found = Listing(files, ["deep/", "own/"], [".git/", "deep/a.partial/", "other.partial/"])
    assert unlisted(["deep/a"], found) == ["mine.txt", "own/", "other.partial/"]


@pytest.mark.parametrize(
    ("found", "force", "is_new"), [("new", False, True), ("old", False, False), ("x", True, False)]
)
def test_a_file_that_is_replaced_as_a_whole(found: str, force: bool, is_new: bool) -> None:
    assert is_whole_new(source("a", base_sha256="old"), NOWHERE / "a", found, "new", force=force) is is_new


@pytest.mark.parametrize("base_sha256", ["old", None])
def test_an_edited_file_is_not_replaced(base_sha256: str | None) -> None:
    with pytest.raises(FileExistsError, match=r"was edited; pass force=True.*nowhere/a"):
        is_whole_new(source("a", base_sha256=base_sha256), NOWHERE / "a", "x", "new", force=False)


def test_no_tensor_is_hashed_behind_one_that_differs() -> None:
    hashed = []

    def hash_of(name: str) -> str:
        hashed.append(name)
        return f"hash of {name}"

    assert has_content({"a": "hash of a", "b": "hash of b"}, hash_of)
    assert not has_content({"a": "hash of a", "unknown": None, "b": "hash of b"}, hash_of)
    assert not has_content({"c": "another", "d": "hash of d"}, hash_of)
    assert hashed == ["a", "b", "a", "c"]
