"""load_file(compressed=True): what is stored compressed comes as it is."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.codec.products import PlacedFrame  # noqa: E402
from tensorwire.files.reader import StoredFile  # noqa: E402
from tensorwire.torch import CompressedTensor, memory_report  # noqa: E402
from tests.support.linear_models import chain, inputs, loaded, same, saved  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
COMPRESSED: dict[str, Any] = {"framework": "pt", "compressed": True}


def weight(rows: int = 512, columns: int = 256, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(dtype)


@pytest.fixture
def tensors() -> dict[str, Any]:
    return {
        **{str(dtype): weight(dtype=dtype) for dtype in DTYPES},
        "small": weight(4, 16),
        "integers": torch.arange(200_000) % 7,
        "random": torch.randint(-128, 127, (100_000,), dtype=torch.int8),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 5),
    }


@pytest.fixture
def file(tensors: dict[str, Any], tmp_path: Path) -> Path:
    tensorwire.save_file(tensors, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def payload(file: Path, name: str) -> tuple[int, int]:
    """Where the frame of a tensor stands in a file, and its size."""
    with StoredFile(file) as stored:
        entry = stored.tensors[name].entry
        return stored.header.data_start + entry.start, entry.nbytes


@pytest.mark.parametrize("threads", [1, 3])
def test_large_floats_stay_compressed_and_all_else_is_dense(tensors: dict[str, Any], file: Path, threads: int) -> None:
    loaded = tensorwire.load_file(file, threads=threads, **COMPRESSED)
    assert loaded.keys() == tensors.keys()
    for name, tensor in loaded.items():
        assert isinstance(tensor, CompressedTensor) == (name in map(str, DTYPES)), name
        assert same(tensor.decode() if isinstance(tensor, CompressedTensor) else tensor, tensors[name]), name


def test_frames_of_many_blocks_are_read_by_many_threads(tmp_path: Path) -> None:
    dense = weight(4096, 3001)
    tensorwire.save_file({"w": dense}, tmp_path / "a")
    start, nbytes = payload(tmp_path / "a", "w")
    assert nbytes > 12 << 20, "several chunks"
    w = tensorwire.load_file(tmp_path / "a", threads=4, **COMPRESSED)["w"]
    assert bytes(w.frame.numpy()) == (tmp_path / "a").read_bytes()[start : start + nbytes]
    assert same(w.decode(), dense)


def test_a_checkpoint_of_shards(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    a, b = weight(seed=1), weight(seed=2)
    tensorwire.save_file({"a": a}, tmp_path / "m" / "model-00001-of-00002.safetensors")
    tensorwire.save_file({"b": b}, tmp_path / "m" / "model-00002-of-00002.safetensors")
    loaded = tensorwire.load_file(tmp_path / "m", **COMPRESSED)
    assert same(loaded["a"].decode(), a)
    assert same(loaded["b"].decode(), b)
    with tensorwire.open_file(tmp_path / "m", **COMPRESSED) as reader:
        kept = reader.get_tensor("b")
        assert same(reader.get_slice("b")[3:5], b[3:5])
    assert isinstance(kept, CompressedTensor)
    assert same(kept.decode(), b)


def test_names_that_save_model_has_left_out_are_the_models_to_know(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = nn.ModuleDict({"a": nn.Linear(256, 512, bias=False), "b": nn.Linear(256, 512, bias=False)})
    model["b"].weight = model["a"].weight
    (tmp_path / "m").mkdir()
    safetensors.save_model(model, str(tmp_path / "m" / "model.safetensors"))
    tensorwire.compress_checkpoint(tmp_path / "m", tmp_path / "c")
    loaded = tensorwire.load_file(tmp_path / "c", **COMPRESSED)
    assert list(loaded) == ["a.weight"]
    dense = model["a"].weight.detach().clone()
    nn.init.zeros_(model["a"].weight)
    model.load_state_dict({name: tensor.decode() for name, tensor in loaded.items()}, strict=False)
    assert same(model["b"].weight, dense)


def test_a_delta_is_compressed_anew(tmp_path: Path) -> None:
    old = weight()
    new = old.clone()
    new[5, 7] = 3.0
    tensorwire.save_file({"w": old}, tmp_path / "old")
    tensorwire.save_file({"w": new}, tmp_path / "new", base=tmp_path / "old")
    w = tensorwire.load_file(tmp_path / "new", base=tmp_path / "old", **COMPRESSED)["w"]
    assert isinstance(w, CompressedTensor)
    assert same(w.decode(), new)
    with pytest.raises(tensorwire.BaseMismatchError):
        tensorwire.load_file(tmp_path / "new", **COMPRESSED)


def test_a_copy_is_known_as_well(file: Path) -> None:
    name = str(torch.bfloat16)
    w = tensorwire.load_file(file, verify=False, **COMPRESSED)[name]
    twin = copy.deepcopy(w)
    twin.frame[-100] ^= 1
    twin.decode()  # not checked either
    w.frame[40] ^= 1
    with pytest.raises(tensorwire.CorruptDataError):
        CompressedTensor(w.frame.clone())


def test_what_does_not_go_together(file: Path) -> None:
    with pytest.raises(ValueError, match='framework="pt" for compressed=True, got "np"'):
        tensorwire.load_file(file, compressed=True)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="resident_nbytes with compressed=True alone"):
        tensorwire.load_file(file, framework="pt", resident_nbytes=5)
    with pytest.raises(ValueError, match="from 0 on"):
        tensorwire.load_file(file, resident_nbytes=-1, **COMPRESSED)
    with pytest.raises(ValueError, match="for the CPU alone"):
        tensorwire.load_file(file, device="meta", resident_nbytes=1, **COMPRESSED)


def test_a_device_gets_the_frames(file: Path) -> None:
    w = tensorwire.load_file(file, device="meta", **COMPRESSED)[str(torch.bfloat16)]
    assert isinstance(w, CompressedTensor)
    assert w.device.type == "meta"


def test_a_model_is_made_of_it(tmp_path: Path) -> None:
    reference = chain()
    model = loaded(saved(reference, tmp_path / "a"))
    for count in (1, 40):
        assert same(model(inputs(count)), reference(inputs(count)))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert memory_report(model).ratio > 1.3
    model.requires_grad_()  # makes them dense
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert same(model(inputs(1)), reference(inputs(1)))


def test_frames_are_mapped_and_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensorwire.save_file({"a": (torch.randn(1024, 512) * 0.02).bfloat16()}, path)
    weight = tensorwire.load_file(path, framework="pt", compressed=True)["a"]
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    ranges = [[int(end, 16) for end in line[0].split("-")] for line in maps]
    assert any(start <= weight.frame.data_ptr() < stop for start, stop in ranges)


@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_a_mapped_file_that_is_written_to_in_the_middle_of_a_use(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written may have been used, with the checks of loading long over."""
    path = tmp_path / "model.safetensors"
    tensorwire.save_file({"a": (torch.randn(1024, 512) * 0.02).bfloat16()}, path)
    weight = tensorwire.load_file(path, framework="pt", compressed=True)["a"]
    weight.set_linear_mode(mode)

    def and_write(use: Any) -> Any:
        def used(self: PlacedFrame, *arguments: Any) -> Any:
            result = use(self, *arguments)
            os.utime(path, (1, 1))
            return result

        return used

    for name in ("decode", "linear"):  # which of them *exact* takes depends on torch's order of summation
        monkeypatch.setattr(PlacedFrame, name, and_write(getattr(PlacedFrame, name)))
    with pytest.raises(OSError, match="changed while it was read"):
        torch.nn.functional.linear(torch.ones(1, 512).bfloat16(), weight)
