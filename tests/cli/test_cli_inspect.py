"""tensorwire inspect: its table, its plot, what it selects."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorwire._ground.packages import how_to_install
from tests.support.acting import raising
from tests.support.command_line import on_terminal, weights

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run


def test_inspect_gives_the_bound(compressed: Path, run: Run) -> None:
    ran = run("inspect", compressed)
    assert (ran.code, ran.err) == (0, "")
    rows = {line.split()[0]: line.split() for line in ran.out.splitlines() if line.strip()}
    assert rows["tensor"] == ["tensor", "dtype", "shape", "ratio", "bits", "bound"]
    assert rows["two_exponents"][1:3] == ["F32", "16384"]
    assert rows["two_exponents"][-1] == "1.000"  # one of two exponents, each as often
    assert rows["layer.weight"][1:3] == ["BF16", "300\N{MULTIPLICATION SIGN}200"]
    tensor = {tensor["name"]: tensor for tensor in run("inspect", compressed, "--json").json["tensors"]}
    assert tensor["two_exponents"]["exponent_entropy"] == 1.0
    assert tensor["two_exponents"]["exponent_counts"][127:129] == [8192, 8192]


def test_inspect_of_a_plain_file(model: Path, run: Run) -> None:
    ran = run("inspect", model / "model.safetensors")
    assert ran.code == 0
    line = next(line for line in ran.out.splitlines() if line.startswith("two_exponents"))
    assert line.split() == ["two_exponents", "F32", "16384", "1.000", "1.000"]  # no column bits, of dashes alone


def test_inspect_plot(compressed: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    path = compressed.with_name("plot.png")
    path.write_bytes(b"mine")
    again = run("inspect", compressed, "--plot", path)
    assert (again.code, again.out) == (2, "")
    assert "exists" in again.err
    assert path.read_bytes() == b"mine"
    assert run("inspect", compressed, "--plot", path, "--force").code == 0
    assert path.read_bytes().startswith(b"\x89PNG")

    whole, names = path.read_bytes(), sorted(path.parent.iterdir())
    monkeypatch.setattr("tensorwire.cli.plot.draw", lambda *_: b"another")
    monkeypatch.setattr("os.fsync", raising(OSError(28, "No space left on device")))
    failed = run("inspect", compressed, "--plot", path, "--force")
    assert failed.code == 1
    assert str(path) in failed.err
    assert path.read_bytes() == whole, "all of it or nothing"
    assert sorted(path.parent.iterdir()) == names


def test_plot_without_matplotlib(model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.cli.options.find_spec", lambda name: None)
    ran = run("inspect", model, "--plot", "x.png")
    assert (ran.code, ran.out) == (2, "")
    assert how_to_install("plot") in ran.err


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("short.weight", "short.weight"),
        ("transformer.layer." + "deep." * 6 + "11.weight", "transf.layer." + "deep." * 6 + "11.weight "),
        ("model.layers.0." + "x." * 40 + "weight", "model.layers.0.x."),  # hopeless: cut in the middle
    ],
)
def test_table_on_a_narrow_terminal(tmp_path: Path, name: str, shown: str) -> None:
    path = tmp_path / "a.safetensors"
    save_file({name: np.ones((8, 8), np.float32)}, path)
    screen = on_terminal(80, "inspect", path)
    row = screen[2]
    assert row.startswith(shown)
    assert row.endswith("0.000")
    assert all(len(line) <= 80 for line in screen if "a.safetensors" not in line)
    assert any("abbreviated" in line for line in screen) == (name != "short.weight")


@pytest.mark.parametrize("width", [32, 40, 60, 80])
def test_a_table_keeps_its_rows_on_any_terminal(tmp_path: Path, width: int) -> None:
    path = tmp_path / "a.safetensors"
    names = [f"transformer.layer.{i}.attention.output.weight" for i in range(3)]
    save_file({name: np.ones((64, 64), np.float32) for name in names}, path)
    for arguments in (("inspect", path), ("inspect", path, "--summary")):
        screen = on_terminal(width, *arguments)
        table = screen[: next(i for i, line in enumerate(screen) if line.startswith("all")) + 1]
        assert len(table) == 2 + (1 if "--summary" in arguments else 3) + 2, "no row takes two lines"
        assert all(len(line) <= width for line in table)
        assert "ratio" in table[0]
        assert ("bound" in table[0]) == (not any("no room for" in line and "bound" in line for line in screen))


def layers(path: Path) -> Path:
    """Two files with two layers each, and a tensor that stands in both."""
    path.mkdir()
    for shard in range(2):
        save_file(
            {
                **{f"layers.{2 * shard + i}.weight": weights(i, (64, 64)) for i in range(2)},
                "norm.weight": weights(7, (32,)).astype(np.float16),
            },
            path / f"{shard}.safetensors",
        )
    return path


def rows(out: str) -> list[list[str]]:
    """The cells of the table's rows, its title first, without the line of the totals."""
    lines = out.split("\n\n")[0].splitlines()
    return [line.split() for line in lines if not line.startswith("\N{BOX DRAWINGS LIGHT HORIZONTAL}")][:-1]


def test_file_column_where_names_repeat(tmp_path: Path, run: Run) -> None:
    ran = run("inspect", layers(tmp_path / "model"))
    assert rows(ran.out)[0][:2] == ["tensor", "file"]
    assert [row[1] for row in rows(ran.out) if row[0] == "norm.weight"] == ["0.safetensors", "1.safetensors"]


