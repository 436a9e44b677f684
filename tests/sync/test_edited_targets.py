"""Targets that somebody edits, two followers of one, and a disk that is full: what comes out is a version."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire import load_file
from tensorwire._ground.folder import Folder
from tensorwire.errors import BaseMismatchError
from tensorwire.sync import Follower, Publisher, directories, frames
from tensorwire.sync.directories import making
from tests.support.acting import acting, raising
from tests.support.sync_runs import FIRST, FORMS, SECOND, catch_up, contents, follow, one_behind


@pytest.mark.parametrize("in_place", [False, True])
def test_a_bit_that_somebody_has_changed_in_an_array_is_found(in_place: bool, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, threads=1)
    arrays = {name: array.copy() for name, array in FIRST.items()}
    follower = Follower(tmp_path, arrays, in_place=in_place, threads=1)
    publisher.publish(FIRST)
    follow(follower)
    after = {**FIRST, "embed": FIRST["embed"].copy()}
    after["embed"][7, 7] += 1
    assert not publisher.publish(after).is_anchor
    arrays["embed"].view(np.uint32)[3, 3] ^= 1
    if in_place:
        assert follower.stage() is not None
        with pytest.raises(BaseMismatchError):
            follower.commit()
        assert follower.state == "empty"
    follow(follower)
    assert contents(arrays) == contents(after)


def _edit(path: Path) -> None:
    """A tensor that no step changes, and one that many do."""
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        file.write(b"edits")
        file.seek(-5, os.SEEK_END)
        file.write(b"edits")


def _note(path: Path) -> Path:
    """What a follower has written down of the files that serve."""
    own = path / ".tensorwire-sync"
    return own / "current" / "version.json" if (own / "current").exists() else own / "in_place.json"


@pytest.mark.parametrize(
    "edit",
    [
        _edit,
        lambda path: (path / "model.safetensors").unlink(),
        lambda path: (path / "model.safetensors").write_bytes(b"short"),
        lambda path: _note(path).write_bytes(b"{"),
        lambda path: _note(path).write_bytes(b"[" * 100_000),
        lambda path: _note(path).unlink(),
        lambda path: shutil.rmtree(path / ".tensorwire-sync"),
    ],
    ids=["bytes", "gone", "short", "note", "deep note", "no note", "folder"],
)
@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("in_place", [False, True], ids=["staged", "in place"])
def test_a_directory_that_somebody_edited_is_made_anew(
    in_place: bool, is_staged: bool, edit: Any, tmp_path: Path
) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher, follower = one_behind(store, served, in_place=in_place)
    if is_staged:
        assert follower.stage() is not None
        edit(served)
        with suppress(OSError):  # of a file that is to be replaced the content does not matter
            follower.commit()
    else:
        edit(served)
    again = Follower(store, served, in_place=in_place, threads=1)
    catch_up(again, 1)
    assert contents(load_file(served)) == contents(SECOND)
    for seed in range(2):  # which are written over what the edited files became
        publisher.publish({**SECOND, "norm": SECOND["norm"] + seed + 1})
        follow(again)
        assert contents(load_file(served)) == contents({**SECOND, "norm": SECOND["norm"] + seed + 1})


def test_nothing_is_written_for_a_tensor_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file cannot be read any more, though it looks as it did: all is made anew, and each tensor once."""
    store, served = tmp_path / "store", tmp_path / "served"
    _, follower = one_behind(store, served)
    file = (served / "model.safetensors").resolve()
    times = file.stat()
    with file.open("r+b") as opened:
        opened.write(bytes(8))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    positions: list[int] = []
    acting(monkeypatch, making, "reserve", lambda _, position, nbytes: positions.append(position) if nbytes else None)
    follow(follower, 1)
    assert contents(load_file(served)) == contents(SECOND)
    assert len(positions) == len(set(positions)) == sum(array.nbytes > 0 for array in SECOND.values())


@pytest.mark.parametrize("is_read", [False, True])
def test_an_edit_while_a_version_is_staged_is_seen(
    is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    _, follower = one_behind(store, served)
    place, name = (frames.Frames, "fetch") if is_read else (directories.DirectoryTarget, "stage")
    acting(monkeypatch, place, name, lambda *_: (monkeypatch.undo(), _edit(served)))
    follow(follower)
    assert contents(load_file(served)) == contents(SECOND)


@pytest.mark.parametrize("commits", [True, False])
def test_two_followers_of_one_directory_do_not_mix(commits: bool, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST)
    one, other = (Follower(store, served, threads=1) for _ in range(2))
    assert one.stage() is not None
    publisher.publish(SECOND)
    assert other.stage() is not None
    if commits:
        other.commit()
    with pytest.raises(OSError, match="another follower has worked here since; stage again"):
        one.commit()
    other.commit()
    assert contents(load_file(served)) == contents(SECOND)
    assert one.stage() is None
    assert one.version == 1


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    _, follower = one_behind(store, served)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("tensorwire.sync.directories.making.write_at", raising(full))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        follower.stage()
    monkeypatch.undo()
    assert contents(load_file(served)) == contents(FIRST)
    assert len(list((served / ".tensorwire-sync").glob("v*"))) == 1
    follow(follower)
    assert contents(load_file(served)) == contents(SECOND)


@pytest.mark.parametrize("form", FORMS)
def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine forks its workers from another thread: they have all descriptors of that moment."""
    _, follower = one_behind(tmp_path / "store", tmp_path / "served", **FORMS[form])
    own, ours = os.pipe()
    children: list[int] = []

    def fork(*_: Any) -> None:
        child = os.fork()
        if child == 0:
            os.close(ours)
            os.read(own, 1)  # until this process closes its end
            os._exit(0)
        children.append(child)

    acting(monkeypatch, frames.Frames, "fetch", fork)
    try:
        follow(follower)
    finally:
        os.close(ours)
        os.close(own)
        for child in children:
            os.waitpid(child, 0)
    assert children
    assert contents(load_file(tmp_path / "served")) == contents(SECOND)


def test_a_directory_that_is_open_is_closed_with_the_last_reference(tmp_path: Path) -> None:
    """Ctrl-C may come between opening and the ``with`` statement."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        Folder(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_old_version_is_gone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that lists it by its path finds all files or nothing."""
    monkeypatch.setattr(making, "_FILE_NBYTES", 20_000)
    publisher, follower = one_behind(tmp_path / "store", tmp_path / "served")
    old = (tmp_path / "served" / ".tensorwire-sync" / "current").resolve()
    names = sorted(path.name for path in old.iterdir())
    follow(follower)
    seen: list[str] = []

    def look(folder: Folder, name: str) -> None:
        assert not old.exists() or sorted(path.name for path in old.iterdir()) == names
        seen.append(name)

    acting(monkeypatch, Folder, "remove", look, after=True)
    publisher.publish(FIRST)
    follow(follower)
    assert set(names) <= set(seen)
