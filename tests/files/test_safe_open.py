"""The interface of safetensors.safe_open: one body of tests for that library, and for ours on plain and on compressed
files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
from tensorwire.checkpoint import compress_checkpoint
from tests.support.checkpoint_models import container, random_bytes, weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")

ENTRIES = [
    ("z.weight", "F32", (60, 70, 9), weights(60 * 70 * 9, 1, "F32")),
    ("a.bias", "I64", (70,), random_bytes(560, 2)),
    ("m.bytes", "U8", (6, 7), random_bytes(42, 3)),
    ("scalar", "F32", (), b"\0\0\x40\x40"),
    ("none", "F16", (0, 4), b""),
]
SHAPES = {name: list(shape) for name, _, shape, _ in ENTRIES}
NUMPY = {"F32": np.float32, "I64": np.int64, "U8": np.uint8, "F16": np.float16}


def numbers(tensor: Any) -> np.ndarray:
    return tensor.numpy() if isinstance(tensor, torch.Tensor) else tensor


EXPECTED = {name: np.frombuffer(data, NUMPY[dtype]).reshape(shape) for name, dtype, shape, data in ENTRIES}

OPENERS = {
    "safetensors": (safetensors.safe_open, False),
    "tensorwire, plain": (tensorwire.open_file, False),
    "tensorwire, compressed": (tensorwire.open_file, True),
}


@pytest.fixture(params=OPENERS)
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Opens the tensors above with one library: the arguments behind the path are the caller's."""
    opener, compressed = OPENERS[request.param]
    path = tmp_path / "a.safetensors"

    def open_with(*arguments: Any, metadata: dict[str, str] | None = None, **options: Any) -> Any:
        path.write_bytes(container(ENTRIES, metadata))
        if compressed:
            (tmp_path / "b.safetensors").unlink(missing_ok=True)
            compress_checkpoint(path, tmp_path / "b.safetensors")
            return opener(tmp_path / "b.safetensors", *arguments, **options)
        return opener(path, *arguments, **options)

    open_with.official = request.param == "safetensors"  # type: ignore[attr-defined]
    open_with.compressed = compressed  # type: ignore[attr-defined]
    return open_with


def test_names_and_metadata(library: Any) -> None:
    with library("np") as file:
        assert file.keys() == sorted(EXPECTED)
        assert sorted(file.offset_keys()) == sorted(EXPECTED)
        assert file.metadata() is None
        if not library.compressed:
            assert file.offset_keys()[:4] == ["z.weight", "a.bias", "m.bytes", "scalar"]
    with library("np", metadata={"format": "pt", "k": ""}) as file:
        assert file.metadata() == {"format": "pt", "k": ""}


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_whole_tensors(library: Any, framework: str) -> None:
    with library(framework=framework) as file:
        every = file.get_tensors()
        assert list(every) == file.offset_keys()
        for name, expected in EXPECTED.items():
            for tensor in (file.get_tensor(name), every[name]):
                assert isinstance(tensor, np.ndarray if framework == "np" else torch.Tensor)
                assert numbers(tensor).dtype == expected.dtype
                assert numbers(tensor).shape == expected.shape
                assert numbers(tensor).tobytes() == expected.tobytes()
    assert numbers(every["z.weight"]).tobytes() == EXPECTED["z.weight"].tobytes()  # outlives the file


COMMON = [
    *(0, -1, 17, slice(None), slice(3, 9), slice(9, 12, 2), slice(None, None, 7), slice(5, 5), ..., ()),
    *((2, 3, 4), (2,), (..., 3), (5, ..., 1), (slice(2, 5), slice(None), 4), (slice(1, 2), 0, slice(0, 3))),
    *((slice(None), slice(None), slice(2, 3)), (slice(None), -1), np.int64(3), (0, slice(None, None, 2))),
]
OF_TORCH = [
    *(None, [5, 1], ([0, 2], 1), (slice(None), [0, 1]), True, slice(-2, None), slice(50, 100), slice(9, 3), (0, None)),
    *([], torch.tensor([0, 1]), torch.tensor(5), np.array([7, -7]), np.arange(60) % 7 == 3),
]


