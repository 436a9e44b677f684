"""Versions of slime, miles and SGLang that are damaged, forged, incomplete or relative to something else, and writes
that fail."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard

import tensorwire
from tensorwire.errors import (
    BaseMismatchError,
    CorruptDataError,
    FormatError,
    TruncatedDataError,
    UnsupportedTensorError,
    UnsupportedVersionError,
)
from tensorwire.sync import encodings, interchange, new_version
from tensorwire.sync.interchange import read_version, write_version
from tests.support.acting import acting
from tests.support.published_layout import INDEX, digest, read_shard, send, write_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ENCODINGS = ("xor", "overwrite")
SHARD = "model-00000-of-00001.safetensors"
OLD = {"a": np.arange(1000, dtype=np.uint16), "b": np.zeros(7, np.uint8)}
NEW = {"a": OLD["a"] + np.uint16(3), "b": np.array([0, 1, 0, 0, 0, 0, 2], np.uint8)}


def content(tensors: dict[str, np.ndarray[Any, Any]]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


def sent(folder: Path, encoding: str = "xor") -> Path:
    return send(folder, content(NEW), content(OLD), version=17, encoding=encoding)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def edit_index(place: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((place / INDEX).read_text())
    edit(index)
    (place / INDEX).write_text(json.dumps(index))


def edit_shard(place: Path, edit: Callable[[dict[str, bytes], dict[str, str]], object]) -> None:
    payloads, metadata = read_shard(place / SHARD)
    edit(payloads, metadata)
    write_shard(place / SHARD, payloads, metadata)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_another_base(tmp_path: Path, encoding: str) -> None:
    place = sent(tmp_path, encoding)
    other = {**OLD, "a": OLD["a"].copy()}
    other["a"][-1] ^= 5
    if encoding == "overwrite":  # it says nothing of what it does not overwrite
        other["a"].view(np.uint8)[1] = 9
    with pytest.raises(
        BaseMismatchError, match=r"expected content with xxh3-128 .*'a'.*give the tensors of version 16"
    ):
        read_version(place, base=other)
    with pytest.raises(BaseMismatchError, match="expected version 16 as base, got none"):
        read_version(place)
    with pytest.raises(BaseMismatchError, match="expected version 16 as base, got version 15"):
        read_version(place, base=OLD, base_version=15)
    with pytest.raises(BaseMismatchError, match=r"expected a base with this tensor, version 16, got one without.*'b'"):
        read_version(place, base={"a": OLD["a"]})


def test_a_base_of_another_size(tmp_path: Path) -> None:
    (tmp_path / "xor").mkdir()
    short = {**OLD, "a": OLD["a"][:999]}
    with pytest.raises(BaseMismatchError, match=r"expected a base of 2000 bytes, got 1998"):
        read_version(sent(tmp_path / "xor"), base=short)
    place = sent(tmp_path, "overwrite")
    with pytest.raises(BaseMismatchError, match=r"expected a base of at least 1\d\d\d bytes, as many as change, got 4"):
        read_version(place, base={**OLD, "a": OLD["a"][:2]})
    with pytest.raises(
        BaseMismatchError, match=r"expected a base of more than 199\d bytes, the last position, got 1980"
    ):
        read_version(place, base={**OLD, "a": OLD["a"][:990]})


def test_applied_twice(tmp_path: Path) -> None:
    (tmp_path / "xor").mkdir()
    with pytest.raises(BaseMismatchError, match="the version was applied already"):
        read_version(sent(tmp_path / "xor"), base=NEW)
    again = read_version(sent(tmp_path, "overwrite"), base=NEW)
    assert content(again) == content(NEW)


@pytest.mark.parametrize(
    ("key", "found", "known"),
    [
        ("delta_encoding", "add", "xor or overwrite"),
        ("delta_encoding", None, "xor or overwrite"),
        ("delta_encoding", ["xor"], "xor or overwrite"),
        ("compression_format", "lz4", "zstd"),
        ("checksum_format", "crc32", "xxh3-128 or blake3 or adler32"),
    ],
)
def test_what_is_unknown_is_named(tmp_path: Path, key: str, found: object, known: str) -> None:
    place = sent(tmp_path)
    edit_index(place, lambda index: index["metadata"].update({key: found}))
    with pytest.raises(UnsupportedVersionError, match=f"expected {key} {known}, got ") as caught:
        read_version(place, base=OLD)
    assert caught.value.file == place / INDEX


def test_versions_of_a_publisher_are_for_its_followers(tmp_path: Path) -> None:
    place = sent(tmp_path)
    ours = dict.fromkeys(("delta_encoding", "compression_format", "checksum_format"), "tensorwire")
    edit_index(place, lambda index: index["metadata"].update(ours))
    with pytest.raises(UnsupportedVersionError, match=r"got 'tensorwire'.*tensorwire\.load_file with base="):
        read_version(place, base=OLD)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda index: index["metadata"].update(base_version=16), "a number in digits as base_version, got 16"),
        (lambda index: index["metadata"].update(base_version="-1"), "a number in digits as base_version, got '-1'"),
        (
            lambda index: index["metadata"].update(version="000018"),
            r"the version of the folder 'weight_v000017', got 18",
        ),
        (lambda index: index["metadata"].update(base_version="000017"), "a base_version below 17, got 17"),
        (lambda index: index["metadata"].pop("base_version"), "a number in digits as base_version, got None"),
        (lambda index: index["metadata"].pop("version"), "a number in digits as version, got None"),
        (lambda index: index.update(metadata=[]), "an object metadata in the index, got list"),
        (lambda index: index.pop("weight_map"), "an object weight_map"),
        (
            lambda index: index["weight_map"].pop("b"),
            "the tensors that the index names, and 'b' is in one of both alone",
        ),
        (lambda index: index["weight_map"].update(c=SHARD), "and 'c' is in one of both alone"),
        (lambda index: index["weight_map"].update(a="../" + SHARD), "plain relative paths"),
        (lambda index: index["weight_map"].update(a="/etc/passwd"), "plain relative paths"),
    ],
)
def test_an_index_that_contradicts_itself(tmp_path: Path, edit: Callable[[Any], object], message: str) -> None:
    place = sent(tmp_path)
    edit_index(place, edit)
    with pytest.raises(CorruptDataError, match=message):
        read_version(place, base=OLD)


def test_an_index_that_names_a_tensor_twice(tmp_path: Path) -> None:
    place = sent(tmp_path)
    text = (place / INDEX).read_text()
    (place / INDEX).write_text(text.replace('"weight_map": {', '"weight_map": {"a": "other.safetensors", '))
    with pytest.raises(CorruptDataError, match="unique keys"):
        read_version(place, base=OLD)


def test_a_version_that_is_not_whole(tmp_path: Path) -> None:
    place = sent(tmp_path)
    blob = (place / SHARD).read_bytes()
    (place / SHARD).write_bytes(blob[:-1])
    with pytest.raises(TruncatedDataError, match=SHARD):
        read_version(place, base=OLD)
    (place / SHARD).unlink()
    with pytest.raises(FileNotFoundError, match=SHARD):
        read_version(place, base=OLD)
    (place / INDEX).unlink()
    with pytest.raises(FileNotFoundError, match=INDEX):
        read_version(place, base=OLD)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_damaged_byte_of_a_shard_is_found_or_changes_nothing(tmp_path: Path, encoding: str) -> None:
    place = sent(tmp_path, encoding)
    blob = (place / SHARD).read_bytes()
    header = 8 + int.from_bytes(blob[:8], "little")
    for position in range(0, len(blob), 1 if len(blob) < 1000 else 7):
        damaged = bytearray(blob)
        damaged[position] ^= 0x11
        (place / SHARD).write_bytes(damaged)
        try:
            found = read_version(place, base=OLD, threads=1)
        except (FormatError, BaseMismatchError):
            continue
        assert position >= header  # a bit that zstd does not use
        assert content(found) == content(NEW)


def test_no_checksum(tmp_path: Path) -> None:
    place = sent(tmp_path)
    edit_shard(place, lambda payloads, metadata: metadata.pop("b"))
    with pytest.raises(CorruptDataError, match=r"expected a checksum in the header of the shard, got none.*'b'"):
        read_version(place, base=OLD)


def test_differences_are_bytes(tmp_path: Path) -> None:
    place = sent(tmp_path)
    blob = (place / SHARD).read_bytes()
    (place / SHARD).write_bytes(blob.replace(b'"U8"', b'"I8"', 1))
    with pytest.raises(CorruptDataError, match="expected differences as U8 in one dimension, got I8"):
        read_version(place, base=OLD)


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    place = write_version(tmp_path, OLD, version=1)
    (shard,) = place.glob("*.safetensors")
    blob = bytearray(shard.read_bytes())
    blob[-1] ^= 1
    shard.write_bytes(blob)
    with pytest.raises(CorruptDataError, match=r"expected content with xxh3-128 .*'b'"):
        read_version(place)


def test_a_compressed_checkpoint_is_for_load_file(tmp_path: Path) -> None:
    place = tmp_path / "weight_v000001"
    place.mkdir()
    tensorwire.save_file({"w": np.zeros(10_000, np.float32)}, place / SHARD)
    index = {"weight_map": {"w": SHARD}}
    (place / INDEX).write_text(json.dumps(index))
    with pytest.raises(UnsupportedVersionError, match=r"without frames.*load_file reads it"):
        read_version(place)


def unsized(data: bytes) -> bytes:
    """A frame that does not say how large its content is."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    return compressor.compress(data) + compressor.flush()


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


