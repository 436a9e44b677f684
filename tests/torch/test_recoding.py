"""Checkpoints beside each other that get another form in place: groups, times, kills at every stage."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire._ground import destination
from tensorwire._ground.destination import Destination
from tensorwire.checkpoint import bases, compress_checkpoint, save_file
from tensorwire.checkpoint.bases import Form, bases_beside, form_of
from tensorwire.errors import BaseMismatchError, CorruptDataError
from tensorwire.storage.staging import Staging
from tests.support import forks
from tests.support.acting import acting, raising
from tests.support.checkpoint_models import tree_hashes

pytest.importorskip("torch")
from tensorwire.torch.integrations import recoding
from tensorwire.torch.integrations.recoding import Recoder, clean

if TYPE_CHECKING:
    from collections.abc import Callable


def checkpoints(root: Path, count: int) -> list[Path]:
    """Directories with weights that change a little from one to the next; with times a minute apart."""
    found = []
    weight = np.random.default_rng(1).standard_normal(6000).astype(np.float32)
    for number in range(1, count + 1):
        path = root / f"checkpoint-{number}"
        path.mkdir(parents=True)
        save_file({"w": weight * (1 + number * 1e-6)}, path / "model.safetensors", profile="fast")
        decompress(path / "model.safetensors")
        (path / "trainer_state.json").write_text(f'{{"global_step": {number}}}')
        os.utime(path, (60 * number, 60 * number))
        found.append(path)
    return found


def decompress(path: Path) -> None:
    """A plain file in the place of a compressed one."""
    import tensorwire

    arrays = tensorwire.load_file(path)
    pytest.importorskip("safetensors.numpy").save_file(arrays, path)


def test_files_that_stay_as_they_are_are_told_once(tmp_path: Path) -> None:
    """As torch's writer of distributed checkpoints leaves them, under FSDP for example."""
    paths = checkpoints(tmp_path, 2)
    for path in paths:
        (path / "optimizer_0").mkdir()
        (path / "optimizer_0" / "__0_0.distcp").write_bytes(b"PK\3\4" + bytes(70_000))
    expected = {path.name: tree_hashes(path) for path in paths}
    recoder = Recoder("fast", 8, 1)
    with pytest.warns(UserWarning, match=r"checkpoint-1: copied, not compressed: 1 file of .*__0_0\.distcp.*FULL_"):
        recoder.settle(paths[:1])
    recoder.settle(paths)
    assert forms(paths) == "ra"
    for path in paths:
        recoder.decompress(path)
        assert tree_hashes(path) == expected[path.name]


def forms(paths: list[Path]) -> str:
    """A letter for each: dense, alone, relative to the next one; or ?"""
    letters = []
    for path, newer in zip(paths, [*paths[1:], None], strict=True):
        form = form_of(path)
        base = newer.name if newer is not None else ""
        letters.append(
            {(False, None): "d", (True, None): "a", (True, base): "r"}.get((form.compressed, form.base), "?")
        )
    return "".join(letters)


def restored(root: Path, paths: list[Path]) -> list[dict[str, str]]:
    """What each of them gives, made dense in a copy of all."""
    copy = shutil.copytree(root, root.with_name("copy"))
    for path in paths:
        Recoder("fast", 8, 1).decompress(copy / path.name)
    found = [tree_hashes(copy / path.name) for path in paths]
    shutil.rmtree(copy)
    return found


def test_the_newest_stands_alone_and_groups_have_a_size(tmp_path: Path) -> None:
    paths = checkpoints(tmp_path / "run", 6)
    expected, times = [tree_hashes(path) for path in paths], [path.stat().st_mtime_ns for path in paths]
    recoder = Recoder("fast", 3, 1)
    seen = []
    for count in range(1, 7):
        recoder.settle(paths[:count])
        seen.append(forms(paths[:count]))
    assert seen == ["a", "ra", "rra", "rraa", "rrara", "rrarra"]
    assert restored(tmp_path / "run", paths) == expected
    assert [path.stat().st_mtime_ns for path in paths] == times
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [path.name for path in paths]


