"""Versions in the layout of slime, miles and SGLang: what we write others apply, and what others write we read."""

from __future__ import annotations

import json
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorwire
from tensorwire.errors import LimitExceededError
from tensorwire.sync.interchange import read_version, write_version
from tests.support.published_layout import INDEX, read_shard, receive, send

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Arrays = dict[str, np.ndarray[Any, Any]]

ENCODINGS = ("xor", "overwrite")
NUMBERS = np.random.default_rng(7)


def old_tensors() -> Arrays:
    """Tensors of many kinds."""
    floats = np.float32(0.02) * NUMBERS.standard_normal((40, 50), np.float32)
    return {
        "model.layers.0.weight": floats.astype(ml_dtypes.bfloat16),
        "model.layers.0.scale": NUMBERS.integers(0, 256, 33, np.uint8).view(ml_dtypes.float8_e4m3fn),
        "special": np.array([0.0, -0.0, np.nan, np.inf, 1.0], np.float32),
        "payloads": np.array([0x7FC00001, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32),
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 4), np.float16),
        "../o/d\0\u00e9": NUMBERS.integers(0, 256, (7, 3, 5), np.uint8),
        "unchanged": np.arange(100, dtype=np.float64),
        "all": np.zeros(1000, np.uint8),
        "embed": floats[:10].copy(),
    }


def new_tensors(old: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    """The same after a step, with two names for one tensor."""
    new = {name: array.copy() for name, array in old.items()}
    new["model.layers.0.weight"].view(np.uint16)[3, ::7] += 1
    new["model.layers.0.scale"].view(np.uint8)[:2] ^= 0x80
    new["special"][:3] = [-0.0, 0.0, -np.nan]  # equal as numbers, or equal to nothing, and other bits
    new["payloads"].view(np.uint32)[:] ^= 1
    new["scalar"][()] = -1
    new["../o/d\0\u00e9"][6, 2, 4] ^= 255  # the last byte
    new["all"] += 1
    new["embed"] *= np.float32(1.5)
    new["head"] = new["embed"]
    return new


@pytest.fixture
def old() -> Arrays:
    tensors = old_tensors()
    return {**tensors, "head": tensors["embed"]}


@pytest.fixture
def new(old: Arrays) -> Arrays:
    return new_tensors(old)


def content(tensors: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in tensors.items()}


def torch_bytes(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


def memory(tensors: Mapping[str, Any]) -> dict[str, bytearray]:
    return {name: bytearray(data) for name, data in content(tensors).items()}


def changed(new: Arrays, old: Arrays) -> Arrays:
    return {name: array for name, array in new.items() if array.tobytes() != old[name].tobytes()}


def assert_equal(found: Mapping[str, Any], expected: Arrays) -> None:
    assert content(found) == content(expected)
    assert {n: (a.dtype, a.shape) for n, a in found.items()} == {n: (a.dtype, a.shape) for n, a in expected.items()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def edit_index(place: Path, **metadata: object) -> None:
    index = json.loads((place / INDEX).read_text())
    index["metadata"] = {**index["metadata"], **metadata}
    (place / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("package", ["xxhash", None])
def test_a_receiver_applies_what_is_written(
    tmp_path: Path, old: Arrays, new: Arrays, encoding: Any, package: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package is None:
        monkeypatch.setitem(sys.modules, "xxhash", None)
    place = write_version(tmp_path, new, version=17, base=old, base_version=16, encoding=encoding)
    monkeypatch.undo()
    metadata = json.loads((place / INDEX).read_text())["metadata"]
    assert metadata == {
        "version": "000017",
        "base_version": "000016",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": "adler32" if package is None else "xxh3-128",
    }
    state = memory(old)
    assert receive(place, state, 16) == 17
    assert state == content(new)
    assert names(place) == ["model-00001-of-00001.safetensors", INDEX]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["xxh3-128", "adler32", "blake3"])
def test_what_a_sender_wrote_is_read(tmp_path: Path, old: Arrays, new: Arrays, encoding: str, kind: str) -> None:
    if kind == "blake3":
        pytest.importorskip("blake3")
    before = content(old)
    place = send(tmp_path, content(new), before, version=3, encoding=encoding, kind=kind, num_shards=3)
    found = read_version(place, base=old, base_version=2, threads=2)
    assert_equal(found, changed(new, old))
    assert content(old) == before
    found["special"][0] = 5  # it is the caller's


@settings(max_examples=25)  # each waits for the disk
@given(
    st.sampled_from(ENCODINGS),
    st.lists(st.tuples(st.binary(max_size=40), st.randoms(use_true_random=False)), max_size=5),
)
def test_any_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, encoding: Any, tensors: Any) -> None:
    folder = tmp_path_factory.mktemp("store")
    old = {str(i): np.frombuffer(data, np.uint8) for i, (data, _) in enumerate(tensors)}
    new = {
        str(i): np.array([byte ^ (random.randrange(256) if random.random() < 0.3 else 0) for byte in data], np.uint8)
        for i, (data, random) in enumerate(tensors)
    }
    place = write_version(folder, new, version=1, base=old, base_version=0, encoding=encoding)
    state = memory(old)
    receive(place, state, 0)
    assert state == content(new) == content({**old, **read_version(place, base=old)})


def test_a_stream_of_versions(tmp_path: Path, old: Arrays) -> None:
    state: Arrays = dict(old)
    theirs = memory(old)
    for version, encoding in enumerate(("xor", "overwrite", "xor"), 1):
        after = new_tensors({name: array for name, array in state.items() if name != "head"})
        write_version(
            tmp_path, after, version=version, base=state, base_version=version - 1, encoding=encoding  # type: ignore[arg-type]
        )  # fmt: skip
        place = tmp_path / f"weight_v{version:06d}"
        state |= read_version(place, base=state, base_version=version - 1)
        assert receive(place, theirs, version - 1) == version
        assert content(state) == theirs == content(after)


def test_a_version_without_a_base_is_an_ordinary_checkpoint(tmp_path: Path, new: Arrays) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    place = write_version(tmp_path, new, version=25, max_shard_nbytes=4000)
    index = json.loads((place / INDEX).read_text())
    assert index["metadata"] == {"version": "000025", "checksum_format": "xxh3-128"}
    assert index["weight_map"].keys() == new.keys()
    loaded: dict[str, Any] = {}
    for file in set(index["weight_map"].values()):
        loaded |= safetensors.load_file(place / file)
        assert read_shard(place / file)[1]["format"] == "pt"
    assert {name: torch_bytes(tensor) for name, tensor in loaded.items()} == content(new)
    assert_equal(tensorwire.load_file(place), new)
    assert_equal(read_version(place), new)
    assert_equal(read_version(place, base={}, base_version=3), new)


def test_a_checkpoint_without_checksums_is_read(tmp_path: Path, new: Arrays) -> None:
    place = write_version(tmp_path, new, version=0)
    index = json.loads((place / INDEX).read_text())
    del index["metadata"]
    (place / INDEX).write_text(json.dumps(index))
    assert_equal(read_version(place), new)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_change_is_an_index_alone(tmp_path: Path, old: Arrays, encoding: Any) -> None:
    place = write_version(tmp_path, old, version=2, base=dict(old), base_version=1, encoding=encoding)
    assert names(place) == [INDEX]
    assert json.loads((place / INDEX).read_text())["weight_map"] == {}
    assert read_version(place, base=old, base_version=1) == {}
    assert receive(place, memory(old), 1) == 2


def test_shards_are_no_larger_than_said_and_aligned(tmp_path: Path) -> None:
    tensors = {f"{i}.{dtype}": np.ones(1 + i, dtype) for i in range(9) for dtype in ("u1", "f8", "f2")}
    place = write_version(tmp_path, tensors, version=1, max_shard_nbytes=100)
    shards = sorted(place.glob("*.safetensors"))
    assert [shard.name for shard in shards] == [
        f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)
    ]
    assert len(shards) > 2
    for shard in shards:
        blob = shard.read_bytes()
        start = 8 + int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8:start])
        assert len(blob) - start <= 100
        for name, entry in header.items():
            if name != "__metadata__":
                assert (start + entry["data_offsets"][0]) % tensors[name].itemsize == 0
    assert_equal(read_version(place), tensors)


