"""Followed directories: what stands in them stays, what was there before is taken or refused, no note is believed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensorwire import load_file
from tensorwire._ground.folder import Folder
from tensorwire.errors import TruncatedDataError
from tensorwire.sync import Follower, Publisher
from tensorwire.sync.directories import making
from tests.support.acting import acting, raising
from tests.support.checkpoint_models import tree_hashes
from tests.support.processes import killing
from tests.support.sync_runs import (
    FIRST,
    FOLLOWER,
    FORMS,
    OWN,
    SECOND,
    STRIDES,
    THIRD,
    catch_up,
    contents,
    follow,
    follow_anew,
    one_behind,
    stepped,
    write_plain,
)

INDEX = "model.safetensors.index.json"


def versions_in(served: Path) -> list[str]:
    return sorted(path.name for path in (served / OWN).iterdir() if path.is_dir() and not path.is_symlink())


def test_files_are_links_to_the_version_that_serves(tmp_path: Path) -> None:
    _, follower = one_behind(tmp_path / "store", tmp_path / "served")
    served = tmp_path / "served"
    file = served / "model.safetensors"
    assert str(file.readlink()) == f"{OWN}/current/model.safetensors"
    before = file.resolve()
    content = before.read_bytes()
    inode = file.lstat().st_ino
    follow(follower)
    assert file.lstat().st_ino == inode  # the commit has changed what `current` leads to, and nothing else
    assert before.read_bytes() == content  # kept for those that have it open or mapped, until the next version
    assert versions_in(served) == sorted([before.parent.name, file.resolve().parent.name])
    assert follower.stage() is None
    assert before.exists()


def test_all_files_change_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_FILE_NBYTES", 20_000)
    _, follower = one_behind(tmp_path / "store", tmp_path / "served")
    served = tmp_path / "served"
    assert len(list(served.glob("*.safetensors"))) > 2
    assert follower.stage() is not None
    seen: list[bool] = []
    for name in ("move", "make_link", "remove", "exchange"):
        call = getattr(Folder, name)

        def watched(*given: Any, call: Callable[..., Any] = call) -> Any:
            for before in (True, False):
                result = None if before else call(*given)
                found = contents(load_file(served))
                assert found in (contents(FIRST), contents(SECOND))
                seen.append(found == contents(SECOND))
            return result

        monkeypatch.setattr(Folder, name, watched)
    follower.commit()
    assert seen == sorted(seen)
    assert False in seen
    assert contents(load_file(served)) == contents(SECOND)


def test_files_that_do_not_change_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_FILE_NBYTES", 1)  # a file a tensor
    publisher, follower = one_behind(tmp_path / "store", tmp_path / "served")
    follow(follower)
    files = list((tmp_path / "served").glob("*.safetensors"))
    before = {path.name: path.stat().st_ino for path in files}
    publisher.publish({**SECOND, "norm": SECOND["norm"] + 1})
    follow(follower)
    changed = [path.name for path in files if path.stat().st_ino != before[path.name]]
    assert len(changed) == 1
    assert contents(load_file(tmp_path / "served")) == contents({**SECOND, "norm": SECOND["norm"] + 1})


@pytest.mark.parametrize("form", ["links", "copies", "in place"])
def test_what_else_stands_there_stays(form: str, tmp_path: Path) -> None:
    publisher, follower = one_behind(
        tmp_path / "store", tmp_path / "served", in_place=form == "in place", copies=form == "copies"
    )
    served = tmp_path / "served"
    (served / "vae").mkdir()
    for name in ("adapter_model.safetensors", "consolidated.safetensors", "vae/x.safetensors"):
        write_plain(served / name, {"lora.A": FIRST["norm"]})
    (served / "vae.safetensors.index.json").write_text('{"weight_map": {"lora.A": "vae/x.safetensors"}}')
    (served / "config.json").write_text("{}")
    (served / "alias.safetensors").symlink_to("model.safetensors")
    for number, target in enumerate(("gone", "nowhere-1.safetensors", "config.json/x", "x" * 300)):
        (served / f"nowhere-{number}.safetensors").symlink_to(target)
    mine = {path.name: path.lstat().st_ino for path in served.iterdir() if path.name not in ("model.safetensors", OWN)}
    follow(follower)
    for tensors in (THIRD, {"other": FIRST["embed"]}, FIRST):
        publisher.publish(tensors)
        follow(follower)
        assert contents(safetensors_of(served)) == contents(tensors)
    assert {path.name: path.lstat().st_ino for path in served.iterdir() if path.name in mine} == mine
    assert contents(load_file(served / "vae" / "x.safetensors")) == contents({"lora.A": FIRST["norm"]})


def test_the_whole_model_serves_where_an_index_names_others(tmp_path: Path) -> None:
    """As Transformers loads it."""
    publisher, served = Publisher(tmp_path / "store", threads=1), tmp_path / "served"
    publisher.publish(FIRST)
    served.mkdir()
    write_plain(served / "model.safetensors", FIRST)
    write_plain(served / "old.safetensors", {"old": FIRST["norm"]})
    (served / INDEX).write_text('{"weight_map": {"old": "old.safetensors"}}')
    follower = Follower(tmp_path / "store", served, threads=1)
    publisher.publish(SECOND)
    follow(follower)
    assert contents(safetensors_of(served)) == contents(SECOND)
    assert (served / "old.safetensors").exists()


def safetensors_of(served: Path) -> dict[str, Any]:
    """The model alone, whatever stands beside it."""
    return load_file(served / "model.safetensors")


@pytest.mark.parametrize("form", ["links", "copies"])
def test_a_copy_by_hard_links_keeps_its_content(form: str, tmp_path: Path) -> None:
    publisher, follower = one_behind(tmp_path / "store", tmp_path / "served", copies=form == "copies")
    shutil.copytree(tmp_path / "served", tmp_path / "backup", symlinks=True, copy_function=os.link)
    before = tree_hashes(tmp_path / "backup")
    follow(follower)
    for seed in range(3):
        publisher.publish(stepped(SECOND, seed))
        follow(follower)
    assert tree_hashes(tmp_path / "backup") == before
    assert contents(load_file(tmp_path / "backup")) == contents(FIRST)


def test_in_place_refuses_a_file_with_a_second_name(tmp_path: Path) -> None:
    _, follower = one_behind(tmp_path / "store", tmp_path / "served", in_place=True)
    file, backup = tmp_path / "served" / "model.safetensors", tmp_path / "backup"
    backup.hardlink_to(file)
    with pytest.raises(OSError, match="second name") as caught:
        follower.stage()
    assert caught.value.errno == errno.EMLINK
    backup.unlink()
    assert follower.stage() is not None
    backup.hardlink_to(file)  # after the look of `stage`
    with pytest.raises(OSError, match="second name"):
        follower.commit()
    assert contents(load_file(file)) == contents(FIRST)
    backup.unlink()
    follow(follower)
    assert contents(load_file(file)) == contents(SECOND)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_directory_with_any_version_of_the_store_is_taken(number: int, in_place: bool, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, anchor_every=2, threads=1)
    for tensors in (FIRST, SECOND, THIRD):
        publisher.publish(tensors)
    served.mkdir()
    write_plain(served / "model.safetensors", (FIRST, SECOND, THIRD)[number])
    write_plain(served / "adapter_model.safetensors", {"lora.A": FIRST["norm"]})
    follower = Follower(store, served, in_place=in_place, threads=1)
    follow(follower, 2)
    assert contents(safetensors_of(served)) == contents(THIRD)


@pytest.mark.parametrize("form", ["links", "copies", "in place"])
def test_a_copy_that_followed_links_is_taken(form: str, tmp_path: Path) -> None:
    """As of `rsync -aL`: plain files stand where links stood, and a folder where `current` stood."""
    _, follower = one_behind(tmp_path / "store", tmp_path / "served")
    follow(follower)
    shutil.copytree(tmp_path / "served", tmp_path / "copy")
    shutil.rmtree(tmp_path / "store")  # that version is in no store now
    publisher = Publisher(tmp_path / "store", threads=1)
    for tensors in (THIRD, FIRST):
        publisher.publish(tensors)
        follow_anew(tmp_path / "store", tmp_path / "copy", **FORMS[form])
        assert contents(load_file(tmp_path / "copy")) == contents(tensors)
    assert contents(load_file(tmp_path / "served")) == contents(SECOND)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_directory_that_is_refused_stays_as_it_is(in_place: bool, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    Publisher(store, threads=1).publish(FIRST)
    for name, tensors in (("model.safetensors", SECOND), ("any.safetensors", {"x": FIRST["norm"]})):
        served.mkdir()
        write_plain(served / name, tensors)
        before = tree_hashes(served)
        with pytest.raises(FileExistsError, match="that the store does not have"):
            Follower(store, served, in_place=in_place, threads=1).stage()
        assert tree_hashes(served) == before
        assert [path.name for path in served.iterdir()] == [name]
        shutil.rmtree(served)


@pytest.mark.parametrize(
    ("stride", "is_link", "shares"),
    [
        pytest.param(4, False, False, id="4-files-no hard links"),
        pytest.param(4, True, True, id="4-links-hard links"),
        pytest.param(1, False, False, id="1-files-no hard links", marks=pytest.mark.slow),
        pytest.param(1, False, True, id="1-files-hard links", marks=pytest.mark.slow),
        pytest.param(1, True, False, id="1-links-no hard links", marks=pytest.mark.slow),
        pytest.param(1, True, True, id="1-links-hard links", marks=pytest.mark.slow),
    ],
)
def test_a_follower_killed_while_it_takes_a_checkpoint_goes_on(
    stride: int, is_link: bool, shares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each exchange has the same content on both sides, so that the directory never holds a mixture."""
    store, seed = tmp_path / "store", tmp_path / "seed"
    if not shares:
        monkeypatch.setattr(Folder, "share", lambda *given: False)
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST)
    seed.mkdir()
    names = list(FIRST)
    for number, some in enumerate((names[:3], names[3:]), 1):
        write_plain(seed / f"model-{number:05d}-of-00002.safetensors", {name: FIRST[name] for name in some})
    homes = {name: f"model-{1 + (name in names[3:]):05d}-of-00002.safetensors" for name in names}
    (seed / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    before = tree_hashes(seed)
    publisher.publish(SECOND)
    for step, kill in enumerate(killing(FOLLOWER, stride)):
        served = tmp_path / f"served-{step}"
        if is_link:
            served.mkdir()
            for path in seed.iterdir():
                (served / path.name).symlink_to(path)
        else:
            shutil.copytree(seed, served)
        kill(partial(follow_anew, store, served))
        assert contents(load_file(served)) in (contents(FIRST), contents(SECOND))
        catch_up(Follower(store, served, threads=1), 1)
        assert contents(load_file(served)) == contents(SECOND)
        assert sorted(path.name for path in served.iterdir()) == [OWN, *sorted(before)]
        assert (served / INDEX).stat().st_size == (seed / INDEX).stat().st_size
    assert tree_hashes(seed) == before
    assert stride * step >= 10


@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("first", FORMS)
def test_a_directory_may_change_its_form(first: str, second: str, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    tensors = FIRST
    for seed, form in enumerate((first, second, first, second)):
        tensors = stepped(tensors, seed)
        publisher.publish(tensors)
        follow_anew(store, served, **FORMS[form])
        assert contents(load_file(served)) == contents(tensors)
        assert (served / "model.safetensors").is_symlink() is (form == "links")
        assert sorted(path.name for path in served.iterdir()) == [OWN, "model.safetensors"]
        assert (len(versions_in(served)) == 0) is (form == "in place")


@pytest.mark.parametrize("stride", STRIDES)
def test_a_follower_in_place_killed_while_it_takes_links_goes_on(stride: int, tmp_path: Path) -> None:
    """It makes files of its own in the place of the links, perhaps with the same names."""
    store, seed = tmp_path / "store", tmp_path / "seed"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST)
    seed.mkdir()
    write_plain(seed / "blob", FIRST)
    before = tree_hashes(seed)
    publisher.publish(SECOND)
    for step, kill in enumerate(killing(FOLLOWER, stride)):
        served = tmp_path / f"served-{step}"
        served.mkdir()
        (served / "model.safetensors").symlink_to(seed / "blob")
        kill(partial(follow_anew, store, served, in_place=True))
        catch_up(Follower(store, served, in_place=True, threads=1), 1)
        assert contents(load_file(served)) == contents(SECOND)
        assert sorted(path.name for path in served.iterdir()) == [OWN, "model.safetensors"]
        assert tree_hashes(seed) == before
    assert stride * step >= 10


@pytest.mark.parametrize(
    "forms",
    [
        ("links", "copies", "in place"), ("links", "in place", "links"),
        ("in place", "links", "copies"), ("in place", "in place", "links"),
        pytest.param(("links", "links", "in place"), marks=pytest.mark.slow),
        pytest.param(("copies", "in place", "in place"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)  # fmt: skip
@pytest.mark.parametrize(
    ("layout", "stride"),
    [("same", 4), pytest.param("same", 1, marks=pytest.mark.slow), pytest.param("new", 1, marks=pytest.mark.slow)],
)
def test_a_follower_killed_while_a_directory_changes_its_form_goes_on(
    stride: int, layout: str, forms: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower of any form goes on, and leaves no file of the version before."""
    first, second, third = (FORMS[form] for form in forms)
    store = tmp_path / "store"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST)
    with monkeypatch.context() as patched:
        patched.setattr(making, "_FILE_NBYTES", 20_000)  # several files
        follow_anew(store, tmp_path / "before", **first)
    after = SECOND if layout == "same" else {**SECOND, "added": FIRST["norm"]}
    publisher.publish(after)
    for step, kill in enumerate(killing(FOLLOWER, stride)):
        served = tmp_path / f"served-{step}"
        shutil.copytree(tmp_path / "before", served, symlinks=True)
        kill(partial(follow_anew, store, served, **second))
        catch_up(Follower(store, served, threads=1, **third), 1)
        assert contents(load_file(served)) == contents(after)
        assert (served / INDEX).exists() is (layout == "same")
        assert len(list(served.glob("*.safetensors"))) == (4 if layout == "same" else 1)
    assert stride * step > 5


def test_copies_where_no_hard_links_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_FILE_NBYTES", 20_000)
    monkeypatch.setattr(Folder, "share", lambda *given: False)
    monkeypatch.setattr(Folder, "exchange", lambda *given: False)
    publisher, follower = one_behind(tmp_path / "store", tmp_path / "served", copies=True)
    follow(follower)
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "served").glob("*.safetensors")}
    assert follower.stage() is None
    assert {path.name: path.stat().st_ino for path in (tmp_path / "served").glob("*.safetensors")} == inodes
    publisher.publish({"other": FIRST["embed"]})
    follow(follower)
    assert contents(load_file(tmp_path / "served")) == contents({"other": FIRST["embed"]})
    assert not any(path.is_symlink() for path in (tmp_path / "served").iterdir())


def test_a_file_system_without_links_wants_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST)

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "make_link", raising(OSError(errno.EPERM, os.strerror(errno.EPERM))))
        with pytest.raises(OSError, match="--copy"):
            Follower(store, served, threads=1).stage()
        follower = Follower(store, served, copies=True, threads=1)
        for tensors in (FIRST, SECOND):
            publisher.publish(tensors)
            follow(follower)
            assert contents(load_file(served)) == contents(tensors)
        assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    again = Follower(store, served, threads=1)  # the directory was moved to a file system with links
    assert (served / "model.safetensors").is_symlink()
    assert contents(load_file(served)) == contents(SECOND)
    assert again.stage() is None


def test_an_old_version_that_cannot_be_removed_is_in_no_ones_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, follower = one_behind(tmp_path / "store", tmp_path / "served")
    old = tmp_path / "served" / OWN / "v000000-0123456789abcdef"
    old.mkdir()
    inode = old.stat().st_ino

    def busy(folder: Folder, name: str) -> None:
        if (folder.path / name).stat().st_ino == inode:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    acting(monkeypatch, Folder, "remove_folder", busy)
    with pytest.warns(RuntimeWarning, match="cannot be removed"):
        follow(follower)
    assert contents(load_file(tmp_path / "served")) == contents(SECOND)


@pytest.mark.parametrize("form", FORMS)
def test_a_bit_that_changed_without_a_trace_is_not_handed_on(form: str, tmp_path: Path) -> None:
    """The disk may do that, or a program that sets times back."""
    publisher, follower = one_behind(tmp_path / "store", tmp_path / "served", **FORMS[form])
    follow(follower)
    place = (tmp_path / "served" / "model.safetensors").resolve()
    status, content = place.stat(), bytearray(place.read_bytes())
    place_of_bit = content.index(SECOND["layer.0.weight"].tobytes())
    content[place_of_bit] ^= 1
    with place.open("r+b") as file:
        file.write(content)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = {**SECOND, "norm": SECOND["norm"] + 1}
    publisher.publish(after)
    follow(follower)
    found = contents(load_file(tmp_path / "served"))
    if form != "in place":  # which does not read what no version changes
        assert found == contents(after)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verify", [False, True])
def test_a_file_that_no_version_changes_is_hashed_if_asked(
    verify: bool, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_FILE_NBYTES", 1)
    publisher, follower = one_behind(tmp_path / "store", tmp_path / "served", verify=verify, **FORMS[form])
    follow(follower)
    after = {**SECOND, "norm": SECOND["norm"] + 1}
    publisher.publish(after)
    (place,) = [
        path.resolve() for path in (tmp_path / "served").glob("*.safetensors") if "layer.0.weight" in load_file(path)
    ]
    status, content = place.stat(), bytearray(place.read_bytes())
    content[-1] ^= 1
    with place.open("r+b") as file:
        file.write(content)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    follow(follower)
    assert (contents(load_file(tmp_path / "served")) == contents(after)) is verify


@pytest.mark.parametrize("form", FORMS)
def test_a_name_of_a_version_that_is_taken_is_refused_before_anything_changes(form: str, tmp_path: Path) -> None:
    publisher, follower = one_behind(tmp_path / "store", tmp_path / "served", **FORMS[form])
    served = tmp_path / "served"
    follow(follower)
    write_plain(tmp_path / "mine", {"mine": FIRST["norm"]})
    (tmp_path / "mine").replace(served / "model.safetensors")
    publisher.publish(THIRD)
    for call in (follower.stage, lambda: Follower(tmp_path / "store", served, **FORMS[form]).stage()):
        with pytest.raises(FileExistsError, match=r"none of the follower's files|that the store does not have"):
            call()
    assert contents(load_file(served)) == contents({"mine": FIRST["norm"]})
    (served / "model.safetensors").unlink()
    follow(follower)
    assert contents(load_file(served)) == contents(THIRD)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_follower_that_fails_at_once_leaves_nothing(form: str, is_there: bool, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    Publisher(store, threads=1).publish(FIRST)
    next(store.glob("*/*.safetensors")).write_bytes(b"")
    if is_there:
        served.mkdir()
        (served / "config.json").write_text("{}")
    with pytest.raises(TruncatedDataError):
        Follower(store, served, threads=1, **FORMS[form]).stage()
    assert [path.name for path in served.iterdir()] == ["config.json"] if is_there else not served.exists()


def test_a_commit_that_is_disturbed_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a name and the exchange another program may put a file there."""
    store, served = tmp_path / "store", tmp_path / "served"
    Publisher(store, threads=1).publish(FIRST)
    follow_anew(store, served, copies=True)

    def late(own: Folder, name: str, root: Folder, other: str) -> None:
        (served / "new").write_text("mine")
        (served / "new").replace(served / other)
        monkeypatch.undo()

    acting(monkeypatch, Folder, "exchange", late)
    with pytest.raises(FileExistsError, match="meanwhile"):
        Follower(store, served, threads=1)
    assert (served / "model.safetensors").read_text() == "mine"


@pytest.mark.parametrize("target", [{}, "served"], ids=["dict", "in place"])
def test_copies_are_for_directories_with_folders(target: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="copies"):
        Follower(tmp_path, target, in_place=bool(target), copies=True)
