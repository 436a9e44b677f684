"""load_file and open_file of a directory: it is read as if it were one file."""

from __future__ import annotations

import io
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

import tensorwire
from tensorwire import (
    CorruptDataError,
    FormatError,
    compress_checkpoint,
    decompress_checkpoint,
    load_file,
    open_file,
)
from tests.support.checkpoint_models import SHARD, container, layer, weights, write_model

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

from safetensors import torch as safetensors_torch  # noqa: E402

INDEX = "model.safetensors.index.json"
TENSORS = {entry[0]: entry for shard in range(2) for entry in layer(shard, 10 * shard)}
ONE = ("one", "F32", (2,), bytes(8))


@pytest.fixture(params=["plain", "fast"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_model(tmp_path / "plain")
    if request.param != "plain":
        compress_checkpoint(tmp_path / "plain", tmp_path / request.param, profile=request.param)
    return tmp_path / request.param


def write_index(directory: Path, home: dict[str, Any], name: str = INDEX) -> None:
    (directory / name).write_text(json.dumps({"metadata": {}, "weight_map": home}))


def test_all_shards_are_one_dict(model: Path) -> None:
    loaded = load_file(model, framework="bytes")
    assert loaded == {name: entry[3] for name, entry in TENSORS.items()}
    tensors = load_file(model, framework="pt")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        name: entry[2] for name, entry in TENSORS.items()
    }
    arrays = load_file(str(model), threads=1)
    assert {name: array.tobytes() for name, array in arrays.items()} == loaded
    # The folder below with a model of its own is not part of this one.
    below = load_file(model / "vae", framework="bytes")
    assert below == {entry[0]: entry[3] for entry in layer(7, 70)}


def test_an_open_directory_is_like_an_open_file(model: Path) -> None:
    with open_file(model, "pt") as reader:
        assert reader.keys() == list(reader) == sorted(TENSORS)
        assert set(reader.offset_keys()) == set(TENSORS)
        assert len(reader) == len(TENSORS)
        assert "model.layers.1.attn.weight" in reader
        assert "model.layers.1.attn._weight_tensorwire" not in reader
        assert reader.metadata() == {"format": "pt"}
        view = reader.get_slice("model.layers.1.attn.weight")
        assert (view.get_dtype(), view.get_shape()) == ("F32", [96, 96])
        expected = np.frombuffer(TENSORS["model.layers.1.attn.weight"][3], np.float32).reshape(96, 96)
        assert view[5:7, 3].numpy().tobytes() == expected[5:7, 3].tobytes()
        assert reader.get_tensor("model.layers.0.norm.weight").dtype == torch.bfloat16
        with pytest.raises(KeyError, match="no tensor 'x' in the 2 files"):
            reader.get_tensor("x")
    with pytest.raises(ValueError, match="is closed"):
        reader.get_tensor("model.layers.0.norm.weight")


def test_an_index_may_be_named(model: Path) -> None:
    for name in (INDEX, "other.safetensors.index.fp16.json"):
        shutil.copy(model / INDEX, model / name) if name != INDEX else None
    with pytest.raises(ValueError, match=r"several indexes: .*index\.fp16\.json.*give the path of one"):
        load_file(model)
    assert load_file(model / INDEX).keys() == TENSORS.keys()


def test_what_a_configuration_names_comes_first(tmp_path: Path) -> None:
    """As for Transformers; paths in an index that it names are relative to the configuration."""
    for path, name in (("model.safetensors", "whole"), ("w/a.safetensors", "below"), ("v/b.safetensors", "listed")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(container([(name, *ONE[1:])]))
    (tmp_path / "w" / "x.safetensors.index.json").write_text('{"weight_map": {"listed": "v/b.safetensors"}}')
    named = {
        "./w/a.safetensors": "below", "w/x.safetensors.index.json": "listed", "pytorch_model.bin": "whole", 3: "whole",
    }  # fmt: skip
    for said, expected in named.items():
        (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": said}))
        assert list(load_file(tmp_path)) == [expected]
    (tmp_path / "config.json").write_text('{"transformers_weights": "w/gone.safetensors"}')
    with pytest.raises(FileNotFoundError, match=r"w/gone\.safetensors"):
        load_file(tmp_path)
    (tmp_path / "config.json").write_text('{"transformers_weights": "../w/a.safetensors"}')
    with pytest.raises(CorruptDataError, match=r"inside the directory, got '\.\./w/a\.safetensors' .*config\.json"):
        load_file(tmp_path)
    (tmp_path / "config.json").write_text("[")
    assert list(load_file(tmp_path)) == ["whole"]


def test_without_an_index_all_files_at_the_top_are_one_model(model: Path) -> None:
    (model / INDEX).unlink()
    assert load_file(model, framework="bytes") == {name: entry[3] for name, entry in TENSORS.items()}


def test_directories_that_are_named_like_files_are_passed_over(model: Path) -> None:
    expected = set(load_file(model))
    (model / "a.safetensors").mkdir()
    (model / "z.safetensors.index.json").mkdir()
    assert set(load_file(model)) == expected


def test_two_models_in_a_directory_are_not_mixed(tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.fp16.safetensors"):
        (tmp_path / name).write_bytes(container([ONE]))
    with pytest.raises(ValueError, match=r"'one' is in .*fp16\.safetensors and in .*model\.safetensors.*path of one"):
        load_file(tmp_path)


def test_an_index_says_which_of_two_files_is_meant(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.safetensors").write_bytes(
            container([("shared", "U8", (1,), bytes([number])), (f"own{number}", "U8", (1,), b"x")])
        )
    for number in range(3):
        home = {f"own{i}": f"{i}.safetensors" for i in range(3)} | {"shared": f"{number}.safetensors"}
        write_index(tmp_path, home)
        assert load_file(tmp_path, framework="bytes")["shared"] == bytes([number])


def test_files_that_the_index_does_not_name_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(container([ONE]))
    (tmp_path / "consolidated.safetensors").write_bytes(b"no safetensors file")
    write_index(tmp_path, {"one": "a.safetensors"})
    assert list(load_file(tmp_path)) == ["one"]


class Sharing(torch.nn.Module):
    """A tied parameter, one that is another's first rows, and one that has another shape."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.from_numpy(np.frombuffer(weights(300 * 64, 1, "F32"), np.float32).copy()).reshape(300, 64)
        self.embed, self.head, self.first, self.turned = (
            torch.nn.Parameter(each) for each in (weight, weight, weight[:100], weight.view(64, 300))
        )


@pytest.mark.parametrize("compressed", [False, True])
def test_names_that_save_model_has_left_out(tmp_path: Path, compressed: bool) -> None:
    """Its metadata has them, and does not tell which memory they share: they are absent, as from safetensors."""
    model, other = Sharing(), Sharing()
    path = tmp_path / "plain"
    path.mkdir()
    safetensors_torch.save_model(model, str(path / "model.safetensors"))
    expected = list(safetensors_torch.load_file(path / "model.safetensors"))
    assert len(expected) == 1
    if compressed:
        compress_checkpoint(path, tmp_path / "packed")
        path = tmp_path / "packed"
    for place in (path, path / "model.safetensors"):
        with open_file(place, "pt") as reader:
            assert reader.keys() == expected
            assert (reader.metadata() or {}).keys() == {"embed", "first", "head", "turned"} - set(expected)
        tensors = load_file(place, framework="pt")
        assert list(tensors) == expected
        other.load_state_dict({name: torch.zeros_like(value) for name, value in other.state_dict().items()})
        other.load_state_dict(tensors, strict=False)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            assert torch.equal(other.get_parameter(name), parameter)


@pytest.mark.parametrize(
    "metadata", [{"format": "pt"}, {"largest": "pt"}, {"pt.best": "pt"}, {"model.head.weight": "pt"}]
)
def test_metadata_names_no_tensors(tmp_path: Path, metadata: dict[str, str]) -> None:
    """Any text may stand there, a tensor's name too."""
    path = tmp_path / "x.safetensors"
    safetensors_numpy.save_file({"pt": np.zeros(3)}, path, metadata=metadata)
    assert list(load_file(path)) == list(load_file(tmp_path)) == ["pt"]
    with open_file(tmp_path) as reader:
        assert (reader.keys(), len(reader), reader.metadata()) == (["pt"], 1, metadata)


def test_damage_is_found_and_said_where(tmp_path: Path) -> None:
    shard = tmp_path / "b.safetensors"
    tensorwire.save_file({"one": np.zeros(2)}, tmp_path / "a.safetensors")
    tensorwire.save_file({"w": np.frombuffer(weights(50_000, 3), np.uint16).view(ml_dtypes.bfloat16)}, shard)
    data = bytearray(shard.read_bytes())
    data[-5000] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptDataError) as caught:
        load_file(tmp_path)
    assert (caught.value.file, caught.value.tensor) == (shard, "w")
    assert load_file(tmp_path, verify=False)["w"].shape == (50_000,)


def test_a_shard_that_is_missing(model: Path) -> None:
    (model / SHARD).unlink()
    with pytest.raises(FileNotFoundError, match=f"which {INDEX} names, is missing; fetch it.*{SHARD}"):
        load_file(model)


@pytest.mark.parametrize("is_left", [False, True])
def test_a_whole_model_beside_an_index_of_others(model: Path, is_left: bool) -> None:
    """Transformers leaves the index when it saves a model whole that was saved in shards before."""
    (model / "model.safetensors").write_bytes(container([ONE]))
    if not is_left:
        (model / SHARD).unlink()
    with pytest.warns(RuntimeWarning, match=f"model.safetensors is read, .* the files that {INDEX} names") as caught:
        assert list(load_file(model)) == ["one"]
    assert len(caught) == 1
    if is_left:
        assert load_file(model / INDEX).keys() == TENSORS.keys()
    write_index(model, {"one": "model.safetensors"})
    assert list(load_file(model)) == ["one"]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ('{"w": "./a/w.safetensors"}', "'./a/w.safetensors' is read as 'a/w.safetensors'"),
        ('{"w": "a//./w.safetensors"}', "'a//./w.safetensors' is read as 'a/w.safetensors'"),
        ('{"w": "no", "w": "a/w.safetensors"}', "'w' stands twice in it; the last entry counts"),
        ('{"w": "a/w.safetensors", "x": "a/w.safetensors"}', "it lists the tensor 'x', which its file does not hold"),
        (
            '{"w": "a/w.safetensors", "x": "a/w.safetensors", "y": "a/w.safetensors"}',
            "it lists 2 tensors that their files do not hold, such as 'x'",
        ),
    ],
)
def test_indexes_that_are_odd(tmp_path: Path, text: str, notice: str, compressed: bool) -> None:
    path = tmp_path / "plain"
    (path / "a").mkdir(parents=True)
    (path / "a" / "w.safetensors").write_bytes(container([("w", "BF16", (5000,), weights(5000, 1))]))
    (path / INDEX).write_text(f'{{"metadata": {{"total_size": 10000}}, "weight_map": {text}}}')
    if compressed:
        report = compress_checkpoint(path, tmp_path / "packed")
        assert report.notices == (f"{INDEX}: {notice}",)
        decompress_checkpoint(tmp_path / "packed", tmp_path / "again")
        assert (tmp_path / "again" / INDEX).read_bytes() == (path / INDEX).read_bytes()
        path = tmp_path / "packed"
        index = json.loads((path / INDEX).read_text())
        assert index["weight_map"]["_w_tensorwire"] == index["weight_map"]["w"]
        assert index["metadata"]["total_size"] < 10000
    if not compressed or "twice" not in notice:
        with pytest.warns(RuntimeWarning) as caught:
            assert list(load_file(path)) == ["w"]
        assert [str(each.message) for each in caught] == [f"{path / INDEX}: {notice}"]
    assert [tensor.name for tensor in tensorwire.inspect(path).tensors] == ["w"]
    assert tensorwire.verify(path).ok


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("{}", "weight_map"),
        ('{"weight_map": {}}', "an empty one"),
        ('{"weight_map": {"one": "../a.safetensors"}}', "plain relative paths"),
        ('{"weight_map": {"one": 3}}', "plain relative paths"),
        ('{"weight_map": {"one": "\\ud800.safetensors"}}', "plain relative paths"),
        ('{"weight_map": {"one": "/a.safetensors"}}', "plain relative paths"),
    ],
)
def test_indexes_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m").mkdir()
    for directory in (tmp_path, tmp_path / "m"):
        (directory / "a.safetensors").write_bytes(container([ONE]))
    (tmp_path / "m" / INDEX).write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        open_file(tmp_path / "m")
    assert caught.value.file is not None


