"""A delta applied in place: each file is the old or the new one at every moment, and nothing else is touched."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorwire import BaseMismatchError, CorruptDataError
from tensorwire._ground import destination
from tensorwire.checkpoint import apply_checkpoint, compress_checkpoint
from tensorwire.checkpoint.operations import application
from tensorwire.storage.local import InputFile, OutputFile
from tensorwire.storage.staging import Staging
from tests.support.acting import acting
from tests.support.checkpoint_models import container, edit_manifest, layer, read_header, tree_hashes, write_model
from tests.support.deltas import FIRST, SECOND, next_layer, write_next, write_rearranged
from tests.support.processes import KILLED, exit_code, kill_at

Paths = dict[str, Path]
VAE = "vae/diffusion_pytorch_model.safetensors"
CHANGED = {FIRST, SECOND, VAE, "config.json", "tokenizer.json"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    root = tmp_path_factory.mktemp("pair")
    write_model(root / "old")
    write_next(root / "old", root / "new")
    (root / "new" / "sub").mkdir()
    (root / "new" / "sub" / "added.txt").write_text("added")
    compress_checkpoint(root / "new", root / "delta", base=root / "old")
    return {name: root / name for name in ("old", "new", "delta")}


@pytest.fixture
def base(pair: Paths, tmp_path: Path) -> Path:
    shutil.copytree(pair["old"], tmp_path / "base")
    return tmp_path / "base"


def test_the_base_becomes_the_new_checkpoint(pair: Paths, base: Path) -> None:
    (base / FIRST).chmod(0o640)
    inode = (base / "empty.txt").stat().st_ino
    report = apply_checkpoint(pair["delta"], base)
    assert tree_hashes(base) == tree_hashes(pair["new"])
    assert (report.action, report.dst, report.exact, report.notices) == ("apply", str(base), True, ())
    assert {file.path for file in report.files if not file.resumed} == {*CHANGED, "sub/added.txt"}
    assert (base / FIRST).stat().st_mode & 0o777 == 0o640
    assert (base / "empty.txt").stat().st_ino == inode, "a file that does not change is not written"
    inodes = {path: path.stat().st_ino for path in base.rglob("*")}
    again = apply_checkpoint(pair["delta"], base)
    assert all(file.resumed for file in again.files)
    assert {path: path.stat().st_ino for path in base.rglob("*")} == inodes


def test_a_base_is_read_once_to_check_it_and_once_to_decode(
    pair: Paths, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes: Counter[Path] = Counter()
    acting(monkeypatch, InputFile, "read_into", lambda own, offset, out: nbytes.update({own.path: len(out)}))
    expected = {base / path: 2 * (base / path).stat().st_size for path in (FIRST, SECOND, VAE)}
    apply_checkpoint(pair["delta"], base)
    headers_nbytes = 4096
    for path, most in expected.items():
        assert most <= nbytes[path] <= most + headers_nbytes


def test_a_single_file(pair: Paths, tmp_path: Path) -> None:
    base = tmp_path / "base.safetensors"
    shutil.copy(pair["old"] / FIRST, base)
    compress_checkpoint(pair["new"] / FIRST, tmp_path / "delta.safetensors", base=base)
    for _ in range(2):
        apply_checkpoint(tmp_path / "delta.safetensors", base)
        assert base.read_bytes() == (pair["new"] / FIRST).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.safetensors", "delta.safetensors"]


def test_files_of_two_kinds_are_finished(pair: Paths, base: Path) -> None:
    """What a killed run leaves: some files are old, some new."""
    for path in (SECOND, "tokenizer.json"):
        shutil.copy(pair["new"] / path, base / path)
    report = apply_checkpoint(pair["delta"], base)
    assert {file.path for file in report.files if not file.resumed} == {*CHANGED, "sub/added.txt"} - {
        SECOND,
        "tokenizer.json",
    }
    assert tree_hashes(base) == tree_hashes(pair["new"])


# What is refused, before anything is written ------------------------------------------------------------------------


def refuse(delta: Path, base: Path, kind: type[Exception], text: str, **options: Any) -> None:
    before = tree_hashes(base)
    with pytest.raises(kind, match=text):
        apply_checkpoint(delta, base, **options)
    assert tree_hashes(base) == before
    assert not list(base.rglob("*.partial"))


@pytest.mark.parametrize("path", [FIRST, VAE])
def test_one_tensor_that_is_neither(pair: Paths, base: Path, path: str) -> None:
    """Wherever it is, no file is written."""
    data = bytearray((base / path).read_bytes())
    data[-1] ^= 1
    (base / path).write_bytes(data)
    refuse(pair["delta"], base, BaseMismatchError, r"expected a base .* with content hash .* has [0-9a-f]{32} \(file")


def test_a_file_of_tensors_that_is_missing(pair: Paths, base: Path) -> None:
    (base / SECOND).unlink()
    refuse(pair["delta"], base, BaseMismatchError, "expected a file .* in the base, there is none")


def test_an_edited_file_beside_the_tensors(pair: Paths, base: Path) -> None:
    (base / "config.json").write_text("{}")
    refuse(pair["delta"], base, FileExistsError, "it was edited; pass force=True")
    apply_checkpoint(pair["delta"], base, force=True)
    assert tree_hashes(base) == tree_hashes(pair["new"])


def test_a_file_that_came_where_the_base_had_none(pair: Paths, base: Path) -> None:
    (base / "sub").mkdir()
    (base / "sub" / "added.txt").write_text("mine")
    refuse(pair["delta"], base, FileExistsError, "it was edited; pass force=True")


def test_files_with_other_tensors(pair: Paths, base: Path, tmp_path: Path) -> None:
    write_rearranged(pair["old"], tmp_path / "rearranged")
    compress_checkpoint(tmp_path / "rearranged", tmp_path / "delta", base=pair["old"])
    refuse(tmp_path / "delta", base, BaseMismatchError, "expected a file .* in the base, there is none")
    one = tmp_path / "one"
    shutil.copytree(pair["new"], one)
    (one / FIRST).write_bytes(container([*next_layer(1, 10), *next_layer(0, 0)[:1]]))
    (one / SECOND).write_bytes(container(next_layer(0, 0)[1:]))
    compress_checkpoint(one, tmp_path / "delta1", base=pair["old"])
    refuse(tmp_path / "delta1", base, ValueError, f"which the base has in '{SECOND}', and files are changed")


def test_a_compressed_base(pair: Paths, tmp_path: Path) -> None:
    compress_checkpoint(pair["old"], tmp_path / "packed")
    text = "is compressed, and only plain files are changed in place"
    refuse(pair["delta"], tmp_path / "packed", ValueError, text)


def test_a_checkpoint_that_is_not_relative(pair: Paths, base: Path, tmp_path: Path) -> None:
    compress_checkpoint(pair["new"], tmp_path / "plain")
    refuse(tmp_path / "plain", base, ValueError, "nothing of .*plain is relative to a base", force=True)
    compress_checkpoint(pair["new"] / FIRST, tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match=r"nothing of .*plain\.safetensors is relative to a base"):
        apply_checkpoint(tmp_path / "plain.safetensors", base / FIRST)


def test_a_file_for_a_directory(pair: Paths, base: Path) -> None:
    with pytest.raises(ValueError, match="must both be files or both be directories"):
        apply_checkpoint(pair["delta"] / FIRST, base)
    with pytest.raises(ValueError, match="are the same or lie in each other"):
        apply_checkpoint(pair["delta"], pair["delta"])


def test_links_are_never_replaced(pair: Paths, base: Path, tmp_path: Path) -> None:
    """The caches of hubs consist of them: what they lead to belongs to others too."""
    (base / FIRST).rename(tmp_path / "blob")
    (base / FIRST).symlink_to(tmp_path / "blob")
    refuse(pair["delta"], base, FileExistsError, "never replaced; put a copy of .*blob' in its place, or decompress")
    (tmp_path / "link").symlink_to(base)
    refuse(pair["delta"], tmp_path / "link", FileExistsError, "is a link, and links are never followed")


def test_a_link_to_the_new_file_stays(pair: Paths, base: Path, tmp_path: Path) -> None:
    """Nothing has to be written there, whether the file holds tensors or not."""
    for name in (FIRST, "tokenizer.json"):
        blob = tmp_path / f"blob of {name}"
        shutil.copy(pair["new"] / name, blob)
        (base / name).unlink()
        (base / name).symlink_to(blob)
    report = apply_checkpoint(pair["delta"], base)
    assert {file.path for file in report.files if file.resumed} >= {FIRST, "tokenizer.json"}
    assert (base / FIRST).is_symlink()
    assert (base / "tokenizer.json").is_symlink()
    assert tree_hashes(base) == tree_hashes(pair["new"])


@pytest.mark.parametrize("name", [FIRST, "tokenizer.json"])
def test_a_link_to_nothing_is_not_replaced(pair: Paths, base: Path, name: str) -> None:
    (base / name).unlink()
    (base / name).symlink_to("nowhere")
    refuse(pair["delta"], base, FileExistsError, "links are never replaced; remove it, or decompress")


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj._weight_tensorwire", "model.layers.1.norm.weight"])
def test_a_damaged_delta(pair: Paths, base: Path, tmp_path: Path, name: str) -> None:
    """Frame or plain tensor: before the first file changes, as half a base is of no use until the rest is fetched."""
    shutil.copytree(pair["delta"], tmp_path / "delta")
    header = read_header(tmp_path / "delta" / SECOND)
    data = bytearray((tmp_path / "delta" / SECOND).read_bytes())
    data[8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][1] - 1] ^= 1
    (tmp_path / "delta" / SECOND).write_bytes(data)
    refuse(tmp_path / "delta", base, CorruptDataError, "expected (checksum|content with hash)")


def test_a_delta_that_leads_to_another_original(pair: Paths, base: Path, tmp_path: Path) -> None:
    """Files before that one are new, the others are old; with the right delta the same call does the rest."""
    shutil.copytree(pair["delta"], tmp_path / "delta")

    def forge(body: dict[str, Any]) -> None:
        next(file for file in body["files"] if file["path"] == SECOND)["sha256"] = "0" * 64

    edit_manifest(tmp_path / "delta", forge)
    with pytest.raises(CorruptDataError, match="expected an original with SHA-256"):
        apply_checkpoint(tmp_path / "delta", base)
    found = tree_hashes(base)
    for path, digest in tree_hashes(pair["old"]).items():
        assert found[path] in (digest, tree_hashes(pair["new"])[path])
    assert (base / SECOND).read_bytes() == (pair["old"] / SECOND).read_bytes()
    apply_checkpoint(pair["delta"], base)
    assert tree_hashes(base) == tree_hashes(pair["new"])


@pytest.mark.parametrize("linked", ["nothing", ".git", ".git/hooks"])
def test_the_history_of_a_clone_is_not_changed(pair: Paths, base: Path, tmp_path: Path, linked: str) -> None:
    """A hook would be run by the next command of git; and nobody looks for links in there."""
    hook = b"#!/bin/sh\n"
    shutil.copytree(pair["delta"], tmp_path / "delta")
    (tmp_path / "delta" / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / "delta" / ".git" / "hooks" / "post-merge").write_bytes(hook)
    entry = {"path": ".git/hooks/post-merge", "kind": "copied", "nbytes": len(hook)}
    entry["sha256"] = hashlib.sha256(hook).hexdigest()
    edit_manifest(tmp_path / "delta", lambda body: body["files"].append(entry))
    (tmp_path / "away").mkdir()
    if linked != "nothing":
        (base / linked).parent.mkdir(exist_ok=True)
        (base / linked).symlink_to(tmp_path / "away")
    refuse(tmp_path / "delta", base, ValueError, "lies in the history of a clone")
    assert not list((tmp_path / "away").iterdir())
    assert not (base / ".git" / "hooks" / "post-merge").exists()


def test_a_place_that_cannot_be_written_to(pair: Paths, base: Path, tmp_path: Path) -> None:
    """It is that of the last file, and the first one stays as it is: for the longer name there is no next time."""
    (base / "tokenizer.json.partial").write_text("mine")
    before = tree_hashes(base)
    with pytest.raises(FileExistsError, match="tensorwire did not make all of it"):
        apply_checkpoint(pair["delta"], base)
    assert tree_hashes(base) == before
    (base / "tokenizer.json.partial").unlink()
    shutil.copytree(pair["new"], tmp_path / "long")
    (tmp_path / "long" / ("z" * 250)).write_text("no room for a suffix")
    compress_checkpoint(tmp_path / "long", tmp_path / "delta", base=pair["old"])
    refuse(tmp_path / "delta", base, OSError, "File name too long")


def first(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act before the first file is changed."""
    acting(monkeypatch, application._Application, "take", lambda *_: (monkeypatch.undo(), act()))


