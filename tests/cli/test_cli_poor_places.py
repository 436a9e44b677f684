"""Where the system gives less than usual: a container that refuses renameat2, a working directory that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import compress_checkpoint
from tests.support.command_line import COMMAND, contents

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent.parent
GONE = "the working directory is gone; change to one that exists, or give a path that begins with a slash"


def run_without_renameat2(place: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.refused_calls", "renameat2=EPERM", *arguments, "--quiet"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
def gone(tmp_path: Path) -> str:
    """A program that starts in a directory and removes it, and goes on with its arguments."""
    code = "import os, pathlib, sys; pathlib.Path.cwd().rmdir(); os.execv(sys.argv[1], sys.argv[1:])"
    (tmp_path / "here").mkdir()
    return code


def run_nowhere(gone: str, place: Path, arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", gone, *COMMAND, *map(str, arguments)],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_paths_from_the_root_on_need_no_working_directory(gone: str, model: Path, tmp_path: Path) -> None:
    done = run_nowhere(gone, tmp_path / "here", ("compress", model, tmp_path / "small", "--quiet"))
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
    gone: str, model: Path, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    before = contents(model)
    done = run_nowhere(gone, tmp_path / "here", [argument.format(tmp_path) for argument in arguments])
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr == f"tensorwire: {named!r}: {GONE}\n"
    assert contents(model) == before
