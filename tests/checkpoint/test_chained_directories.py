"""Checkpoints in one directory, each relative to the one before it."""

from __future__ import annotations

import shutil
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    inspect,
    load_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.checkpoint.directory.order import older_files
from tensorwire.errors import BaseMismatchError
from tests.support.checkpoint_models import contents
from tests.support.directories import tensors, write, write_run

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "model.safetensors"


def test_each_is_relative_to_the_one_before(tmp_path: Path) -> None:
    """By the numbers in their names; each is opened alone."""
    run = write_run(tmp_path / "run", 3)
    for number in (9, 10, 11):
        write(tmp_path / "run" / f"step-{number}" / "other.safetensors", run[number - 9], "other.")
        (tmp_path / "run" / f"step-{number}" / "config.json").write_text("{}")
        (tmp_path / "run" / f"step-{number}" / "empty").mkdir()
    plain = compress_checkpoint(tmp_path / "run", tmp_path / "plain")
    report = compress_checkpoint(tmp_path / "run", tmp_path / "small", chain=True)
    assert report.nbytes_out < 0.6 * plain.nbytes_out
    files = {tensor.file: tensor.base_file for tensor in inspect(tmp_path / "small").tensors if tensor.base_file}
    assert files == {
        f"step-10/{MODEL}": f"step-9/{MODEL}",
        f"step-11/{MODEL}": f"step-10/{MODEL}",
        **{f"step-{number}/other.safetensors": f"step-{number}/{MODEL}" for number in (9, 10, 11)},
    }
    for number, expected in zip((9, 10, 11), run, strict=True):
        folder = tmp_path / "small" / f"step-{number}"
        assert {name: array.tobytes() for name, array in load_file(folder / MODEL).items()} == expected
        assert verify(folder).exact
        assert inspect(folder).restorable
        found = decompress_checkpoint(folder, tmp_path / f"back-{number}")
        assert (found.exact, found.ignored) == (True, ())
        assert contents(tmp_path / f"back-{number}") == contents(tmp_path / "run" / folder.name)
        assert (tmp_path / f"back-{number}" / "empty").is_dir()
    decompress_checkpoint(tmp_path / "small", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "run")
    transcode_checkpoint(tmp_path / "small", tmp_path / "new", profile="compact")
    compress_checkpoint(tmp_path / "run", tmp_path / "expected", profile="compact", chain=True)
    assert contents(tmp_path / "new") == contents(tmp_path / "expected")
    transcode_checkpoint(tmp_path / "small" / "step-11", tmp_path / "eleven", profile="fast")
    compress_checkpoint(tmp_path / "run" / "step-11", tmp_path / "as-alone")
    assert contents(tmp_path / "eleven") == contents(tmp_path / "as-alone")


def test_every_eighth_is_an_anchor() -> None:
    paths = [f"{number}/a/{MODEL}" for number in range(5, 25)]
    found = older_files([*paths, "3/a/other.pt", MODEL])
    anchors = [path for path in paths if path not in found]
    assert anchors == [paths[0], paths[8], paths[16]]
    assert all(found[path] == before for before, path in pairwise(paths) if path in found)


