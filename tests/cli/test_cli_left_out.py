"""compress --exclude, and what the commands say of files that are left out."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.checkpoint_models import edit_manifest
from tests.support.processes import PRINT_PEAK_MEMORY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run


def test_exclude_is_told_then_and_later(model: Path, tmp_path: Path, run: Run) -> None:
    (model / "onnx").mkdir()
    (model / "onnx" / "model.onnx").write_bytes(bytes(100))
    small, back = tmp_path / "small", tmp_path / "back"
    for arguments in (["--estimate"], [small]):
        ran = run("compress", model, *arguments, "--exclude", "*.txt", "--exclude", "onnx/")
        assert (ran.code, ran.err) == (0, "")
        assert [line for line in ran.out.splitlines() if line.startswith("note: ")] == [
            "note: left out: notes.txt",
            "note: left out: onnx/",
        ]
    ran = run("decompress", small, back)
    assert ran.code == 0
    assert "note: left out when it was compressed: onnx/" in ran.out
    assert sorted(path.name for path in back.iterdir()) == ["config.json", "model.safetensors"]


def test_a_clone_is_told_how_to_keep_its_history(model: Path, tmp_path: Path, run: Run) -> None:
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_text("ref")
    assert "note: left out: .git/; --exclude '!.git' includes it" in run("compress", model, tmp_path / "a").out


def test_a_compressed_shard_among_its_originals_is_left_out_on_request(model: Path, run: Run) -> None:
    """Where compress puts the result of one shard, unless it is told another place."""
    assert run("compress", model / "model.safetensors").code == 0
    ran = run("compress", model)
    advice = "--exclude 'model.tensorwire.safetensors'"
    assert ran.code == 2
    assert advice in ran.err
    assert run("compress", model, *advice.replace("'", "").split()).code == 0


def test_exclude_of_a_file_is_wrong_usage(model: Path, tmp_path: Path, run: Run) -> None:
    for arguments in ([tmp_path / "x"], ["--estimate"]):
        ran = run("compress", model / "model.safetensors", *arguments, "--exclude", "a")
        assert (ran.code, ran.out) == (2, "")
        assert "directory" in ran.err


def test_the_total_row_counts_the_manifest(model: Path, tmp_path: Path, run: Run) -> None:
    ran = run("compress", model, tmp_path / "small")
    assert any(line.split()[:2] == ["tensorwire.json", "manifest"] for line in ran.out.splitlines())
    report = run("decompress", tmp_path / "small", tmp_path / "back", "--json").json
    assert report["nbytes_in"] == sum(path.stat().st_size for path in (tmp_path / "small").iterdir())


def test_models_in_other_formats_get_one_note(model: Path, tmp_path: Path, run: Run) -> None:
    """Hubs have the same weights in several."""
    (model / "llama.Q4.gguf").write_bytes(b"GGUF" + bytes(700_000))
    (model / "onnx").mkdir()
    (model / "onnx" / "model.onnx").write_bytes(b"\x08\x08\x12\x07pytorch" + bytes(500_000))
    (model / "large.json").write_text("[" + "1," * 600_000 + "1]")
    note = "note: 1.2 MB in other formats are copied as they are: --exclude '*.gguf' --exclude '*.onnx' leaves them out"
    out = run("compress", model, tmp_path / "x").out.splitlines()
    assert [line for line in out if line.startswith("note: ")] == [note]
    options = ("--exclude", "*.gguf", "--exclude", "*.onnx")
    assert "other formats" not in run("compress", model, tmp_path / "y", *options).out
    assert "other formats" not in run("compress", model, "--replace").out


def test_many_paths_are_counted(model: Path, tmp_path: Path, run: Run) -> None:
    for number in range(25):
        (model / f"{number:02}.log").touch()
    ran = run("compress", model, tmp_path / "x", "--exclude", "*.log")
    notes = [line for line in ran.out.splitlines() if line.startswith("note: ")]
    assert notes[:20] == [f"note: left out: {number:02}.log" for number in range(20)]
    assert notes[20:] == ["note: 5 more paths; --json lists all"]
    assert len(run("decompress", tmp_path / "x", tmp_path / "back", "--json").json["excluded"]) == 25


@pytest.mark.parametrize(
    ("number", "depth", "mib"),
    [
        (60_000, 22, 130),
        *(pytest.param(600_000, depth, 400, marks=pytest.mark.slow) for depth in (0, 22)),  # as many as it can hold
    ],
)
def test_a_manifest_full_of_paths(compressed: Path, tmp_path: Path, number: int, depth: int, mib: int) -> None:
    """Time and memory are those of its text."""
    edit_manifest(compressed, lambda body: body.update(excluded=[f"{i:06}{'/a' * depth}" for i in range(number)]))
    code = "import sys; from tensorwire.cli import main; code = main(sys.argv[1:])\n"
    code += PRINT_PEAK_MEMORY + "sys.exit(code)\n"
    for arguments in (("verify", compressed), ("decompress", compressed, tmp_path / "back")):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0
        assert len(done.stdout) < 10_000
        assert int(done.stdout.splitlines()[-1]) < mib << 20
