"""Distributed checkpoints, ours and torch's, as model directories and as torch files."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tensorwire import convert_checkpoint, load_file
from tensorwire.checkpoint.operations import distributed_conversion
from tensorwire.errors import (
    BaseMismatchError,
    CorruptDataError,
    LimitExceededError,
    TruncatedDataError,
    UnsupportedTensorError,
)
from tensorwire.storage.local import InputFile, OutputFile
from tests.support.distributed import WRITERS, each_writer, from_safetensors, same, save, saved, shard, state
from tests.support.stores import faulty_store
from tests.support.versions import is_torch_before

if TYPE_CHECKING:
    from tests.support.ranks import Ranks


def save_on_ranks(folder: Path) -> dict[str, bytes]:
    """By both writers. Returns the bytes of the whole model."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1001, 400), nn.Tanh(), nn.Linear(400, 33)).bfloat16()
    fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(8, 1001).bfloat16()).float().square().mean().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    columns = distribute_tensor(torch.randn(130, 67), init_device_mesh("cpu", (4,)), [Shard(1)])
    model_state |= {"columns": columns, "scale": torch.tensor(0.5)}
    for name, writer in WRITERS.items():
        dcp.save({"model": model_state, "optimizer": optimizer_state, "step": 3}, storage_writer=writer(folder / name))
    whole = {key: each.full_tensor() if isinstance(each, DTensor) else each for key, each in model_state.items()}
    return {key: each.reshape(-1).view(torch.uint8).numpy().tobytes() for key, each in whole.items()}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no fully_shard")
def test_four_ranks_become_one_directory_and_each_byte_is_read_once(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ranks.run(save_on_ranks, tmp_path)[0]
    own, read = InputFile.read_into, 0

    def counted(self: InputFile, offset: int, out: memoryview) -> None:
        nonlocal read
        read += len(out)
        own(self, offset, out)

    monkeypatch.setattr(InputFile, "read_into", counted)
    for name in WRITERS:
        read = 0
        convert_checkpoint(tmp_path / name, tmp_path / f"{name}.whole")
        nbytes = sum(path.stat().st_size for path in (tmp_path / name).iterdir())
        assert 0.5 * nbytes < read <= 1.05 * nbytes, name
        convert_checkpoint(tmp_path / name, tmp_path / f"{name}.model", key="model")
        found = load_file(tmp_path / f"{name}.model", framework="bytes")
        assert found == expected, name
        assert {f"model.{key}" for key in expected} < load_file(tmp_path / f"{name}.whole").keys()
    assert (tmp_path / "ours.whole/model.safetensors").read_bytes() == (
        tmp_path / "torchs.whole/model.safetensors"
    ).read_bytes()


@each_writer
def test_a_model_directory(tmp_path: Path, writer: str) -> None:
    saved(tmp_path / "c", writer, state(1))
    report = convert_checkpoint(tmp_path / "c", tmp_path / "all")
    assert from_safetensors(tmp_path / "all").keys() == {f"model.{name}" for name in state()["model"]}
    assert report.notices == (
        "names begin with a key of the state dict, 'model'; key (--key) takes what stands below one",
        *(f"left out, since it is no tensor: {name}" for name in ("step", "scheduler.rates", "scheduler.name")),
    )
    report = convert_checkpoint(tmp_path / "c", tmp_path / "model", key="model")
    assert same(from_safetensors(tmp_path / "model"), dict(sorted(state(1)["model"].items())))
    assert (report.notices, report.action, report.exact) == ((), "convert", True)
    assert [(file.path, file.num_tensors) for file in report.files] == [("model.safetensors", 7)]
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "c").stat().st_mode
    assert not list(tmp_path.glob("*.partial"))


@each_writer
def test_a_limit_comes_before_anything_is_written(tmp_path: Path, writer: str) -> None:
    saved(tmp_path / "c", writer, {"model": {"w": torch.zeros(300, 1000)}})
    with pytest.raises(LimitExceededError, match=r"at most 1199999 bytes, got one of 1200000 .*tensor 'model.w'"):
        convert_checkpoint(tmp_path / "c", tmp_path / "model", max_nbytes=1_199_999)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    convert_checkpoint(tmp_path / "c", tmp_path / "unlimited")
    room = (tmp_path / "unlimited/model.safetensors").stat().st_size
    with pytest.raises(LimitExceededError, match=r"together, got .* of this file \(file 'model.safetensors'"):
        convert_checkpoint(tmp_path / "c", tmp_path / "model", max_nbytes=room - 1)
    convert_checkpoint(tmp_path / "c", tmp_path / "model", max_nbytes=room)


