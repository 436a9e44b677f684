"""What may be the only copy of something stays: compressed files of another content, and whatever a result is made of,
wherever it lies."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    replace_checkpoint,
    save_file,
    transcode_checkpoint,
)
from tensorwire.checkpoint.operations.stream import convert_stream
from tensorwire.cli import main
from tensorwire.storage.local import InputFile
from tests.support.acting import raising
from tests.support.checkpoint_models import SHARD, container, layer, tree_hashes, write_model
from tests.support.deltas import next_layer
from tests.support.destination_cells import snapshot

if TYPE_CHECKING:
    from pathlib import Path

OTHER = "is compressed and holds another content than the source"


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Two compressed shards, the only copies of what they hold."""
    for number in range(2):
        plain = tmp_path / f"{number}.safetensors"
        plain.write_bytes(container(layer(number, number)))
        compress_checkpoint(plain, tmp_path / f"{number}.tensorwire.safetensors")
        plain.unlink()
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("decompress",), ("transcode", "--profile", "compact")])
def test_a_pattern_that_two_compressed_shards_match(
    shards: list[Path], command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(shards[0].parent)
    assert main([*command, *map(str, shards), "--force"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{str(shards[1])!r}: {OTHER}" in err
    assert snapshot(shards[0].parent) == before


@pytest.mark.parametrize("operation", [decompress_checkpoint, partial(transcode_checkpoint, profile="compact")])
def test_standard_input_replaces_no_other_compressed_file(shards: list[Path], operation: Any) -> None:
    before = snapshot(shards[0].parent)
    with shards[0].open("rb") as source, pytest.raises(FileExistsError, match=OTHER):
        convert_stream(operation, source, shards[1], force=True)
    assert snapshot(shards[0].parent) == before


def test_the_same_content_is_replaced(shards: list[Path], tmp_path: Path) -> None:
    """Nothing is lost then: a command can be repeated."""
    small = tmp_path / "small.safetensors"
    for profile in ("compact", "enec"):
        transcode_checkpoint(shards[0], small, profile=profile, force=True)
    decompress_checkpoint(shards[0], small, force=True)
    assert small.read_bytes() == container(layer(0, 0))


def test_files_without_a_record_are_told_apart_by_their_tensors(tmp_path: Path) -> None:
    """Files of a compressed directory, whose manifest has the records, and of `save_file`."""
    tensors = {"w": np.arange(70_000, dtype=np.float32)}
    for name, changed in (("a", 0), ("same", 0), ("other", 1)):
        tensors["w"][5] = changed
        save_file(tensors, tmp_path / name)
    save_file({"w": tensors["w"].reshape(700, 100)}, tmp_path / "shape")
    save_file(tensors, tmp_path / "metadata", metadata={"step": "2"})
    for name in ("other", "shape", "metadata"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(FileExistsError, match=OTHER):
            transcode_checkpoint(tmp_path / "a", tmp_path / name, profile="compact", force=True)
        assert (tmp_path / name).read_bytes() == before
    transcode_checkpoint(tmp_path / "a", tmp_path / "same", profile="compact", force=True)


def test_a_compressed_directory_of_another_model(packed: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "other", num_shards=1)
    compress_checkpoint(tmp_path / "other", tmp_path / "only")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match=OTHER):
        transcode_checkpoint(packed, tmp_path / "only", profile="compact", force=True)
    assert snapshot(tmp_path) == before
    transcode_checkpoint(packed, tmp_path / "small", profile="compact")
    transcode_checkpoint(packed, tmp_path / "small", profile="enec", force=True)


@pytest.fixture
def in_place(tmp_path: Path) -> Path:
    """A model that was compressed in place: there is no other copy."""
    write_model(tmp_path / "only")
    replace_checkpoint(tmp_path / "only")
    return tmp_path / "only"


def test_a_pattern_that_an_original_and_a_compressed_shard_match(
    shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    original = shards[0].with_name("0.safetensors")
    original.write_bytes(container(layer(0, 0)))
    shards[0].unlink()
    content = shards[1].read_bytes()
    assert main(["compress", str(original), str(shards[1]), "--force"]) == 2
    assert f"{str(shards[1])!r}: {OTHER}" in capsys.readouterr().err
    assert shards[1].read_bytes() == content


def test_a_model_compressed_in_place_is_replaced_by_no_other(model: Path, in_place: Path, tmp_path: Path) -> None:
    """Where sizes tell, before the work; else when the result is whole, which waits for the way to be clear."""
    before = snapshot(in_place)
    write_model(tmp_path / "one shard", num_shards=1)
    with pytest.raises(FileExistsError, match=rf"{OTHER}, such as 'model-00001-of-00002\.safetensors'"):
        compress_checkpoint(tmp_path / "one shard", in_place, force=True, progress=raising(AssertionError))
    shutil.copytree(model, tmp_path / "next")
    data = bytearray((model / SHARD).read_bytes())
    data[-1] ^= 1
    (tmp_path / "next" / SHARD).write_bytes(data)
    with pytest.raises(FileExistsError, match=rf"{OTHER}, such as '{SHARD}'"):
        compress_checkpoint(tmp_path / "next", in_place, force=True)
    assert snapshot(in_place) == before
    in_place.rename(tmp_path / "moved")
    report = compress_checkpoint(tmp_path / "next", in_place)
    assert all(file.resumed for file in report.files if file.kind == "safetensors"), "the work is not lost"


@pytest.mark.parametrize("change", ["edited", "gone"])
def test_files_beside_the_tensors_are_only_copies_too(model: Path, in_place: Path, tmp_path: Path, change: str) -> None:
    shutil.copytree(model, tmp_path / "next")
    for name in ("config.json", "tokenizer.json"):
        file = tmp_path / "next" / name
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b" ") if change == "edited" else file.unlink()
        before = snapshot(in_place)
        with pytest.raises(FileExistsError, match=rf"{OTHER}, such as '{name}'"):
            compress_checkpoint(tmp_path / "next", in_place, force=True)
        assert snapshot(in_place) == before
        file.write_bytes(content)
    (tmp_path / "next" / "more.txt").write_text("of a result that restores more")
    compress_checkpoint(tmp_path / "next", in_place, force=True)
    compress_checkpoint(tmp_path / "next", tmp_path / "expected")
    assert tree_hashes(in_place) == tree_hashes(tmp_path / "expected")


def test_a_shard_of_another_model_in_a_compressed_directory(model: Path, in_place: Path, tmp_path: Path) -> None:
    """Its manifest does not tell."""
    (tmp_path / "plain").write_bytes(container(layer(5, 5)))
    (in_place / SHARD).unlink()
    compress_checkpoint(tmp_path / "plain", in_place / SHARD)
    before = snapshot(in_place)
    with pytest.raises(FileExistsError, match=OTHER):
        compress_checkpoint(model, in_place, force=True)
    assert snapshot(in_place) == before


def test_another_file_is_refused_before_the_work(shards: list[Path], tmp_path: Path) -> None:
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(container(layer(0, 0, 40)))
    with pytest.raises(FileExistsError, match=OTHER):
        compress_checkpoint(plain, shards[0], force=True, progress=raising(AssertionError))


def test_a_compressed_file_where_the_result_has_a_plain_one(model: Path, packed: Path, tmp_path: Path) -> None:
    """Whatever it is called there."""
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(container(layer(5, 5)))
    for root, write in ((tmp_path / "x", decompress_checkpoint), (tmp_path / "y", compress_checkpoint)):
        source = packed if write is decompress_checkpoint else model
        write(source, root)
        (root / "tokenizer.json").unlink()
        compress_checkpoint(plain, root / "tokenizer.json")
        before = snapshot(root)
        with pytest.raises(FileExistsError, match=OTHER):
            write(source, root, force=True)
        assert snapshot(root) == before


def test_a_damaged_shard_in_a_compressed_directory(model: Path, packed: Path) -> None:
    """It may be another one's: nobody can tell."""
    data = bytearray((packed / SHARD).read_bytes())
    data[data.index(b"\x93TWF") + 8] ^= 0x80  # its version
    (packed / SHARD).write_bytes(data)
    with pytest.raises(FileExistsError, match=f"{OTHER}, or is damaged, .*the result is whole in"):
        compress_checkpoint(model, packed, force=True)


def test_a_base_that_a_delta_needs(tmp_path: Path) -> None:
    old, new, base, delta = (tmp_path / name for name in ("old", "new", "base", "delta"))
    old.write_bytes(container(layer(0, 1)))
    new.write_bytes(container(next_layer(0, 1)))
    compress_checkpoint(old, base)
    compress_checkpoint(new, delta, base=base)
    with pytest.raises(FileExistsError, match=OTHER):
        compress_checkpoint(new, base, force=True)
    compress_checkpoint(old, base, profile="compact", force=True)
    decompress_checkpoint(delta, tmp_path / "back", base=base)
    assert (tmp_path / "back").read_bytes() == new.read_bytes()


def test_a_compressed_file_without_a_record(tmp_path: Path) -> None:
    """One of `save_file` has no original: its tensors and its metadata are what it holds."""
    save_file({"w": np.arange(70_000, dtype=np.float32)}, tmp_path / "only")
    decompress_checkpoint(tmp_path / "only", tmp_path / "same")
    for first, metadata in ((0, {"step": "2"}), (1, None)):
        other = {"w": np.arange(first, 70_000 + first, dtype=np.float32)}
        save_file(other, tmp_path / "packed", metadata=metadata)
        decompress_checkpoint(tmp_path / "packed", tmp_path / "other", force=True)
        before = (tmp_path / "only").read_bytes()
        with pytest.raises(FileExistsError, match=OTHER):
            compress_checkpoint(tmp_path / "other", tmp_path / "only", force=True)
        assert (tmp_path / "only").read_bytes() == before
    compress_checkpoint(tmp_path / "same", tmp_path / "only", force=True)


def test_the_same_content_is_read_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, read = InputFile.read_into, 0

    def counted(self: InputFile, offset: int, out: memoryview) -> None:
        nonlocal read
        read += len(out)
        own(self, offset, out)

    monkeypatch.setattr(InputFile, "read_into", counted)
    counts = []
    for force in (False, True):
        read = 0
        compress_checkpoint(model, tmp_path / "packed", force=force)
        counts.append(read)
    nbytes = sum(path.stat().st_size for path in model.rglob("*.safetensors"))
    assert counts[1] - counts[0] < nbytes / 2


def test_a_directory_with_compressed_files_of_the_same_names(model: Path, packed: Path, tmp_path: Path) -> None:
    """Such as a part of a compressed directory that lost its manifest."""
    shutil.copytree(model, tmp_path / "x")
    (tmp_path / "x" / SHARD).write_bytes(container(layer(5, 5)))
    compress_checkpoint(tmp_path / "x" / SHARD, tmp_path / "small")
    (tmp_path / "small").replace(tmp_path / "x" / SHARD)
    before = snapshot(tmp_path / "x")
    with pytest.raises(FileExistsError, match=OTHER):
        decompress_checkpoint(packed, tmp_path / "x", force=True)
    assert snapshot(tmp_path / "x") == before
    shutil.copy(packed / SHARD, tmp_path / "x" / SHARD)
    decompress_checkpoint(packed, tmp_path / "x", force=True)
    assert tree_hashes(tmp_path / "x") == tree_hashes(model)


def test_a_delta_in_place_replaces_no_other_compressed_file(tmp_path: Path) -> None:
    """Not even with force, where a file of the delta has no relative tensor."""
    old, new, delta = (tmp_path / name for name in ("old", "new", "delta"))
    for root, entries in ((old, layer(0, 1)), (new, next_layer(0, 1))):
        root.mkdir()
        (root / "a.safetensors").write_bytes(container(entries))
    (new / "b.safetensors").write_bytes(container(layer(9, 9, 40)))
    compress_checkpoint(new, delta, base=old)
    save_file({"only": np.ones(70_000, np.float32)}, old / "b.safetensors")
    before = snapshot(old)
    with pytest.raises(FileExistsError, match=OTHER):
        apply_checkpoint(delta, old, force=True)
    assert snapshot(old) == before


@pytest.fixture
def in_the_way(tmp_path: Path) -> Path:
    """A plain file where a killed run would have left its result, in the directory of `z.safetensors`."""
    (tmp_path / "z.safetensors").write_bytes(container(layer(0, 1)))
    (tmp_path / "new.safetensors").write_bytes(container(next_layer(0, 1)))
    partial = tmp_path / "z.safetensors.partial"
    partial.mkdir()
    (partial / "lock").write_bytes(b"tensorwire works here; see docs/checkpoints.md\n")
    (partial / "journal.jsonl").write_text('{"action": "another"}\n')
    shutil.copy(tmp_path / "z.safetensors", partial / "result")
    return partial / "result"


def test_a_base_in_the_staging_directory(in_the_way: Path, tmp_path: Path) -> None:
    source, dst = tmp_path / "new.safetensors", tmp_path / "z.safetensors"
    dst.unlink()
    before = snapshot(tmp_path)
    link = tmp_path / "linked"
    link.mkdir()
    (link / "model.safetensors").symlink_to(in_the_way)
    for base in (in_the_way, link):
        with pytest.raises(ValueError, match="lies in"):
            compress_checkpoint(source, dst, base=base)
        with pytest.raises(ValueError, match="lies in"):
            save_file({"w": np.ones(9)}, dst, base=base)
    shutil.rmtree(link)
    assert snapshot(tmp_path) == before


def test_standard_input_in_the_staging_directory(in_the_way: Path, tmp_path: Path) -> None:
    (tmp_path / "z.safetensors").unlink()
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="lies in"), in_the_way.open("rb") as stream:
        convert_stream(compress_checkpoint, stream, tmp_path / "z.safetensors")
    assert snapshot(tmp_path) == before


def test_a_delta_in_the_staging_directory_of_its_base(in_the_way: Path, tmp_path: Path) -> None:
    base = tmp_path / "z.safetensors"
    compress_checkpoint(tmp_path / "new.safetensors", tmp_path / "delta", base=base)
    (tmp_path / "delta").replace(in_the_way)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="lies in"):
        apply_checkpoint(in_the_way, base)
    assert snapshot(tmp_path) == before
