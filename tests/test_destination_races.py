"""What comes to a destination while a result is made, stays; and where several results go."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tensorwire._ground import destination, filesystem
from tensorwire._ground.new_file import NewFile
from tensorwire.checkpoint import compress_checkpoint, inspect, load_file, save_file
from tensorwire.cli.targets import targets
from tensorwire.storage import staging
from tests.support.acting import acting, raising
from tests.support.checkpoint_models import tree_hashes
from tests.support.destination_cells import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TENSORS = {"w": np.arange(100.0)}


@pytest.fixture
def old(model: Path, tmp_path: Path) -> Path:
    """A compressed directory that may be replaced."""
    compress_checkpoint(model, tmp_path / "old", profile="compact")
    return tmp_path / "old"


def once(action: Callable[[], object]) -> Callable[[int, int, str], None]:
    """A progress callback that does something the first time."""
    done = []

    def progress(*_: object) -> None:
        if not done:
            done.append(action())

    return progress


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_comes_to_a_free_place_stays(model: Path, tmp_path: Path, kind: str) -> None:
    dst = tmp_path / "x"
    put = {
        "file": lambda: dst.write_text("mine"),
        "directory": dst.mkdir,
        "link": lambda: dst.symlink_to("nowhere"),
    }[kind]
    with pytest.raises(FileExistsError):
        compress_checkpoint(model, dst, progress=once(put))
    assert (dst.is_file(), dst.is_dir(), dst.is_symlink()) == (kind == "file", kind == "directory", kind == "link")
    dst.rmdir() if kind == "directory" else dst.unlink()
    report = compress_checkpoint(model, dst)
    assert all(file.resumed for file in report.files if file.kind == "safetensors"), "the work is not lost"


@pytest.mark.parametrize("change", ["added", "edited", "replaced"])
def test_what_comes_to_a_place_that_is_replaced_stays(model: Path, old: Path, tmp_path: Path, change: str) -> None:
    def add() -> None:
        (old / "vae" / "notes.txt").write_text("mine")

    def edit() -> None:
        (old / "tokenizer.json").write_text("mine")

    def replace() -> None:
        old.rename(tmp_path / "away")
        compress_checkpoint(model, tmp_path / "new", profile="enec")
        (tmp_path / "new").rename(old)

    action = {"added": add, "edited": edit, "replaced": replace}[change]
    taken: list[object] = []
    with pytest.raises(FileExistsError) as caught:
        compress_checkpoint(model, old, force=True, progress=once(lambda: (action(), taken.append(snapshot(old)))))
    assert snapshot(old) == taken[0]
    assert {"added": "notes.txt", "edited": "tokenizer.json", "replaced": "it came here"}[change] in str(caught.value)
    assert (tmp_path / "old.partial").is_dir(), "the next run goes on with it"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_what_comes_at_the_last_moment_stays(
    model: Path, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    """After the last check and before the exchange."""
    taken: list[object] = []

    def add(*_: object) -> None:
        (old / "vae" / "notes.txt").write_text("mine")
        taken.append(snapshot(old))

    acting(monkeypatch, destination.Destination, "confirm", add, after=True)
    if not can_exchange:
        monkeypatch.setattr(filesystem, "renameat2", lambda a, b, flags: False)
    with pytest.raises(FileExistsError, match=r"notes\.txt' came here"):
        compress_checkpoint(model, old, force=True)
    assert snapshot(old) == taken[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "old"]


def test_what_comes_while_the_old_one_is_removed_is_kept_and_named(
    model: Path, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(directory: Path) -> None:
        if directory.name == "vae":
            (directory / "notes.txt").write_text("mine")

    acting(monkeypatch, destination, "open_up", add)
    (tmp_path / "old.kept").mkdir()
    report = compress_checkpoint(model, old, force=True)
    assert tree_hashes(tmp_path / "old.kept-2").keys() == {"vae/notes.txt"}
    assert [notice for notice in report.notices if str(tmp_path / "old.kept-2") in notice]
    assert report.profile == inspect(old).tensors[0].profile == "fast", "the new one stands"


def test_a_file_that_comes_while_one_is_saved_or_at_the_last_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"

    def put(*_: object) -> None:
        (tmp_path / "theirs").write_text("theirs")
        (tmp_path / "theirs").rename(path)

    def refused() -> None:
        with pytest.raises(FileExistsError, match="came here while"):
            save_file(TENSORS, path)
        assert path.read_text() == "theirs"
        assert [entry.name for entry in tmp_path.iterdir()] == ["x.safetensors"]

    with monkeypatch.context() as patch:
        acting(patch, destination.Destination, "confirm", put, after=True)
        for _ in range(2):  # where nothing stood, and where something did
            refused()
        with pytest.raises(FileExistsError, match="came here while"):
            NewFile(path, force=True, example="x").write(b"page")
        assert path.read_text() == "theirs"
    save_file(TENSORS, path)
    acting(monkeypatch, staging.Staging, "commit", put)
    refused()


class Killed(BaseException):
    pass


@pytest.fixture
def killed_after_exchange(model: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A partial directory in which the old checkpoint lies, whose place the new one has taken."""

    with monkeypatch.context() as patch:
        patch.setattr(destination.Destination, "discard", raising(Killed))
        patch.setattr(staging.Staging, "__exit__", lambda self, *error: os.close(self._lock))
        with pytest.raises(Killed):
            compress_checkpoint(model, old, force=True)
    return old.with_name("old.partial")


