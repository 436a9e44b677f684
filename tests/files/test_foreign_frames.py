"""Frames in files that our writer does not make: aligned, padded, with extensions, with labels that contradict them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
from tensorwire import CorruptDataError, UnsupportedTensorError
from tensorwire.checkpoint import (
    decompress_checkpoint,
    inspect,
    load_file,
    open_file,
    save_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.files.header import TensorEntry, build_header
from tensorwire.files.names import FRAME_DTYPE
from tensorwire.files.reader import FRAMES_KEY
from tests.support import registry
from tests.support.command_line import forked
from tests.support.encoders import encode
from tests.support.frame_surgery import Surgery

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

ROWS, COLUMNS = 300, 257
WORDS = {name: registry.weights("BF16", ROWS * COLUMNS, name) for name in ("a", "b", "c")}
FORMS: dict[str, dict[str, Any]] = {
    "a": {"block_alignment": 128, "frame_alignment": 4096, "padding_nbytes": 1024},
    "b": {"padding_nbytes": 100_000, "extensions": {2**31: bytes(8) + b"private"}},
    "c": {"frame_alignment": 2**16},
}


def write(path: Path, frames: dict[str, bytes]) -> Path:
    """A file of frames under their tensors' names."""
    entries, start = [], 0
    for name, frame in frames.items():
        entries.append(TensorEntry(name, FRAME_DTYPE, (2 * len(frame),), start, start + len(frame)))
        start += len(frame)
    path.write_bytes(build_header({FRAMES_KEY: FRAME_DTYPE}, entries).prefix + b"".join(frames.values()))
    return path


def padded_frames() -> dict[str, bytes]:
    shape = (ROWS, COLUMNS)
    return {name: encode(words.tobytes(), "BF16", shape, **FORMS[name]) for name, words in WORDS.items()}


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    return write(tmp_path / "padded.safetensors", padded_frames())


def test_they_load(padded: Path) -> None:
    for verified in (True, False):
        loaded = load_file(padded, framework="bytes", verify=verified)
        assert loaded == {name: words.tobytes() for name, words in WORDS.items()}
    compressed = load_file(padded, framework="pt", compressed=True)
    assert type(compressed["a"]) is tensorwire.torch.CompressedTensor
    left_in_file = load_file(padded, framework="pt", compressed=True, resident_nbytes=0)
    for tensors in (compressed, left_in_file):
        for name, words in WORDS.items():
            dense = tensors[name].to_dense() if hasattr(tensors[name], "frame") else tensors[name]
            assert dense.view(torch.uint8).numpy().tobytes() == words.tobytes()


def test_slices(padded: Path) -> None:
    with open_file(padded) as file:
        for name, words in WORDS.items():
            found = file.get_slice(name)[10:20]
            assert found.tobytes() == words[10 * COLUMNS : 20 * COLUMNS].tobytes()


def test_they_are_verified_inspected_restored_and_transcoded(padded: Path, tmp_path: Path) -> None:
    assert verify(padded).problems == ()
    assert [tensor.name for tensor in inspect(padded).tensors] == ["a", "b", "c"]
    decompress_checkpoint(padded, tmp_path / "plain.safetensors")
    transcode_checkpoint(padded, tmp_path / "compact.safetensors", profile="compact")
    for path in ("plain.safetensors", "compact.safetensors"):
        assert load_file(tmp_path / path, framework="bytes") == load_file(padded, framework="bytes")


def test_out_of_a_pipe(padded: Path, tmp_path: Path) -> None:
    run = forked("decompress", "-", "-", input=padded.read_bytes())
    assert run.returncode == 0, run.stderr
    (tmp_path / "out.safetensors").write_bytes(run.stdout)
    assert load_file(tmp_path / "out.safetensors", framework="bytes") == load_file(padded, framework="bytes")


