"""Checkpoints that are relative to a base: every file comes back, whatever has happened to tensors and files."""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire import BaseMismatchError, CorruptDataError, checkpoint, compress
from tensorwire.codec import content_hash
from tensorwire.files import base as base_module
from tensorwire.files.names import payload_name
from tensorwire.files.reader import StoredFile
from tests.support.acting import acting, interrupt
from tests.support.checkpoint_models import (
    container,
    edit_manifest,
    layer,
    read_header,
    tree_hashes,
    weights,
    write_model,
)
from tests.support.deltas import ADDED, FIRST, RENAMED, SECOND, next_layer, step, write_next, write_rearranged
from tests.support.frame_surgery import Surgery

Paths = dict[str, Path]
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """An old and a new model, the old one in every form that a base may have, and the delta between them."""
    root = tmp_path_factory.mktemp("pair")
    names = ("old", "same", "new", "packed", "one", "delta", "rearranged")
    paths = {name: root / name for name in names}
    write_model(paths["old"])
    shutil.copytree(paths["old"], paths["same"])
    write_next(paths["old"], paths["new"])
    write_rearranged(paths["old"], paths["rearranged"])
    checkpoint.compress_checkpoint(paths["old"], paths["packed"], profile="compact")
    paths["one"].mkdir()
    tensors = [*layer(0, 0), *layer(1, 10), *layer(7, 70)]
    (paths["one"] / "all.safetensors").write_bytes(container(tensors[::-1]))
    checkpoint.compress_checkpoint(paths["new"], paths["delta"], base=paths["old"])
    return paths


FORMS = list(itertools.product(("new", "rearranged", "same"), ("old", "packed", "one"), ("fast", "compact", "enec")))
OF_OTHER_PROFILES = [("new", "old", "enec"), ("rearranged", "packed", "compact"), ("same", "one", "enec")]


@pytest.mark.parametrize(
    ("newer", "form", "profile"),
    [
        pytest.param(*row, marks=() if row[2] == "fast" or row in OF_OTHER_PROFILES else pytest.mark.slow)
        for row in FORMS
    ],
)
def test_every_file_comes_back(pair: Paths, tmp_path: Path, newer: str, form: str, profile: Any) -> None:
    report = checkpoint.compress_checkpoint(pair[newer], tmp_path / "delta", profile=profile, base=pair[form])
    assert report.base == str(pair[form])
    assert sum(file.num_relative for file in report.files) >= 5
    for back, base in (("a", pair[form]), ("b", pair["one"]), ("c", pair["packed"])):
        checkpoint.decompress_checkpoint(tmp_path / "delta", tmp_path / back, base=base)
        assert tree_hashes(tmp_path / back) == tree_hashes(pair[newer])


def test_a_delta_is_the_same_whatever_form_the_base_has(pair: Paths, tmp_path: Path) -> None:
    """But for the name of the base, and what the manifest says of its files."""
    for form in ("packed", "one"):
        base = tmp_path / "old"
        shutil.copytree(pair[form], base)
        checkpoint.compress_checkpoint(pair["new"], tmp_path / form, base=base, threads=1)
        shutil.rmtree(base)
        hashes = tree_hashes(tmp_path / form)
        expected = tree_hashes(pair["delta"])
        different = {path for path in expected if hashes[path] != expected[path]}
        assert different <= {"tensorwire.json"}
        if form == "packed":
            assert not different