def test_the_oldest_may_go_and_a_best_one_needs_no_other(tmp_path: Path) -> None:
    paths = checkpoints(tmp_path / "run", 5)
    expected = [tree_hashes(path) for path in paths]
    recoder = Recoder("fast", 8, 1)
    recoder.settle(paths, dense=paths[1], alone=paths[1])
    assert forms(paths) == "rdrra"
    recoder.settle(paths, alone=paths[1])
    assert forms(paths) == "rarra"
    for gone in (0, 2):  # what a rotation removes that keeps the second one
        shutil.rmtree(paths[gone])
    left = [paths[1], *paths[3:]]
    assert restored(tmp_path / "run", left) == [expected[number] for number in (1, 3, 4)]
    recoder.settle(left)
    assert forms(left) == "rra"
    assert restored(tmp_path / "run", left) == [expected[number] for number in (1, 3, 4)]


def test_one_in_the_middle_is_released(tmp_path: Path) -> None:
    paths = checkpoints(tmp_path / "run", 4)
    expected = [tree_hashes(path) for path in paths]
    recoder = Recoder("fast", 8, 1)
    recoder.settle(paths)
    recoder.release(paths[1], paths)
    assert form_of(paths[0]) == Form(True, paths[2].name)
    shutil.rmtree(paths[1])
    recoder.release(paths[3], [paths[0], *paths[2:]])
    assert form_of(paths[2]) == Form(True, None)
    shutil.rmtree(paths[3])
    assert restored(tmp_path / "run", paths[::2]) == expected[::2]