@pytest.mark.parametrize("name", WORDS)
def test_padding_that_is_not_zero_is_found(tmp_path: Path, name: str) -> None:
    frames = padded_frames()
    info = tensorwire.frame_info(frames[name])
    damaged = bytearray(frames[name])
    damaged[info.header_nbytes + info.data_nbytes + info.padding_nbytes // 2] = 1
    path = write(tmp_path / "x.safetensors", {**frames, name: bytes(damaged)})
    for options in ({}, {"verify": False}, {"framework": "pt", "compressed": True}):
        with pytest.raises(CorruptDataError, match=f"tensor '{name}'.*zeros behind the blocks|zeros behind"):
            load_file(path, **options)
    with open_file(path) as file:
        with pytest.raises(CorruptDataError):
            file.get_slice(name)[:1]
        for other in WORDS.keys() - {name}:
            file.get_tensor(other)
    assert [problem.tensor for problem in verify(path).problems] == [name]
    with pytest.raises(CorruptDataError):
        decompress_checkpoint(path, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


# Labels that contradict the bits --------------------------------------------------------------------------------------


def mislabelled(dtype: str) -> bytes:
    """A frame of BF16 that calls itself otherwise."""
    surgery = Surgery(tensorwire.compress(WORDS["a"].tobytes(), dtype="BF16", shape=(ROWS, COLUMNS)))
    surgery.set("dtype", dtype.encode())
    return surgery.close()


@pytest.mark.parametrize("dtype", ["F32", "U8", "C128"])
def test_a_label_that_contradicts_the_bits_is_bytes_alone(tmp_path: Path, dtype: str) -> None:
    frame, content = mislabelled(dtype), WORDS["a"].tobytes()
    assert tensorwire.frame_info(frame).dtype == dtype
    assert tensorwire.decompress(frame, framework="bytes") == content
    out = np.zeros(len(content), np.uint8)
    assert tensorwire.decompress(frame, out=out).tobytes() == content
    assert tensorwire.decompress_range(frame, 2, 10) == content[2:10]
    for framework in ("np", "pt"):
        with pytest.raises(UnsupportedTensorError, match="bits per element") as caught:
            tensorwire.decompress(frame, framework=framework)
        assert 'framework="bytes"' in caught.value.advice
    with pytest.raises(UnsupportedTensorError, match="bits per element"):
        tensorwire.torch.CompressedTensor(torch.frombuffer(bytearray(frame), dtype=torch.uint8))


@pytest.mark.parametrize("dtype", ["F32", "U8"])
def test_in_a_file_too(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path / "x.safetensors", {"w": mislabelled(dtype)})
    assert load_file(path, framework="bytes")["w"] == WORDS["a"].tobytes()
    assert verify(path).problems == ()
    for options in ({"framework": "np"}, {"framework": "pt"}, {"framework": "pt", "compressed": True}):
        with pytest.raises(UnsupportedTensorError, match="bits per element"):
            load_file(path, **options)
        with open_file(path, **options) as file, pytest.raises(UnsupportedTensorError):
            file.get_slice("w")
    for convert in (decompress_checkpoint, partial(transcode_checkpoint, profile="compact")):
        with pytest.raises(UnsupportedTensorError, match="bits per element"):
            convert(path, tmp_path / "out.safetensors")
    assert [each.name for each in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_name_of_ones_own_has_any_bits() -> None:
    assert tensorwire.decompress(mislabelled("OWN"), framework="bytes") == WORDS["a"].tobytes()


# What safetensors has no name for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_safetensors_has_no_complex128(tmp_path: Path, framework: str) -> None:
    array: Any = np.arange(600).astype(np.complex128).reshape(20, 30)
    array = torch.from_numpy(array) if framework == "pt" else array
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(UnsupportedTensorError, match="C128") as caught:
        save_file({"first": np.ones(3), "w": array}, path)
    assert caught.value.tensor == "w"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    way_out = array.view(np.float64) if framework == "np" else torch.view_as_real(array)
    assert "array.view(numpy.float64) or torch.view_as_real(tensor)" in caught.value.advice
    save_file({"w": way_out}, path)
    assert load_file(path, framework="bytes")["w"] == np.arange(600).astype(np.complex128).tobytes()