def test_places_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds no \.safetensors file$"):
        load_file(tmp_path)
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "a.safetensors").write_bytes(container([ONE]))
    with pytest.raises(ValueError, match=r"holds no \.safetensors file; 'unet' below it"):
        load_file(tmp_path)


def test_links_that_lead_nowhere(model: Path, tmp_path: Path) -> None:
    """As in the cache of a hub whose blobs are gone."""
    (model / SHARD).unlink()
    (model / SHARD).symlink_to("../blobs/x")
    link = tmp_path / "link.safetensors"
    link.symlink_to("none")
    is_plain = not (model / "tensorwire.json").exists()
    for path, calls in ((link, [load_file, tensorwire.verify]), (model, [load_file, tensorwire.inspect])):
        for call in [*calls, lambda path: compress_checkpoint(path, tmp_path / "x")] if is_plain else calls:
            with pytest.raises(FileNotFoundError, match=r"a link that leads nowhere, to .*; fetch the file again"):
                call(path)
    with pytest.raises(FileNotFoundError, match=f"which {INDEX} names, is a link that leads nowhere, to '../blobs/x'"):
        load_file(model)


@pytest.mark.parametrize("is_remote", [False, True])
def test_what_is_written_over_is_not_called_damaged(tmp_path: Path, is_remote: bool) -> None:
    """Unless it is damaged too: what was there when it was opened tells."""
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}/x" if is_remote else f"file://{tmp_path}/x"
    contents = []
    for seed in range(2):
        array = np.frombuffer(weights(200_000, seed, "F32"), np.float32)
        tensorwire.save_file({"w": array}, tmp_path / "made")
        contents.append((tmp_path / "made").read_bytes())
    with fsspec.open(url, "wb") as file:
        file.write(contents[0])
    with open_file(url) as reader:
        part = reader.get_slice("w")
        first = part[:10]
        with fsspec.open(url, "wb") as file:
            file.write(contents[1])
        for call in (lambda: part[150_000:], lambda: reader.get_tensor("w")):
            with pytest.raises(OSError, match="changed while it was read"):
                call()
    damaged = bytearray(contents[0])
    damaged[-70_000] ^= 1
    with fsspec.open(url, "wb") as file:
        file.write(damaged)
    with open_file(url) as reader:
        assert np.array_equal(reader.get_slice("w")[:10], first)
        with pytest.raises(CorruptDataError, match="fetch it again"):
            reader.get_slice("w")[100_000:]


