"""--base, --in-place and --stats: what they print, what they refuse, what comes out."""

from __future__ import annotations

import shutil
import subprocess
from math import log2
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.checkpoint_models import container, read_header, tree_hashes, weights, write_model
from tests.support.command_line import forked
from tests.support.deltas import FIRST, next_layer, step, write_next, write_rearranged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.command_line import Run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directories old, new and delta."""
    write_model(tmp_path / "old")
    write_next(tmp_path / "old", tmp_path / "new")
    return tmp_path


@pytest.fixture
def delta(root: Path, run: Run) -> Path:
    assert run("compress", root / "new", root / "delta", "--base", root / "old").code == 0
    return root / "delta"


def test_there_and_back(root: Path, run: Run) -> None:
    ran = run("compress", root / "new", root / "delta", "--base", root / "old", "--profile", "compact")
    assert (ran.code, ran.err) == (0, "")
    assert "3 of 4 tensors, 3 relative" in ran.out
    ran = run("decompress", root / "delta", root / "back", "--base", root / "old")
    assert (ran.code, ran.err) == (0, "")
    assert tree_hashes(root / "back") == tree_hashes(root / "new")
    ran = run("transcode", root / "delta", root / "other", "--base", root / "old", "--profile", "fast", "--json")
    assert ran.json["base"] == str(root / "old")
    assert sum(file["num_relative"] for file in ran.json["files"]) == 9
    assert run("diff", root / "new", root / "other", "--base", root / "old").code == 0


def test_in_place(root: Path, delta: Path, run: Run) -> None:
    ran = run("decompress", delta, "--base", root / "old", "--in-place")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1].startswith(f"changed {root / 'old'}: ")
    assert tree_hashes(root / "old") == tree_hashes(root / "new")
    ran = run("decompress", delta, "--base", root / "old", "--in-place", "--json")
    assert (ran.json["action"], ran.json["dst"]) == ("apply", str(root / "old"))
    assert all(file["resumed"] for file in ran.json["files"])
    ran = run("decompress", delta, "--base", root / "old", "--in-place")
    assert "3 of 4 tensors, 3 relative, already there" in ran.out
    assert ran.out.splitlines()[-1] == f"nothing to change: {root / 'old'} is what {delta} leads to"
    assert sorted(path.name for path in root.iterdir()) == ["delta", "new", "old"]


def test_in_place_an_edited_file_needs_force(root: Path, delta: Path, run: Run) -> None:
    (root / "old" / "config.json").write_text("{}")
    ran = run("decompress", delta, "--base", root / "old", "--in-place")
    assert ran.code == 2
    assert "it was edited; pass --force to replace it" in ran.err
    assert run("decompress", delta, "--base", root / "old", "--in-place", "--force").code == 0
    assert tree_hashes(root / "old") == tree_hashes(root / "new")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("decompress", "delta", "--in-place"), "--in-place needs --base OLD"),
        (("decompress", "delta", "out", "--base", "old", "--in-place"), "takes one SRC, and no DST"),
        (("decompress", "delta", "-o", "out", "--base", "old", "--in-place"), "takes one SRC, and no DST"),
        (("decompress", "none", "--base", "old", "--in-place"), "does not exist"),
        (("decompress", "-", "--base", "old", "--in-place"), "'-' is a stream: name a file"),
        (("compress", "new", "--base", "old", "--estimate"), "diff --stats OLD SRC"),
        (("compress", "new", "out", "--base", "none"), "'none' does not exist"),
        (("compress", "new", "old", "--base", "old", "--force"), "name another destination"),
        (("compress", "new", "out", "--base", "old", "--profile", "resident"), "takes no base"),
        (
            ("decompress", "delta", "--in-place", "--base", "delta", "--base", "old"),
            "apply the deltas one by one, the old",
        ),
        *(
            (("compress", "new", "out", *(part for name in bases for part in ("--base", name))), text)
            for bases, text in (
                (("delta",), "is relative to a base itself; decompress it first, or name its own base behind it"),
                (("old", "delta"), "is relative to a base itself"),
                (("delta", "old", "new"), "is relative to nothing, so what stands behind it is not needed"),
                (("delta", "delta", "old"), "is there twice among the checkpoints of the base"),
            )
        ),
    ],
)
def test_what_is_refused(
    root: Path, delta: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(root)
    before = tree_hashes(root)
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert tree_hashes(root) == before


def test_a_wrong_base_is_bad_data(root: Path, delta: Path, run: Run) -> None:
    for arguments, text in ((("--base", root / "new"), "applied already"), ((), "--base PATH")):
        ran = run("decompress", delta, root / "out", *arguments)
        assert (ran.code, ran.out) == (1, "")
        assert text in ran.err
        assert str(delta / FIRST) in ran.err
    error = run("decompress", delta, root / "out", "--json").json["error"]
    assert (error["kind"], error["tensor"]) == ("BaseMismatchError", "model.layers.0.mlp.up_proj.weight")


def test_verify_says_what_it_could_check(root: Path, delta: Path, run: Run) -> None:
    ran = run("verify", delta)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == f"{delta}: ok; checksums; the content of 9 tensors needs --base"
    ran = run("verify", delta, "--base", root / "old")
    assert ran.out.splitlines()[0] == f"{delta}: ok; checksums and SHA-256 of the original files"
    ran = run("verify", delta, "--base", root / "new")
    assert (ran.code, len(ran.err.splitlines())) == (1, 6)
    assert ran.out.splitlines()[0] == f"{delta}: {root / 'new'} is not the base of 6 tensors"


def test_verify_prints_some_of_many_problems(tmp_path: Path, run: Run) -> None:
    for name, seed in (("old", 1), ("new", 2)):
        tensors = [(f"t{index}", "BF16", (4096,), weights(4096, 100 * seed + index)) for index in range(30)]
        (tmp_path / f"{name}.safetensors").write_bytes(container(tensors))
    old, new, delta = (tmp_path / f"{name}.safetensors" for name in ("old", "new", "delta"))
    assert run("compress", old, delta, "--base", new).code == 0
    ran = run("verify", delta, "--base", old)
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 21
    assert ran.err.splitlines()[-1] == "tensorwire: 10 more problems; --json lists all"
    assert len(run("verify", delta, "--base", old, "--json").json["problems"]) == 30


def test_a_base_that_is_a_delta(root: Path, delta: Path, run: Run) -> None:
    """--base stands once for each, newest first."""
    (root / "third").mkdir()
    up = next_layer(0, 0)[0]
    (root / "third" / FIRST).write_bytes(container([(*up[:3], step(up[3], 8))]))
    both = ("--base", delta, "--base", root / "old")
    ran = run("compress", root / "third", root / "delta2", *both, "--json")
    assert (ran.code, ran.json["base"]) == (0, str(delta))
    assert sum(file["num_relative"] for file in ran.json["files"]) == 1
    assert run("decompress", root / "delta2", root / "back", *both).code == 0
    assert tree_hashes(root / "back") == tree_hashes(root / "third")
    assert run("transcode", root / "delta2", root / "small", *both, "--profile", "compact").code == 0
    assert run("diff", root / "small", root / "third", *both).code == 0
    assert "ok; checksums and SHA-256" in run("verify", root / "delta2", *both).out
    out = run("inspect", root / "delta2", *both).out
    assert f"{delta} has 1 of them; it is that base" in out
    ran = run("verify", root / "delta2", "--base", delta, "--base", root / "new")
    assert ran.code == 1
    assert f"{delta} and {root / 'new'} are not the base of 1 tensor" in ran.out


def test_inspect_names_the_base(root: Path, delta: Path, run: Run) -> None:
    out = run("inspect", delta).out
    assert "9 tensors relative to a base called 'old', with hash " in out
    assert "--base OLD says whether OLD is it" in out
    assert ", at hand" not in out
    out = run("inspect", delta, "--base", root / "old").out
    assert f"{root / 'old'} has 9 of them; it is that base" in out
    assert out.count(", at hand") == 9
    out = run("inspect", delta, "--base", root / "new").out
    assert f"{root / 'new'} has 3 of them" in out
    assert out.count(", not at hand") == 6
    assert "relative" not in run("inspect", root / "old").out


def test_streams_take_a_base(root: Path) -> None:
    new = (root / "new" / FIRST).read_bytes()
    small = forked("compress", "-", "-", "--base", root / "old", input=new).stdout
    assert len(small) < len(new)
    assert forked("decompress", "-", "-", "--base", root / "old", input=small).stdout == new


@pytest.mark.parametrize("mode", ["r+b", "ab"])
def test_a_stream_onto_the_base(root: Path, run: Run, mode: str) -> None:
    """The shell does not empty the file for <> and >>, and it may be the only copy."""
    old = (root / "old" / FIRST).read_bytes()
    assert run("compress", root / "new" / FIRST, root / "small", "--base", root / "old").code == 0
    command = ("decompress", root / "small", "-", "--base", root / "old")
    with (root / "old" / FIRST).open(mode) as target:
        done = forked(*command, capture_output=False, stdout=target, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert b"the destination is a file of the base; name another destination" in done.stderr
    assert (root / "old" / FIRST).read_bytes() == old


def test_stats(tmp_path: Path, run: Run) -> None:
    """Counted by hand: 4 of 1000 words change, by one step up and one down in each of two exponents."""
    old = np.array([1.0] * 600 + [2.5] * 400, np.float32)
    new = old.view(np.uint32).copy()
    new[[3, 700]] += 1
    new[[5, 800]] -= 1
    for name, data in (("a", old.tobytes()), ("b", new.tobytes())):
        tensors = [("w", "F32", (10, 100), data), ("same", "BF16", (2000,), weights(2000, 1))]
        (tmp_path / name).write_bytes(container(tensors))
    ran = run("diff", tmp_path / "a", tmp_path / "b", "--stats", "--json")
    assert ran.code == 3
    stats = ran.json["stats"]
    dtypes = {row["dtype"]: row for row in stats["dtypes"]}
    assert (dtypes["F32"]["num_words"], dtypes["F32"]["num_changed"], dtypes["F32"]["share"]) == (1000, 4, 0.004)
    assert dtypes["F32"]["bits_per_change"]["fast"] == 2 * dtypes["F32"]["delta_nbytes"]["fast"]
    assert (dtypes["BF16"]["num_changed"], dtypes["BF16"]["bits_per_change"]) == (0, None)
    assert dtypes["BF16"]["delta_nbytes"]["fast"] <= 256
    words = {row["exponent"]: row for row in stats["words"] if row["dtype"] == "F32"}
    assert {exponent: (row["num_words"], row["num_changed"]) for exponent, row in words.items()} == {
        127: (600, 2),
        128: (400, 2),
    }
    assert words[127]["step_bits"] == 1.0
    assert words[127]["position_bits"] == pytest.approx((2 * log2(300) + 598 * log2(600 / 598)) / 2)
    table = run("diff", tmp_path / "a", tmp_path / "b", "--stats").out
    assert "a delta from A to B: " in table
    assert "positions  steps" in table


@pytest.mark.parametrize("make", [write_next, write_rearranged])
def test_stats_are_what_compress_writes(root: Path, run: Run, make: Callable[[Path, Path], None]) -> None:
    """Tensors that were renamed and spread over other files included."""
    shutil.rmtree(root / "new")
    make(root / "old", root / "new")
    stats = run("diff", root / "old", root / "new", "--stats", "--json").json["stats"]
    for profile in ("fast", "compact"):
        assert run("compress", root / "new", root / profile, "--base", root / "old", "--profile", profile).code == 0
        found = run("inspect", root / profile, "--json").json
        assert found["stored_nbytes"] == stats["delta_nbytes"][profile]
    headers = [read_header(path) for path in (root / "new").rglob("*.safetensors")]
    tensors = [entry for header in headers for name, entry in header.items() if name != "__metadata__"]
    assert stats["nbytes"] == sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors)


def test_the_manual_names_every_field_of_stats(root: Path, run: Run, repository: Path) -> None:
    manual = (repository / "docs" / "json.md").read_text()
    shutil.rmtree(root / "new" / "vae")
    document = run("diff", root / "old", root / "new", "--stats", "--json").json
    for name in {*document, *document["stats"], *document["stats"]["dtypes"][0], *document["stats"]["words"][0]}:
        assert f'"{name}"' in manual


def test_a_base_of_another_model_is_told_of(root: Path, run: Run) -> None:
    (root / "other.safetensors").write_bytes(container([("x", "BF16", (4096,), weights(4096, 3))]))
    ran = run("compress", root / "new", root / "delta", "--base", root / "other.safetensors")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith(f"note: nothing is relative to {root / 'other.safetensors'}: ")
    assert "note:" not in run("compress", root / "new", root / "fits", "--base", root / "old").out