def test_what_was_put_into_an_old_one_after_a_kill_is_kept(
    model: Path, old: Path, killed_after_exchange: Path, tmp_path: Path
) -> None:
    (killed_after_exchange / "result" / "notes.txt").write_text("mine")
    compress_checkpoint(model, old, force=True)
    assert tree_hashes(tmp_path / "old.kept").keys() == {"notes.txt"}
    assert not killed_after_exchange.exists()


def test_an_old_one_comes_back_if_the_new_one_is_gone_after_a_kill(
    model: Path, old: Path, killed_after_exchange: Path, tmp_path: Path
) -> None:
    before = tree_hashes(killed_after_exchange / "result")
    old.rename(tmp_path / "new")
    with pytest.raises(FileExistsError):
        compress_checkpoint(model, old)
    assert tree_hashes(old) == before


def test_an_old_one_is_kept_if_another_stands_there_after_a_kill(
    model: Path, old: Path, killed_after_exchange: Path, tmp_path: Path
) -> None:
    before = tree_hashes(killed_after_exchange / "result")
    old.rename(tmp_path / "new")
    compress_checkpoint(model, tmp_path / "more")
    (tmp_path / "more").rename(old)
    compress_checkpoint(model, old, force=True)
    assert tree_hashes(tmp_path / "old.kept") == before


def test_links_from_a_source_into_the_destination_are_seen(model: Path, old: Path, tmp_path: Path) -> None:
    """A cache of links whose files would be removed with the directory that is replaced."""
    name = "diffusion_pytorch_model.safetensors"
    source = tmp_path / "source"
    source.mkdir()
    (source / name).symlink_to(old / "vae" / name)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="under another name"):
        destination.Destination(
            old,
            force=True,
            is_directory=True,
            source=source,
            source_files=[source / name],
            owned=lambda path: tree_hashes(path).keys(),
        ).check()
    assert snapshot(tmp_path) == before


# Where several results go.


def beside(source: Path) -> Path:
    return source.with_name(source.stem + ".tensorwire.safetensors")


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a" / "x.safetensors", tmp_path / "b" / "y.safetensors", tmp_path / "b" / "x.safetensors"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        save_file(TENSORS, path)
    return paths


def test_several_results_go_into_a_directory(sources: list[Path], tmp_path: Path) -> None:
    expected = [tmp_path / "out" / "x.safetensors", tmp_path / "out" / "y.safetensors"]
    assert targets(sources[:2], tmp_path / "out", beside) == expected, "one that is to be made"
    (tmp_path / "out").mkdir()
    assert targets(sources[:2], f"{tmp_path}/out/", beside) == expected
    assert targets(sources, None, beside) == [beside(source) for source in sources]
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("dst", ["file", "link", "no/such"])
def test_several_results_need_a_directory(sources: list[Path], tmp_path: Path, dst: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(NotADirectoryError, match="expected a directory for the results of 2 sources"):
        targets(sources[:2], tmp_path / dst, beside)


def test_two_results_of_one_name_are_refused(sources: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would both become"):
        targets(sources, tmp_path, beside)
    with pytest.raises(ValueError, match="would both become"):
        targets([sources[0], tmp_path / "b" / ".." / "a" / "x.safetensors"], None, beside)
    # They are one file where case does not count, and no call tells where that is.
    other = tmp_path / "b" / "X.SafeTensors"
    save_file(TENSORS, other)
    with pytest.raises(ValueError, match="would both become"):
        targets([sources[0], other], tmp_path, beside)


def test_no_result_replaces_a_source_or_lies_in_one(sources: list[Path], model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would replace"):
        targets(sources[:2], tmp_path / "a", beside)
    with pytest.raises(ValueError, match="would lie in"):
        targets([model, sources[0]], model / "out", beside)
    # As on a file system where case does not count: a fake, since here another name needs another link.
    (tmp_path / "A").mkdir()
    os.link(sources[0], tmp_path / "A" / "x.safetensors")
    with pytest.raises(ValueError, match="would replace"):
        targets(sources[:2], tmp_path / "A", beside)


def test_a_slash_says_directory(sources: list[Path], model: Path, tmp_path: Path) -> None:
    advice = re.escape(f"name the file: {str(tmp_path / 'new' / 'x.safetensors')!r}")
    with pytest.raises(FileExistsError, match=advice):
        targets(sources[:1], f"{tmp_path}/new/", beside)
    assert targets([model], f"{tmp_path}/new/", beside) == [tmp_path / "new"]


# Files that are written at once.


def test_a_page_takes_no_other_name(tmp_path: Path) -> None:
    """Neither the file FILE.partial that is somebody's, nor what a link of that name leads to."""
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "x.html.partial").symlink_to("theirs")
    before = snapshot(tmp_path)
    NewFile(tmp_path / "x.html", force=False, example="x.html").write(b"page")
    after = snapshot(tmp_path)
    assert after.pop("x.html")[3] == b"page".hex()
    assert after == before


def test_a_page_keeps_the_permissions_of_the_one_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    old = os.umask(0o027)
    try:
        NewFile(path, force=False, example="x.html").write(b"page")
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o602)
        NewFile(path, force=True, example="x.html").write(b"page 2")
        assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o602, b"page 2")
        save_file(TENSORS, path)
        assert path.stat().st_mode & 0o777 == 0o602
        save_file(TENSORS, tmp_path / "new")
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)
    assert load_file(path).keys() == {"w"}