CUT = zstandard.compress(bytes(7))[:-1]
END = "expected the end of the differences"
CLAIMS: list[tuple[str, bytes, type[Exception], str]] = [
    ("xor", zstandard.compress(bytes(100_000_000)), BaseMismatchError, "expected a base of 100000000 bytes, got 7"),
    ("xor", unsized(bytes(10_000_000)), CorruptDataError, f"{END}, got more"),
    ("xor", unsized(bytes(6)), TruncatedDataError, "expected 7 bytes of differences, got 6"),
    *(
        ("overwrite", zstandard.compress(words(n) + bytes(40)), BaseMismatchError, f"a base of at least {n} bytes")
        for n in (8, 2**32 - 1)
    ),
    *(
        ("overwrite", zstandard.compress(words(1, n) + b"x"), BaseMismatchError, f"a base of more than {n} bytes")
        for n in (7, 2**32 - 1)
    ),
    *(
        ("overwrite", zstandard.compress((words(1) + bytes(5))[:n]), TruncatedDataError, "bytes of differences, got")
        for n in (1, 5, 8)
    ),
    ("overwrite", zstandard.compress(words(1) + bytes(6)), CorruptDataError, END),
    *((each, payload, Exception, ".") for each in ENCODINGS for payload in (b"", b"no zstd", CUT)),
]


