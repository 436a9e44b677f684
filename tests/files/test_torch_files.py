"""Files of torch.save: they come back byte for byte, some cannot be looked into."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import textwrap
import warnings
import zipfile
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    estimate_ratio,
    inspect,
    load_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.errors import FormatError, UnsupportedVersionError
from tensorwire.files import torch_file
from tensorwire.files.names import check_required
from tensorwire.files.original_record import TORCH, Record
from tests.support.processes import PRINT_PEAK_MEMORY

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def state(*, numel: int = 3000) -> dict[str, Any]:
    """Everything that a training state holds, in every dtype."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(numel, generator=generator)
    dtypes = [torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128, torch.int64, torch.int32]
    dtypes += [torch.int16, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16]
    dtypes += [torch.uint32, torch.uint64]
    return {
        "state": {
            index: {"step": torch.tensor(float(index)), "exp_avg": (weight * index).to(dtype)}
            for index, dtype in enumerate(dtypes)
        },
        "weight": weight,
        "view": weight[7:9],
        "transposed": weight.view(-1, 10).t(),
        "parameter": torch.nn.Parameter(weight * 2),
        "empty": torch.empty(0, 3),
        "nested": [(1, 2.5, None, True, "text", b"bytes", 2**70, {"x": {"y": torch.ones(100)}}), {3, 4}],
        "ordered": OrderedDict(a=1),
        "counter": Counter("aab"),
        "sparse": torch.eye(40).to_sparse(),
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "dtype": torch.bfloat16,
    }


def there_and_back(path: Path, **options: Any) -> Path:
    """The compressed file, after a look whether it gives the original back."""
    packed, restored = path.with_name("packed"), path.with_name("restored")
    report = compress_checkpoint(path, packed, **options)
    assert report.files[0].nbytes_in == path.stat().st_size
    assert report.files[0].nbytes_out == packed.stat().st_size
    assert decompress_checkpoint(packed, restored, base=options.get("base")).exact
    assert restored.read_bytes() == path.read_bytes()
    return packed


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "state.pt"
    torch.save(state(), path)
    return path


def test_a_file_comes_back_byte_for_byte_and_every_operation_takes_it(saved: Path) -> None:
    packed = there_and_back(saved)
    assert packed.stat().st_size < saved.stat().st_size
    report = verify(packed)
    assert (report.ok, report.exact) == (True, True)
    arrays = load_file(packed, framework="bytes")
    with zipfile.ZipFile(saved) as archive:
        assert all(archive.read(f"state/{name}") == content for name, content in arrays.items())
    transcode_checkpoint(packed, saved.with_name("compact"), profile="compact")
    compress_checkpoint(saved, saved.with_name("expected"), profile="compact")
    assert saved.with_name("compact").read_bytes() == saved.with_name("expected").read_bytes()
    estimate = estimate_ratio(saved)
    assert (estimate.nbytes_in, estimate.sample_share) == (saved.stat().st_size, 1.0)