def test_every_one_alone(tmp_path: Path) -> None:
    paths = checkpoints(tmp_path / "run", 3)
    Recoder("compact", 1, 1).settle(paths)
    assert forms(paths) == "aaa"
    for odd in (0, -1, 2.0, True, None):
        with pytest.raises(ValueError, match="anchor_every from 1 on"):
            Recoder("fast", odd, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one of the profiles .*, got 'zz'"):
        Recoder("zz", 8, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads, got 0"):
        Recoder("fast", 8, 0)


def test_what_is_relative_to_itself_or_to_nothing_is_told(tmp_path: Path) -> None:
    paths = checkpoints(tmp_path / "run", 2)
    Recoder("fast", 8, 1).settle(paths)
    shutil.rmtree(paths[1])
    with pytest.raises(FileNotFoundError, match="checkpoint-2"):
        Recoder("fast", 8, 1).decompress(paths[0])
    shutil.copytree(paths[0], paths[1])
    with pytest.raises(CorruptDataError, match="not to itself"):
        bases_beside(paths[0])
    shutil.rmtree(paths[1])
    compress_checkpoint(checkpoints(tmp_path / "other", 3)[2], paths[1])
    with pytest.raises(BaseMismatchError):
        Recoder("fast", 8, 1).decompress(paths[0])
    assert form_of(paths[0]) == Form(True, "checkpoint-2")


def test_what_cannot_be_proved_is_not_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = checkpoints(tmp_path / "run", 1)
    expected = tree_hashes(paths[0])

    def damage(src: Path, dst: Path, **_: Any) -> None:
        content = bytearray((dst / "model.safetensors").read_bytes())
        content[-200] ^= 1
        (dst / "model.safetensors").write_bytes(content)

    acting(monkeypatch, recoding, "compress_checkpoint", damage, after=True)
    with pytest.raises(CorruptDataError, match="is not what was read"):
        Recoder("fast", 8, 1).settle(paths)
    assert tree_hashes(paths[0]) == expected


def kill(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """At the end of the first file, when the manifest is missing."""
    from tensorwire.checkpoint.operations.converter import Converter

    acting(patch, Converter, "write_manifest", kill)


STAGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "while it is written": in_the_middle,
    "before it is verified": lambda patch: acting(patch, recoding, "verify", kill),
    "before the exchange": lambda patch: acting(patch, destination, "exchange", kill),
    "after the exchange": lambda patch: acting(patch, Destination, "_confirm_moved", kill),
    "while the old one is removed": lambda patch: acting(patch, destination, "remove_empty", kill),
    "after all": lambda patch: acting(patch, Staging, "_note_kept", kill),
}


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(destination, "exchange", lambda new, path: False)


# On a file system that cannot exchange two directories.
STAGES |= {
    "between two renames": lambda patch: (one_by_one(patch), acting(patch, Destination, "_confirm_moved", kill))[0],
    "after both": lambda patch: (one_by_one(patch), acting(patch, Destination, "discard", kill))[0],
}


@pytest.mark.parametrize(
    ("step", "stage"),
    [
        pytest.param(step, stage, marks=[pytest.mark.slow] if (place + number) % 2 else [])
        for place, step in enumerate(("compress", "relative"))
        for number, stage in enumerate(STAGES)
    ],
)
def test_a_kill_leaves_one_whole_and_the_next_start_goes_on(stage: str, step: str, tmp_path: Path) -> None:
    paths = checkpoints(tmp_path / "run", 2)
    expected = [tree_hashes(path) for path in paths]
    recoder = Recoder("fast", 8, 1)
    if step == "relative":
        recoder.settle(paths[1:])

    def child() -> None:
        with pytest.MonkeyPatch.context() as patch:
            STAGES[stage](patch)
            recoder.settle(paths)

    assert forks.run(child).returncode == -signal.SIGKILL
    clean(tmp_path / "run", lambda name: name.startswith("checkpoint-"))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [path.name for path in paths]
    assert restored(tmp_path / "run", paths) == expected
    recoder.settle(paths)
    assert forms(paths) == "ra"
    assert restored(tmp_path / "run", paths) == expected


def test_what_belongs_to_others_is_not_cleaned_away(tmp_path: Path) -> None:
    for name in (".notes.tensorwire", "checkpoint-1.tensorwire", ".checkpoint-1.other", "plain"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.iterdir())
    clean(tmp_path, lambda name: name.startswith("checkpoint-"))
    assert sorted(tmp_path.iterdir()) == before
    clean(tmp_path / "missing", lambda name: True)


def test_a_full_disk_leaves_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = checkpoints(tmp_path / "run", 1)
    expected = tree_hashes(paths[0])
    monkeypatch.setattr(recoding, "compress_checkpoint", raising(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        Recoder("fast", 8, 1).settle(paths)
    assert tree_hashes(paths[0]) == expected


def test_a_dense_copy_in_use_is_not_cleaned_away(tmp_path: Path) -> None:
    (path,) = checkpoints(tmp_path, 1)
    recoder = Recoder("fast", 8, None)
    recoder.compress(path)
    with recoder.dense(path) as dense:
        clean(tmp_path, lambda name: True)
        assert (dense / "trainer_state.json").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_cleaning_leaves_what_others_have_written(tmp_path: Path) -> None:
    (tmp_path / ".mine.tensorwire.partial-notes").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / ".1.ckpt.tensorwire.partial").symlink_to(tmp_path / "other")
    (tmp_path / ".2.ckpt.tensorwire.partial").mkdir()
    (tmp_path / ".2.ckpt.tensorwire.partial/notes").touch()
    before = sorted(tmp_path.iterdir())
    clean(tmp_path, lambda name: True)
    assert sorted(tmp_path.iterdir()) == before


def test_what_comes_into_a_checkpoint_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = checkpoints(tmp_path, 1)
    acting(monkeypatch, recoding, "verify", lambda *_, **__: (path / "rng_state_1.pth").touch())
    with pytest.raises(FileExistsError, match="came here while the result was being made"):
        Recoder("fast", 8, None).compress(path)
    assert form_of(path) == Form(False)
    assert (path / "rng_state_1.pth").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["x" * 300, "../other", "/etc", "a/b", "", "\ud800", "a\0b"])
def test_a_base_is_named_as_a_file_may_be(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "form_of", lambda path: Form(True, name))
    with pytest.raises(CorruptDataError, match="expected the name of a checkpoint beside it"):
        bases_beside(tmp_path / "checkpoint-1")