@pytest.mark.parametrize("name", ["tokenizer.json", SECOND])
def test_a_file_that_changes_after_it_was_checked(
    pair: Paths, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One of the delta that is copied, and one of the base."""
    shutil.copytree(pair["delta"], tmp_path / "delta")
    changed = tmp_path / "delta" / name if name == "tokenizer.json" else base / name
    first(lambda: changed.write_bytes(container(layer(1, 10))), monkeypatch)
    expected = (pair["old"] / name).read_bytes() if name == "tokenizer.json" else container(layer(1, 10))
    with pytest.raises(OSError, match="the file changed while the delta was applied"):
        apply_checkpoint(tmp_path / "delta", base)
    assert (base / name).read_bytes() == expected


# Kills --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    ("when", "owner", "name"),
    [
        ("before", application._Application, "_write"),
        ("before", OutputFile, "sync"),
        ("before", destination, "exchange"),
        ("after", destination, "exchange"),
        ("after", Staging, "commit"),
    ],
)
def test_killed_at_a_certain_moment(pair: Paths, base: Path, when: str, owner: Any, name: str, step: int) -> None:
    def child() -> None:
        kill_at(step, [(owner, name)], after=when == "after")
        apply_checkpoint(pair["delta"], base)

    assert exit_code(child) == KILLED
    old, new, found = tree_hashes(pair["old"]), tree_hashes(pair["new"]), tree_hashes(base)
    for path in old:
        assert found[path] in (old[path], new[path])
    num_new = sum(found[path] == new[path] != old[path] for path in old)
    if not (name == "sync" and step > 1):  # there are several for each file
        assert num_new == step - (when == "before")
    apply_checkpoint(pair["delta"], base)
    assert tree_hashes(base) == new
    assert all(file.resumed for file in apply_checkpoint(pair["delta"], base).files)


def test_a_second_run_is_told(pair: Paths, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another delta are others. Two that took turns file by file would leave nothing to go on with."""
    write_next(pair["old"], tmp_path / "third", width=96)
    (tmp_path / "third" / "config.json").write_text("{}")
    compress_checkpoint(tmp_path / "third", tmp_path / "other", base=pair["old"])

    def others() -> None:
        for delta in (pair["delta"], tmp_path / "other"):
            with pytest.raises(BlockingIOError, match="another process"):
                apply_checkpoint(delta, base)

    first(others, monkeypatch)
    apply_checkpoint(pair["delta"], base)
    assert tree_hashes(base) == tree_hashes(pair["new"])


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(pair: Paths, base: Path) -> None:
    """As the worker of a data loader, which lives on with the descriptors that were open."""
    reader, writer = os.pipe()
    children: list[int] = []

    def fork(*given: Any) -> None:
        if not children:
            children.append(os.fork())
            if not children[0]:
                os.close(writer)
                os.read(reader, 1)  # until the test is done
                os._exit(0)

    apply_checkpoint(pair["delta"], base, progress=fork, threads=1)
    assert children
    apply_checkpoint(pair["delta"], base, threads=1)  # nothing is to be done, and the lock is free
    os.close(writer)
    os.close(reader)
    os.waitpid(children[0], 0)
    assert tree_hashes(base) == tree_hashes(pair["new"])


def test_attributes_that_are_not_kept_are_told(pair: Paths, base: Path) -> None:
    try:
        os.setxattr(base / FIRST, "user.origin", b"mine")
        os.setxattr(base / "empty.txt", "user.origin", b"mine")
    except OSError:
        pytest.skip("a file system without extended attributes")
    assert apply_checkpoint(pair["delta"], base).notices == (f"not kept: user.origin of {FIRST}",)
    assert os.getxattr(base / "empty.txt", "user.origin") == b"mine"