@pytest.mark.parametrize(("framework", "indexes"), [("np", COMMON), ("pt", COMMON + OF_TORCH)], ids=["np", "pt"])
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_slices(library: Any, framework: str, indexes: list[Any]) -> None:
    whole = EXPECTED["z.weight"] if framework == "np" else torch.from_numpy(EXPECTED["z.weight"].copy())
    with library(framework) as file:
        for index in indexes:
            expected = numbers(np.asarray(whole[index]) if framework == "np" else whole[index])
            found = file.get_slice("z.weight")[index]
            assert isinstance(found, np.ndarray if framework == "np" else torch.Tensor), index
            assert numbers(found).shape == expected.shape, index
            assert numbers(found).tobytes() == expected.tobytes(), index


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_slices_of_small_tensors(library: Any, framework: str) -> None:
    with library(framework) as file:
        assert numbers(file.get_slice("scalar")[()]) == numbers(file.get_slice("scalar")[...]) == 3.0
        assert numbers(file.get_slice("m.bytes")[2:4]).tolist() == EXPECTED["m.bytes"][2:4].tolist()
        for name, shape in SHAPES.items():
            assert file.get_slice(name).get_shape() == shape
        assert [file.get_slice(name).get_dtype() for name in EXPECTED] == ["F32", "I64", "U8", "F32", "F16"]


@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize("index", [60, -61, (0, 70), (0, 0, 0, 0)])
def test_indexes_out_of_range(library: Any, framework: str, index: Any) -> None:
    with (
        library(framework) as file,
        pytest.raises(safetensors.SafetensorError if library.official and framework == "np" else IndexError),
    ):
        file.get_slice("z.weight")[index]


def test_torch_refuses_steps_that_are_not_positive(library: Any) -> None:
    with library("pt") as file, pytest.raises(ValueError, match="greater than zero"):
        file.get_slice("z.weight")[::-1]


def test_names_that_are_not_there(library: Any) -> None:
    error = safetensors.SafetensorError if library.official else KeyError
    with library("np") as file:
        for get in (file.get_tensor, file.get_slice):
            with pytest.raises(error, match=r"no tensor 'b'|not contain tensor b"):
                get("b")


def test_a_closed_file_is_not_read(library: Any) -> None:
    with library("np") as file:
        pass
    with pytest.raises(safetensors.SafetensorError if library.official else ValueError, match="is closed"):
        file.get_tensor("m.bytes")


@pytest.mark.parametrize("device", ["cpu", None])
def test_devices(library: Any, device: Any) -> None:
    with library("pt", device) as file:
        assert file.get_tensor("scalar").device.type == "cpu"
    with library(framework="pt", device=device) as file:
        assert file.get_slice("z.weight")[3:5].device.type == "cpu"


# What ours has besides -----------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["plain", "compressed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source, packed = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    source.write_bytes(container(ENTRIES))
    compress_checkpoint(source, packed)
    return packed if request.param else source


def test_a_file_is_a_collection_of_names(path: Path) -> None:
    with tensorwire.open_file(path) as file:
        assert len(file) == len(EXPECTED)
        assert list(file) == file.keys()
        assert "a.bias" in file
        assert "b.bias" not in file
        assert 3 not in file


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, "no such device"])
def test_a_device_that_is_not_there_is_refused_before_the_work(path: Path, device: Any) -> None:
    for open_it in (tensorwire.open_file, lambda *a, **k: tensorwire.load_file(*a, **k)):
        with pytest.raises(ValueError, match="expected a device of torch, got"):
            open_it(path, framework="pt", device=device)


def test_tensors_go_to_the_device(path: Path) -> None:
    """The device that every build of torch has and whose tensors tell where they are."""
    for name, tensor in tensorwire.load_file(path, framework="pt", device="meta").items():
        assert (tensor.device.type, list(tensor.shape)) == ("meta", SHAPES[name])
    with tensorwire.open_file(path, "pt", torch.device("meta")) as file:
        assert file.get_tensor("a.bias").device.type == "meta"
        assert file.get_slice("z.weight")[2:4].shape == (2, 70, 9)
        assert file.get_slice("z.weight")[2:4].device.type == "meta"


@pytest.mark.parametrize(
    ("framework", "device", "message"),
    [
        ("np", "cuda", 'expected device "cpu" for framework "np", got \'cuda\'; write framework="pt"'),
        ("bytes", 0, 'expected device "cpu" for framework "bytes"'),
        ("pt", "foo", "expected a device of torch, got 'foo'"),
        ("pt", 1.5, "expected a device of torch, got 1.5"),
        ("numpy", "cpu", 'expected framework "np", "pt" or "bytes", got \'numpy\'; write "np"'),
        ("tf", "cpu", 'expected framework "np", "pt" or "bytes", got \'tf\''),
    ],
)
def test_frameworks_and_devices_that_are_none(path: Path, framework: Any, device: Any, message: str) -> None:
    for call in (tensorwire.load_file, tensorwire.open_file):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            call(path, framework=framework, device=device)
        assert message in str(caught.value)


