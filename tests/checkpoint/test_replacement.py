"""Originals that give way to compressed files in place: each file is the old or the new one at every moment, whole, and
nothing else is touched."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tensorwire import CorruptDataError, FormatError, _ground
from tensorwire._ground import destination
from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    load_file,
    replace_checkpoint,
    verify,
)
from tensorwire.checkpoint.operations import replacement
from tensorwire.checkpoint.operations.converter import Converter
from tensorwire.cli import main
from tensorwire.storage.local import OutputFile
from tensorwire.storage.staging import Staging
from tests.support.acting import acting
from tests.support.checkpoint_models import SHARD, container, layer, tree_hashes
from tests.support.destination_cells import snapshot
from tests.support.processes import KILLED, OTHER_USER, exit_code, kill_at

SECOND = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
STAGED = "tensorwire.json.partial"
COPIED = ("tokenizer.json", "empty.txt", "training_args.bin", "assets/deep/image.png")


def test_the_checkpoint_becomes_what_compress_writes(model: Path, packed: Path, tmp_path: Path) -> None:
    original = tree_hashes(model)
    (model / SHARD).chmod(0o640)
    inodes = {path: (model / path).stat().st_ino for path in COPIED}
    report = replace_checkpoint(model)
    assert tree_hashes(model) == tree_hashes(packed)
    assert (model / SHARD).stat().st_mode & 0o777 == 0o640
    assert {path: (model / path).stat().st_ino for path in COPIED} == inodes, "what is only copied stays"
    assert (report.action, report.src, report.dst, report.exact) == ("replace", str(model), str(model), True)
    assert {file.path for file in report.files if file.kind == "safetensors"} >= {SHARD, SECOND}
    decompress_checkpoint(model, tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == original


def test_once_more_changes_nothing(model: Path) -> None:
    replace_checkpoint(model)
    before = snapshot(model)
    assert replace_checkpoint(model).files == ()
    with pytest.raises(ValueError, match="is compressed already; transcode changes its profile"):
        replace_checkpoint(model, profile="compact")
    assert snapshot(model) == before


def test_a_single_file(model: Path, tmp_path: Path) -> None:
    place, original = model / SHARD, (model / SHARD).read_bytes()
    compress_checkpoint(place, tmp_path / "expected", profile="compact")
    for _ in range(2):
        replace_checkpoint(place, profile="compact")
        assert place.read_bytes() == (tmp_path / "expected").read_bytes()
    with pytest.raises(ValueError, match="is compressed already"):
        replace_checkpoint(place)
    decompress_checkpoint(place, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == original
    assert not list(model.glob("*.partial"))


def test_what_is_left_out_stays(model: Path, tmp_path: Path) -> None:
    """The history of a clone, and what a pattern names: neither compressed nor removed."""
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_text("ref: refs/heads/main")
    left_out = {path: (model / path).read_bytes() for path in (".git/HEAD", SECOND)}
    compress_checkpoint(model, tmp_path / "packed", exclude=[SECOND])
    report = replace_checkpoint(model, exclude=[SECOND])
    assert report.excluded == (".git/", SECOND)
    assert {path: (model / path).read_bytes() for path in left_out} == left_out
    found = tree_hashes(model)
    assert {path: found[path] for path in found if path not in left_out} == tree_hashes(tmp_path / "packed")


def test_the_disk_needs_room_for_the_largest_file_once_more(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room() -> int:
        return sum(path.stat().st_size for path in model.rglob("*") if path.is_file())

    before, most = room(), []
    for name in ("hand_over", "record"):
        acting(monkeypatch, Staging, name, lambda *_: most.append(room()))
    replace_checkpoint(model)
    beside = 20_000  # the journal, and files that describe others
    assert max(most) < before + (model / SHARD).stat().st_size + beside


# What is refused, before anything is written ------------------------------------------------------------------------


def refuse(root: Path, kind: type[Exception], text: str, **options: Any) -> None:
    before = snapshot(root)
    with pytest.raises(kind, match=text):
        replace_checkpoint(root, **options)
    assert snapshot(root) == before


def test_links_are_neither_followed_nor_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    refuse(tmp_path / "link", FileExistsError, "is a link, and links are never followed")
    (model / SECOND).rename(tmp_path / "blob")
    (model / SECOND).symlink_to(tmp_path / "blob")
    refuse(model, FileExistsError, "is a link, and links are never replaced; put a copy of .*blob")


def test_a_link_to_what_would_be_copied_stays(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").rename(tmp_path / "blob")
    (model / "tokenizer.json").symlink_to(tmp_path / "blob")
    replace_checkpoint(model)
    assert (model / "tokenizer.json").is_symlink()
    assert verify(model).ok


@pytest.mark.parametrize("part", ["", SHARD])
def test_a_hub_cache(model: Path, tmp_path: Path, part: str) -> None:
    """With its files in it, as systems without links have it."""
    repository = tmp_path / "models--me--llama"
    (repository / "refs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    model.rename(repository / "snapshots" / "abc")
    refuse(repository / "snapshots" / "abc" / part, ValueError, "lies in a hub cache")


def test_the_history_of_a_clone(model: Path) -> None:
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_text("ref: refs/heads/main")
    refuse(model, ValueError, "'.git/HEAD' lies in the history of a clone", exclude=["!.git"])


def test_what_a_follower_keeps(model: Path) -> None:
    (model / ".tensorwire-sync").mkdir()
    refuse(model, ValueError, "what a follower keeps")


def test_a_place_in_a_store() -> None:
    with pytest.raises(ValueError, match="expected a checkpoint on this machine"):
        replace_checkpoint("memory://x/model")


def test_a_file_that_cannot_be_compressed_changes_none(model: Path) -> None:
    """Such as one whose header is damaged: those before it are whole, and so is it."""
    (model / SECOND).write_bytes(b"\xff" * 100)
    refuse(model / SECOND, FormatError, "header")
    with pytest.raises(FormatError, match="header"):
        replace_checkpoint(model)
    assert (model / SECOND).read_bytes() == b"\xff" * 100


def test_something_in_the_way(model: Path) -> None:
    (model / STAGED).write_text("mine")
    refuse(model, FileExistsError, "tensorwire did not make all of it")


def test_a_directory_that_cannot_be_written_to(model: Path) -> None:
    """It is that of the last file, and the first one stays as it is."""
    with tempfile.TemporaryDirectory() as name:  # tmp_path is its owner's alone
        root = Path(shutil.move(model, f"{name}/model"))
        Path(name).chmod(0o755)
        for path in (root, *root.rglob("*")):
            path.chmod(0o777)
        (root / "vae").chmod(0o555)
        before = tree_hashes(root)

        def child() -> None:
            if os.geteuid() == 0:  # may do anything
                os.setuid(OTHER_USER)
            with pytest.raises(PermissionError) as caught:
                replace_checkpoint(root)
            assert caught.value.filename == str(root / "vae")

        assert exit_code(child) == 0
        assert tree_hashes(root) == before


def test_a_mount_point_in_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacement, "mounts", lambda: {os.fsencode(model / "vae")})
    refuse(model, OSError, "is another file system")


def test_a_second_run_is_told(model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: Any) -> None:
        monkeypatch.undo()
        with pytest.raises(BlockingIOError, match="another process is changing it"):
            replace_checkpoint(model)

    acting(monkeypatch, Converter, "run", other)
    replace_checkpoint(model)
    assert tree_hashes(model) == tree_hashes(packed)


# What happens meanwhile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SECOND, "config.json"])
def test_a_file_that_changes_meanwhile(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It stays, and the next run compresses what it is now."""
    changed = container(layer(1, 99)) if name == SECOND else b'{"model_type": "bert"}'
    acting(monkeypatch, Converter, "_finish", lambda *_: (monkeypatch.undo(), (model / name).write_bytes(changed)))
    with pytest.raises(OSError, match="the file changed while it was compressed; repeat the command"):
        replace_checkpoint(model)
    assert (model / name).read_bytes() == changed
    replace_checkpoint(model)
    decompress_checkpoint(model, tmp_path / "back")
    assert (tmp_path / "back" / name).read_bytes() == changed
    assert not (model / STAGED).exists()


