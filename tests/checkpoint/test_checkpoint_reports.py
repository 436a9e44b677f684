"""verify, inspect, diff and progress: what they say is so."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    inspect,
    save_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.errors import CorruptDataError
from tests.support.acting import raising
from tests.support.checkpoint_models import (
    SHARD,
    container,
    layer,
    random_bytes,
    read_header,
    tree_hashes,
    weights,
    write_model,
)
from tests.support.frame_surgery import Surgery

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tensorwire.codec import Profile


def test_verify(model: Path, packed: Path) -> None:
    report = verify(packed)
    assert (report.ok, report.kind, report.exact) == (True, "compressed", True)
    assert report.num_files == len(tree_hashes(model))
    assert report.num_tensors == 12
    assert verify(packed / SHARD).ok
    plain = verify(model)
    assert (plain.ok, plain.kind, plain.exact) == (True, "plain", False)


def test_verify_counts_what_it_has_no_checksums_for(model: Path, packed: Path, tmp_path: Path) -> None:
    """A shard that was compressed beside its originals."""
    shutil.copytree(model, tmp_path / "mixed")
    shard = min((tmp_path / "mixed").glob("*.safetensors"))
    compress_checkpoint(shard, shard.with_name("a.tensorwire.safetensors"))
    report = verify(tmp_path / "mixed")
    assert (report.ok, report.exact, report.kind) == (True, False, "compressed")
    assert report.num_plain == verify(model).num_tensors == verify(model).num_plain
    assert verify(packed).num_plain == 0


def test_content_without_its_hash_passes_nowhere(tmp_path: Path) -> None:
    """All checksums are right; a writer has put other content under the hash."""
    path = tmp_path / "file"
    save_file({"w": np.random.default_rng(0).normal(0, 0.02, (100, 100)).astype(np.float32)}, path)
    data = bytearray(path.read_bytes())
    start, stop = read_header(path)["_w_tensorwire"]["data_offsets"]
    payload = slice(8 + int.from_bytes(data[:8], "little") + start, 8 + int.from_bytes(data[:8], "little") + stop)
    frame = Surgery(data[payload])
    frame.bytes[frame.header_nbytes + 5] ^= 3
    frame.rehash_block(0)
    data[payload] = frame.close()
    path.write_bytes(data)
    (problem,) = verify(path).problems
    assert (problem.tensor, problem.kind) == ("w", "CorruptDataError")
    for operation in (decompress_checkpoint, partial(transcode_checkpoint, profile="compact")):
        with pytest.raises(CorruptDataError, match="content with hash"):
            operation(path, tmp_path / "out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]


def test_verify_lists_every_damaged_tensor(packed: Path) -> None:
    path = packed / SHARD
    data = bytearray(path.read_bytes())
    offset = 8 + int.from_bytes(data[:8], "little")
    names = ["model.layers.0.mlp._up_proj", "model.layers.0.mlp.scales", "model.layers.0.attn._weight_tensorwire"]
    header = read_header(path)
    for name in names[1:]:
        data[offset + header[name]["data_offsets"][1] - 100] ^= 4
    path.write_bytes(data)
    (packed / "tokenizer.json").write_text("changed")
    (packed / "empty.txt").unlink()
    config = json.loads((packed / "config.json").read_bytes())
    (packed / "config.json").write_text(json.dumps(config))
    report = verify(packed, strict=True)
    assert not report.ok
    found = {(problem.file, problem.tensor, problem.kind) for problem in report.problems}
    assert found == {
        (SHARD, "model.layers.0.mlp.scales", "CorruptDataError"),
        (SHARD, "model.layers.0.attn.weight", "CorruptDataError"),
        ("tokenizer.json", None, "CorruptDataError"),
        ("empty.txt", None, "FileNotFoundError"),
        ("config.json", None, "CorruptDataError"),
    }


@pytest.mark.parametrize("kind", ["model", "packed"])
def test_what_is_damaged_is_not_exact(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind) / SHARD
    path.write_bytes(path.read_bytes()[:-10])
    for target in (path, path.parent):
        report = verify(target)
        assert [problem.kind for problem in report.problems] == ["TruncatedDataError"]
        assert (report.ok, report.exact) == (False, False)


def test_files_that_the_manifest_does_not_know(packed: Path, model: Path, tmp_path: Path) -> None:
    (packed / "vae" / "notes.txt").write_text("later")
    assert verify(packed).ignored == ("vae/notes.txt",)
    assert decompress_checkpoint(packed, tmp_path / "back").ignored == ("vae/notes.txt",)
    assert tree_hashes(tmp_path / "back") == tree_hashes(model)


def test_inspect(model: Path, packed: Path) -> None:
    report = inspect(packed)
    assert (report.kind, report.restorable, len(report.files)) == ("compressed", True, 3)
    assert report.metadata == {"format": "pt"}
    tensors = {tensor.name: tensor for tensor in report.tensors}
    assert len(tensors) == 12
    tensor = tensors["model.layers.0.mlp.up_proj.weight"]
    assert (tensor.dtype, tensor.shape, tensor.file, tensor.profile) == ("BF16", (96, 192), SHARD, "fast")
    assert tensor.stored_nbytes < tensor.nbytes == 2 * 96 * 192
    values = np.frombuffer(weights(96 * 192, 0), np.uint16)
    counts = np.bincount(values >> 7 & 255, minlength=256)
    assert tensor.exponent_counts == tuple(counts.tolist())
    shares = counts[counts > 0] / counts.sum()
    assert tensor.exponent_entropy == pytest.approx(-(shares * np.log2(shares)).sum())
    assert tensor.sign_mantissa_bits == pytest.approx(8, abs=0.1)
    assert tensor.exponent_bits is not None
    assert tensor.exponent_bits + tensor.sign_mantissa_bits == pytest.approx(16 / tensor.ratio)
    assert sum((tensor.num_blocks or {}).values()) >= 1
    plain = tensors["model.layers.0.mlp.scales"]
    assert (plain.profile, plain.num_blocks, plain.ratio, plain.exponent_counts) == (None, None, 1.0, None)
    report = inspect(model / SHARD)
    assert (report.kind, report.restorable, report.ratio) == ("plain", False, 1.0)
    assert {t.name: t.exponent_counts for t in report.tensors} == {
        t.name: t.exponent_counts for t in inspect(packed / SHARD).tensors
    }


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_bits_are_near_their_bound_in_every_profile(dtype: str, tmp_path: Path) -> None:
    """The smaller file must not seem to be the one that spends more on exponents."""
    numel = 1 << 20
    (tmp_path / "a.safetensors").write_bytes(container([("w", dtype, (numel,), weights(numel, 5, dtype))]))
    bits = {}
    for profile in ("enec", "fast", "compact"):
        target = tmp_path / f"{profile}.safetensors"
        compress_checkpoint(tmp_path / "a.safetensors", target, profile=profile)
        (tensor,) = inspect(target).tensors
        assert tensor.exponent_bits is not None
        assert tensor.sign_mantissa_bits is not None
        assert tensor.exponent_entropy is not None
        assert tensor.exponent_bits + tensor.sign_mantissa_bits == pytest.approx(8 * tensor.stored_nbytes / numel)
        if profile != "enec":  # whose codes have few lengths
            assert tensor.exponent_bits == pytest.approx(tensor.exponent_entropy, rel=0.06)
        bits[profile] = tensor.exponent_bits
    assert bits["compact"] < bits["fast"] < bits["enec"]


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_bits_of_a_tensor_with_many_zeros(profile: Profile, tmp_path: Path) -> None:
    """Zeros take neither sign nor mantissa; where they are counts as exponents."""
    numel = 1 << 18
    words = np.frombuffer(weights(numel, 5), np.uint16).reshape(-1, 64).copy()
    words[np.random.default_rng(0).random(len(words)) < 0.75] = 0
    (tmp_path / "a.safetensors").write_bytes(container([("w", "BF16", (numel,), words.tobytes())]))
    compress_checkpoint(tmp_path / "a.safetensors", tmp_path / "small.safetensors", profile=profile)
    (tensor,) = inspect(tmp_path / "small.safetensors").tensors
    assert tensor.num_blocks is not None
    assert set(tensor.num_blocks) == {"zeros"}
    assert tensor.sign_mantissa_bits == pytest.approx(8 * np.count_nonzero(words) / numel, rel=0.05)


def test_diff_counts(tmp_path: Path) -> None:
    base = np.frombuffer(weights(70_000, 1), np.uint16).copy()
    packed = np.frombuffer(random_bytes(3000, 2), np.uint8).copy()
    changed, repacked = base.copy(), packed.copy()
    changed[[7, 500, 69_999]] ^= 0x8000
    repacked[100] ^= 0x11  # both of the two numbers in a byte
    same = ("same", "F32", (2000,), weights(2000, 9, "F32"))
    nan = ("nan", "F32", (2,), b"\xff\xff\xff\xff\x00\x00\x00\x80")
    a = [same, nan, ("w", "BF16", (700, 100), base.tobytes()), ("f4", "F4", (6000,), packed.tobytes())]
    a += [("gone", "U8", (3,), b"123"), ("shape", "U8", (2, 3), b"123456"), ("dtype", "I8", (2,), b"12")]
    b = [same, nan, ("w", "BF16", (700, 100), changed.tobytes()), ("f4", "F4", (6000,), repacked.tobytes())]
    b += [("new", "U8", (5,), b"12345"), ("shape", "U8", (3, 2), b"123456"), ("dtype", "U8", (2,), b"12")]
    (tmp_path / "a").write_bytes(container(a))
    (tmp_path / "b").write_bytes(container(b[::-1]))
    compress_checkpoint(tmp_path / "b", tmp_path / "c", profile="compact")
    for other in ("b", "c"):
        report = diff(tmp_path / "a", tmp_path / other)
        assert not report.equal
        assert report.num_equal == 2
        assert report.num_different_elements == 5
        found = {t.name: (t.status, t.numel, t.num_different, t.first_different) for t in report.tensors}
        assert found == {
            "w": ("changed", 70_000, 3, 7),
            "f4": ("changed", 6000, 2, 200),
            "gone": ("removed", 3, 3, None),
            "new": ("added", 5, 5, None),
            "shape": ("retyped", 6, 6, None),
            "dtype": ("retyped", 2, 2, None),
        }
    assert diff(tmp_path / "b", tmp_path / "c").equal


def test_diff_of_directories(model: Path, packed: Path, tmp_path: Path) -> None:
    report = diff(model, packed)
    assert (report.equal, report.num_equal, report.files) == (True, 12, ())
    write_model(tmp_path / "other", num_shards=2)
    (tmp_path / "other" / "tokenizer.json").write_text("other")
    (tmp_path / "other" / "new.txt").write_text("new")
    report = diff(packed, tmp_path / "other")
    assert (report.equal, report.tensors, report.files) == (False, (), ("new.txt", "tokenizer.json"))


def test_diff_where_names_repeat(tmp_path: Path) -> None:
    """As in a directory of diffusers: several models, each with tensors of the same names. They go file by file."""
    root, other = tmp_path / "root", tmp_path / "other"
    for number, name in enumerate(("unet/model.safetensors", "vae/model.safetensors", "vae/model.fp16.safetensors")):
        for place in (root, other):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(container([("w", "U8", (3,), bytes([number, 1, 2])), ("v", "U8", (1,), b"5")]))
    compress_checkpoint(root, tmp_path / "packed")
    for left, right in ((root, root), (root, other), (root, tmp_path / "packed")):
        report = diff(left, right)
        assert (report.equal, report.num_equal, report.by_file) == (True, 6, True)
    (other / "vae/model.safetensors").write_bytes(container([("w", "U8", (3,), bytes([1, 1, 9]))]))
    (other / "vae/new.safetensors").write_bytes(container([("w", "U8", (3,), bytes(3))]))
    report = diff(root, other)
    assert (report.equal, report.num_equal, report.num_different_elements) == (False, 4, 1)
    assert [(t.name, t.status, t.file_a, t.file_b) for t in report.tensors] == [
        ("v", "removed", "vae/model.safetensors", None),
        ("w", "changed", "vae/model.safetensors", "vae/model.safetensors"),
        ("w", "added", None, "vae/new.safetensors"),
    ]


def test_diff_by_name_says_which_files(model: Path, tmp_path: Path) -> None:
    """Where no name repeats, it does not matter how tensors are spread over files."""
    one = tmp_path / "one.safetensors"
    entries = [*layer(0, 0), *layer(1, 10), *layer(7, 70)]
    entries[0] = (*entries[0][:3], bytes(len(entries[0][3])))
    one.write_bytes(container(entries))
    report = diff(model, one)
    assert (report.num_equal, report.by_file) == (11, False)
    (tensor,) = report.tensors
    assert (tensor.name, tensor.file_a, tensor.file_b) == (entries[0][0], SHARD, "one.safetensors")


def test_inspect_where_names_repeat(tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.fp16.safetensors"):
        (tmp_path / name).write_bytes(container([("w", "U8", (3,), b"123")]))
    report = inspect(tmp_path)
    assert [(t.name, t.file) for t in report.tensors] == [
        ("w", "model.fp16.safetensors"),
        ("w", "model.safetensors"),
    ]


def test_a_shard_of_a_saved_file_in_a_directory(tmp_path: Path) -> None:
    """A directory without a manifest is verified and inspected file by file."""
    root = tmp_path / "root"
    root.mkdir()
    save_file({"a.weight": np.zeros((64, 64), np.float32)}, root / "model.safetensors")
    assert (verify(root).ok, verify(root).kind, verify(root).exact) == (True, "compressed", False)
    assert inspect(root).tensors[0].num_blocks == {"constant": 1}
    with pytest.raises(ValueError, match=r"tensorwire\.json"):
        decompress_checkpoint(root, tmp_path / "back")


OPERATIONS: dict[str, Callable[..., Any]] = {
    "compress": lambda root, **options: compress_checkpoint(root / "a", root / "new", **options),
    "decompress": lambda root, **options: decompress_checkpoint(root / "b", root / "new", **options),
    "transcode": lambda root, **options: transcode_checkpoint(root / "b", root / "new", profile="enec", **options),
    "verify": lambda root, **options: verify(root / "b", **options),
    "inspect": lambda root, **options: inspect(root / "b", **options),
    "diff": lambda root, **options: diff(root / "a", root / "b", **options),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_reports_pickle_and_copy(tmp_path: Path, operation: str) -> None:
    write_model(tmp_path / "a")
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    report = OPERATIONS[operation](tmp_path)
    for duplicate in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert duplicate == report
        assert duplicate is not report


@pytest.mark.parametrize("operation", OPERATIONS)
def test_progress_is_what_its_page_says(tmp_path: Path, operation: str) -> None:
    write_model(tmp_path / "a", width=300)
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    calls: list[tuple[int, int, str]] = []
    threads = set()

    def progress(done: int, total: int, path: str) -> None:
        calls.append((done, total, path))
        threads.add(threading.get_ident())

    OPERATIONS[operation](tmp_path, progress=progress)
    assert threads == {threading.get_ident()}
    done, totals, paths = zip(*calls, strict=True)
    assert list(done) == sorted(done)
    assert (done[0], done[-1]) == (0, totals[0])
    files = {
        path.relative_to(tmp_path / "a").as_posix(): path for path in (tmp_path / "a").rglob("*") if path.is_file()
    }
    shards = [name for name in files if name.endswith(".safetensors")]
    tensors = {entry[0]: len(entry[3]) for shard in (0, 1, 7) for entry in layer(shard, 10 * shard, 300)}
    if operation == "diff":
        assert (set(paths), set(totals)) == (set(tensors), {sum(tensors.values())})
    elif operation == "inspect":
        nbytes = sum((tmp_path / "b" / name).stat().st_size for name in shards)
        assert (set(paths), set(totals)) == (set(shards), {nbytes})
    else:
        assert (set(paths), set(totals)) == (set(files), {sum(path.stat().st_size for path in files.values())})


def test_progress_that_raises_ends_the_operation(tmp_path: Path) -> None:
    write_model(tmp_path / "a")

    with pytest.raises(KeyboardInterrupt):
        compress_checkpoint(tmp_path / "a", tmp_path / "new", progress=raising(KeyboardInterrupt))
    assert not (tmp_path / "new").exists()