def test_what_is_relative_to_what(pair: Paths, tmp_path: Path) -> None:
    report = checkpoint.compress_checkpoint(pair["rearranged"], tmp_path / "delta", base=pair["old"])
    assert {file.path: file.num_relative for file in report.files if file.kind == "safetensors"} == {
        "model-00001-of-00003.safetensors": 2,
        "model-00002-of-00003.safetensors": 1,
        "model-00003-of-00003.safetensors": 0,
        "vae/diffusion_pytorch_model.safetensors": 3,
    }
    tensors = {tensor.name: tensor for tensor in checkpoint.inspect(tmp_path / "delta").tensors}
    assert tensors[RENAMED].base_name == UP
    assert tensors["model.layers.0.attn.weight"].base_name == "model.layers.0.attn.weight"
    for name in (ADDED, "empty", "noise", "model.layers.0.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        assert (tensors[name].base_name, tensors[name].base_hash) == (None, None)
    header = read_header(tmp_path / "delta" / "model-00001-of-00003.safetensors")
    assert header["__metadata__"]["tensorwire.base_name"] == "old"
    assert header["__metadata__"][f"tensorwire.base:{RENAMED}"] == UP
    header = read_header(tmp_path / "delta" / "model-00003-of-00003.safetensors")
    assert not [key for key in header["__metadata__"] if key.startswith("tensorwire.base")]


def test_a_tensor_that_does_not_change_is_a_header(pair: Paths, tmp_path: Path) -> None:
    checkpoint.compress_checkpoint(pair["same"], tmp_path / "delta", base=pair["old"])
    for tensor in checkpoint.inspect(tmp_path / "delta").tensors:
        if tensor.base_hash is not None:
            assert tensor.stored_nbytes <= 256
            assert set(tensor.num_blocks or ()) == {"same"}


def test_nothing_is_relative_where_nothing_fits(pair: Paths, tmp_path: Path) -> None:
    """Then the result is the plain one, and needs no base."""
    (tmp_path / "other.safetensors").write_bytes(container([("x", "F32", (100,), weights(100, 1, "F32"))]))
    checkpoint.compress_checkpoint(pair["new"], tmp_path / "delta", base=tmp_path / "other.safetensors")
    checkpoint.compress_checkpoint(pair["new"], tmp_path / "plain")
    assert tree_hashes(tmp_path / "delta") == tree_hashes(tmp_path / "plain")
    checkpoint.decompress_checkpoint(tmp_path / "delta", tmp_path / "back", base=pair["old"])  # which is not needed
    assert tree_hashes(tmp_path / "back") == tree_hashes(pair["new"])


def test_tensors_of_one_name_are_told_apart_by_their_file(tmp_path: Path) -> None:
    """As in directories of diffusers. One of them moves to another file and is renamed, which its content tells."""
    for name in ("old", "new"):
        for folder in ("unet", "vae"):
            (tmp_path / name / folder).mkdir(parents=True)
    contents = {"unet": weights(5000, 1), "vae": weights(5000, 2)}
    for folder, data in contents.items():
        (tmp_path / "old" / folder / "m.safetensors").write_bytes(container([("w", "BF16", (5000,), data)]))
    entries = [("w", "BF16", (5000,), step(contents["unet"], 3)), ("v", "BF16", (50, 100), contents["vae"])]
    (tmp_path / "new" / "unet" / "m.safetensors").write_bytes(container(entries))
    checkpoint.compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=tmp_path / "old")
    tensors = {tensor.name: tensor for tensor in checkpoint.inspect(tmp_path / "delta", base=tmp_path / "old").tensors}
    assert (tensors["v"].base_name, tensors["v"].base_found) == ("w", True)
    assert tensors["v"].stored_nbytes <= 256
    checkpoint.decompress_checkpoint(tmp_path / "delta", tmp_path / "back", base=tmp_path / "old")
    assert tree_hashes(tmp_path / "back") == tree_hashes(tmp_path / "new")


def test_a_directory_with_a_file_that_begins_as_a_long_header_does(tmp_path: Path) -> None:
    """An archive of gzip does, and has in it what may be an escaped name."""
    archive = b"\x1f\x8b\x08\0\0\0\0\0" + bytes(300_000) + b"\\u" + bytes(300_000)
    for name, write in (("old", layer), ("new", next_layer)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(container(write(0, 1)))
        (tmp_path / name / "vocab.txt.gz").write_bytes(archive)
    checkpoint.compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=tmp_path / "old")
    checkpoint.decompress_checkpoint(tmp_path / "delta", tmp_path / "back", base=tmp_path / "old")
    assert tree_hashes(tmp_path / "back") == tree_hashes(tmp_path / "new")


