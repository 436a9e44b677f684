"""Many processes that each compress some files of a checkpoint, and a last one that makes a whole of their parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tensorwire.checkpoint import compress_checkpoint
from tensorwire.checkpoint.operations import converter
from tensorwire.storage.local import InputFile
from tensorwire.storage.staging import Staging
from tests.support.acting import raising
from tests.support.checkpoint_models import container, contents, weights
from tests.support.destination_cells import snapshot
from tests.support.processes import KILLED, exit_code, kill_at
from tests.support.stores import faulty_store

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
BELOW = "vae/diffusion_pytorch_model.safetensors"


def run_killed(src: Path, dst: Path, stage: str, *files: str) -> None:
    starts: dict[str, int] = {}

    def progress(done: int, total: int, path: str) -> None:
        if done > starts.setdefault(path, done) and (stage, path) == ("in the second file", files[1]):
            os._exit(KILLED)

    def child() -> None:
        if stage != "in the second file":
            kill_at(1, [(Staging, "record")], after=stage == "after the record")
        compress_checkpoint(src, dst, files=files or None, progress=progress)

    assert exit_code(child) == KILLED


def start(src: Path, dst: Path, *files: str) -> subprocess.Popen[str]:
    options = [option for file in files for option in ("--files", file)]
    command = [sys.executable, "-m", "tensorwire", "compress", src, dst, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def resumed(src: Path, dst: Path) -> list[str]:
    """Run the last call; the files that it did not make itself."""
    return [file.path for file in compress_checkpoint(src, dst).files if file.resumed]


def is_whole(dst: Path, packed: Path) -> bool:
    """Whether it is what one process has made, in every file, directory and permission, and nothing is left beside."""
    assert not [path for path in dst.parent.iterdir() if path.name.startswith(f"{dst.name}.")]
    modes = [{path.relative_to(root): path.stat().st_mode for path in root.rglob("*")} for root in (dst, packed)]
    return modes[0] == modes[1] and contents(dst) == contents(packed)


def test_two_processes_and_a_last_call_give_the_bytes_of_one(model: Path, packed: Path, tmp_path: Path) -> None:
    running = [start(model, tmp_path / "x", A), start(model, tmp_path / "x", B, BELOW)]
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert all(f"made parts of {tmp_path / 'x'}" in " ".join(out.split()) for out, _ in said)
    assert not (tmp_path / "x").exists()
    assert resumed(model, tmp_path / "x") == [A, B, BELOW]
    assert is_whole(tmp_path / "x", packed)


def test_a_file_at_work_is_left_to_its_process(model: Path, packed: Path, tmp_path: Path) -> None:
    def other_calls(*_: object) -> None:
        compress_checkpoint(model, tmp_path / "x", files=[B])
        for files in ([A], None):
            with pytest.raises(BlockingIOError, match="another process is making it"):
                compress_checkpoint(model, tmp_path / "x", files=files)

    report = compress_checkpoint(model, tmp_path / "x", files=[A], progress=other_calls)
    assert [file.path for file in report.files] == [A]
    assert resumed(model, tmp_path / "x") == [A, B]
    assert is_whole(tmp_path / "x", packed)


@pytest.mark.parametrize(
    ("stage", "finished"), [("in the second file", [A]), ("before the record", []), ("after the record", [A])]
)
def test_a_process_that_is_killed(model: Path, packed: Path, tmp_path: Path, stage: str, finished: list[str]) -> None:
    run_killed(model, tmp_path / "x", stage, A, B)
    assert resumed(model, tmp_path / "x") == finished
    assert is_whole(tmp_path / "x", packed)


@pytest.mark.parametrize(("stage", "kept"), [("before the record", [B]), ("after the record", [A, B])])
def test_a_last_call_that_is_killed_while_it_adopts(
    model: Path, packed: Path, tmp_path: Path, stage: str, kept: list[str]
) -> None:
    compress_checkpoint(model, tmp_path / "x", files=[A, B])
    run_killed(model, tmp_path / "x", stage)
    assert resumed(model, tmp_path / "x") == kept
    assert is_whole(tmp_path / "x", packed)


def test_parts_that_were_cut_are_made_anew(model: Path, packed: Path, tmp_path: Path) -> None:
    compress_checkpoint(model, tmp_path / "x", files=[A, B, BELOW])
    parts = {path.parts[-1]: path for path in tmp_path.glob("x.part-*.partial/result/**/*.safetensors")}
    os.truncate(parts[A], parts[A].stat().st_size - 1)
    parts[B].unlink()
    assert resumed(model, tmp_path / "x") == [BELOW]
    assert is_whole(tmp_path / "x", packed)


def test_parts_of_another_content_are_made_anew(model: Path, tmp_path: Path) -> None:
    compress_checkpoint(model, tmp_path / "x", files=[A, B])
    data = bytearray((model / A).read_bytes())
    data[-1] ^= 1
    (model / A).write_bytes(data)
    (model / B).touch()
    assert resumed(model, tmp_path / "x") == [B]
    compress_checkpoint(model, tmp_path / "one")
    assert is_whole(tmp_path / "x", tmp_path / "one")


def test_parts_of_other_options_are_made_anew(model: Path, packed: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "other")
    compress_checkpoint(model, tmp_path / "x", files=[A], profile="compact")
    compress_checkpoint(model, tmp_path / "x", files=[B], base=tmp_path / "other")
    compress_checkpoint(tmp_path / "other", tmp_path / "x", files=[BELOW])
    assert resumed(model, tmp_path / "x") == []
    assert is_whole(tmp_path / "x", packed)


def test_parts_that_are_relative(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "base")
    compress_checkpoint(model, tmp_path / "one", base=tmp_path / "base")
    for files in ([B, BELOW], [A]):
        compress_checkpoint(model, tmp_path / "x", files=files, base=tmp_path / "base")
    report = compress_checkpoint(model, tmp_path / "x", base=tmp_path / "base")
    assert [file.path for file in report.files if file.resumed] == [A, B, BELOW]
    assert is_whole(tmp_path / "x", tmp_path / "one")


def test_parts_take_no_more_room_of_a_base_than_one_process(tmp_path: Path) -> None:
    """A base carries sixteen times its size: each part has room for all of its ten tensors, both together have not."""
    data = weights(4096, 0)
    (tmp_path / "base.safetensors").write_bytes(container([("w", "BF16", (4096,), data)]))
    (tmp_path / "model").mkdir()
    for file in "ab":
        entries = [(f"{file}.{index}", "BF16", (4096,), data) for index in range(10)]
        (tmp_path / "model" / f"{file}.safetensors").write_bytes(container(entries))
    options = {"base": tmp_path / "base.safetensors"}
    whole = compress_checkpoint(tmp_path / "model", tmp_path / "one", **options)
    assert [file.num_relative for file in whole.files if file.num_tensors] == [10, 6]
    for file in "ba":
        part = compress_checkpoint(tmp_path / "model", tmp_path / "x", files=[f"{file}.safetensors"], **options)
        assert part.files[0].num_relative == 10
    last = compress_checkpoint(tmp_path / "model", tmp_path / "x", **options)
    assert [file.path for file in last.files if file.resumed] == ["a.safetensors"]
    assert is_whole(tmp_path / "x", tmp_path / "one")


def test_adopting_reads_no_source(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a source another one on a machine that knows its file system by another device."""
    with InputFile(model / A) as file:
        status = (model / A).stat()
        assert file.identity == [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    compress_checkpoint(model, tmp_path / "x", files=[A, B, BELOW])

    monkeypatch.setattr(converter, "file_sha256", raising(AssertionError("a source was read")))
    monkeypatch.setattr(converter, "open_stored", raising(AssertionError("a source was read")))
    assert resumed(model, tmp_path / "x") == [A, B, BELOW]


def test_what_is_finished_is_not_made_twice(model: Path, tmp_path: Path) -> None:
    compress_checkpoint(model, tmp_path / "x", files=[A])
    again = compress_checkpoint(model, tmp_path / "x", files=[B, A, A])
    assert [(file.path, file.resumed) for file in again.files] == [(A, True), (B, False)]


def test_progress_is_that_of_the_named_files(model: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    compress_checkpoint(model, tmp_path / "x", files=[B], progress=lambda *call: calls.append(call))
    nbytes = (model / B).stat().st_size
    assert calls[0] == (0, nbytes, B)
    assert calls[-1] == (nbytes, nbytes, B)


def test_a_share_without_files_does_nothing(model: Path, tmp_path: Path) -> None:
    assert compress_checkpoint(model, tmp_path / "x", files=[]).files == ()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_no_file_of_tensors_is_refused(model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "missing.safetensors", f"./{A}", ""):
        with pytest.raises(ValueError, match=f"by their paths in the source, such as '{A}', got '{name}'"):
            compress_checkpoint(model, tmp_path / "x", files=[A, name])
    with pytest.raises(TypeError, match="put it into brackets"):
        compress_checkpoint(model, tmp_path / "x", files=A)
    with pytest.raises(ValueError, match="files is for the files of a directory"):
        compress_checkpoint(model / A, tmp_path / "x", files=[A])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_destination_that_must_stay_is_refused_before_the_work(model: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    before = snapshot(tmp_path)
    for dst, force in (("packed", False), ("mine", False), ("mine", True)):
        with pytest.raises(FileExistsError):
            compress_checkpoint(model, tmp_path / dst, files=[A], force=force)
    assert snapshot(tmp_path) == before
    compress_checkpoint(model, packed, files=[A], force=True, profile="compact")
    assert {path: mark for path, mark in snapshot(tmp_path).items() if ".part-" not in path} == before


def test_a_part_that_is_not_ours_stays(model: Path, tmp_path: Path) -> None:
    compress_checkpoint(model, tmp_path / "x", files=[A])
    (part,) = tmp_path.glob("x.part-*.partial")
    (part / "notes.txt").write_text("mine")
    before = snapshot(part)
    for files in ([A], None):
        with pytest.raises(FileExistsError, match="move it"):
            compress_checkpoint(model, tmp_path / "x", files=files)
    assert snapshot(part) == before


def test_parts_of_a_url_lie_among_temporary_files(
    model: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with faulty_store() as store:
        for path, data in contents(model).items():
            store.pipe_file(f"/s/plain/{path}", data)
        for file in (A, B):
            compress_checkpoint("faulty://s/plain", "faulty://s/x", files=[file])
        assert not store.exists("/s/x")
        assert list((tmp_path / "temporary").iterdir())
        last = compress_checkpoint("faulty://s/plain", "faulty://s/x")
        assert [file.path for file in last.files if file.resumed] == [A, B]
        found = {path.removeprefix("/s/x/"): store.cat_file(path) for path in store.find("/s/x")}
        assert found == contents(packed)
        assert not list((tmp_path / "temporary").iterdir())
        with pytest.raises(FileExistsError, match="already exists"):
            compress_checkpoint("faulty://s/plain", "faulty://s/x", files=[A])


def test_a_name_that_is_too_long_for_parts(model: Path, packed: Path, tmp_path: Path) -> None:
    """A name that is as long as names may be has no room for parts, and needs none."""
    name = "x" * (255 - len(".partial"))
    assert resumed(model, tmp_path / name) == []
    assert is_whole(tmp_path / name, packed)
