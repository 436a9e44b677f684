"""What the errors of arrays that cannot be compressed advise works: each piece of advice is followed here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import tensorwire
from tensorwire import UnsupportedTensorError
from tensorwire.checkpoint import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

EYE = torch.eye(50)
# Made when it is needed: torch warns that some of these are in beta, or old.
TENSORS = {
    "COO": lambda: EYE.to_sparse(),
    "CSR": lambda: EYE.to_sparse_csr(),
    "mkldnn": lambda: EYE.to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(EYE, 0.5, 3, torch.qint8),
    "quantized by channel": lambda: torch.quantize_per_channel(EYE, torch.ones(50), torch.zeros(50), 0, torch.quint8),
    "complex": lambda: torch.ones(3, dtype=torch.complex32),
    "complex number": lambda: torch.ones((), dtype=torch.complex32),
    "strided": lambda: torch.ones(4, 6, dtype=torch.complex32)[:, ::2],
    "bits": lambda: torch.zeros(3, dtype=torch.uint8).view(torch.bits8),
}
ARRAYS = {
    "text": np.array(["a", "bc"]),
    "dates": np.array("2020", "M8[D]"),
    "strided": np.zeros((4, 6), np.longdouble)[:, ::2],
    "complex": np.arange(3, dtype=np.clongdouble),
    "four bits": np.arange(3).astype(ml_dtypes.int4),
    "list": [1.0, 2.0],
    "number": 1.5,
}


def refused(value: object, path: Path) -> str:
    """The advice, which `compress` and `save_file` give alike."""
    with pytest.raises(UnsupportedTensorError) as caught:
        tensorwire.compress(value)
    with pytest.raises(UnsupportedTensorError, match="tensor 'w'") as of_file:
        save_file({"w": value}, path)
    assert of_file.value.advice == caught.value.advice
    assert not path.exists()
    return caught.value.advice


def is_stored(value: Any, path: Path) -> None:
    save_file({"w": value}, path)
    assert load_file(path, framework="bytes")["w"] == np.asarray(value).tobytes()
    assert tensorwire.decompress(tensorwire.compress(value), framework="bytes") == np.asarray(value).tobytes()


def follow(advice: str, **names: object) -> Any:
    """The value of the expression in the advice that begins with the name of what was given."""
    (name,) = names
    found = re.search(rf"(numpy\.asarray\({name}\)|(?<!\w){name}\.[\w.()-]+\)|{name}\.\w+)", advice)
    assert found is not None, advice
    return eval(found[1], {"numpy": np, "torch": torch, **names})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors(tmp_path: Path, kind: str) -> None:
    tensor = TENSORS[kind]()
    converted = follow(refused(tensor, tmp_path / "x"), tensor=tensor)
    is_stored(converted, tmp_path / "x")


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays(tmp_path: Path, kind: str) -> None:
    value = ARRAYS[kind]
    advice = refused(value, tmp_path / "x")
    converted = follow(advice, array=value) if isinstance(value, np.ndarray) else follow(advice, value=value)
    is_stored(converted, tmp_path / "x")


@pytest.mark.filterwarnings("ignore")
def test_what_has_parts(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(3), torch.zeros(4)])
    for part in follow(refused(nested, tmp_path / "x"), tensor=nested):
        is_stored(part, tmp_path / "x")
        (tmp_path / "x").unlink()
    masked = np.ma.MaskedArray([1.0, 2.0], mask=[False, True])
    advice = refused(masked, tmp_path / "x")
    assert "array.data and array.mask one by one" in advice
    is_stored(masked.data, tmp_path / "x")
    is_stored(masked.mask, tmp_path / "x")
    fields = np.zeros(3, [("a", "f4"), ("b", "i2")])
    (tmp_path / "x").unlink()
    assert "array[name]" in refused(fields, tmp_path / "x")
    for name in fields.dtype.names or ():
        is_stored(fields[name], tmp_path / "x")


def test_a_checkpoint_of_parts(tmp_path: Path) -> None:
    parts = {"model": {"w": torch.ones(3)}, "optimizer": {"step": torch.ones(1)}}
    with pytest.raises(UnsupportedTensorError, match=r'each under a name of its own, such as "model\.weight"'):
        save_file(parts, tmp_path / "x")
    flat = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    save_file(flat, tmp_path / "x")
    assert load_file(tmp_path / "x").keys() == {"model.w", "optimizer.step"}


@pytest.mark.parametrize("value", [torch.ones(3, device="meta"), None, "text", np.array([object()])])
def test_what_has_no_values_is_left_out(tmp_path: Path, value: object) -> None:
    assert "leave it out" in refused(value, tmp_path / "x")
