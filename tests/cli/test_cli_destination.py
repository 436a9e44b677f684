"""What the first user's commands destroyed: nothing of it is lost, and the error says what to type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.destination_cells import snapshot

if TYPE_CHECKING:
    from tests.support.command_line import Run


@pytest.fixture
def shards(model: Path) -> list[Path]:
    return sorted(model.glob("*.safetensors"))


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_conversions(
    model: Path,
    compressed: Path,
    shards: list[Path],
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    force: tuple[str, ...],
) -> None:
    models, thesis = tmp_path / "models", tmp_path / "thesis"
    models.mkdir()
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("mine")
    monkeypatch.chdir(thesis)
    shard = shards[0]
    other = tmp_path / "other.safetensors"
    other.write_bytes(shard.read_bytes())
    before = snapshot(tmp_path)
    for arguments, advice in (
        (("compress", shard, models), f"name the file: {str(models / shard.name)!r}"),
        (("compress", shard, "."), "name the file"),
        (("decompress", compressed, thesis), "holds"),
        (("decompress", compressed, "."), "working directory"),
        (("decompress", compressed, ".."), "must not lie in each other"),
        (("decompress", compressed, model.parent / "thesis" / ".." / "thesis"), "working directory"),
        (("compress", shard, other), "tensorwire did not write"),
        (("compress", model, thesis.parent / "models" / ".." / "thesis"), "name another destination"),
        (("compress", model, model), "are the same"),
        (("transcode", compressed, thesis, "--profile", "compact"), "name another destination"),
    ):
        ran = run(*arguments, *force)
        assert (ran.code, ran.out) == (2, "")
        assert advice in ran.err
    assert snapshot(tmp_path) == before


def test_all_sources_are_looked_at_before_the_first_result(
    model: Path, compressed: Path, shards: list[Path], tmp_path: Path, run: Run
) -> None:
    out, packed = tmp_path / "out", tmp_path / "packed.safetensors"
    packed.write_bytes((compressed / shards[0].name).read_bytes())
    for arguments, advice in (
        (("compress", model, compressed), "is compressed already"),
        (("compress", shards[0], packed), "is compressed already"),
        (("compress", model, model / "notes.txt"), "notes.txt"),
        (("decompress", compressed, model), "is not a compressed checkpoint"),
        (("transcode", compressed, shards[0], "--profile", "compact"), "is not compressed"),
    ):
        ran = run(*arguments, "-o", out)
        assert ran.code != 0
        assert advice in ran.err
        assert not out.exists()


def test_a_model_beside_its_compressed_one(model: Path, compressed: Path, tmp_path: Path, run: Run) -> None:
    project = tmp_path / "project"
    project.mkdir()
    model.rename(project / "v1")
    compressed.rename(project / "v1.tensorwire")
    ran = run("compress", project)
    assert ran.code == 2
    assert "holds a model that is compressed already: v1.tensorwire" in ran.err
    assert "leave it out with --exclude 'v1.tensorwire'" in ran.err
    assert run("compress", project, "--exclude", "v1.tensorwire").code == 0
