"""Where the system gives less than usual: a container that refuses renameat2, a working directory that is gone."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tensorwire.checkpoint import compress_checkpoint
from tests.support.checkpoint_models import contents
from tests.support.command_line import COMMAND, forked
from tests.support.refused_calls import refuse

GONE = "the working directory is gone; change to one that exists, or give a path that begins with a slash"


def run_without_renameat2(place: Path, *arguments: str) -> None:
    done = forked(*arguments, "--quiet", first=partial(refuse, "renameat2=EPERM"), cwd=place)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_writing_where_renameat2_is_refused(model: Path, tmp_path: Path) -> None:
    before = contents(model)
    (model / "empty").mkdir()
    shard = model / "model.safetensors"
    for _ in range(2):  # the second time each replaces what stands there
        run_without_renameat2(tmp_path, "compress", "model", "small", "--force")
        run_without_renameat2(tmp_path, "decompress", "small", "back", "--force")
        run_without_renameat2(tmp_path, "compress", str(shard), "a.safetensors", "--force")
        run_without_renameat2(tmp_path, "decompress", "a.safetensors", "b.safetensors", "--force")
    assert contents(tmp_path / "back") == before
    assert (tmp_path / "b.safetensors").read_bytes() == shard.read_bytes()
    base, delta = tmp_path / "base.safetensors", tmp_path / "delta.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    base.write_bytes(data)
    compress_checkpoint(shard, delta, base=base)
    run_without_renameat2(tmp_path, "decompress", str(delta), "--base", str(base), "--in-place")
    assert base.read_bytes() == shard.read_bytes()
    names = ["a.safetensors", "b.safetensors", "back", "base.safetensors", "delta.safetensors", "model", "small"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def test_paths_from_the_root_on_need_no_working_directory(here: Path, model: Path, tmp_path: Path) -> None:
    """From the start of the interpreter on."""
    code = "import os, pathlib, sys; pathlib.Path.cwd().rmdir(); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, *COMMAND, "compress", model, tmp_path / "small", "--quiet"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "small").is_dir()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("compress", ".", "{}/x"), "."),
        (("compress", "{}/model", "-o", "x"), "x"),
        (("compress", "{}/model/model.safetensors", "x"), "x"),
        (("compress", ".", "{}/model"), "."),
        (("verify", "."), "."),
        (("inspect", "."), "."),
        (("inspect", "{}/model", "--plot", "x.png"), "x.png"),
        (("diff", "{}/model", "."), "."),
    ],
)
def test_the_working_directory_is_gone(
    here: Path, model: Path, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    before = contents(model)
    given = [argument.format(tmp_path) for argument in arguments]
    done = forked(*given, first=lambda: Path.cwd().rmdir(), cwd=here, text=True)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr == f"tensorwire: {named!r}: {GONE}\n"
    assert contents(model) == before