def test_parts_in_any_order_give_the_same(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    compress_checkpoint(tmp_path / "run", tmp_path / "small", chain=True)
    for number in (11, 9, 10):
        compress_checkpoint(tmp_path / "run", tmp_path / "parts", chain=True, files=[f"step-{number}/{MODEL}"])
    report = compress_checkpoint(tmp_path / "run", tmp_path / "parts", chain=True)
    assert sum(file.resumed for file in report.files) == 3
    assert contents(tmp_path / "parts") == contents(tmp_path / "small")


def test_a_checkpoint_that_is_lost_or_changed_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    compress_checkpoint(tmp_path / "run", tmp_path / "small", chain=True)
    shutil.move(tmp_path / "small" / "step-9" / MODEL, tmp_path / "kept")
    for number in (10, 11):
        with pytest.raises(BaseMismatchError, match=f"in 'step-9/{MODEL}' .* there is no file"):
            load_file(tmp_path / "small" / f"step-{number}")
    shutil.copytree(tmp_path / "small" / "step-11", tmp_path / "alone")
    with pytest.raises(BaseMismatchError, match=f"'step-11/{MODEL}' holds no copy of what 'step-10/{MODEL}' has"):
        load_file(tmp_path / "alone")


def test_a_missing_file_is_one_problem(tmp_path: Path) -> None:
    """Not one for each tensor that is relative to it."""
    write_run(tmp_path / "run", 3)
    small, first = tmp_path / "small", tmp_path / "small" / "step-9" / MODEL
    compress_checkpoint(tmp_path / "run", small, chain=True)
    kept = shutil.move(first, tmp_path / "kept")
    itself, users = verify(small).problems
    assert (itself.kind, itself.file) == ("FileNotFoundError", f"step-9/{MODEL}")
    assert (users.kind, users.file, users.tensor) == ("BaseMismatchError", f"step-9/{MODEL}", None)
    said = f"6 tensors of 'step-10/{MODEL}' and 1 other file cannot be checked without 'step-9/{MODEL}'"
    assert said in users.message
    assert f"there is no file {str(first)!r}; fetch that file" in users.message
    (alone,) = verify(small / "step-11" / MODEL).problems
    assert f"3 tensors of '{MODEL}' cannot be checked without 'step-9/{MODEL}'" in alone.message
    shutil.move(kept, first)
    shutil.copy(small / "step-11" / MODEL, tmp_path / "alone.safetensors")
    (alone,) = verify(tmp_path / "alone.safetensors").problems
    assert "stands in no directory with a tensorwire.json" in alone.message
    write(tmp_path / "other" / MODEL, tensors(70))
    first.unlink()
    compress_checkpoint(tmp_path / "other" / MODEL, first)  # another content: one for each tensor
    assert [problem.tensor for problem in verify(small / "step-10").problems] == ["layer.0", "layer.1", "layer.2"]


def test_checkpoints_with_nothing_in_common_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2)
    for number in (11, 12):
        write(tmp_path / "run" / f"step-{number}" / MODEL, tensors(number), f"other.{number}.")
    report = compress_checkpoint(tmp_path / "run", tmp_path / "small", chain=True)
    (notice,) = [each for each in report.notices if "chain" in each]
    assert notice.startswith(f"the chain makes step-11 no smaller (so it is for 1 more): step-10/{MODEL} has no tensor")
    write_run(tmp_path / "good", 2)
    assert not any("chain" in each for each in compress_checkpoint(tmp_path / "good", tmp_path / "g").notices)


def test_one_that_is_written_to_meanwhile_serves_none(tmp_path: Path) -> None:
    """What was compressed of it is not what the next one would be relative to."""
    write_run(tmp_path / "run", 2)

    def change(done: int, total: int, path: str) -> None:
        if path == f"step-10/{MODEL}" and not done_once:
            done_once.append(path)
            write(tmp_path / "run" / "step-9" / MODEL, tensors(60))

    done_once: list[str] = []
    report = compress_checkpoint(tmp_path / "run", tmp_path / "small", chain=True, progress=change)
    assert any("stored without a base" in notice for notice in report.notices)
    decompress_checkpoint(tmp_path / "small" / "step-10", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "run" / "step-10")


def test_what_is_no_chain_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2)
    with pytest.raises(ValueError, match="expected several checkpoints for a chain"):
        compress_checkpoint(tmp_path / "run" / "step-9", tmp_path / "x", chain=True)
    with pytest.raises(ValueError, match="is a file"):
        compress_checkpoint(tmp_path / "run" / "step-9" / MODEL, tmp_path / "x", chain=True)
    with pytest.raises(ValueError, match="chain without base"):
        compress_checkpoint(tmp_path / "run", tmp_path / "x", chain=True, base=tmp_path / "run" / "step-9")
    with pytest.raises(ValueError, match='profile "resident" takes no base'):
        compress_checkpoint(tmp_path / "run", tmp_path / "x", chain=True, profile="resident")
    assert not (tmp_path / "x").exists()


def test_a_delta_of_a_checkpoint_in_a_chain(tmp_path: Path) -> None:
    """It is a base like any other."""
    write_run(tmp_path / "run", 3)
    compress_checkpoint(tmp_path / "run", tmp_path / "small", chain=True)
    base = tmp_path / "small" / "step-10"
    report = compress_checkpoint(tmp_path / "run" / "step-11", tmp_path / "delta", base=base)
    assert sum(file.num_relative for file in report.files) == 4
    decompress_checkpoint(tmp_path / "delta", tmp_path / "back", base=base)
    assert contents(tmp_path / "back") == contents(tmp_path / "run" / "step-11")