def test_a_tensor_larger_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    tensors = {name: np.ones(10, np.uint8) for name in "abc"}
    place = write_version(tmp_path, tensors, version=1, max_shard_nbytes=1)
    assert len(list(place.glob("*.safetensors"))) == 3
    assert_equal(read_version(place), tensors)


@pytest.mark.parametrize("base", [True, False])
def test_bytes_do_not_depend_on_threads(tmp_path: Path, old: Arrays, new: Arrays, base: bool) -> None:
    written = []
    for threads in (1, 4):
        (tmp_path / str(threads)).mkdir()
        options: Any = {"base": old, "base_version": 4} if base else {}
        place = write_version(tmp_path / str(threads), new, version=5, threads=threads, **options)
        written.append({path.name: path.read_bytes() for path in place.iterdir()})
    assert written[0] == written[1]


def test_tensors_are_let_go_once_their_differences_are_there(tmp_path: Path) -> None:
    base = {str(i): np.zeros(100, np.uint8) for i in range(50)}
    alive: set[int] = set()
    most = 0

    def made() -> Iterator[tuple[str, Any]]:
        nonlocal most
        for i in range(50):
            array = np.ones(100, np.uint8)
            alive.add(i)
            weakref.finalize(array, alive.discard, i)
            most = max(most, len(alive))
            yield str(i), array

    write_version(tmp_path, made(), version=1, base=base, base_version=0, threads=2)
    assert most < 10


def test_a_directory_that_is_not_there(tmp_path: Path, new: Arrays) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        write_version(tmp_path / "none", new, version=1)


def test_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    old = {"w": torch.zeros(4, 6, dtype=torch.bfloat16), "s": torch.tensor(1.0), "t": torch.zeros(2, 3)}
    new = {"w": old["w"] - 0.0, "s": torch.tensor(float("nan")), "t": torch.ones(3, 2).t()}  # one is not contiguous
    new["w"][1, 2] = -0.0
    place = write_version(tmp_path, new, version=1, base=old, base_version=0)
    found = read_version(place, base=old, framework="pt")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in new.items()
    }
    assert {name: torch_bytes(tensor) for name, tensor in found.items()} == {
        name: torch_bytes(tensor) for name, tensor in new.items()
    }
    assert read_version(place, base=old, framework="bytes")["t"] == np.ones(6, np.float32).tobytes()


def test_positions_have_32_bits(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 2**32)  # takes no room, and is never read
    huge = np.memmap(path, np.uint8, "r")
    with pytest.raises(LimitExceededError, match=r"less than 4 GiB.*got 4294967296 bytes.*'w'.*xor"):
        write_version(tmp_path, {"w": huge}, version=1, base={"w": huge}, base_version=0, encoding="overwrite")
    assert names(tmp_path) == ["large"]