def test_filter_takes_what_matches(tmp_path: Path, run: Run) -> None:
    model = layers(tmp_path / "model")
    names = [row[0] for row in rows(run("inspect", model, "--filter", "layers.[02].*", "--filter", "*.3.*").out)[1:]]
    assert names == ["layers.0.weight", "layers.2.weight", "layers.3.weight"]
    report = run("inspect", model, "--filter", "norm*", "--json").json
    assert [tensor["name"] for tensor in report["tensors"]] == ["norm.weight"] * 2
    assert report["nbytes"] == 2 * 32 * 2
    nothing = run("inspect", model, "--filter", "norm")
    assert (nothing.code, nothing.out) == (2, "")
    assert "no tensor whose name matches 'norm'; patterns are those of a shell: try '*norm*'\n" in nothing.err
    assert "patterns" not in run("inspect", model, "--filter", "norm[0]").err


def test_sort(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"b": np.zeros(2, np.float32), "c": np.arange(9.0), "a": np.ones(5, np.float16)}, path)

    def names(key: str) -> str:
        ran = run("inspect", path, "--sort", key)
        assert ran.code == 0
        listed = [tensor["name"] for tensor in run("inspect", path, "--sort", key, "--json").json["tensors"]]
        assert listed == [row[0] for row in rows(ran.out)[1:]]
        return "".join(listed)

    assert names("name") == "abc"
    assert names("dtype") == "abc"  # F16, F32, F64
    assert names("size") == "cab"
    assert names("bound")[-1] == "c", "what has no exponents that are coded apart comes last"
    assert run("inspect", path, "--sort", "sise").code == 2


def test_summary(tmp_path: Path, run: Run) -> None:
    model = layers(tmp_path / "model")
    ran = run("inspect", model, "--summary")
    assert [row[:3] for row in rows(ran.out)] == [
        ["tensors", "number", "dtype"],
        ["layers.*.weight", "4", "F32"],
        ["norm.weight", "2", "F16"],
    ]
    report = run("inspect", model, "--summary", "--json").json
    assert "tensors" not in report
    first, second = report["groups"]
    assert (first["name"], first["num_tensors"], first["numel"], first["nbytes"]) == (
        "layers.*.weight", 4, 4 * 64 * 64, 4 * 64 * 64 * 4,
    )  # fmt: skip
    assert (second["name"], second["num_tensors"]) == ("norm.weight", 2)


def test_plot_fails_before_the_work(model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")

    monkeypatch.setattr("tensorwire.checkpoint.inspect", raising(AssertionError("the work has begun")))
    ran = run("inspect", model, "--plot", "no/such/directory/x.png")
    assert (ran.code, ran.out) == (2, "")
    assert "no directory 'no/such/directory'" in ran.err


def test_plot_tells_what_it_shows(tmp_path: Path, run: Run) -> None:
    """The title, and one colour for one dtype in both panels, also where a dtype is only in the first."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "llama.safetensors"
    small = tmp_path / "small.safetensors"
    save_file({"a": weights(0, (8,)).astype(ml_dtypes.bfloat16), "b": weights(1, (200, 100))}, path)
    assert run("compress", path, small).code == 0
    assert run("inspect", small, "--plot", tmp_path / "x.svg").code == 0
    ratio = json.loads(run("inspect", small, "--json").out)["ratio"]
    image = (tmp_path / "x.svg").read_text()
    assert image.startswith("<?xml")
    assert f"<!-- small.safetensors: ratio {ratio:.3f}" in image
    left, _, right = image.partition('id="axes_2"')

    def colors(panel: str) -> set[str]:
        return {color for color in ("#2a6f97", "#d1495b", "#66a182", "#edae49", "#5c4d7d") if color in panel}

    assert colors(right) < colors(left)
    assert len(colors(right)) == 1
    of_f32 = image.partition("<!-- F32, all elements -->")[0].rpartition("stroke: #")[2][:6]
    assert colors(right) == {f"#{of_f32}"}
    for axis, following in ((1, 2), (3, 4)):
        marks = image.partition(f'id="matplotlib.axis_{axis}"')[2].partition(f'id="matplotlib.axis_{following}"')[0]
        numbers = re.findall(r"<!-- [\N{MINUS SIGN}]?([\d.]+) -->", marks)
        assert numbers
        assert "." not in "".join(numbers), "whole exponents, whole tensors"


@pytest.mark.parametrize("width", [36, 40, 60])
def test_two_names_are_never_abbreviated_to_the_same(tmp_path: Path, width: int) -> None:
    """Shards, whose numbers stand at the end of a long part; the columns that say less make room for them."""
    model = tmp_path / "model"
    model.mkdir()
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        save_file({f"layers.{number}.weight": np.ones((64, 64), np.float32)}, model / name)
    screen = on_terminal(width, "compress", model)
    rows = [line.split() for line in screen if line.startswith("m")]
    assert len(rows) == 2
    assert rows[0][0] != rows[1][0]
    assert all(len(line) <= width for line in screen[: screen.index(next(x for x in screen if x.startswith("total")))])


def test_columns_of_dashes_are_left_out(tmp_path: Path, run: Run) -> None:
    """As of a delta, whose exponents are those of differences."""
    old, new = layers(tmp_path / "old"), layers(tmp_path / "new")
    assert run("compress", new, tmp_path / "delta", "--base", old).code == 0
    for options in (["--filter", "layers*"], ["--filter", "layers*", "--summary"]):
        shown = run("inspect", tmp_path / "delta", *options).out
        assert "ratio" in shown.splitlines()[0]
        assert "bits" not in shown
        assert "bound" not in shown
        known = run("inspect", tmp_path / "delta", "--base", old, *options).out
        assert "bound: order-0 entropy\n" in known
        assert "bits" not in known