def test_what_is_no_path() -> None:
    for value, advice in ((b"a.safetensors", r"got bytes; give os\.fsdecode\(path\)"), (io.BytesIO(), "got BytesIO")):
        for call in (load_file, open_file, tensorwire.verify, lambda path: tensorwire.save_file({}, path)):
            with pytest.raises(TypeError, match=f"expected a path or a URL, as str or os.PathLike, {advice}"):
                call(value)


def test_torch_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorwire.save_file({"w": np.zeros(3)}, tmp_path / "a.safetensors")
    monkeypatch.setitem(sys.modules, "torch", None)
    for options in ({}, {"device": "cuda"}):
        with pytest.raises(ImportError, match=r'framework "pt" needs PyTorch .*; pip install -U torch'):
            load_file(tmp_path / "a.safetensors", framework="pt", **options)


def test_names_that_no_header_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorwire.files import writer

    (tmp_path / "a.safetensors").write_bytes(container([("w" * 1000, "U8", (2000,), bytes(2000))]))
    monkeypatch.setattr(writer, "MAX_HEADER_NBYTES", 2900)
    monkeypatch.setattr(writer.CompressedWriter, "__init__", None)
    for call in (
        lambda: compress_checkpoint(tmp_path / "a.safetensors", tmp_path / "b"),
        lambda: tensorwire.save_file({"w" * 1000: np.zeros(9)}, tmp_path / "b"),
    ):
        with pytest.raises(tensorwire.LimitExceededError, match=r"need 3000 of or more.*spread the tensors"):
            call()
    assert not (tmp_path / "b").exists()


def test_tensors_go_to_the_device_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorwire.checkpoint.tensors import tensor_reader

    monkeypatch.setattr(tensor_reader, "_TRANSFER_NBYTES", 50_000)
    sizes: list[int] = []
    load_contents = tensor_reader.load_contents
    monkeypatch.setattr(
        tensor_reader, "load_contents", lambda *args: (sizes.append(sum(args[2])), load_contents(*args))[1]
    )
    entries = [(f"t{i}", "BF16", (10_000,), weights(10_000, i)) for i in range(5)]
    entries.append(("large", "BF16", (60_000,), weights(60_000, 9)))
    (tmp_path / "a.safetensors").write_bytes(container(entries))
    loaded = load_file(tmp_path, framework="pt", device="meta")
    assert list(loaded) == [entry[0] for entry in entries]
    assert sizes == [40_000, 40_000, 20_000, 120_000]
    sizes.clear()
    assert tensorwire.load_file(tmp_path, framework="pt")["large"].shape == (60_000,)
    assert sizes == [220_000]