def test_an_index_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_conversion, "_MAX_SHARD_NBYTES", 1)
    saved(tmp_path / "c", "ours", state(1))
    convert_checkpoint(tmp_path / "c", tmp_path / "unlimited", key="model")
    room = sum(path.stat().st_size for path in (tmp_path / "unlimited").iterdir())
    with pytest.raises(LimitExceededError, match=r"file 'model\.safetensors\.index\.json'"):
        convert_checkpoint(tmp_path / "c", tmp_path / "model", key="model", max_nbytes=room - 1)
    convert_checkpoint(tmp_path / "c", tmp_path / "model", key="model", max_nbytes=room)


class Zeros:
    """A value of which torch's weights_only loader makes far more than it takes."""

    def __reduce__(self) -> Any:
        return bytearray, (1 << 24,)


@each_writer
def test_what_is_no_tensor_counts_too(tmp_path: Path, writer: str) -> None:
    saved(tmp_path / "c", writer, {"w": torch.zeros(5), "text": "x" * 200_000})
    saved(tmp_path / "small", writer, {"w": torch.zeros(5), "zeros": Zeros()})
    for name, message in (("c", "got one of 20.*tensor 'text'"), ("small", "got one of .*file 'model.pt'")):
        with pytest.raises(LimitExceededError, match=f"at most 100000 bytes, {message}"):
            convert_checkpoint(tmp_path / name, tmp_path / "model.pt", to="torch", max_nbytes=100_000)
        assert {path.name for path in tmp_path.iterdir()} == {"c", "small"}
    convert_checkpoint(tmp_path / "c", tmp_path / "model.pt", to="torch", max_nbytes=300_000)


@each_writer
def test_a_torch_file_is_what_torch_makes(tmp_path: Path, writer: str) -> None:
    content = state(1) | {
        "empty": {},
        "list": [torch.ones(2), {"a": torch.zeros(3), "b": 7}, [], torch.arange(3)],
        "complex": torch.randn(5, 2, dtype=torch.complex128).T,
        "a.b": torch.ones(1),
        "none": None,
        "tuples": [(), (0.9, 0.999), (1, "a", None)],
        "betas": (0.9, 0.999),
    }
    saved(tmp_path / "c", writer, content)
    saved(tmp_path / "torchs", "torchs", content)
    dcp_to_torch_save(tmp_path / "torchs", tmp_path / "expected.pt")
    convert_checkpoint(tmp_path / "c", tmp_path / "found.pt", to="torch")
    expected, found = (torch.load(tmp_path / name, weights_only=True) for name in ("expected.pt", "found.pt"))
    assert list(found) == list(expected)
    assert same({key: found[key] for key in state()}, state(1))
    assert str(found) == str(expected)
    assert {"found.pt", "expected.pt", "c", "torchs"} >= {path.name for path in tmp_path.iterdir()}
    convert_checkpoint(tmp_path / "c", tmp_path / "found.pt", to="torch", key="model", force=True)
    assert same(torch.load(tmp_path / "found.pt", mmap=True), state(1)["model"])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("app", {"model.w": 1, "model.deep.w": 2, "x.y.w": 3}),
        ("app.model", {"w": 1, "deep.w": 2}),
        ("app.x", {"y.w": 3}),
        ("app.x.y", {"w": 3}),
        ("rates", {"0": 4, "1": 5}),
    ],
)
def test_a_key_takes_what_stands_below_it(tmp_path: Path, key: str, expected: dict[str, int]) -> None:
    def at(number: int) -> torch.Tensor:
        return torch.full((2,), number)

    content = {
        "app": {"model": {"w": at(1), "deep": {"w": at(2)}}, "x.y": {"w": at(3)}},
        "rates": [at(4), at(5)],
        "appendix": at(6),
    }
    saved(tmp_path / "c", "ours", content)
    convert_checkpoint(tmp_path / "c", tmp_path / "out", key=key)
    assert {name: int(each[0]) for name, each in from_safetensors(tmp_path / "out").items()} == expected
    convert_checkpoint(tmp_path / "c", tmp_path / "out.pt", key=key, to="torch")
    found = torch.load(tmp_path / "out.pt")
    if key == "app":
        assert found.keys() == {"model", "x.y"}
    if key == "app.model":
        assert (int(found["w"][0]), int(found["deep"]["w"][0])) == (1, 2)
    if key.startswith("app.x"):
        assert found.keys() == ({"w"} if key == "app.x.y" else {"y"})


