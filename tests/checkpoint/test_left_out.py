"""What is left out of a checkpoint directory: patterns, a clone's .git; and caches of hubs, which are refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, diff, transcode_checkpoint, verify
from tensorwire.checkpoint.directory import manifest
from tensorwire.errors import LimitExceededError
from tests.support.acting import raising
from tests.support.checkpoint_models import SHARD, tree_hashes, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator


def add_git(root: Path) -> None:
    (root / ".git" / "objects").mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git" / "objects" / "pack").write_bytes(bytes(5000))


def without(root: Path, *prefixes: str) -> dict[str, str]:
    return {path: digest for path, digest in tree_hashes(root).items() if not path.startswith(prefixes)}


def test_patterns_leave_out_files_and_directories(model: Path, tmp_path: Path) -> None:
    report = compress_checkpoint(model, tmp_path / "packed", exclude=["*.bin", "assets/", "/tokenizer.json"])
    assert report.excluded == ("assets/", "tokenizer.json", "training_args.bin")
    expected = without(model, "assets/", "tokenizer.json", "training_args.bin")
    assert set(tree_hashes(tmp_path / "packed")) == expected.keys() | {"tensorwire.json"}
    for back in (
        decompress_checkpoint(tmp_path / "packed", tmp_path / "back"),
        transcode_checkpoint(tmp_path / "packed", tmp_path / "other", profile="enec"),
        decompress_checkpoint(tmp_path / "other", tmp_path / "again"),
    ):
        assert back.excluded == report.excluded, "the manifest remembers"
    assert tree_hashes(tmp_path / "back") == tree_hashes(tmp_path / "again") == expected
    assert json.loads((tmp_path / "packed" / "tensorwire.json").read_bytes())["excluded"] == list(report.excluded)


def test_a_later_pattern_takes_back_an_earlier_one(model: Path, tmp_path: Path) -> None:
    report = compress_checkpoint(model, tmp_path / "x", exclude=["*.txt", "!empty.txt", "*.bin"])
    assert report.excluded == ("training_args.bin",)


def test_shards_can_be_left_out_but_not_all(model: Path, tmp_path: Path) -> None:
    report = compress_checkpoint(model, tmp_path / "packed", exclude=["vae/"])
    assert [file.path for file in report.files if file.kind == "safetensors"] == [SHARD, SHARD.replace("01-", "02-")]
    with pytest.raises(ValueError, match=r"no \.safetensors file"):
        compress_checkpoint(model, tmp_path / "x", exclude=["*.safetensors", "*.bin"])


def test_patterns_need_a_directory(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory"):
        compress_checkpoint(model / SHARD, tmp_path / "x", exclude=["a"])


def test_a_clone_leaves_out_its_history(model: Path, tmp_path: Path) -> None:
    add_git(model)
    report = compress_checkpoint(model, tmp_path / "packed")
    assert report.excluded == (".git/",)
    assert decompress_checkpoint(tmp_path / "packed", tmp_path / "back").excluded == (".git/",)
    assert tree_hashes(tmp_path / "back") == without(model, ".git/")
    assert diff(model, tmp_path / "packed").equal
    report = compress_checkpoint(model, tmp_path / "whole", exclude=["!.git"])
    assert report.excluded == ()
    decompress_checkpoint(tmp_path / "whole", tmp_path / "all")
    assert tree_hashes(tmp_path / "all") == tree_hashes(model)


def test_a_compressed_directory_may_be_a_clone(packed: Path, model: Path, tmp_path: Path) -> None:
    add_git(packed)
    assert verify(packed).ignored == (".git/",)
    assert decompress_checkpoint(packed, tmp_path / "back").ignored == (".git/",)
    assert tree_hashes(tmp_path / "back") == tree_hashes(model)


def hub_cache(root: Path, *revisions: str) -> Path:
    for name in ("blobs", "refs", "snapshots"):
        (root / name).mkdir(parents=True)
    for revision in revisions:
        snapshot = root / "snapshots" / revision
        write_model(snapshot)
        for name, digest in tree_hashes(snapshot).items():
            if not (root / "blobs" / digest).exists():
                (root / "blobs" / digest).write_bytes((snapshot / name).read_bytes())
            (snapshot / name).unlink()
            (snapshot / name).symlink_to(root / "blobs" / digest)
    (root / "refs" / "main").write_text(revisions[-1])
    return root


def test_the_root_of_a_hub_cache_is_refused_with_the_snapshot_to_name(tmp_path: Path) -> None:
    root = hub_cache(tmp_path / "models--org--name", "aa11")
    with pytest.raises(ValueError, match="hub cache") as caught:
        compress_checkpoint(root, tmp_path / "packed")
    assert str(root / "snapshots" / "aa11") in str(caught.value)
    compress_checkpoint(root / "snapshots" / "aa11", tmp_path / "packed")
    assert verify(tmp_path / "packed").exact


def test_a_directory_of_hub_caches_is_refused(tmp_path: Path) -> None:
    """What HF_HOME leads to: it holds each file of each model twice."""
    first = hub_cache(tmp_path / "huggingface" / "hub" / "models--org--a", "aa11")
    hub_cache(tmp_path / "huggingface" / "hub" / "models--org--b", "bb22")
    for root in (tmp_path / "huggingface", tmp_path / "huggingface" / "hub"):
        with pytest.raises(ValueError, match="hub cache") as caught:
            compress_checkpoint(root, tmp_path / "packed")
        assert str(first / "snapshots" / "aa11") in str(caught.value)
    assert not (tmp_path / "packed").exists()


def test_the_snapshot_of_main_is_named_first(tmp_path: Path) -> None:
    root = hub_cache(tmp_path / "models--org--name", "aa11", "bb22")
    with pytest.raises(ValueError, match="hub cache") as caught:
        compress_checkpoint(root, tmp_path / "packed")
    message = str(caught.value)
    assert 0 < message.index("snapshots/bb22") < message.index("snapshots/aa11")


def test_totals_are_of_the_whole_directories(model: Path, tmp_path: Path) -> None:
    size = lambda root: sum(path.stat().st_size for path in root.rglob("*") if path.is_file())  # noqa: E731
    packed, other, back = tmp_path / "packed", tmp_path / "other", tmp_path / "back"
    for report, source, target in (
        (compress_checkpoint(model, packed), model, packed),
        (transcode_checkpoint(packed, other, profile="compact"), packed, other),
        (decompress_checkpoint(packed, back), packed, back),
    ):
        assert (report.nbytes_in, report.nbytes_out) == (size(source), size(target))


@pytest.mark.parametrize("name", [b"a\\b.txt", b"\xff\xfe.bin", b"C:x"])
def test_names_that_a_manifest_cannot_hold(model: Path, tmp_path: Path, name: bytes) -> None:
    """To leave such a file out is the way to compress the others, and what comes of it can be read."""
    before = tree_hashes(model)
    for place in (os.fsencode(model), os.fsencode(model / "assets")):
        Path(os.fsdecode(place + b"/" + name)).write_bytes(b"x")
    with pytest.raises(ValueError, match="rename it"):
        compress_checkpoint(model, tmp_path / "packed")
    report = compress_checkpoint(model, tmp_path / "packed", exclude=["a?b.txt", "*.bin", "C:x"])
    assert os.fsdecode(name) in report.excluded
    assert verify(tmp_path / "packed").ok
    decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    kept = {path: digest for path, digest in before.items() if not path.endswith(".bin")}
    assert tree_hashes(tmp_path / "back") == kept


@pytest.fixture
def deep(model: Path) -> Iterator[Path]:
    """A checkpoint with directories one in another, more than Python calls itself."""
    descriptor = os.open(model, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    yield model
    subprocess.run(["rm", "-r", model / "d"], check=True)  # too deep for shutil


def test_directories_one_in_another(packed: Path, deep: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lies in 100 directories; move it up, or exclude it"):
        compress_checkpoint(deep, tmp_path / "x")
    with pytest.raises(FileExistsError, match="does not replace"):
        decompress_checkpoint(packed, deep, force=True)
    compress_checkpoint(deep, tmp_path / "x", exclude=["d/"])
    compress_checkpoint(deep, tmp_path / "y", exclude=["d/" * 101])


@pytest.mark.parametrize("pattern", ["[z-a]", "!", "a\\"])
def test_a_pattern_that_is_none(model: Path, tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match=r"expected patterns as in a \.gitignore in exclude"):
        compress_checkpoint(model, tmp_path / "x", exclude=[pattern])


def test_one_pattern_is_put_into_a_list(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="put it into brackets"):
        compress_checkpoint(model, tmp_path / "x", exclude="*.bin")


def test_more_paths_than_a_manifest_holds_are_told_before_the_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_JSON_NBYTES", 1000)
    for number in range(10):
        (model / ("x" * 100 + str(number))).touch()

    work = raising(AssertionError("the work has begun"))
    with pytest.raises(LimitExceededError, match="manifest"):
        compress_checkpoint(model, tmp_path / "packed", exclude=["x*"], progress=work)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
