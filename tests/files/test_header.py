"""Headers of safetensors files: what is accepted, what is refused, and what it costs."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import tensorwire
from tensorwire import compress, compress_checkpoint, decompress_checkpoint, transcode_checkpoint
from tensorwire.checkpoint import load_file, open_file, verify
from tensorwire.errors import CorruptDataError, FormatError, LimitExceededError, TruncatedDataError
from tensorwire.files.header import MAX_HEADER_NBYTES, TensorEntry, build_header, parse_header
from tensorwire.files.names import payload_name, tensor_name
from tests.support.checkpoint_models import container, weights

if TYPE_CHECKING:
    from pathlib import Path

U8 = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
F32 = {"dtype": "F32", "shape": [10, 100], "data_offsets": [0, 4000]}
NONE = {"dtype": "F32", "shape": [0], "data_offsets": [4000, 4000]}


def write(path: Path, header: object, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def test_accepts_what_the_specification_allows(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt", "\n": "\x00"},
        "b": {"data_offsets": [4, 6], "shape": [1, 1], "dtype": "F16"},
        "": U8,
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [6, 10]},
        "none": {"dtype": "F64", "shape": [0, 2**63], "data_offsets": [4, 4]},
        "packed": {"dtype": "F4", "shape": [3, 2], "data_offsets": [10, 13]},
        "future": {"dtype": "F2_E1M0", "shape": [5], "data_offsets": [13, 15]},
    }
    raw = (" " * 3 + json.dumps(header, indent=3) + "\n\t  ").encode().lstrip()
    with open_file(write(tmp_path / "f", raw, bytes(15))) as file:
        assert file.offset_keys() == ["", "none", "b", "scalar", "packed", "future"]
        assert file.metadata() == header["__metadata__"]


FURTHER: list[Any] = [1, None, "x", "{", "}", '"}{"', "\\", [{}], {"a": {"b": [1, {}]}}, "y" * 8000]
LENIENT = {
    "no metadata": (json.dumps({"w": F32}), None),
    "empty metadata": (json.dumps({"__metadata__": {}, "w": F32}), {}),
    "null": (json.dumps({"w": F32, "__metadata__": None}), None),
    "spaces in front": (" \t\n\r" + json.dumps({"w": F32}), None),
    **{
        f"further member {number}": (json.dumps({"w": {"further": value, **F32, "more": value}, "none": NONE}), None)
        for number, value in enumerate(FURTHER[:-1])
    },
    "long member": (json.dumps({"w": {**F32, "further": FURTHER[-1]}}), None),
    "a further member twice": (json.dumps({"w": {**F32, "_": 1}})[:-2] + ',"_":2}}', None),
}


@pytest.mark.parametrize("case", LENIENT)
def test_reads_what_safetensors_reads(tmp_path: Path, case: str) -> None:
    """Plain and compressed, and every byte comes back."""
    header, metadata = LENIENT[case]
    data = weights(1000, 3, "F32")
    plain = write(tmp_path / "plain", header.encode(), data)
    compress_checkpoint(plain, tmp_path / "packed")
    decompress_checkpoint(tmp_path / "packed", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == plain.read_bytes()
    transcode_checkpoint(tmp_path / "packed", tmp_path / "other", profile="compact")
    for path in (plain, tmp_path / "packed", tmp_path / "other"):
        with safe_open(path, "np") as theirs:
            assert theirs.metadata() == metadata or path != plain
        with open_file(path, "bytes") as ours:
            assert (ours.metadata(), ours.get_tensor("w")) == (metadata, data)
    assert tensorwire.inspect(plain).metadata == {}


@pytest.mark.parametrize("metadata", [None, {}, {"k": "v"}])
def test_metadata_of_new_files(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    tensorwire.save_file({"w": np.zeros(1000)}, tmp_path / "f", metadata=metadata)
    with open_file(tmp_path / "f") as file:
        assert file.metadata() == metadata
    # Without a record of its original a file is restored under a new header.
    decompress_checkpoint(tmp_path / "f", tmp_path / "plain")
    with safe_open(tmp_path / "plain", "np") as theirs:
        assert theirs.metadata() == metadata


@pytest.mark.parametrize(
    ("header", "data", "error"),
    [
        ({"a": U8}, b"123", TruncatedDataError),
        ({"a": U8}, b"12345", CorruptDataError),
        ({"a": {**U8, "data_offsets": [1, 5]}}, b"12345", CorruptDataError),
        ({"a": {**U8, "data_offsets": [4, 0]}}, b"1234", CorruptDataError),
        ({"a": {**U8, "data_offsets": [-4, 0]}}, b"", CorruptDataError),
        ({"a": {**U8, "data_offsets": [0, 2**64]}}, b"", CorruptDataError),
        ({"a": {**U8, "data_offsets": [0.0, 4.0]}}, b"1234", CorruptDataError),
        ({"a": {**U8, "data_offsets": [False, 4]}}, b"1234", CorruptDataError),
        ({"a": {**U8, "data_offsets": [0, 4, 4]}}, b"1234", CorruptDataError),
        ({"a": {**U8, "shape": [3]}}, b"1234", CorruptDataError),
        ({"a": {**U8, "shape": [2**62, 2**62]}}, b"1234", CorruptDataError),
        ({"a": {**U8, "shape": [2**64, 0]}}, b"", CorruptDataError),
        ({"a": {**U8, "shape": [1] * 65, "data_offsets": [0, 1]}}, b"1", CorruptDataError),
        ({"a": {**U8, "shape": "4"}}, b"1234", CorruptDataError),
        ({"a": {**U8, "dtype": "u8"}}, b"1234", CorruptDataError),
        ({"a": {**U8, "dtype": "A" * 17}}, b"1234", CorruptDataError),
        ({"a": {**U8, "dtype": None}}, b"1234", CorruptDataError),
        ({"a": {**U8, "further": {"x": "y" * 9000}}}, b"1234", CorruptDataError),
        (b'{"a":{"shape":[4],"shape":[4],"data_offsets":[0,4],"dtype":"U8"}}', b"1234", CorruptDataError),
        ({"a": {"dtype": "U8", "shape": [4]}}, b"1234", CorruptDataError),
        ({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, b"12", CorruptDataError),
        ({"a": U8, "b": {**U8, "data_offsets": [2, 6]}}, b"123456", CorruptDataError),
        ({"a": U8, "b": {**U8, "data_offsets": [5, 9]}}, b"123456789", CorruptDataError),
        ({"a": U8, "b": U8}, b"1234", CorruptDataError),
        ({"__metadata__": U8}, b"1234", CorruptDataError),
        ({"__metadata__": {"a": 1}}, b"", CorruptDataError),
        ({"__metadata__": {"a": None}}, b"", CorruptDataError),
        ({"__metadata__": []}, b"", CorruptDataError),
        (b'{"__metadata__":nul}', b"", CorruptDataError),
        ({"a": [U8]}, b"1234", CorruptDataError),
        ({"\ud800": U8}, b"1234", CorruptDataError),
        ([], b"", CorruptDataError),
        (b"", b"", CorruptDataError),
        (b" ", b"", CorruptDataError),
        (b" []", b"", CorruptDataError),
        ("\ufeff{}".encode(), b"", CorruptDataError),
        (b"{} {}", b"", CorruptDataError),
        (b"{}\x00", b"", CorruptDataError),
        (b'{"a":', b"", CorruptDataError),
        (b"{,}", b"", CorruptDataError),
        (b'{"\xff": 1}', b"", CorruptDataError),
        (b"{" * 100_000, b"", CorruptDataError),
        (b'{"a":' + b"[" * 100_000, b"", CorruptDataError),
        (b'{"a":' * 100_000, b"", CorruptDataError),
    ],
)
def test_refuses_the_rest(tmp_path: Path, header: Any, data: bytes, error: type[FormatError]) -> None:
    path = write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(error) as caught:
        load_file(path)
    assert caught.value.file == path
    assert caught.value.byte is not None
    assert 8 <= caught.value.byte <= path.stat().st_size
    report = verify(path)
    assert [(problem.kind, problem.byte) for problem in report.problems] == [(error.__name__, caught.value.byte)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"\u00e4":%s, "b": {"dtype":"U8","shape":[3],"data_offsets":[4,8]}}', '{"dtype":"U8","shape":[3]'),
        ('{"\u00e4":%s,\n"b":{"dtype":"u8","shape":[4],"data_offsets":[4,8]}}', '{"dtype":"u8"'),
        ('{"\u00e4":%s, "b": {"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[4,8]}}', '{"dtype":"U8","dtype"'),
        ('{"a":%s, "\\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}', '"\\u0061"'),
        ('{"a":%s, "\\ud800":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}', '"\\ud800"'),
        ('{"__metadata__":{"\u00e4":"1", "k":"1","\\u006b":"2"},"a":%s}', '"\\u006b"'),
        ('{"__metadata__":{},"a":%s,"__metadata__" :{}}', '"__metadata__" '),
        ('{"__metadata__":null,"a":%s,"__metadata__" :null}', '"__metadata__" '),
        ('{"\u00e4":%s, 5}', "5"),
        ('{"\u00e4":%s} x', "x"),
    ],
)
def test_errors_of_headers_name_the_byte(tmp_path: Path, text: str, fault: str) -> None:
    raw = (text % json.dumps(U8, separators=(",", ":"))).encode()
    with pytest.raises(CorruptDataError) as caught:
        load_file(write(tmp_path / "f", raw, bytes(8)))
    assert caught.value.byte == 8 + raw.rindex(fault.encode())


@pytest.mark.parametrize(
    ("second", "nbytes", "byte"),
    [((4, 8), 7, 7), ((4, 8), 9, 8), ((5, 9), 9, 4), ((3, 7), 7, 3)],
    ids=["truncated", "surplus", "hole", "overlap"],
)
def test_errors_of_the_layout_name_the_byte(tmp_path: Path, second: tuple[int, int], nbytes: int, byte: int) -> None:
    path = write(tmp_path / "f", {"a": U8, "b": {**U8, "data_offsets": second}}, bytes(nbytes))
    with pytest.raises(FormatError) as caught:
        load_file(path)
    assert caught.value.byte == path.stat().st_size - nbytes + byte


@pytest.mark.parametrize(
    ("cut", "error"), [(130, TruncatedDataError), (-64, TruncatedDataError), (None, CorruptDataError)]
)
def test_frames_that_do_not_fill_their_payload(tmp_path: Path, cut: int | None, error: type[FormatError]) -> None:
    frame = bytes(compress(weights(300, 1), dtype="BF16", shape=(3, 100)))
    payload = frame[:cut] if cut else frame + bytes(64)
    path = tmp_path / "f"
    path.write_bytes(container([("w", "F6_E2M3", (0,), b""), ("_w_tensorwire", "U8", (len(payload),), payload)]))
    with pytest.raises(error) as caught:
        load_file(path)
    assert (caught.value.tensor, caught.value.byte) == ("w", min(len(frame), len(payload)))


def test_refuses_lengths_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for length, error in ((MAX_HEADER_NBYTES + 1, LimitExceededError), (2**64 - 1, LimitExceededError)):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(error, match="hardly a safetensors file"):
            load_file(path)
    path.write_bytes((3).to_bytes(8, "little") + b"{}")
    with pytest.raises(TruncatedDataError):
        load_file(path)
    for size in range(8):
        path.write_bytes(bytes(size))
        with pytest.raises(TruncatedDataError, match="hardly a safetensors file: name another one"):
            load_file(path)


def test_a_billion_brackets_cost_little_memory() -> None:
    texts = [b'{"a":[' + b"[]," * 1_000_000, b'{"a":{' + b'"":{},' * 1_000_000, b'{"a":{"dtype":[' + b"{}," * 1_000_000]
    for text in texts:
        tracemalloc.start()
        with pytest.raises(CorruptDataError):
            parse_header(text)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 6 * len(text)


def test_terminal_escapes_do_not_reach_messages(tmp_path: Path) -> None:
    name = "\x1b[2Jgone\n" + "x" * 70_000
    path = write(tmp_path / "f", {name: {**U8, "shape": [3]}}, b"1234")
    problem = verify(path).problems[0]
    assert problem.tensor == name
    assert problem.message.isprintable()
    path = write(tmp_path / "g", {name: U8, "b": U8}, b"1234")
    with pytest.raises(CorruptDataError) as caught:
        load_file(path)
    assert "\x1b" not in str(caught.value)


json_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    names=st.lists(json_text.filter(lambda name: name != "__metadata__"), unique=True, max_size=8),
    metadata=st.none() | st.dictionaries(json_text, json_text, max_size=4),
    reserve=st.integers(0, 2000),
)
def test_header_round_trip(names: list[str], metadata: dict[str, str] | None, reserve: int) -> None:
    entries = [TensorEntry(name, "I16", (3, i), 3 * i * (i - 1), 3 * i * (i + 1)) for i, name in enumerate(names)]
    header = build_header(metadata, entries, reserve)
    assert header.data_start % 64 == 0
    assert header.data_start >= reserve
    parsed = parse_header(header.raw, header.data_nbytes)
    assert (parsed.metadata, sorted(parsed.entries)) == (metadata, sorted(entries))
    assert json.loads(header.raw) == {
        **({} if metadata is None else {"__metadata__": metadata}),
        **{e.name: {"dtype": "I16", "shape": list(e.shape), "data_offsets": [e.start, e.stop]} for e in entries},
    }


@given(json_text)
def test_payload_names_can_be_undone(name: str) -> None:
    assert tensor_name(payload_name(name)) == name


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj._weight_tensorwire"),
        ("weight", "_weight_tensorwire"),
        ("a._b", "a.__b_tensorwire"),
    ],
)
def test_payload_names(name: str, payload: str) -> None:
    assert payload_name(name) == payload


@pytest.mark.parametrize(
    "name", ["a.weight", "_tensorwire", "a.weight_tensorwire", "a._weight", "_a.weight_tensorwire"]
)
def test_other_names_are_no_payloads(name: str) -> None:
    assert tensor_name(name) is None


FRAGMENTS = (
    *(b'{"a":', b'"dtype":"U8"', b'"shape":[0]', b'"data_offsets":[0,0]', b'"__metadata__":', b'"k":"v"', b'{"', b'"}'),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b" ", b"\\", b"\\u0000", b"1e9", b"-1", b"NaN", b"\xff", b"\x00"),
)


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=3)), max_size=20), st.binary(max_size=4))
def test_any_bytes_are_read_or_refused(chunks: list[bytes], data: bytes) -> None:
    raw = b"{" + b"".join(chunks)
    try:
        header = parse_header(raw, len(data))
    except FormatError:
        return
    assert header.data_nbytes == len(data)
    assert json.loads(raw).keys() - {"__metadata__"} == {entry.name for entry in header.entries}


def test_every_cut_of_a_small_file_is_refused(tmp_path: Path) -> None:
    whole = container([("a", "U8", (4,), b"1234"), ("b", "F16", (1,), b"12")], {"k": "v"})
    path = tmp_path / "f"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            load_file(path)
