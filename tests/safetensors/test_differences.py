"""Ours and the package safetensors side by side: what both do alike, and each difference that the docs list."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")

Call = Callable[[Any, Any, Any], Any]
"""Calls of `safe_open`, and of the modules `torch` and `numpy`, in a directory with the files below."""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("safetensors.torch")
    tensors = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "s": torch.tensor(2.0)}
    module.save_file(tensors, "a", {"format": "pt"})
    module.save_file({"a": torch.ones(3, 4)}, "n")
    Path("bad").write_bytes(b"123")
    Path("dir").mkdir()


def outcome(package: str, call: Call) -> Any:
    """What a call gives, in values that can be compared; of an error its class."""
    modules = [importlib.import_module(f"{package}{name}") for name in ("", ".torch", ".numpy")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain(call(modules[0].safe_open, *modules[1:]))
    except Exception as error:
        named = next(each for each in type(error).__mro__ if not each.__module__.startswith("tensorwire."))
        is_own = isinstance(error, modules[0].SafetensorError)
        return "SafetensorError" if is_own else named.__name__


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return type(value).__name__, str(value.dtype), tuple(value.shape), value.tolist()
    return value if isinstance(value, (str, int, list, tuple, type(None))) else type(value).__name__


def closed(safe_open: Any) -> Any:
    with safe_open("a", "pt") as file:
        return file


def metadata_of(safe_open: Any, pt: Any, metadata: dict[str, str] | None) -> Any:
    pt.save_file({"a": torch.ones(3)}, "m", metadata)
    return safe_open("m", "pt").metadata()


def turned() -> Any:
    model = torch.nn.Linear(3, 4, bias=False)
    model.weight = torch.nn.Parameter(torch.zeros(3, 4).t())
    return model


def words_of(call: Callable[[], Any]) -> list[str]:
    """What an error says of keys, in the words of torch."""
    with pytest.raises(RuntimeError) as caught:
        call()
    return sorted(re.findall(r'\w+ key\(s\) in state_dict: "\w+", "\w+"', str(caught.value)))


ONE = torch.ones(3)
SAME: dict[str, Call] = {
    "tensor": lambda o, pt, np_: o("a", "pt").get_tensor("b"),
    "name of another type": lambda o, pt, np_: o("a", "pt").get_tensor(3),
    "no framework": lambda o, pt, np_: o("a"),
    "no file": lambda o, pt, np_: o("none", "pt"),
    "file of another type": lambda o, pt, np_: o(None, "np"),
    "damaged": lambda o, pt, np_: o("bad", "np"),
    "load_file": lambda o, pt, np_: pt.load_file("a"),
    "load_file, no file": lambda o, pt, np_: np_.load_file("none"),
    "load_file, damaged": lambda o, pt, np_: pt.load_file("bad"),
    "load, damaged": lambda o, pt, np_: pt.load(b""),
    "load, cut": lambda o, pt, np_: pt.load(Path("a").read_bytes()[:-4]),
    "load, text": lambda o, pt, np_: pt.load("123"),
    "no tensors": lambda o, pt, np_: pt.load(pt.save({})),
    "no name": lambda o, pt, np_: pt.load(pt.save({"": ONE})),
    "complex": lambda o, pt, np_: pt.load(pt.save({"a": torch.tensor([1 + 2j])})),
    "gradient": lambda o, pt, np_: pt.load(pt.save({"a": torch.ones(3, requires_grad=True)})),
    "shared": lambda o, pt, np_: pt.save({"a": ONE, "b": ONE}),
    "not contiguous": lambda o, pt, np_: pt.save({"a": torch.ones(3, 4).t()}),
    "sparse": lambda o, pt, np_: pt.save({"a": torch.eye(3).to_sparse()}),
    "big-endian": lambda o, pt, np_: np_.load(np_.save({"a": np.arange(3, dtype=">f4")})),
    "array of text": lambda o, pt, np_: np_.save({"a": np.array(["x"])}),
    "name that is not there": lambda o, pt, np_: o("a", "pt").get_tensor("x"),
    "slice that is not there": lambda o, pt, np_: o("a", "pt").get_slice("x"),
    "tensor of a closed file": lambda o, pt, np_: closed(o).get_tensor("a"),
    "keys of a closed file": lambda o, pt, np_: closed(o).keys(),
    "metadata of a closed file": lambda o, pt, np_: closed(o).metadata(),
    "slice of a closed file": lambda o, pt, np_: closed(o).get_slice("a"),
    "order of a closed file": lambda o, pt, np_: closed(o).offset_keys(),
    "tensors of a closed file": lambda o, pt, np_: closed(o).get_tensors(),
    "all tensors": lambda o, pt, np_: o("a", "pt").get_tensors(),
    "no such framework": lambda o, pt, np_: o("a", "x"),
    "no such device": lambda o, pt, np_: o("a", "pt", device="x"),
    "device of arrays": lambda o, pt, np_: o("a", "np", device="cuda"),
    "no such backend": lambda o, pt, np_: o("a", "pt", backend="x"),
    "list of arrays": lambda o, pt, np_: np_.save([1]),
    **{
        f"index {index!r}": lambda o, pt, np_, index=index: o("a", "np").get_slice("a")[index]  # type: ignore[misc]
        for index in (
            3,
            -4,
            (0, 4),
            (0, -5),
            (0, 0, 0),
            "x",
            1.5,
            (..., ...),
            2**70,
            slice(None, None, 0),
            ...,
            (),
            (1, -1),
        )
    },
    "empty metadata": lambda o, pt, np_: metadata_of(o, pt, {}),
    "no metadata": lambda o, pt, np_: metadata_of(o, pt, None),
    "order of names": lambda o, pt, np_: pt.save({"a": ONE, "b": ONE + 1}) == pt.save({"b": ONE + 1, "a": ONE}),
    "order of arrays": lambda o, pt, np_: (
        np_.save({"a": np.ones(3), "b": np.zeros(9)}) == np_.save({"b": np.zeros(9), "a": np.ones(3)})
    ),
    "model that is not contiguous": lambda o, pt, np_: pt.save_model(turned(), "x", force_contiguous=False),
    "words of torch": lambda o, pt, np_: words_of(lambda: pt.load_model(torch.nn.Linear(2, 2), "a")),
}
"""What both do alike, besides slices, names and metadata: tests/files/test_safe_open.py has those of both."""

DIFFERENT: dict[str, tuple[Call, Any, Any]] = {
    "number of tensors": (lambda o, pt, np_: len(o("a", "pt")), "TypeError", 3),
    "name in a file": (lambda o, pt, np_: "a" in o("a", "pt"), "TypeError", True),
    "framework of theirs": (lambda o, pt, np_: o("a", "tf"), "safe_open", "SafetensorError"),
    "index that is a list": (
        lambda o, pt, np_: o("a", "np").get_slice("a")[[0, 2]],
        "SafetensorError",
        ("ndarray", "float32", (2, 4), [[0.0, 1.0, 2.0, 3.0], [8.0, 9.0, 10.0, 11.0]]),
    ),
    "rows past the end": (
        lambda o, pt, np_: o("a", "np").get_slice("a")[2:9],
        "SafetensorError",
        ("ndarray", "float32", (1, 4), [[8.0, 9.0, 10.0, 11.0]]),
    ),
    "step backwards": (
        lambda o, pt, np_: o("n", "np").get_slice("a")[::-1],
        "SafetensorError",
        ("ndarray", "float32", (3, 4), [[1.0] * 4] * 3),
    ),
    "tensor on meta": (
        lambda o, pt, np_: pt.save({"a": torch.empty(3, device="meta")}),
        "NotImplementedError",
        "SafetensorError",
    ),
    "torch.device": (
        lambda o, pt, np_: o("a", "pt", device=torch.device("cpu")).get_tensor("s"),
        "SafetensorError",
        ("Tensor", "torch.float32", (), 2.0),
    ),
    "directory without weights": (lambda o, pt, np_: pt.load_file("dir"), "OSError", "ValueError"),
    "bytearray": (
        lambda o, pt, np_: pt.load(bytearray(Path("n").read_bytes())),
        "TypeError",
        {"a": ("Tensor", "torch.float32", (3, 4), [[1.0] * 4] * 3)},
    ),
    "metadata of numbers": (lambda o, pt, np_: pt.save({"a": ONE}, {"a": 1}), "TypeError", "ValueError"),
    "metadata in a list": (lambda o, pt, np_: pt.save({"a": ONE}, [("a", "b")]), "TypeError", "bytes"),
    "C128": (
        lambda o, pt, np_: pt.save({"a": torch.ones(3, dtype=torch.complex128)}),
        "KeyError",
        "SafetensorError",
    ),
    "tensor called `__metadata__`": (
        lambda o, pt, np_: pt.load(pt.save({"__metadata__": ONE})),
        "SafetensorError",
        "ValueError",
    ),
    "folder as the file": (lambda o, pt, np_: pt.save_file({"a": ONE}, "dir"), "SafetensorError", "FileExistsError"),
    "no such folder": (
        lambda o, pt, np_: pt.save_file({"a": ONE}, "no/x"),
        "SafetensorError",
        "FileNotFoundError",
    ),
    "array that is not contiguous": (
        lambda o, pt, np_: np_.load(np_.save({"a": np.arange(6.0)[::2]})),
        {"a": ("ndarray", "float64", (3,), [0.0, 1.0, 2.0])},
        {"a": ("ndarray", "float64", (3,), [0.0, 2.0, 4.0])},
    ),
    "conjugate view": (
        lambda o, pt, np_: pt.load(pt.save({"a": torch.tensor([1 + 2j]).conj()})),
        {"a": ("Tensor", "torch.complex64", (1,), [1 + 2j])},
        {"a": ("Tensor", "torch.complex64", (1,), [1 - 2j])},
    ),
    "torch tensor as an array": (lambda o, pt, np_: np_.save({"a": ONE}), "AttributeError", "bytes"),
    "number as an array": (lambda o, pt, np_: np_.save({"a": 1.0}), "AttributeError", "SafetensorError"),
}
"""By what the docs call it: the call, what safetensors does, what ours does."""


@pytest.mark.parametrize("case", SAME)
def test_both_do_the_same(case: str) -> None:
    assert outcome("tensorwire.safetensors", SAME[case]) == outcome("safetensors", SAME[case])


@pytest.mark.parametrize("case", DIFFERENT)
def test_each_difference_is_one_and_listed(case: str) -> None:
    call, theirs, ours = DIFFERENT[case]
    assert outcome("safetensors", call) == theirs
    assert outcome("tensorwire.safetensors", call) == ours
    docs = Path(__file__).parents[2].joinpath("docs/api-safetensors.md").read_text()
    assert f"| {case} |" in docs