def test_storages_have_their_dtypes(saved: Path) -> None:
    packed = there_and_back(saved)
    with zipfile.ZipFile(saved) as archive:
        sizes = {info.filename.removeprefix("state/"): info.file_size for info in archive.infolist()}
    found = {tensor.name: tensor for tensor in inspect(packed).tensors}
    assert found.keys() == {name for name, size in sizes.items() if name.startswith("data/") and size > 256}
    assert all(tensor.nbytes == sizes[name] for name, tensor in found.items())
    # As safetensors calls them, in the order of the pickle; C128 is stored as its parts, and the steps are too small.
    expected = ["BF16", "F16", "F64", "C64", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"]
    expected += ["U16", "U32", "U64", "F32", "F32", "F32"]  # the last ones: weight, parameter, ones
    in_order = [found[name].dtype for name in sorted(found, key=lambda name: int(name.removeprefix("data/")))]
    assert in_order[: len(expected)] == expected
    assert {(tensor.name, tensor.dtype) for tensor in inspect(saved).tensors} == {
        (tensor.name, tensor.dtype) for tensor in found.values()
    }


def test_a_plain_and_a_compressed_file_hold_the_same(saved: Path) -> None:
    packed = there_and_back(saved)
    assert diff(saved, packed).num_equal == len(inspect(saved).tensors)
    assert not diff(saved, packed).tensors
    other = state()
    other["weight"][5] += 1
    torch.save(other, saved.with_name("state2.pt"))
    assert [tensor.num_different for tensor in diff(packed, saved.with_name("state2.pt")).tensors] == [1]


def test_a_file_is_relative_to_an_older_one_of_another_name(saved: Path) -> None:
    older = saved.rename(saved.with_name("older.pt"))
    changed = state()
    changed["weight"][::7] *= 1.0001
    torch.save(changed, saved)
    plain = there_and_back(saved).stat().st_size
    saved.with_name("packed").unlink()
    saved.with_name("restored").unlink()
    packed = there_and_back(saved, base=older)
    assert packed.stat().st_size < plain / 2
    assert all(tensor.base_name == tensor.name for tensor in inspect(packed).tensors if tensor.base_name)


def test_thousands_of_tiny_storages_cost_less_than_they_take(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    steps = {index: {"step": torch.tensor(10.0), "scale": torch.full((16,), float(index))} for index in range(2000)}
    torch.save({**steps, "large": torch.zeros(10_000)}, path)
    packed = there_and_back(path)
    with zipfile.ZipFile(path) as archive:
        rest = path.stat().st_size - archive.getinfo("state/data/4000").file_size
    assert packed.stat().st_size < rest / 4


def test_a_file_of_larger_tensors_than_a_window(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"a": torch.randn(5 << 20).bfloat16(), "b": torch.arange(3 << 20), "c": torch.ones(3)}, path)
    there_and_back(path)


def test_sizes_as_those_of_members_beyond_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in extra fields, and the end of the archive in a record of its own."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    path = tmp_path / "state.pt"
    path.write_bytes(archive_of(MEMBERS))
    assert b"PK\6\6" in path.read_bytes()
    monkeypatch.undo()
    assert [(tensor.dtype, tensor.nbytes) for tensor in inspect(there_and_back(path)).tensors] == [("F32", 400)]


@pytest.mark.slow
@pytest.mark.parametrize("mib", [400, 4500])
def test_memory_does_not_grow_with_a_file(tmp_path: Path, mib: int) -> None:
    """Nor do 4 GiB in one storage matter."""
    torch.save({"a": torch.zeros(mib << 18), "b": torch.ones(1000)}, tmp_path / "a")
    code = """
        import os, sys
        from tensorwire import checkpoint
        os.chdir(sys.argv[1])
        checkpoint.compress_checkpoint("a", "b", threads=4)
        assert checkpoint.verify("b", threads=4).exact
        checkpoint.decompress_checkpoint("b", "c", threads=4)
        checkpoint.inspect("a", threads=4)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code) + PRINT_PEAK_MEMORY, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=True)
    assert subprocess.run(["cmp", tmp_path / "a", tmp_path / "c"], check=False).returncode == 0
    assert int(done.stdout) < 250 << 20


def test_a_file_without_large_storages_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"step": torch.tensor(1.0), "last_epoch": 3}, path)
    there_and_back(path)


def test_what_is_not_named_by_the_pickle_is_bytes(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"a": torch.zeros(3)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("state/data/9", bytes(1000))
    assert [(tensor.name, tensor.dtype) for tensor in inspect(there_and_back(path)).tensors] == [("data/9", "U8")]


def test_a_storage_under_two_dtypes_is_bytes(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    half = torch.zeros(500, dtype=torch.uint16)
    torch.save({"a": half, "b": half.view(torch.float8_e5m2)}, path)
    assert [tensor.dtype for tensor in inspect(there_and_back(path)).tensors] == ["U8"]


# What is refused -----------------------------------------------------------------------------------------------------


def archive_of(members: dict[str, bytes], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Key:
    def __init__(self, *values: Any) -> None:
        self.values = values


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 2)
    pickler.persistent_id = lambda each: each.values if isinstance(each, Key) else None  # type: ignore[method-assign]
    pickler.dump(value)
    return buffer.getvalue()


NAMED = pickled([Key("storage", torch.FloatStorage, "0", "cpu", 100)])
DATA = bytes(400)
MEMBERS = {"a/data.pkl": NAMED, "a/byteorder": b"little", "a/data/0": DATA}


def overlapping() -> bytes:
    """Both entries of the list of members lead to the first member."""
    content = bytearray(archive_of({**MEMBERS, "a/data/1": DATA}))
    last = content.rindex(b"PK\1\2")
    first = content.rindex(b"PK\1\2", 0, last)
    content[last + 42 : last + 46] = content[first + 42 : first + 46]
    return bytes(content)


def encrypted() -> bytes:
    content = bytearray(archive_of(MEMBERS))
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.rindex(mark) + offset] |= 1
    return bytes(content)


def torch_script() -> bytes:
    buffer = io.BytesIO()
    module = torch.nn.Linear(20, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


def twice() -> bytes:
    content = archive_of({**MEMBERS, "a/data/1": DATA})
    return content.replace(b"a/data/1", b"a/data/0")


def named(*values: Any) -> bytes:
    return archive_of({**MEMBERS, "a/data.pkl": pickled([Key(*values)])})


def cut(nbytes: int) -> Callable[[], bytes]:
    return lambda: archive_of(MEMBERS)[:-nbytes]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut": (cut(30), "its zip archive is damaged"),
    "cut in the data": (cut(300), "its zip archive is damaged"),
    "encrypted": (encrypted, "it is encrypted"),
    "deflated": (lambda: archive_of(MEMBERS, compression=zipfile.ZIP_DEFLATED), "is packed already"),
    "overlapping": (overlapping, "overlaps with another one"),
    "twice": (twice, "two members 'a/data/0'"),
    "torch script": (torch_script, "code/__torch__/torch/nn/modules/linear.py' is packed already"),
    "big-endian": (lambda: archive_of({**MEMBERS, "a/byteorder": b"big"}), "its byte order"),
    "payload": (
        lambda: archive_of({**MEMBERS, "a/data/.0": DATA, "a/data/._0_tensorwire": DATA}),
        "'data/._0_tensorwire' has the name that the payload of 'data/.0' needs",
    ),
    "no pickle": (lambda: archive_of({"a/b/data.pkl": NAMED, "a/data/0": DATA}), "it has 0 pickles"),
    "two pickles": (lambda: archive_of({**MEMBERS, "b/data.pkl": NAMED}), "it has 2 pickles"),
    "size": (lambda: named("storage", torch.FloatStorage, "0", "cpu", 101), "not the 404 bytes"),
    "missing": (lambda: named("storage", torch.FloatStorage, "1", "cpu", 100), "storage '1'"),
    "other class": (lambda: named("storage", torch.Size, "0", "cpu", 100), "'torch.Size' as a class of storages"),
    "other reference": (lambda: named("module", torch.FloatStorage, "0", "cpu", 100), "no storage"),
    "odd reference": (lambda: named("storage", torch.FloatStorage, 0, "cpu", 100), "that torch does not write"),
    "two sizes": (
        lambda: archive_of(
            {
                **MEMBERS,
                "a/data.pkl": pickled([Key("storage", torch.FloatStorage, "0", "cpu", numel) for numel in (100, 50)]),
            }
        ),
        "two sizes",
    ),
    "no opcode": (lambda: archive_of({**MEMBERS, "a/data.pkl": b"\x80\x02\xff."}), "its pickle is damaged"),
    "pickle cut": (lambda: archive_of({**MEMBERS, "a/data.pkl": NAMED[:-9]}), "its pickle is damaged"),
    "no stack": (lambda: archive_of({**MEMBERS, "a/data.pkl": b"\x80\x02\x86."}), "its pickle is damaged"),
    "no mark": (lambda: archive_of({**MEMBERS, "a/data.pkl": b"\x80\x02t."}), "its pickle is damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_looked_into_is_refused(tmp_path: Path, case: str) -> None:
    make, expected = REFUSED[case]
    path = tmp_path / "state.pt"
    path.write_bytes(make())
    with pytest.raises(FormatError) as caught:
        compress_checkpoint(path, tmp_path / "packed")
    assert expected in str(caught.value)
    assert caught.value.file == path
    assert not (tmp_path / "packed").exists()


def test_what_wants_tensors_says_what_takes_the_file(saved: Path) -> None:
    with pytest.raises(FormatError, match="compress takes it by its path"):
        load_file(saved)


def test_a_file_of_the_old_format_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"a": torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match=r"torch file of the format before torch 1\.6"):
        compress_checkpoint(path, tmp_path / "packed")


def test_bytes_before_the_archive_make_it_no_torch_file(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"#!/bin/sh\n" + archive_of(MEMBERS))
    with pytest.raises(FormatError):
        compress_checkpoint(path, tmp_path / "packed")


@pytest.mark.parametrize("value", ["_MAX_REST_NBYTES", "MAX_PICKLE_NBYTES"])
def test_what_is_read_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(archive_of({**MEMBERS, "a/large": bytes(3000)}))
    monkeypatch.setattr(torch_file, value, 100)
    with pytest.raises(FormatError, match="more than 100"):
        compress_checkpoint(path, tmp_path / "packed")


def test_names_of_storages_that_fill_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of members that is just short enough has names which JSON makes six times as long."""
    path = tmp_path / "state.pt"
    path.write_bytes(archive_of({**MEMBERS, "a/data/" + "\1" * 100: DATA}))
    monkeypatch.setattr(torch_file, "MAX_PICKLE_NBYTES", 500)
    with pytest.raises(FormatError, match=r"a header for its storages has \d+ bytes, more than 500"):
        compress_checkpoint(path, tmp_path / "packed")


def test_a_long_list_of_members_is_not_read(tmp_path: Path) -> None:
    """Its size is what the end of the file claims: most of the file."""
    path = tmp_path / "state.pt"
    size = torch_file.MAX_PICKLE_NBYTES + 1
    content = archive_of({**MEMBERS, "a/data/1": bytes(size)})
    end = content.rindex(b"PK\5\6")
    path.write_bytes(content[: end + 12] + struct.pack("<II", size, end - size) + content[end + 20 :])
    with pytest.raises(FormatError, match="list of members has"):
        compress_checkpoint(path, tmp_path / "packed")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_changed_byte_of_an_archive_is_read_or_refused(tmp_path: Path, every: bool) -> None:
    """In three ways in the slow test, else in one of them in turn."""
    content = archive_of(MEMBERS)
    path = tmp_path / "state.pt"
    refused = 0
    for position in range(len(content)):
        masks = (0x01, 0x80, 0xFF)
        for mask in masks if every else masks[position % 3 :][:1]:
            path.write_bytes(bytes([*content[:position], content[position] ^ mask, *content[position + 1 :]]))
            try:
                torch_file.open_stored(path).close()
            except FormatError:
                refused += 1
    assert refused > (300 if every else 100)  # of the bytes that are not data


# Forged compressed files ---------------------------------------------------------------------------------------------


def test_an_older_reader_is_told_to_upgrade(saved: Path) -> None:
    packed = there_and_back(saved)
    header = packed.read_bytes()[: 1 << 14]
    assert b'"tensorwire.required":"torch"' in header
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        check_required("torch", "tensorwire.required")


@pytest.mark.parametrize("record", [b"", bytes(8), b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0{}\x05\0\0\0four"])
def test_a_record_that_is_damaged(record: bytes) -> None:
    with pytest.raises(FormatError):
        Record(TORCH, record, "0" * 64).outline()