def test_a_key_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    saved(tmp_path / "c", "ours", state(1))
    for key in ("modl", "model.weight", "", "step"):
        with pytest.raises(ValueError, match=r"nothing below the key .*; names begin with 'model', 'scheduler'"):
            convert_checkpoint(tmp_path / "c", tmp_path / "out", key=key)
    with pytest.raises(ValueError, match="expected a tensor to be written, got none"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out", key="scheduler")
    with pytest.raises(ValueError, match='expected "safetensors" or "torch" as to'):
        convert_checkpoint(tmp_path / "c", tmp_path / "out", to="gguf")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@each_writer
def test_large_ones_are_shards_with_an_index(tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_conversion, "_MAX_SHARD_NBYTES", 20_000)
    saved(tmp_path / "c", writer, state(1))
    report = convert_checkpoint(tmp_path / "c", tmp_path / "out", key="model")
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert [file.path for file in report.files] == [*names, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in state()["model"].values())
    assert index["weight_map"].keys() == state()["model"].keys()
    assert set(index["weight_map"].values()) == set(names)
    found = load_file(tmp_path / "out", framework="pt")
    assert same({name: found[name] for name in state()["model"]}, state(1)["model"])
    with pytest.raises(FileExistsError, match="already exists"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out", key="model")
    convert_checkpoint(tmp_path / "c", tmp_path / "out", key="model", force=True)
    (tmp_path / "out/config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"'config\.json'"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out", key="model", force=True)


@pytest.mark.slow
@each_writer
def test_transformers_loads_it_with_the_files_beside_it(tmp_path: Path, writer: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=256
    )
    model = transformers.LlamaForCausalLM(config).bfloat16()
    saved(tmp_path / "c", writer, {"app": {"model": model.state_dict()}, "step": 7})
    convert_checkpoint(tmp_path / "c", tmp_path / "out", key="app.model")
    model.config.save_pretrained(tmp_path / "out")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert same(dict(found.state_dict()), dict(model.state_dict()))


@pytest.mark.slow
def test_ours_needs_no_torch(tmp_path: Path) -> None:
    saved(tmp_path / "ours", "ours", state(1))
    saved(tmp_path / "torchs", "torchs", state(1))
    lines = [
        "import sys; sys.modules['torch'] = None; from tensorwire.cli import main",
        "print(main(['convert', 'ours', 'out', '--key', 'model', '-q']))",
        "print(main(['convert', 'torchs', 'other']))",
        "print(main(['convert', 'ours', 'out.pt', '--to', 'torch']))",
        "print(main(['convert', 'ours', '-']))",
    ]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["0", "2", "2", "2"], ran.stderr
    assert "'-' stands for one file" in ran.stderr
    assert "what torch's FileSystemWriter has written is read with PyTorch" in ran.stderr
    assert "a file of torch.save needs PyTorch" in ran.stderr
    assert same(from_safetensors(tmp_path / "out"), dict(sorted(state(1)["model"].items())))


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "float8_e8m0fnu", "uint16", "bool", "complex64"])
@each_writer
def test_other_dtypes(tmp_path: Path, writer: str, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    if dtype == "uint16" and is_torch_before(2, 6):
        pytest.skip("this torch saves no uint16")
    words = torch.arange(96, dtype=torch.uint8).reshape(4, 24) % (2 if dtype == "bool" else 255)
    values = {"w": words.view(getattr(torch, dtype)), "one": words[0, :8].clone().view(getattr(torch, dtype))[0]}
    saved(tmp_path / "c", writer, values)
    convert_checkpoint(tmp_path / "c", tmp_path / "out")
    convert_checkpoint(tmp_path / "c", tmp_path / "out.pt", to="torch")
    assert load_file(tmp_path / "out", framework="bytes")["w"] == words.numpy().tobytes()
    assert same(torch.load(tmp_path / "out.pt")["w"].view(torch.uint8), words)
    if dtype != "float4_e2m1fn_x2":  # which safetensors has in no shape ()
        assert same(from_safetensors(tmp_path / "out"), dict(sorted(values.items())))


@each_writer
def test_a_dtype_that_no_safetensors_file_holds(tmp_path: Path, writer: str) -> None:
    saved(tmp_path / "c", writer, {"w": torch.zeros(3, dtype=torch.complex128)})
    with pytest.raises(UnsupportedTensorError, match=r"holds complex128.*tensor 'w'.*--to torch"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@each_writer
def test_values_that_need_code_are_told(tmp_path: Path, writer: str) -> None:
    """A way out is to name what is trusted, as for torch's own loader."""
    saved(
        tmp_path / "c", writer, {"model": {"w": torch.ones(3)}, "rng": numpy.random.RandomState(0), "path": Path("a")}
    )
    with pytest.raises(ValueError, match=r"'(rng|path)' names \S+, which torch's weights_only loader does not take"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out.pt", to="torch")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    convert_checkpoint(tmp_path / "c", tmp_path / "out.pt", to="torch", key="model")
    assert "w" in torch.load(tmp_path / "out.pt")
    saved(tmp_path / "d", writer, {"path": Path("a")})
    with torch.serialization.safe_globals([type(Path("a"))]):
        convert_checkpoint(tmp_path / "d", tmp_path / "d.pt", to="torch")
        assert torch.load(tmp_path / "d.pt") == {"path": Path("a")}


def test_relative_to_an_earlier_one(tmp_path: Path) -> None:
    second = state(1)
    second["model"]["weight"][7] += 1
    save(tmp_path / "first", state(1))
    save(tmp_path / "second", second, base=tmp_path / "first")
    with pytest.raises(BaseMismatchError):
        convert_checkpoint(tmp_path / "second", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    convert_checkpoint(tmp_path / "second", tmp_path / "out", key="model", base=tmp_path / "first")
    assert same(from_safetensors(tmp_path / "out"), dict(sorted(second["model"].items())))


@each_writer
def test_urls(tmp_path: Path, writer: str) -> None:
    saved(tmp_path / "c", writer, state(1))
    with faulty_store() as store:
        for path in (tmp_path / "c").iterdir():
            store.pipe_file(f"/run/c/{path.name}", path.read_bytes())
        store.asked.clear()
        convert_checkpoint("faulty://run/c", "faulty://run/out", key="model")
        read = sum(arguments[2] - arguments[1] for name, arguments in store.asked if name == "cat_file")
        assert read <= 2.5 * sum(path.stat().st_size for path in (tmp_path / "c").iterdir()), "small parts are guessed"
        convert_checkpoint("faulty://run/c", "faulty://run/out.pt", to="torch")
        (tmp_path / "out").mkdir()
        (tmp_path / "out/model.safetensors").write_bytes(store.cat_file("/run/out/model.safetensors"))
        (tmp_path / "out.pt").write_bytes(store.cat_file("/run/out.pt"))
    assert same(from_safetensors(tmp_path / "out"), dict(sorted(state(1)["model"].items())))
    assert same(torch.load(tmp_path / "out.pt"), state(1))


@pytest.mark.parametrize("to", ["safetensors", "torch"])
@each_writer
def test_a_damaged_one_leaves_nothing(tmp_path: Path, writer: str, to: Any) -> None:
    saved(tmp_path / "c", writer, state(1))
    file = shard(tmp_path / "c")
    data = file.read_bytes()
    convert = partial(convert_checkpoint, tmp_path / "c", tmp_path / "out", to=to)
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(TruncatedDataError):
        convert()
    if writer == "ours":
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        start = pickle.loads((tmp_path / "c/.metadata").read_bytes()).storage_data
        first = next(place.offset for index, place in start.items() if index.fqn == "model.weight")
        file.write_bytes(data[:first] + bytes(200) + data[first + 200 :])
    with pytest.raises(CorruptDataError) as caught:
        convert()
    assert file.name in str(caught.value)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="is missing: copy it from where the checkpoint was saved"):
        convert()
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("to", "name", "text"),
    [
        (
            "safetensors",
            "x.safetensors",
            r"expected the name of a directory .* got 'x\.safetensors'; leave \.safetensors out",
        ),
        ("safetensors", "x.PT", r"leave \.pt out; to=\"torch\" \(--to torch\) writes one file"),
        ("torch", "x.safetensors", r"expected the name of a torch file .* got 'x\.safetensors'; to=\"safetensors\""),
    ],
)
def test_a_name_that_says_something_else_is_refused(tmp_path: Path, to: Any, name: str, text: str) -> None:
    saved(tmp_path / "c", "ours", state(1))
    with pytest.raises(ValueError, match=text):
        convert_checkpoint(tmp_path / "c", tmp_path / name, to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_what_is_no_distributed_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="in it; name the directory that was saved to") as caught:
        convert_checkpoint(tmp_path, tmp_path / "out")
    assert caught.value.filename == str(tmp_path), "its files are nothing that a user knows of"
    saved(tmp_path / "pytorch_model_fsdp_0", "torchs", state(1))
    with pytest.raises(FileNotFoundError, match="such as pytorch_model_fsdp_0 below it"):
        convert_checkpoint(tmp_path, tmp_path / "out")
    with pytest.raises(NotADirectoryError, match="expected the directory that a distributed checkpoint was saved to"):
        convert_checkpoint(tmp_path / "pytorch_model_fsdp_0/.metadata", tmp_path / "out")
    with faulty_store(), pytest.raises(FileNotFoundError, match="expected a distributed checkpoint"):
        convert_checkpoint("faulty://run/none", tmp_path / "out")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.save raises an error of its own, which does not say so."""
    saved(tmp_path / "c", "torchs", {"w": torch.ones(2**16)})
    write = OutputFile.write

    def full(file: OutputFile, offset: int, data: Any) -> None:
        if offset > 10_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, offset, data)

    monkeypatch.setattr(OutputFile, "write", full)
    with pytest.raises(OSError, match="No space left"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out", to="torch")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
