"""Other libraries that look for the memory of weights, and models with tensors of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from torch import nn  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch import CompressedTensor, compress_module  # noqa: E402
from tests.support.transformer_models import load, num_compressed, outputs, save, state  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers and accelerate warn of their own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models")
    save("llama-tied", root / "a")
    tensorwire.compress_checkpoint(root / "a", root / "b")
    return root


def test_accelerate_saves_and_loads_a_state(folder: Path, tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(load(folder / "b", "llama-tied"))
    before = num_compressed(model)
    accelerator.save_state(tmp_path / "state")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(tmp_path / "state")
    assert state(model) == state(load(folder / "a", "llama-tied"))
    assert num_compressed(model) == before


def test_accelerate_saves_a_model_as_the_dense_one(folder: Path, tmp_path: Path) -> None:
    for name in "ab":
        accelerate.Accelerator(cpu=True).save_model(load(folder / name, "llama-tied"), tmp_path / name)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


def test_disk_offload_says_what_to_do_first(folder: Path, tmp_path: Path) -> None:
    model = load(folder / "b", "llama-tied")
    accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    with pytest.raises(tensorwire.UnsupportedTensorError, match=r"disk_offload.*decompress_module"):
        outputs(model, generates=False)


class Strange(torch.Tensor):  # type: ignore[misc]
    """Its values lie in another tensor."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*(x._inner if isinstance(x, cls) else x for x in args), **(kwargs or {}))
        return cls(result) if func is torch.ops.aten.detach.default else result


class FakeSharded(Strange):
    """As a DTensor, whose values lie on several ranks."""

    def full_tensor(self) -> Any:
        return self._inner


@pytest.mark.parametrize(
    ("kind", "way_out"), [(Strange, "convert it to a plain tensor"), (FakeSharded, r"tensor\.full_tensor\(\)")]
)
def test_a_parameter_without_memory_of_its_own_is_named(kind: Any, way_out: str) -> None:
    model = nn.ModuleDict({"first": nn.Linear(300, 300), "second": nn.Sequential(nn.Linear(300, 300))})
    model["second"][0].weight = nn.Parameter(kind(torch.ones(300, 300)))
    with pytest.raises(tensorwire.UnsupportedTensorError, match=f"memory of its own.*{way_out}") as caught:
        compress_module(model)
    assert caught.value.tensor == "second.0.weight"
    assert "second.0.weight" in str(caught.value)
    assert isinstance(model["first"].weight, CompressedTensor)
    with pytest.raises(tensorwire.UnsupportedTensorError) as caught:
        compress_module(model["second"][0])
    assert caught.value.tensor == "weight"