def test_a_single_file_that_changes_meanwhile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, changed = model / SHARD, container(layer(1, 99))
    acting(monkeypatch, Converter, "_finish", lambda *_: (monkeypatch.undo(), place.write_bytes(changed)))
    with pytest.raises(OSError, match="the file changed while it was compressed"):
        replace_checkpoint(place)
    assert place.read_bytes() == changed


@pytest.mark.parametrize("part", ["", SHARD])
def test_a_compressed_file_that_does_not_give_its_original_back(
    model: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A bit that turns over in memory or on the disk: the original stays."""
    before = tree_hashes(model)
    write = OutputFile.write

    def wrong(own: OutputFile, offset: int, data: bytes | memoryview) -> None:
        if b"result" in bytes(Path(f"/proc/self/fd/{own._fd}").readlink()) and len(data) > 20_000:
            data = bytearray(data)
            data[-1000] ^= 1
        write(own, offset, bytes(data))

    monkeypatch.setattr(OutputFile, "write", wrong)
    with pytest.raises(CorruptDataError):
        replace_checkpoint(model / part)
    monkeypatch.undo()
    found = tree_hashes(model)
    assert {path: found[path] for path in before} == before


# Kills --------------------------------------------------------------------------------------------------------------

STAGES = [
    ("after", Staging, "_open_journal", 1),
    ("before", Staging, "record", 1),
    ("before", Staging, "hand_over", 2),
    ("before", destination, "exchange", 1),
    ("after", destination, "exchange", 3),
    ("after", destination, "exchange", 5),
    ("before", Staging, "hand_over", 7),
    ("after", Staging, "hand_over", 7),
    *(("before", OutputFile, "sync", step) for step in (1, 3, 5, 7, 9, 11, 13)),
    *((when, Staging, "record", step) for when in ("before", "after") for step in (2, 4, 6)),
    *(("before", Staging, "hand_over", step) for step in (1, 3, 4, 5, 6)),
    *((when, destination, "exchange", step) for when in ("before", "after") for step in (2, 4, 6)),
    *(("before", destination.Destination, "discard", step) for step in (1, 3, 6)),
    ("before", Converter, "write_manifest", 1),
    ("after", Converter, "write_manifest", 1),
    ("before", destination, "rename_new", 1),
    ("after", destination, "rename_new", 1),
    ("before", Staging, "_clear", 1),
    ("after", Staging, "_clear", 1),
]
NUM_QUICK = 6


def killed(root: Path, stage: tuple[str, Any, str, int]) -> None:
    when, owner, name, step = stage

    def child() -> None:
        kill_at(step, [(owner, name)], after=when == "after")
        replace_checkpoint(root)

    assert exit_code(child) == KILLED


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(stage, id=str(stage), marks=pytest.mark.slow if i >= NUM_QUICK else ())
        for i, stage in enumerate(STAGES)
    ],
)
def test_killed_at_a_certain_moment(model: Path, packed: Path, tmp_path: Path, stage: Any) -> None:
    old, new = tree_hashes(model), tree_hashes(packed)
    killed(model, stage)
    found = {path: digest for path, digest in tree_hashes(model).items() if not path.startswith(STAGED)}
    for path in old:
        assert found[path] in (old[path], new[path]), path
    assert found.keys() - old.keys() <= {"tensorwire.json"}
    if "tensorwire.json" in found:
        assert found == new
    shutil.copytree(model, tmp_path / "moved")  # the same command goes on wherever the directory is by then
    for root in (model, tmp_path / "moved"):
        replace_checkpoint(root)
        assert tree_hashes(root) == new
        assert replace_checkpoint(root).files == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_with_a_single_file(model: Path, when: str) -> None:
    place = model / SHARD
    old = place.read_bytes()
    killed(place, (when, destination, "exchange", 1))
    assert (place.read_bytes() == old) == (when == "before")
    replace_checkpoint(place)
    assert load_file(place).keys() == {name for name, *_ in layer(0, 0)}
    assert not (model / f"{SHARD}.partial").exists()


@pytest.fixture
def begun(model: Path) -> Path:
    """A directory in which one file has given way."""
    killed(model, ("before", Staging, "hand_over", 2))
    return model


def test_what_restores_the_replaced_files_is_never_removed(begun: Path) -> None:
    before = snapshot(begun)
    text = "holds what restores files that were replaced; go on as it was begun: compress --replace --profile fast"
    for options in ({"profile": "compact"}, {"exclude": ["vae"]}):
        with pytest.raises(FileExistsError, match=text):
            replace_checkpoint(begun, **options)  # type: ignore[arg-type]
    assert snapshot(begun) == before


@pytest.mark.parametrize(
    "stage",
    [
        ("before", OutputFile, "write", 1),
        ("before", OutputFile, "sync", 1),
        ("before", Path, "replace", 1),
        ("after", Path, "replace", 1),
        ("before", Path, "unlink", 2),
    ],
    ids=str,
)
def test_killed_while_it_goes_on(begun: Path, packed: Path, stage: Any) -> None:
    """The journal is never away, not even for a moment."""
    killed(begun, stage)
    replace_checkpoint(begun)
    assert tree_hashes(begun) == tree_hashes(packed)


def test_other_commands_name_the_one_that_goes_on(begun: Path, tmp_path: Path) -> None:
    before = snapshot(begun)
    for operation in (compress_checkpoint, decompress_checkpoint):
        with pytest.raises(ValueError, match="replacement has not ended: repeat the command that began it"):
            operation(begun, tmp_path / "x")
    assert verify(begun).ok, "each file is whole"
    assert snapshot(begun) == before


def test_a_journal_that_tells_nothing(begun: Path) -> None:
    """One that came with a directory from elsewhere: nothing is done by it."""
    journal = begun / STAGED / "journal.jsonl"
    purpose, *lines = journal.read_bytes().splitlines(keepends=True)
    for line, text in (
        (b'{"entry": {}}\n', "did not make all"),
        (b'{"path": "../x", "entry": {}}\n', "expected files of"),
    ):
        journal.write_bytes(purpose + line)
        before = tree_hashes(begun)
        with pytest.raises((OSError, CorruptDataError), match=text):
            replace_checkpoint(begun)
        assert tree_hashes(begun) == before
    journal.write_bytes(purpose + b"".join(lines))
    replace_checkpoint(begun)


def test_a_damaged_journal_stays(begun: Path) -> None:
    """What it tells of other files is all that restores them; at its end a crash may have cut it off."""
    journal = begun / STAGED / "journal.jsonl"
    whole = journal.read_bytes()
    purpose, line = whole.splitlines(keepends=True)[:2]
    for damaged in (purpose[:-2] + b"\n" + line, purpose + b"\0" + line[1:] + line):
        journal.write_bytes(damaged)
        before = tree_hashes(begun)
        with pytest.raises(FileExistsError, match=r"journal.jsonl in it is damaged; keep it"):
            replace_checkpoint(begun)
        assert tree_hashes(begun) == before
    journal.write_bytes(whole + line[:-9])
    replace_checkpoint(begun)


def test_a_replaced_file_that_was_damaged_since(begun: Path) -> None:
    data = bytearray((begun / SHARD).read_bytes())
    data[-1] ^= 1
    (begun / SHARD).write_bytes(data)
    with pytest.raises(CorruptDataError):
        replace_checkpoint(begun)
    assert (begun / STAGED / "journal.jsonl").exists()


def test_a_file_that_is_gone_or_new_since(begun: Path, tmp_path: Path) -> None:
    (begun / SHARD).unlink()
    (begun / "more.safetensors").write_bytes(container(layer(5, 50)))
    replace_checkpoint(begun)
    decompress_checkpoint(begun, tmp_path / "back")
    assert (tmp_path / "back" / "more.safetensors").read_bytes() == container(layer(5, 50))
    assert not (tmp_path / "back" / SHARD).exists()


def test_where_paths_cannot_be_swapped(model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ground.filesystem, "renameat2", lambda a, b, flags: False)
    killed(model, ("before", Staging, "hand_over", 3))
    replace_checkpoint(model)
    assert tree_hashes(model) == tree_hashes(packed)


# The command --------------------------------------------------------------------------------------------------------


def test_the_command(model: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", str(model), "--replace"]) == 0
    out = capsys.readouterr().out
    assert f"compressed in place {model}: " in out
    assert "2 of 4 tensors" in out
    assert tree_hashes(model) == tree_hashes(packed)
    assert main(["compress", str(model), str(model), "--replace"]) == 0
    assert capsys.readouterr().out == f"nothing to change: {model} is compressed already\n" * 2


@pytest.mark.parametrize("more", ["-o x", "--force", "--base .", "--files a", "--estimate"])
def test_options_that_it_does_not_take(model: Path, capsys: pytest.CaptureFixture[str], more: str) -> None:
    before = snapshot(model)
    assert main(["compress", str(model), "--replace", *more.split()]) == 2
    assert f"--replace does not take {more.split()[0]}" in capsys.readouterr().err
    assert main(["compress", "-", "--replace"]) == 2
    assert "is not changed in place" in capsys.readouterr().err
    assert snapshot(model) == before