def test_a_single_file(pair: Paths, tmp_path: Path) -> None:
    old, new, delta = pair["old"] / FIRST, pair["new"] / FIRST, tmp_path / "delta.safetensors"
    checkpoint.compress_checkpoint(new, delta, base=old)
    assert delta.stat().st_size < new.stat().st_size
    for base in (old, pair["old"], pair["packed"] / FIRST):
        checkpoint.decompress_checkpoint(delta, tmp_path / "back", base=base, force=True)
        assert (tmp_path / "back").read_bytes() == new.read_bytes()
    recorded = checkpoint.inspect(delta, base=old).recorded_base
    assert recorded == checkpoint.RecordedBase(FIRST, recorded.hash if recorded else None, found=True)
    other = checkpoint.inspect(delta, base=pair["old"]).recorded_base  # which has more tensors
    assert other is not None
    assert other.found is False


# Bases that do not fit ----------------------------------------------------------------------------------------------


def mismatch(delta: Path, base: Path | None, dst: Path) -> BaseMismatchError:
    with pytest.raises(BaseMismatchError) as caught:
        checkpoint.decompress_checkpoint(delta, dst, base=base)
    assert not dst.exists()
    return caught.value


def test_a_base_that_is_missing(pair: Paths, tmp_path: Path) -> None:
    error = mismatch(pair["delta"], None, tmp_path / "x")
    assert (error.file, error.tensor) == (pair["delta"] / FIRST, UP)
    assert "in 'old' of 36864 bytes with content hash" in str(error)
    assert "--base PATH" in str(error)


