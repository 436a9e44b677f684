"""The calls of the package safetensors: the same signatures, and its own documented examples run with ours."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
import tensorwire.safetensors
from tensorwire.checkpoint import compress_checkpoint

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

CALLS = {
    "": ["safe_open"],
    ".numpy": ["load", "load_file", "save", "save_file"],
    ".torch": ["load", "load_file", "load_model", "save", "save_file", "save_model"],
}
NAMES = [(module, name) for module, names in CALLS.items() for name in names]


def both(module: str) -> tuple[ModuleType, ModuleType]:
    """The original, and ours."""
    original = importlib.import_module(f"safetensors{module}")
    return original, importlib.import_module(f"tensorwire.safetensors{module}")


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_signatures_are_those_of_the_originals(module: str, name: str) -> None:
    original, ours = (inspect.signature(getattr(each, name)).parameters for each in both(module))
    assert list(original) == list(ours)
    for parameter, theirs in original.items():
        assert ours[parameter].kind == theirs.kind
        if theirs.default is not ...:  # compiled code does not tell its defaults
            assert ours[parameter].default == theirs.default


@pytest.mark.parametrize("module", CALLS)
def test_all_calls_are_listed(module: str) -> None:
    _, ours = both(module)
    assert sorted(set(ours.__all__) - {"SafetensorError"}) == sorted(CALLS[module])


def examples(module: str, name: str) -> list[str]:
    text = inspect.getdoc(getattr(both(module)[0], name)) or ""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


WITH_EXAMPLES = [(module, name) for module, name in NAMES if examples(module, name)]


def test_there_are_examples() -> None:
    assert {name for _, name in WITH_EXAMPLES} == {"load", "load_file", "save", "save_file"}
    assert len(WITH_EXAMPLES) == 8


@pytest.mark.parametrize(("module", "name"), WITH_EXAMPLES)
@pytest.mark.parametrize("compressed", [False, True])
def test_examples_of_the_originals_run(
    module: str, name: str, compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my_folder" / "bert.safetensors"
    path.parent.mkdir()
    expected = {"embedding": np.linspace(0, 1, 2000, dtype=np.float32).reshape(20, 100)}
    (tensorwire.save_file if compressed else both(".numpy")[0].save_file)(expected, path)
    monkeypatch.chdir(tmp_path)
    for example in examples(module, name):
        variables: dict[str, Any] = {}
        exec(example.replace("from safetensors", "from tensorwire.safetensors"), variables)
        if "loaded" in variables:
            kind = np.ndarray if module == ".numpy" else torch.Tensor
            assert all(type(tensor) is kind for tensor in variables["loaded"].values())
            assert np.array_equal(np.asarray(variables["loaded"]["embedding"]), expected["embedding"])
        if "byte_data" in variables:
            assert type(variables["byte_data"]) is bytes
            loaded = both(module)[1].load(variables["byte_data"])
            assert {name: tensor.shape for name, tensor in loaded.items()} == {
                name: tensor.shape for name, tensor in variables["tensors"].items()
            }
        if name == "save_file":
            with tensorwire.open_file("model.safetensors") as file:
                assert file.keys() == ["attention", "embedding"]


def test_what_is_written_is_compressed_and_comes_back(tmp_path: Path) -> None:
    original, ours = both(".torch")
    torch.manual_seed(3)
    tensors = {"weight": torch.randn(60, 70), "half": torch.randn(3000).bfloat16()}
    tensors |= {"scalar": torch.tensor(2.0), "none": torch.empty(0, 4)}
    assert ours.save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"}) is None
    in_order = dict(sorted(tensors.items()))
    tensorwire.save_file(in_order, tmp_path / "b.safetensors", metadata={"format": "pt"})
    content = (tmp_path / "a.safetensors").read_bytes()
    assert content == (tmp_path / "b.safetensors").read_bytes() == ours.save(tensors, {"format": "pt"})
    assert len(content) < len(original.save(tensors))
    for found in (ours.load(content), ours.load_file(tmp_path / "a.safetensors", device="cpu", backend="pread")):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("framework", ["pt", "torch", "pytorch", "np", "numpy"])
@pytest.mark.parametrize("compressed", [False, True])
def test_safe_open_reads_both(framework: str, compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    both(".numpy")[0].save_file({"a": np.arange(3000, dtype=np.float32)}, path)
    if compressed:
        compress_checkpoint(path, tmp_path / "b.safetensors")
        path = tmp_path / "b.safetensors"
    with tensorwire.safetensors.safe_open(path, framework=framework, device="cpu") as file:
        assert type(file.get_slice("a")[5:9]) is (np.ndarray if framework.startswith("n") else torch.Tensor)
        assert file.get_tensor("a")[7] == 7


class Tied(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(50, 30)
        self.head = torch.nn.Linear(30, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = torch.nn.LayerNorm(30)


@pytest.mark.parametrize(("writer", "reader"), [(0, 0), (0, 1), (1, 1)])
def test_models_with_tied_weights(writer: int, reader: int, tmp_path: Path) -> None:
    """The original reads what the original wrote, and ours what both wrote."""
    modules = both(".torch")
    model, other = Tied(1), Tied(2)
    path = str(tmp_path / "model.safetensors")
    assert modules[writer].save_model(model, path, {"format": "pt"}) is None
    with tensorwire.open_file(path) as file:
        assert file.keys() == ["embedding.weight", "norm.bias", "norm.weight"]
        assert file.metadata() == {"format": "pt", "head.weight": "embedding.weight"}
    assert modules[reader].load_model(other, path) == (set(), [])
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("library", [0, 1])
def test_models_that_do_not_fit(library: int, tmp_path: Path) -> None:
    module = both(".torch")[library]
    path = str(tmp_path / "model.safetensors")
    module.save_model(torch.nn.Linear(3, 4), path)
    other = torch.nn.Linear(3, 4, bias=False)
    with pytest.raises(RuntimeError, match="bias"):
        module.load_model(other, path)
    assert module.load_model(other, path, strict=False) == (set(), ["bias"])
    module.save_model(other, path)
    assert module.load_model(torch.nn.Linear(3, 4), path, strict=False) == ({"bias"}, [])


@pytest.mark.parametrize("library", [0, 1])
def test_both_refuse_to_write_the_same(library: int, tmp_path: Path) -> None:
    module = both(".torch")[library]
    whole = torch.zeros(30, 40)
    cases: list[tuple[Any, type[Exception]]] = [
        ({"a": whole, "b": whole}, RuntimeError),
        ({"a": whole[:20], "b": whole[10:]}, RuntimeError),
        ({"a": whole.t()}, ValueError),
        ({"a": whole.to_sparse()}, ValueError),
        ({"a": [1, 2]}, ValueError),
        ([("a", whole)], ValueError),
    ]
    for given, error in cases:
        with pytest.raises(error):
            module.save(given)
        with pytest.raises(error):
            module.save_file(given, tmp_path / "a.safetensors")
    module.save({"a": whole[:10], "b": whole[10:]})  # of one storage, but apart
    model = torch.nn.Linear(3, 4, bias=False)
    model.weight = torch.nn.Parameter(torch.zeros(3, 4).t())
    module.save_model(model, str(tmp_path / "a.safetensors"))
    with pytest.raises(ValueError, match="contiguous"):
        module.save_model(model, str(tmp_path / "a.safetensors"), force_contiguous=False)
    views = torch.nn.Module()
    views.a, views.b = torch.nn.Parameter(whole[:20]), torch.nn.Parameter(whole[10:])
    with pytest.raises(RuntimeError):
        module.save_model(views, str(tmp_path / "a.safetensors"))


def test_errors_have_the_name_of_the_original(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"123")
    for _, ours in (both(".torch"), both(".numpy")):
        with pytest.raises(tensorwire.safetensors.SafetensorError, match="at least 8 bytes") as caught:
            ours.load(b"123")
        assert isinstance(caught.value, tensorwire.TensorwireError)
        assert caught.value.file is None
        with pytest.raises(tensorwire.safetensors.SafetensorError):
            ours.load_file(tmp_path / "a.safetensors")
        with pytest.raises(FileNotFoundError):
            ours.load_file(tmp_path / "b.safetensors")
        with pytest.raises(ValueError, match="backend"):
            ours.load_file(tmp_path / "a.safetensors", backend="disk")
    with pytest.raises(ValueError, match="backend"):
        tensorwire.safetensors.safe_open(tmp_path / "a.safetensors", "np", backend="disk")