def read_payload(tmp_path: Path, encoding: str, payload: bytes) -> dict[str, Any]:
    place = send(tmp_path, {"b": NEW["b"].tobytes()}, {"b": bytes(7)}, version=1, encoding=encoding)
    write_shard(place / SHARD, {"b": payload}, {"b": digest("xxh3-128", NEW["b"].tobytes())})
    return read_version(place, base={"b": OLD["b"]})


@pytest.mark.parametrize(("encoding", "payload", "error", "text"), CLAIMS)
def test_what_a_payload_claims_takes_no_memory_that_its_base_does_not_allow(
    tmp_path: Path, encoding: str, payload: bytes, error: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [0]
    acting(monkeypatch, encodings, "new_buffer", sizes.append)
    with pytest.raises((FormatError, BaseMismatchError), match=text) as caught:
        read_payload(tmp_path, encoding, payload)
    assert isinstance(caught.value, error)
    assert max(sizes) <= 4 * 7


def test_a_sender_need_not_say_the_size(tmp_path: Path) -> None:
    payload = unsized(NEW["b"].tobytes())
    assert read_payload(tmp_path, "xor", payload)["b"].tobytes() == NEW["b"].tobytes()


@pytest.mark.parametrize("package", ["zstandard", "xxhash"])
def test_a_missing_package_is_named(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = sent(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"need {package} \d.*pip install -U {package}"):
        read_version(place, base=OLD)


def test_a_checkpoint_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("zstandard", "xxhash", "blake3"):
        monkeypatch.setitem(sys.modules, package, None)
    place = write_version(tmp_path, NEW, version=1)
    assert content(read_version(place)) == content(NEW)
    with pytest.raises(ImportError, match="need zstandard"):
        write_version(tmp_path, NEW, version=2, base=OLD, base_version=1)
    assert names(tmp_path) == ["weight_v000001"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": -1}, "a version from 0 on, got -1"),
        ({"version": 3, "base": OLD}, "base and base_version together"),
        ({"version": 3, "base_version": 2}, "base and base_version together"),
        ({"version": 3, "base": OLD, "base_version": 3}, "a base_version from 0 to 2, got 3"),
        ({"version": 3, "base": OLD, "base_version": -1}, "a base_version from 0 to 2, got -1"),
        ({"version": 3, "base": OLD, "base_version": 2, "encoding": "add"}, "encoding xor or overwrite, got 'add'"),
        ({"version": 3, "max_shard_nbytes": 0}, "max_shard_nbytes of at least 1, got 0"),
        ({"version": 3, "threads": 0}, "threads"),
        (
            {"version": 3, "base": {"a": OLD["a"]}, "base_version": 2},
            r"'b': expected one of this name in base, got none",
        ),
        (
            {"version": 3, "base": {**OLD, "b": OLD["b"].astype(np.int8)}, "base_version": 2},
            r"'b': expected I8 \(7,\) as in base, got U8 \(7,\); write all tensors, without base",
        ),
        (
            {"version": 3, "base": {**OLD, "b": OLD["b"].reshape(7, 1)}, "base_version": 2},
            r"'b': expected U8 \(7, 1\) as in base, got U8 \(7,\)",
        ),
    ],
)
def test_arguments_that_contradict_each_other(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_version(tmp_path, NEW, **options)
    assert names(tmp_path) == []


def test_a_name_comes_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected each tensor once, got 'a' twice"):
        write_version(tmp_path, [*NEW.items(), ("a", NEW["a"])], version=1)
    with pytest.raises(TypeError, match="expected names that are str"):
        write_version(tmp_path, {1: NEW["a"]}, version=1)  # type: ignore[dict-item]
    with pytest.raises(UnsupportedTensorError, match=r"got C128.*'c'"):
        write_version(tmp_path, {"c": np.zeros(1, np.complex128)}, version=1)
    assert names(tmp_path) == []


def test_a_version_is_never_replaced(tmp_path: Path) -> None:
    place = write_version(tmp_path, NEW, version=1)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    for left in (INDEX, "model-00001-of-00001.safetensors"):
        with pytest.raises(FileExistsError, match="already; if no process writes this version, remove it"):
            write_version(tmp_path, OLD, version=1)
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        (place / left).unlink()
        del before[left]
    write_version(tmp_path, OLD, version=1)
    assert content(read_version(place)) == content(OLD)


def test_other_files_may_lie_in_the_folder_beforehand(tmp_path: Path) -> None:
    place = tmp_path / "weight_v000001"
    place.mkdir()
    (place / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="twice"):
        write_version(tmp_path, [*NEW.items(), *NEW.items()], version=1)
    assert names(place) == ["config.json"]
    write_version(tmp_path, NEW, version=1)
    assert names(place) == ["config.json", "model-00001-of-00001.safetensors", INDEX]


@pytest.mark.parametrize("base", [True, False])
def test_memory_that_somebody_frees(tmp_path: Path, base: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(1000)
    checksum = interchange.checksum

    def then_freed(kind: str, data: memoryview) -> str:
        found = checksum(kind, data)
        tensor.untyped_storage().resize_(0)  # as FSDP does
        return found

    monkeypatch.setattr(interchange, "checksum", then_freed)
    options: Any = {"base": {"w": torch.zeros(1000)}, "base_version": 0} if base else {}
    with pytest.raises(BufferError, match="freed, moved or cut"):
        write_version(tmp_path, {"w": tensor}, version=1, **options)
    assert names(tmp_path) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever file cannot get its name, or cannot be written."""

    def tensors() -> Iterator[tuple[str, Any]]:
        yield from NEW.items()
        raise RuntimeError("the trainer failed")

    with pytest.raises(RuntimeError, match="the trainer failed"):
        write_version(tmp_path, tensors(), version=1, max_shard_nbytes=1)
    assert names(tmp_path) == []
    for fatal in (".safetensors", ".json"):

        def failing(path: Path, target: Path, fatal: str = fatal) -> None:
            if target.suffix == fatal:
                raise OSError(28, "No space left on device", str(target))
            path.rename(target)

        monkeypatch.setattr(new_version, "rename_new", failing)
        with pytest.raises(OSError, match="No space"):
            write_version(tmp_path, NEW, version=1, max_shard_nbytes=1)
        assert names(tmp_path) == []


def test_the_index_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then all shards have their names and are whole, and each change of a name was on the disk."""
    order: list[str] = []

    def renamed(path: Path, target: Path) -> None:
        if target.name == INDEX:
            index = json.loads(path.read_text())
            found = {name: read_shard(target.parent / file)[0][name] for name, file in index["weight_map"].items()}
            assert found == content(NEW)
        order.append(target.suffix)

    acting(monkeypatch, new_version, "rename_new", renamed)
    acting(monkeypatch, new_version, "sync_directory", lambda path: order.append("sync"))
    write_version(tmp_path, NEW, version=1, max_shard_nbytes=1)
    assert order == [".safetensors", ".safetensors", "sync", ".json", "sync", "sync"]


def test_of_two_writers_one_fails(tmp_path: Path) -> None:
    def tensors() -> Iterator[tuple[str, Any]]:
        write_version(tmp_path, NEW, version=1)
        yield from OLD.items()

    with pytest.raises(FileExistsError):
        write_version(tmp_path, tensors(), version=1)
    assert content(read_version(tmp_path / "weight_v000001")) == content(NEW)