def test_a_slice_has_no_memory_that_it_does_not_need(path: Path) -> None:
    with tensorwire.open_file(path) as arrays, tensorwire.open_file(path, "pt") as tensors:
        column = arrays.get_slice("z.weight")[:, 3:5]
        assert (column.base is None, column.nbytes) == (True, 60 * 2 * 9 * 4)
        assert tensors.get_slice("z.weight")[:, 3:5].untyped_storage().nbytes() == 60 * 2 * 9 * 4
        assert arrays.get_slice("z.weight")[2:9].flags.writeable


def test_bytes(path: Path) -> None:
    raw = {name: data for name, _, _, data in ENTRIES}
    assert tensorwire.load_file(path, framework="bytes") == raw
    with tensorwire.open_file(path, "bytes") as file:
        assert file.get_tensor("z.weight") == raw["z.weight"]
        view = file.get_slice("z.weight")
        row = 70 * 9 * 4
        assert view[3] == view[3:4] == raw["z.weight"][3 * row : 4 * row]
        assert view[-1] == raw["z.weight"][-row:]
        assert view[50:] == raw["z.weight"][50 * row :]
        assert view[...] == view[:] == view[()] == raw["z.weight"]
        assert view[7:3] == b""
        assert file.get_slice("scalar")[()] == raw["scalar"]
        assert file.get_slice("none")[:] == b""
        for index in ((1, 2), slice(None, None, 2), None, [1], slice(None, None, -1)):
            with pytest.raises(IndexError, match="takes one index"):
                view[index]
        for index in (60, -61):
            with pytest.raises(IndexError, match="expected a row from -60 to 59"):
                view[index]


@pytest.mark.parametrize("compressed", [False, True])
def test_dtypes_narrower_than_a_byte(tmp_path: Path, compressed: bool) -> None:
    content = bytes(2000) + random_bytes(2000, 1)  # half of it compresses
    flat, odd, six = random_bytes(5, 2), random_bytes(9, 3), random_bytes(15, 4)
    entries = [("w", "F4", (100, 80), content), ("six", "F6_E2M3", (4, 5), six)]
    entries += [("flat", "F4", (10,), flat), ("odd", "F4", (2, 9), odd)]
    path = tmp_path / "a"
    path.write_bytes(container(entries))
    if compressed:
        compress_checkpoint(path, tmp_path / "b")
        path = tmp_path / "b"
    with tensorwire.open_file(path, "bytes") as file:
        assert (file.get_slice("w").get_dtype(), file.get_slice("w").get_shape()) == ("F4", [100, 80])
        assert file.get_slice("w")[10:20] == content[400:800]
        assert file.get_slice("flat")[2:6] == flat[1:3]
        assert file.get_slice("flat")[8:] == flat[4:]
        assert file.get_slice("six")[:4] == six
        with pytest.raises(tensorwire.UnsupportedTensorError, match="not whole bytes"):
            file.get_slice("flat")[1:3]
        with pytest.raises(tensorwire.UnsupportedTensorError, match="not whole bytes"):
            file.get_slice("six")[1]
    with tensorwire.open_file(path, "pt") as file:
        tensor = file.get_tensor("w")
        assert (tensor.dtype, tensor.shape) == (torch.float4_e2m1fn_x2, (100, 40))
        assert tensor.view(torch.uint8).numpy().tobytes() == content
        rows = file.get_slice("w")[10:20, 3:5].view(torch.uint8)
        assert rows.tolist() == np.frombuffer(content, np.uint8).reshape(100, 40)[10:20, 3:5].tolist()
        assert file.get_slice("flat")[1:3].view(torch.uint8).tolist() == list(flat[1:3])
        with pytest.raises(tensorwire.UnsupportedTensorError, match="even last dimension"):
            file.get_tensor("odd")
    with pytest.raises(tensorwire.UnsupportedTensorError, match="no dtype F6_E2M3") as caught:
        tensorwire.load_file(path, framework="pt")
    assert caught.value.tensor == "six"
    assert 'framework="bytes"' in caught.value.advice
    assert tensorwire.load_file(path, framework="bytes")["six"] == six


def test_f4_of_torch_is_saved(tmp_path: Path) -> None:
    import safetensors.torch

    tensor = torch.frombuffer(bytearray(random_bytes(64, 1)), dtype=torch.float4_e2m1fn_x2).reshape(4, 16)
    tensorwire.save_file({"x": tensor}, tmp_path / "ours")
    safetensors.torch.save_file({"x": tensor}, tmp_path / "theirs")
    for name in ("ours", "theirs"):
        with tensorwire.open_file(tmp_path / name, "bytes") as file:
            view = file.get_slice("x")
            assert (view.get_dtype(), view.get_shape(), len(view[:])) == ("F4", [4, 32], 64)
        loaded = tensorwire.load_file(tmp_path / name, framework="pt")["x"]
        assert torch.equal(loaded.view(torch.uint8), tensor.view(torch.uint8))
