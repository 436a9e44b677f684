"""Names of models on a hub in place of paths, and results that would land in the hub's cache."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.checkpoint_models import tree_hashes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run

NAME = "meta-llama/Llama-3.1-8B"
COMMANDS = [
    ("compress", NAME),
    ("compress", NAME, "--estimate"),
    ("compress", NAME, "--replace"),
    ("decompress", NAME),
    ("decompress", NAME, "--in-place", "--base", "."),
    ("verify", NAME),
    ("inspect", NAME),
    ("diff", NAME, "."),
    ("fit", NAME),
    ("bench", NAME),
]


@pytest.fixture
def cache(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's directory in a hub's cache, which `model` was moved to."""
    root = tmp_path / "home" / "hub" / "models--meta-llama--Llama-3.1-8B"
    for name in ("blobs", "refs", "snapshots"):
        (root / name).mkdir(parents=True)
    shutil.copytree(model, root / "snapshots" / "old")
    model.rename(root / "snapshots" / "abc123")
    (root / "refs" / "main").write_text("abc123")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_name_of_a_hub(cache: Path, run: Run, command: tuple[str, ...]) -> None:
    ran = run(*command)
    assert ran.code == 2
    assert f"does not exist; the hub's cache has this model: name '{cache / 'snapshots' / 'abc123'}'" in ran.err
    shutil.rmtree(cache)
    advice = f"nothing is downloaded here: first run hf download {NAME} --local-dir Llama-3.1-8B"
    assert f"{NAME!r} does not exist; {advice}" in run(*command).err


@pytest.mark.parametrize("path", ["model/model.safetensors", "there/mdoel", "../x", "a/b/c", "x"])
def test_what_is_no_name_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    ran = run("compress", path)
    assert ran.code == 2
    assert f"Path {path!r} does not exist.\n" in ran.err


@pytest.mark.parametrize("part", ["", "model.safetensors"])
def test_no_result_lands_in_a_cache_unasked(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, part: str
) -> None:
    """The cache would list it as a revision, or as a file of one."""
    place = cache / "snapshots" / "abc123" / part
    before = tree_hashes(cache)
    monkeypatch.chdir(place.parent)
    for source in (place, place.name):
        ran = run("compress", source)
        assert ran.code == 2
        assert "lies in a hub cache, which takes all that stands there for its own: name a DST" in ran.err
    assert run("compress", place, tmp_path / "small").code == 0
    shutil.move(tmp_path / "small", place.parent / "small")
    assert run("decompress", place.parent / "small").code == 2
    (tmp_path / "link").symlink_to(place)
    assert run("compress", tmp_path / "link").code == 0, "its result stands beside the link"
    shutil.move(place.parent / "small", tmp_path / "small")
    assert tree_hashes(cache) == before


def test_run_takes_no_url(run: Run) -> None:
    ran = run("run", "s3://bucket/tiny llama", "hi")
    assert ran.code == 2
    assert "expected a path of this machine, got s3://bucket/tiny llama; first run tensorwire decompress 's" in ran.err
