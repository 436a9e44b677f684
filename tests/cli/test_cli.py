"""Every command: what it prints, where, and its exit code; in good cases and bad ones."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorwire.cli import output
from tests.support.acting import raising
from tests.support.checkpoint_models import contents
from tests.support.command_line import Ran, damage, tensors, weights

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run


# Good cases


def test_compress_writes_next_to_the_source(model: Path, run: Run) -> None:
    ran = run("compress", model)
    assert (ran.code, ran.err) == (0, "")
    written = model.with_name("model.tensorwire")
    assert sum(map(len, contents(written).values())) < sum(map(len, contents(model).values()))
    lines = ran.out.splitlines()
    assert lines[0].split() == ["file", "content", "before", "after", "ratio"]
    assert any(line.startswith("notes.txt") and "copied" in line for line in lines)
    assert lines[-1].startswith(f"wrote {written}: ")


def test_round_trip_of_a_directory(model: Path, run: Run) -> None:
    original = contents(model)
    assert run("compress", model).code == 0
    shutil.rmtree(model)
    ran = run("decompress", model.with_name("model.tensorwire"))
    assert (ran.code, ran.err) == (0, "")
    assert contents(model) == original


@pytest.mark.parametrize("name", ["a.safetensors", "a b ünïcödé 模型.safetensors"])
def test_round_trip_of_a_file(tmp_path: Path, run: Run, name: str) -> None:
    source = tmp_path / name
    save_file(tensors(), source)
    original = source.read_bytes()
    assert run("compress", source).code == 0
    small = tmp_path / name.replace(".safetensors", ".tensorwire.safetensors")
    assert small.stat().st_size < len(original)
    source.unlink()
    ran = run("decompress", small)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"wrote {source}: ")
    assert source.read_bytes() == original


def test_decompress_of_a_name_without_the_suffix(compressed: Path, model: Path, run: Run) -> None:
    assert run("decompress", compressed).code == 0
    assert contents(compressed.with_name("small.decompressed")) == contents(model)


def test_source_named_by_a_dot(model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    assert run("compress", ".").code == 0
    assert model.with_name("model.tensorwire").is_dir()


def test_read_only_source(model: Path, run: Run) -> None:
    before = contents(model)
    for path in (*model.iterdir(), model):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert run("compress", model).code == 0
        assert contents(model) == before
    finally:
        model.chmod(0o755)


def test_estimate(model: Path, run: Run) -> None:
    before = sorted(model.parent.iterdir())
    ran = run("compress", model, "--estimate")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{model}: ")
    report = run("compress", model, "--estimate", "--json").json
    assert f"ratio {report['ratio']:.3f} (" in ran.out
    assert report["sample_share"] == 1.0
    assert sorted(model.parent.iterdir()) == before
    for writing in (model.with_name("x"), "--force"):
        assert run("compress", model, writing, "--estimate").code == 2


def test_quiet(model: Path, compressed: Path, run: Run) -> None:
    for arguments, code in (
        (("compress", model, "--estimate", "-q"), 0),
        (("compress", model, "-q"), 0),
        (("verify", compressed, "-q"), 0),
        (("diff", model, compressed, "-q"), 0),
        (("diff", model, compressed / "model.safetensors", "--quiet"), 0),
        (("decompress", compressed, "-o", model.with_name("back"), "-q", "-T", "1"), 0),
    ):
        assert run(*arguments) == Ran(code, "", ""), arguments
    assert run("compress", model, "-q", "-f").code == 0
    assert run("compress", model, "-q").err.startswith("tensorwire: ")


def test_verify(model: Path, compressed: Path, run: Run) -> None:
    ran = run("verify", compressed)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{compressed}: ok; checksums and SHA-256 of the original files\n3 tensors in 3 files, ")
    assert run("verify", compressed, "--json").json["ok"] is True
    plain = run("verify", model)
    assert plain.code == 0
    assert plain.out == f"{model}: plain; the structure is ok, there are no checksums to check the data against\n" + (
        "3 tensors in 1 file\n"
    )


def test_diff_of_equals(model: Path, compressed: Path, run: Run) -> None:
    ran = run("diff", model, compressed)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("equal: 3 tensors")


def test_diff_counts_elements(tmp_path: Path, run: Run) -> None:
    a, b = tensors(), tensors()
    b["layer.weight"].view(np.uint16)[[0, 7], [5, 9]] ^= 1
    b["layer.bias"] = b["layer.bias"].astype(np.float16)
    del b["two_exponents"]
    b["new"] = np.zeros(3, np.float32)
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    paths = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    ran = run("diff", *paths)
    assert (ran.code, ran.err) == (3, "")
    rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines() if line.strip()}
    assert rows["layer.weight"] == ["changed", "BF16", "300\N{MULTIPLICATION SIGN}200", "2", "0.0%"]
    assert rows["layer.bias"] == ["retyped", "F32", "to", "F16", "200", "200", "100.0%"]
    assert rows["two_exponents"] == ["removed", "F32", "16384", "16,384", "100.0%"]
    assert rows["new"][0] == "added"
    report = run("diff", *paths, "--json")
    assert report.code == 3
    assert report.json["num_different_elements"] == 2
    assert {tensor["name"]: tensor["status"] for tensor in report.json["tensors"]} == {
        "layer.weight": "changed", "layer.bias": "retyped", "two_exponents": "removed", "new": "added",
    }  # fmt: skip


# Bad cases


def test_nothing_is_overwritten(model: Path, compressed: Path, run: Run) -> None:
    before = contents(compressed)
    ran = run("compress", model, compressed)
    assert (ran.code, ran.out) == (2, "")
    assert "already exists; pass --force to replace it" in ran.err
    assert contents(compressed) == before
    assert run("compress", model, compressed, "--profile", "compact", "--force").code == 0
    assert contents(compressed) != before


def test_verify_names_the_tensor_and_goes_on(compressed: Path, run: Run) -> None:
    file = compressed / "model.safetensors"
    damage(file, file.stat().st_size // 2)
    ran = run("verify", compressed)
    assert ran.code == 1
    assert ran.err.startswith("tensorwire: ")
    assert any(name in ran.err for name in tensors())
    assert "damaged: 1 problem\n3 tensors" in ran.out
    report = run("verify", compressed, "--json")
    assert report.code == 1
    assert report.json["ok"] is False
    assert report.json["problems"][0]["file"] == "model.safetensors"


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_damage_is_an_error_and_leaves_nothing(compressed: Path, run: Run, how: str) -> None:
    file = compressed / "model.safetensors"
    nbytes = file.stat().st_size
    if how == "flipped":
        damage(file, nbytes // 2)
    else:
        os.truncate(file, nbytes - 64)
    target = compressed.with_name("back")
    ran = run("decompress", compressed, target)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "model.safetensors" in ran.err
    assert not target.exists()
    failed = run("decompress", compressed, target, "--json")
    assert failed.code == 1
    assert set(failed.json["error"]) == {"kind", "message", "file", "tensor", "block", "byte"}
    assert failed.json["error"]["kind"] in ("CorruptDataError", "TruncatedDataError")
    assert failed.err == ran.err, "a reader sees the same line"


def test_the_wrong_command_for_the_state(model: Path, compressed: Path, run: Run) -> None:
    again = run("compress", compressed, model.with_name("again"))
    assert again.code == 2
    assert "transcode" in again.err
    assert run("decompress", model, model.with_name("again")).code == 2
    assert run("transcode", model, model.with_name("again"), "--profile", "fast").code == 2
    assert not model.with_name("again").exists()


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["compres"], "did you mean 'compress'?"),
        (["frobnicate"], "the commands are compress,"),
        (["compress", ".", "--profle", "fast"], "--profile"),
        (["compress", ".", "--profile", "fats"], "did you mean 'fast'?"),
        (["inspect", ".", "--sort", "rato"], "did you mean 'ratio'?"),
        (["transcode", ".", "--profile", "fast"], "DST"),
        (["compress", ".", "--threads", "0"], "x>=1"),
        (["compress"], "SRC"),
        (["verify", "no/such/path"], "no/such/path"),
        (["inspect", ".", "--plot", "x.bmp"], ".png"),
        (["transcode", ".", "x"], "Choose from: fast, compact, resident, enec"),
        (["completion", "tcsh"], "bash"),
        (["completion"], "Choose from: bash, zsh, fish"),
        (["compress", ".", "no/such/directory/x"], "no directory 'no/such/directory': make it first"),
    ],
)
def test_usage_errors(run: Run, arguments: list[str], advice: str) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("tensorwire: ")
    assert advice in ran.err
    assert ran.err.count("\n") == 2
    assert "--help" in ran.err.splitlines()[1]


@pytest.mark.parametrize("command", ["compress", "decompress", "transcode", "verify", "diff", "inspect", "bench"])
def test_every_error_is_a_document(command: str, tmp_path: Path, run: Run) -> None:
    """Errors of usage and of data; on standard error a reader sees the same."""
    damaged = tmp_path / "x.safetensors"
    damaged.write_bytes(b"\x08" + bytes(7) + b"[       ")
    last = {"transcode": [tmp_path / "y", "--profile", "fast"], "diff": [damaged]}.get(command, [])
    for arguments, code, kind in (
        (["--no-such-option"], 2, "UsageError"),
        ([tmp_path / "none", *last], 2, "UsageError"),
        ([damaged, *last], 1, "CorruptDataError"),
    ):
        ran = run(command, *arguments, "--json")
        if command == "verify" and code == 1:
            assert (ran.code, ran.json["problems"][0]["kind"]) == (code, kind)
            continue
        assert (ran.code, ran.json["error"]["kind"]) == (code, kind)
        assert ran.err.startswith(f"tensorwire: {ran.json['error']['message']}")
    assert run(command, "--", "--json").out == "", "behind -- it is a path"


@pytest.mark.parametrize("command", ["compress", "verify", "inspect"])
def test_another_format_is_bad_data_and_a_directory_of_it_wrong_usage(command: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\0\0\0" + bytes(100))
    assert [run(command, path).code for path in (tmp_path / "model.gguf", tmp_path)] == [1, 2]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OSError(28, "No space left on device", "x"), 1, "'x': No space left on device; make room"),
        (PermissionError(13, "Permission denied", "x"), 1, "'x': Permission denied; change its permissions"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_of_the_system(
    model: Path, run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    monkeypatch.setattr("tensorwire.checkpoint.verify", raising(error))
    ran = run("verify", model, "--json")
    assert ran.code == code
    assert f"tensorwire: {text}" in ran.err
    assert text in ran.json["error"]["message"]


def test_a_defect_keeps_its_traceback(model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.checkpoint.verify", lambda *args, **options: {}["missing"])
    with pytest.raises(KeyError):
        run("verify", model)


def test_names_cannot_drive_the_terminal(tmp_path: Path, run: Run) -> None:
    evil = "a\x1b[2J\n__b\u202ec"
    model = tmp_path / f"dir{evil}"
    model.mkdir()
    save_file({evil: weights(0, (64, 64))}, model / "model.safetensors")
    (model / f"file{evil}").write_text("x")
    small = tmp_path / "small"
    other = tmp_path / "other.safetensors"
    save_file({evil: weights(1, (64, 64))}, other)
    shown = evil.encode("unicode_escape").decode()
    for arguments in (
        ("compress", model, small), ("inspect", small), ("verify", model), ("diff", model, other),
        ("compress", other, model), ("decompress", model, tmp_path / evil),
    ):  # fmt: skip
        ran = run(*arguments)
        printed = ran.out + ran.err
        assert shown in printed or repr(evil)[1:-1] in printed, arguments
        assert not set(printed) & {"\x1b", "\u202e"}, arguments
        assert "\n__b" not in printed, arguments


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (90_868_376, "90.9 MB"), (999_900_000, "1 GB")],
)
def test_size(nbytes: int, text: str) -> None:
    assert output.size(nbytes) == text


def keys(value: object) -> set[str]:
    """The names in a document, those of open maps left out."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys(item) for name, item in value.items() if name not in ("num_blocks", "metadata")))


def test_the_manual_names_every_field(model: Path, compressed: Path, repository: Path, run: Run) -> None:
    manual = (repository / "docs" / "json.md").read_text()
    file = compressed / "model.safetensors"
    documents = [
        run("compress", model, model.with_name("x"), "--json").json,
        run("compress", model, "--estimate", "--json").json,
        run("inspect", model, "--summary", "--json").json,
        run("diff", model, compressed, "--json").json,
        run("inspect", compressed, "--json").json,
        run("compress", "no/such/path", "--json").json,
    ]
    damage(file, file.stat().st_size // 2)
    documents.append(run("verify", compressed, "--json").json)
    for name in set().union(*map(keys, documents)):
        assert f'"{name}"' in manual
