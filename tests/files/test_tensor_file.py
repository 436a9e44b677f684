"""save_file, load_file, open_file: bits survive, damage does not pass, slices read little."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, load_file, open_file, save_file
from tensorwire.errors import CorruptDataError, FormatError, UnsupportedTensorError, UnsupportedVersionError
from tensorwire.storage.local import InputFile
from tests.support.acting import acting
from tests.support.checkpoint_models import container, layer, random_bytes, read_header, weights

if TYPE_CHECKING:
    from pathlib import Path

safetensors = pytest.importorskip("safetensors")

DTYPES: list[Any] = ["bool", *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64))]
DTYPES += ["float16", "float32", "float64", "complex64"]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


def same_bits(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def arrays() -> dict[str, np.ndarray]:
    """Every dtype, large enough to be compressed, small, empty and without dimensions; and names of all kinds."""
    generator = np.random.default_rng(3)
    found: dict[str, np.ndarray] = {}
    for dtype in DTYPES:
        values = generator.integers(0, 2, (40, 50)) if dtype == "bool" else generator.standard_normal((40, 50)) * 9
        with np.errstate(invalid="ignore"):
            array = values.astype(dtype)
        name = np.dtype(dtype).name
        found |= {f"{name}.large": array, f"{name}.small": array[:1, :3].copy(), f"{name}.empty": array[:, :0]}
        found[f"{name}.scalar"] = array[0, 0]
    patterns = np.arange(65536, dtype=np.uint16)
    found["nan payloads"] = patterns.view(ml_dtypes.bfloat16)
    found["not contiguous"] = np.asfortranarray(generator.standard_normal((100, 30)).astype(np.float32))
    found |= dict.fromkeys(
        ["", ".", "a.b\n\x1b[2J", "\u540d\u524d", "../../x", "/etc/passwd", "x" * 65536], np.zeros(3000)
    )
    return found


@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_every_array_round_trips(tmp_path: Path, profile: Any) -> None:
    tensors = arrays()
    path = tmp_path / "model.safetensors"
    before = {name: array.tobytes() for name, array in tensors.items()}
    save_file(tensors, path, profile=profile, metadata={"format": "np", "\x00": "\n"})
    assert {name: array.tobytes() for name, array in tensors.items()} == before
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    assert all(same_bits(np.asarray(loaded[name]), np.asarray(tensors[name])) for name in tensors)
    with open_file(path) as file:
        assert file.metadata() == {"format": "np", "\x00": "\n"}
        assert sorted(file.keys()) == sorted(tensors)
        assert all(same_bits(np.asarray(file.get_tensor(name)), np.asarray(tensors[name])) for name in tensors)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


def test_arrays_are_writable_and_apart(tmp_path: Path) -> None:
    save_file({name: np.full(5000, i, np.float32) for i, name in enumerate("ab")}, tmp_path / "f")
    loaded = load_file(tmp_path / "f")
    loaded["a"][:] = 7
    assert (loaded["b"] == 1).all()
    assert (load_file(tmp_path / "f")["a"] == 0).all()


def test_torch_tensors_round_trip(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = {
        "w": torch.randn(64, 65).to(torch.bfloat16).t(),
        "f8": torch.randn(64, 64).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(2000)),
    }
    save_file(tensors, tmp_path / "f")
    loaded = load_file(tmp_path / "f", framework="pt")
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(loaded[name].reshape(-1).view(torch.uint8), tensor.detach().reshape(-1).view(torch.uint8))
    with open_file(tmp_path / "f", framework="pt") as file:
        assert torch.equal(file.get_slice("w")[3:9, 1], tensors["w"][3:9, 1])


def test_the_official_library_opens_what_we_write(tmp_path: Path) -> None:
    source, path = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    source.write_bytes(container(layer(0, 1), {"format": "pt"}))
    compress_checkpoint(source, path)
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata()["format"] == "pt"
        compressed = {"model.layers.0.mlp.up_proj.weight", "model.layers.0.attn.weight"}
        plain = {"model.layers.0.norm.weight", "model.layers.0.mlp.scales"}
        payloads = {name.rsplit(".", 1)[0] + "._weight_tensorwire" for name in compressed}
        assert set(file.keys()) == compressed | plain | payloads
        for name in compressed:
            assert (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) == ("F6_E2M3", [0])
        for name in payloads:
            assert bytes(file.get_tensor(name)[:4]) == b"\x93TWF"
    header = read_header(path)
    offset = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert all((offset + header[name]["data_offsets"][0]) % 64 == 0 for name in payloads)


def test_rewritten_without_our_metadata_it_still_loads(tmp_path: Path) -> None:
    tensors = {"a.weight": np.zeros((64, 64), np.float32), "b.weight": np.arange(3.0)}
    save_file(tensors, tmp_path / "f")
    data = (tmp_path / "f").read_bytes()[8 + int.from_bytes((tmp_path / "f").read_bytes()[:8], "little") :]
    entries = sorted(read_header(tmp_path / "f").items(), key=lambda item: item[1].get("data_offsets", []))
    rewritten = [
        (name, entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in entries
        if name != "__metadata__"
    ]
    (tmp_path / "g").write_bytes(container(rewritten))
    loaded = load_file(tmp_path / "g")
    assert loaded.keys() == tensors.keys()
    assert all(same_bits(loaded[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("version", ["0", "2", "x"])
def test_another_version_is_refused(tmp_path: Path, version: str) -> None:
    save_file({"a.weight": np.zeros((64, 64), np.float32)}, tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    ours = b'"tensorwire.version":"1"'
    assert data.count(ours) == 1
    (tmp_path / "f").write_bytes(data.replace(ours, b'"tensorwire.version":"%b"' % version.encode()))
    with pytest.raises(UnsupportedVersionError, match=r"tensorwire\.version"):
        load_file(tmp_path / "f")


# Besides those that tests/files/test_safe_open.py has of arrays.
SLICES: list[Any] = [slice(-4, None), slice(9, 3), slice(2, 200), slice(None, None, -3), slice(30, 4, -5)]
SLICES += [(5, 2, 1), (6, ..., slice(1, 3)), (slice(0, 0), 2), (slice(1, 2), ...), None, [5, 1], [], True, (4, [1, 3])]
SLICES += [(slice(None), -1, slice(None, None, -1)), np.array([7, -7]), np.arange(60) % 7 == 3, (slice(3, 9), None)]
SLICES += [(..., [2])]


def test_slices(tmp_path: Path) -> None:
    tensors = {
        "compressed": np.frombuffer(weights(60 * 70 * 9, 2, "F32"), np.float32).reshape(60, 70, 9),
        "plain": np.frombuffer(random_bytes(60 * 7 * 5, 1), np.uint8).reshape(60, 7, 5),
    }
    save_file(tensors, tmp_path / "f")
    with open_file(tmp_path / "f") as file:
        for name, array in tensors.items():
            view = file.get_slice(name)
            assert view.get_shape() == list(array.shape)
            for index in SLICES:
                assert same_bits(np.asarray(view[index]), np.asarray(array[index])), (name, index)


@pytest.mark.parametrize("index", [(..., ...), "a", 1.0, (2, "a")])
def test_indexes_that_are_none(tmp_path: Path, index: Any) -> None:
    save_file({"a": np.zeros((60, 70, 9), np.float32)}, tmp_path / "f")
    with open_file(tmp_path / "f") as file, pytest.raises(IndexError):
        file.get_slice("a")[index]


def test_slices_of_empty_and_scalar_tensors(tmp_path: Path) -> None:
    tensors = {"none": np.zeros((0, 5)), "empty rows": np.zeros((5, 0)), "scalar": np.float64(2).reshape(())}
    save_file(tensors, tmp_path / "f")
    with open_file(tmp_path / "f") as file:
        assert file.get_slice("none")[:].shape == (0, 5)
        assert file.get_slice("empty rows")[1:3].shape == (2, 0)
        assert file.get_slice("scalar")[()] == 2


def test_a_slice_reads_only_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = 2000, 1024
    save_file(
        {"w": np.frombuffer(weights(rows * columns, 4), ml_dtypes.bfloat16).reshape(rows, columns)}, tmp_path / "f"
    )
    counted: list[int] = []
    acting(monkeypatch, InputFile, "read_into", lambda own, at, out: counted.append(len(out)))
    with open_file(tmp_path / "f") as file:
        view = file.get_slice("w")
        counted.clear()
        view[1000:1010]
    # Ten rows are 20 KiB; a block holds at most 128 KiB of content, and the rows touch at most two.
    assert sum(counted) <= 2 * 128 * 1024


def test_open_file_serves_many_threads(tmp_path: Path) -> None:
    tensors = {f"t{i}": np.frombuffer(weights(50_000, i), ml_dtypes.bfloat16) for i in range(6)}
    save_file(tensors, tmp_path / "f")
    with open_file(tmp_path / "f", threads=2) as file, ThreadPoolExecutor(4) as pool:

        def work(_: int) -> bool:
            return all(same_bits(file.get_tensor(name), tensors[name]) for name in tensors)

        assert list(pool.map(work, range(4))) == [True] * 4


@pytest.mark.parametrize(("in_header", "in_data"), [(80, 120), pytest.param(200, 400, marks=pytest.mark.slow)])
def test_no_flipped_bit_gives_wrong_data(tmp_path: Path, in_header: int, in_data: int) -> None:
    tensors: dict[str, np.ndarray] = {}
    for name, dtype, shape, data in [*layer(0, 1, 200), *layer(1, 2, 200)]:
        types = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "U8": np.uint8}
        tensors[name] = np.frombuffer(data, types[dtype]).reshape(shape)
    path = tmp_path / "f"
    save_file(tensors, path, metadata={"k": "value"})
    whole = path.read_bytes()
    data_start = 8 + int.from_bytes(whole[:8], "little")
    generator = np.random.default_rng(7)
    positions = [*generator.integers(0, data_start, in_header), *generator.integers(data_start, len(whole), in_data)]
    for position in positions:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(FormatError):
            load_file(path, threads=1)


def test_swapped_payloads_are_found(tmp_path: Path) -> None:
    path = tmp_path / "f"
    tensors = {name: np.full((64, 64), value, np.float32) for name, value in (("a", 1.0), ("b", 2.0))}
    save_file(tensors, path)
    whole = path.read_bytes()
    header = read_header(path)
    offset = 8 + int.from_bytes(whole[:8], "little")
    (a, b), (c, d) = (header[f"_{name}_tensorwire"]["data_offsets"] for name in "ab")
    assert b - a == d - c
    assert (a, b, c) == (0, c, b)
    path.write_bytes(
        whole[:offset] + whole[offset + c : offset + d] + whole[offset + a : offset + b] + whole[offset + d :]
    )
    with pytest.raises(CorruptDataError) as caught:
        load_file(path)
    assert caught.value.tensor in "ab"


def test_without_verify_damaged_blocks_may_pass_but_headers_may_not(tmp_path: Path) -> None:
    path = tmp_path / "f"
    save_file({"a": np.frombuffer(weights(50_000, 3), ml_dtypes.bfloat16)}, path)
    whole = bytearray(path.read_bytes())
    offset = 8 + int.from_bytes(whole[:8], "little")
    whole[-5000] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CorruptDataError) as caught:
        load_file(path)
    assert (caught.value.file, caught.value.tensor) == (path, "a")
    assert caught.value.block is not None
    assert caught.value.byte is not None
    assert load_file(path, verify=False)["a"].shape == (50_000,)
    whole[offset + 64] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CorruptDataError):
        load_file(path, verify=False)


@pytest.mark.parametrize(
    ("tensors", "metadata", "error"),
    [
        ({"__metadata__": np.zeros(2)}, None, ValueError),
        ({"a": np.zeros(2), "_a_tensorwire": np.zeros(2)}, None, ValueError),
        ({"m.a": np.zeros(2), "m._a_tensorwire": np.zeros(2)}, None, ValueError),
        ({"\ud800": np.zeros(2)}, None, ValueError),
        ({1: np.zeros(2)}, None, TypeError),
        ({"a": np.array(["text"])}, None, UnsupportedTensorError),
        ({"a": np.array([object()])}, None, UnsupportedTensorError),
        ({"a": [1, 2]}, None, UnsupportedTensorError),
        ({"a": np.zeros(2)}, {"tensorwire.version": "1"}, ValueError),
        ({"a": np.zeros(2)}, {"a": 1}, ValueError),
    ],
)
def test_save_refuses(tmp_path: Path, tensors: Any, metadata: Any, error: type[Exception]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(error):
        save_file(tensors, path, metadata=metadata)
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("f", b"old")]


def test_arguments_are_checked(tmp_path: Path) -> None:
    save_file({"a": np.zeros(2)}, tmp_path / "f")
    with pytest.raises(ValueError, match="threads"):
        load_file(tmp_path / "f", threads=0)
    with pytest.raises(ValueError, match="profile"):
        save_file({"a": np.zeros(9999)}, tmp_path / "f", profile="best")  # type: ignore[arg-type]
    with open_file(tmp_path / "f") as file, pytest.raises(KeyError):
        file.get_tensor("b")
    (tmp_path / "g").write_bytes(container([("a", "F4", (4,), b"12")]))
    with pytest.raises(UnsupportedTensorError) as caught:
        load_file(tmp_path / "g")
    assert caught.value.tensor == "a"


def test_a_saved_file_becomes_a_plain_one(tmp_path: Path) -> None:
    import safetensors.numpy

    tensors = {"b.weight": np.zeros((64, 64), np.float32), "a": np.arange(3, dtype=np.uint8), "e": np.zeros((0, 2))}
    save_file(tensors, tmp_path / "f", metadata={"k": "v"})
    report = decompress_checkpoint(tmp_path / "f", tmp_path / "g")
    assert not report.exact
    loaded = safetensors.numpy.load_file(tmp_path / "g")
    assert all(same_bits(loaded[name], tensors[name]) for name in tensors)
    with safetensors.safe_open(tmp_path / "g", framework="np") as file:
        assert file.metadata() == {"k": "v"}