def test_a_base_without_the_tensor(pair: Paths, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    shutil.copy(pair["old"] / SECOND, tmp_path / "base")
    error = mismatch(pair["delta"], tmp_path / "base", tmp_path / "x")
    assert error.tensor == UP
    assert f"{tmp_path / 'base'} has no tensor of this name" in str(error)


@pytest.mark.parametrize("change", ["bit", "shorter", "dtype", "newer"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_base_of_other_content(pair: Paths, tmp_path: Path, change: str, packed: bool) -> None:
    base = tmp_path / "base"
    shutil.copytree(pair["old"], base)
    up, *others = layer(0, 0)
    data = up[3]
    if change == "bit":
        data = data[:-1] + bytes([data[-1] ^ 1])
    elif change == "newer":
        data = next_layer(0, 0)[0][3]
    shape = (95, 192) if change == "shorter" else up[2]
    dtype = "F16" if change == "dtype" else "BF16"
    data = data[: 2 * shape[0] * shape[1]]
    (base / FIRST).write_bytes(container([(UP, dtype, shape, data), *others]))
    if packed:
        checkpoint.compress_checkpoint(base, tmp_path / "packed")
        base = tmp_path / "packed"
    if change == "dtype":  # the bytes are the same
        checkpoint.decompress_checkpoint(pair["delta"], tmp_path / "x", base=base)
        assert tree_hashes(tmp_path / "x") == tree_hashes(pair["new"])
        return
    error = mismatch(pair["delta"], base, tmp_path / "x")
    text = str(error)
    expected = {tensor.name: tensor for tensor in checkpoint.inspect(pair["delta"]).tensors}[UP].base_hash
    assert error.tensor == UP
    assert f"content hash {expected}" in text
    assert str(base / FIRST) in text
    if change == "shorter":
        assert "of 36864 bytes" in text
        assert "has 36480 bytes" in text
    else:
        assert content_hash(data) in text
    assert ("was applied already" in text) == (change == "newer")


def test_a_chain_is_decompressed_step_by_step(pair: Paths, tmp_path: Path) -> None:
    """A delta alone is no base, since it needs its own one: tests/checkpoint/test_chains.py gives both."""
    third = tmp_path / "third"
    shutil.copytree(pair["new"], third)
    up, *others = next_layer(0, 0)
    (third / FIRST).write_bytes(container([(*up[:3], step(up[3], 77)), *others]))
    checkpoint.compress_checkpoint(third, tmp_path / "delta2", base=pair["new"])
    assert "was applied already" not in str(mismatch(tmp_path / "delta2", pair["old"], tmp_path / "x"))  # a hole
    for call in (
        lambda: checkpoint.decompress_checkpoint(tmp_path / "delta2", tmp_path / "x", base=pair["delta"]),
        lambda: checkpoint.compress_checkpoint(third, tmp_path / "x", base=pair["delta"]),
    ):
        with pytest.raises(ValueError, match="is relative to a base itself; decompress it first"):
            call()
    checkpoint.decompress_checkpoint(pair["delta"], tmp_path / "second", base=pair["old"])
    checkpoint.decompress_checkpoint(tmp_path / "delta2", tmp_path / "back", base=tmp_path / "second")
    assert tree_hashes(tmp_path / "back") == tree_hashes(third)
    assert "was applied already" in str(mismatch(tmp_path / "delta2", third, tmp_path / "x"))  # replayed


def test_a_base_that_changes_while_it_is_read(pair: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "base"
    shutil.copytree(pair["old"], base)

    def change(own: base_module.BaseTensor, threads: int | None) -> None:
        if not own.name.endswith(".scales"):
            return
        status = (base / FIRST).stat()
        data = bytearray((base / FIRST).read_bytes())
        data[-1 - 4 * 96 * 96] ^= 1  # of a tensor that does not change, so nothing but a hash can tell
        with (base / FIRST).open("r+b") as file:
            file.write(data)
        os.utime(base / FIRST, ns=(status.st_atime_ns, status.st_mtime_ns))

    acting(monkeypatch, base_module.BaseTensor, "hash", change, after=True)
    with pytest.raises(CorruptDataError, match="the base changed while it was read"):
        checkpoint.decompress_checkpoint(pair["delta"], tmp_path / "x", base=base)
    assert not (tmp_path / "x").exists()


def test_a_compressed_base_that_claims_another_hash(pair: Paths, tmp_path: Path) -> None:
    """Blocks have checksums, the content as a whole has none: who reads all of it finds out. Otherwise there would be a
    delta that this very base does not decompress."""
    name, _, shape, data = layer(0, 0)[0]
    frame = Surgery(compress(data, dtype="BF16", shape=shape))
    frame.set("content_hash", bytes(range(16)))
    payload = frame.close()
    lying = container([(name, "F6_E2M3", (0,), b""), (payload_name(name), "U8", (len(payload),), payload)])
    (tmp_path / "lying.safetensors").write_bytes(lying)
    with pytest.raises(CorruptDataError, match=r"expected content with hash 000102.*lying"):
        checkpoint.compress_checkpoint(pair["new"], tmp_path / "x", base=tmp_path / "lying.safetensors")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("src", "base"), [("old", "old"), ("old/inner", "old"), ("old", "old/inner")])
def test_a_source_is_not_its_own_base(pair: Paths, tmp_path: Path, src: str, base: str) -> None:
    """Nothing could restore the result once the source is gone."""
    shutil.copytree(pair["old"], tmp_path / "old")
    shutil.copytree(pair["new"], tmp_path / "old" / "inner")
    with pytest.raises(ValueError, match="are the same or lie in each other"):
        checkpoint.compress_checkpoint(tmp_path / src, tmp_path / "x", base=tmp_path / base)


def test_a_result_never_replaces_its_base(pair: Paths, tmp_path: Path) -> None:
    old, packed = tmp_path / "old", tmp_path / "packed"
    shutil.copytree(pair["old"], old)
    shutil.copytree(pair["packed"], packed)
    before = tree_hashes(tmp_path)
    calls: list[Any] = [
        lambda: checkpoint.compress_checkpoint(pair["new"], packed, base=packed, force=True),
        lambda: checkpoint.compress_checkpoint(pair["new"], old / "delta", base=old),
        lambda: checkpoint.compress_checkpoint(pair["new"] / FIRST, packed / FIRST, base=packed / FIRST, force=True),
        lambda: checkpoint.decompress_checkpoint(pair["delta"], old, base=old, force=True),
        lambda: checkpoint.save_file({"w": np.ones(9)}, packed / FIRST, base=packed),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"is the base, or a file of it|lie in each other"):
            call()
    assert tree_hashes(tmp_path) == before


def test_resident_takes_no_base(pair: Paths, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='profile "resident" takes no base'):
        checkpoint.compress_checkpoint(pair["new"], tmp_path / "x", profile="resident", base=pair["old"])
    with pytest.raises(ValueError, match='profile "resident" takes no base'):
        checkpoint.save_file({}, tmp_path / "x", profile="resident", base=pair["old"])


# What else takes a base ---------------------------------------------------------------------------------------------


def test_transcode(pair: Paths, tmp_path: Path) -> None:
    with pytest.raises(BaseMismatchError):
        checkpoint.transcode_checkpoint(pair["delta"], tmp_path / "x", profile="compact")
    checkpoint.transcode_checkpoint(pair["delta"], tmp_path / "x", profile="compact", base=pair["old"])
    checkpoint.compress_checkpoint(pair["new"], tmp_path / "y", profile="compact", base=pair["old"])
    assert tree_hashes(tmp_path / "x") == tree_hashes(tmp_path / "y")
    checkpoint.compress_checkpoint(pair["new"], tmp_path / "plain")
    checkpoint.transcode_checkpoint(tmp_path / "plain", tmp_path / "z", profile="compact", base=pair["old"])
    assert tree_hashes(tmp_path / "z") == tree_hashes(tmp_path / "y")


def test_verify_and_inspect_with_and_without_the_base(pair: Paths) -> None:
    for base, unchecked, problems, found in (
        (None, 9, 0, None),
        (pair["old"], 0, 0, True),
        (pair["packed"], 0, 0, True),
        (pair["one"], 0, 0, True),
        (pair["new"], 0, 6, False),
    ):
        report = checkpoint.verify(pair["delta"], base=base)
        assert (report.num_relative, report.num_unchecked, len(report.problems)) == (9, unchecked, problems)
        assert report.ok == (not problems)
        assert report.exact == (base is not None and not problems)
        assert {problem.kind for problem in report.problems} <= {"BaseMismatchError"}
        inspected = checkpoint.inspect(pair["delta"], base=base)
        recorded = inspected.recorded_base
        assert recorded is not None
        assert (recorded.name, recorded.found) == ("old", found)
        tensor = next(tensor for tensor in inspected.tensors if tensor.name == UP)
        assert tensor.base_found == found
        assert (tensor.exponent_counts is not None) == (found is True)
        assert tensor.num_blocks


def test_damage_is_found_without_the_base(pair: Paths, tmp_path: Path) -> None:
    shutil.copytree(pair["delta"], tmp_path / "delta")
    path = tmp_path / "delta" / FIRST
    data = bytearray(path.read_bytes())
    start, stop = read_header(path)["model.layers.0.mlp.up_proj._weight_tensorwire"]["data_offsets"]
    header_nbytes = 8 + int.from_bytes(data[:8], "little")
    data[header_nbytes + stop - 1] ^= 1
    path.write_bytes(data)
    (problem,) = checkpoint.verify(tmp_path / "delta").problems
    assert (problem.kind, problem.tensor) == ("CorruptDataError", UP)
    assert start < stop


def test_diff_reads_a_delta(pair: Paths) -> None:
    assert checkpoint.diff(pair["new"], pair["delta"], base=pair["old"]).equal
    assert not checkpoint.diff(pair["old"], pair["delta"], base=pair["packed"]).equal
    with pytest.raises(BaseMismatchError):
        checkpoint.diff(pair["new"], pair["delta"])


def test_tensors_are_read_with_their_base(pair: Paths) -> None:
    expected = checkpoint.load_file(pair["new"])
    found = checkpoint.load_file(pair["delta"], base=pair["packed"])
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
    path, plain = pair["delta"] / FIRST, pair["new"] / FIRST
    for verify in (True, False):
        with (
            checkpoint.open_file(path, base=pair["old"], verify=verify) as file,
            checkpoint.open_file(plain) as original,
        ):
            for name in original:
                assert file.get_tensor(name).tobytes() == original.get_tensor(name).tobytes()
                for index in (slice(1, 2), slice(40, 90), -1):
                    assert file.get_slice(name)[index].tobytes() == original.get_slice(name)[index].tobytes()
    with pytest.raises(BaseMismatchError, match="got none"):
        checkpoint.load_file(path)
    with pytest.raises(BaseMismatchError):
        checkpoint.load_file(path, base=plain)
    with checkpoint.open_file(path) as file:  # what is not relative needs no base
        assert file.get_tensor("model.layers.0.norm.weight").shape == (96,)
        with pytest.raises(BaseMismatchError):
            file.get_tensor(UP)


def test_the_base_is_hashed_once_for_each_tensor(pair: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()

    def count(own: StoredFile, tensor: Any, start: int, out: memoryview, **_: Any) -> None:
        if own.path.parent != pair["delta"]:
            counts[tensor.name] += len(out)

    acting(monkeypatch, StoredFile, "read", count)
    nbytes = 2 * 96 * 192
    for base, verify, expected in (
        (pair["old"], True, nbytes),
        (pair["old"], False, 0),
        (pair["packed"], True, 0),
    ):
        counts.clear()
        with checkpoint.open_file(pair["delta"] / FIRST, base=base, verify=verify) as file:
            assert not counts
            rows = file.get_slice(UP)
            rows[0:1]
            first = counts[UP]
            rows[0:1]
            per_slice = counts[UP] - first
            assert first == expected + per_slice


def test_a_base_that_is_written_over_between_slices(pair: Paths, tmp_path: Path) -> None:
    """Its hash was compared when the first slice was read, and no hash covers the rows of the next one."""
    shutil.copy(pair["old"] / FIRST, tmp_path / "base.safetensors")
    checkpoint.compress_checkpoint(pair["new"] / FIRST, tmp_path / "delta.safetensors", base=pair["old"] / FIRST)
    with checkpoint.open_file(
        tmp_path / "delta.safetensors", base=tmp_path / "base.safetensors", framework="bytes"
    ) as file:
        part = file.get_slice(UP)
        first = part[0:4]
        data = bytearray((tmp_path / "base.safetensors").read_bytes())
        start = data.index(layer(0, 0)[0][3])
        for word in range(start, start + 4 * 192 * 2, 2):
            data[word] ^= 1
        (tmp_path / "base.safetensors").write_bytes(data)
        with pytest.raises(OSError, match="the file changed while it was read"):
            part[0:4]
    with checkpoint.open_file(pair["new"] / FIRST, framework="bytes") as file:
        assert file.get_slice(UP)[0:4] == first


def test_save_file(pair: Paths, tmp_path: Path) -> None:
    tensors = checkpoint.load_file(pair["new"])
    path = tmp_path / "saved.safetensors"
    checkpoint.save_file(tensors, path, base=pair["old"])
    assert checkpoint.verify(path, base=pair["old"]).ok
    found = checkpoint.load_file(path, base=pair["old"])
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in tensors.items()
    }
    renamed = {f"other.{name}": array for name, array in checkpoint.load_file(pair["old"]).items()}
    checkpoint.save_file(renamed, path, base=pair["packed"])
    assert all(
        tensor.base_name == tensor.name.removeprefix("other.")
        for tensor in checkpoint.inspect(path).tensors
        if tensor.nbytes > 1000
    )


def test_a_run_goes_on_only_with_the_same_base(pair: Paths, tmp_path: Path) -> None:
    """Shards that an interrupted run has finished are relative to the base as it was then."""
    base = tmp_path / "base"
    shutil.copytree(pair["old"], base)

    for change in (False, True):
        interrupt(checkpoint.compress_checkpoint, pair["new"], tmp_path / "x", base=base, at=SECOND)
        if change:
            shutil.copy(pair["new"] / FIRST, base / FIRST)
        report = checkpoint.compress_checkpoint(pair["new"], tmp_path / "x", base=base)
        assert any(file.resumed for file in report.files) == (not change)
        checkpoint.decompress_checkpoint(tmp_path / "x", tmp_path / "back", base=base)
        assert tree_hashes(tmp_path / "back") == tree_hashes(pair["new"])
        for name in ("x", "back"):
            shutil.rmtree(tmp_path / name)


def test_the_manifest_names_the_base(pair: Paths, tmp_path: Path) -> None:
    shutil.copytree(pair["delta"], tmp_path / "delta")
    for value in ({"name": "old"}, {"name": 1, "hash": "0" * 32}, {"name": "old", "hash": "x"}, []):
        edit_manifest(tmp_path / "delta", lambda body, value=value: body.update(base=value))
        with pytest.raises(CorruptDataError, match="of the base in the manifest"):
            checkpoint.decompress_checkpoint(tmp_path / "delta", tmp_path / "x", base=pair["old"])
