"""Arrays that callers give: as the base of a file, and made one by one to be saved."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire import BaseMismatchError, CorruptDataError, UnsupportedTensorError, codec
from tensorwire.checkpoint import inspect, load_file, open_file, save_file, verify
from tensorwire.files.base import BaseTensor
from tensorwire.files.writer import CompressedWriter
from tensorwire.storage.pipeline import WINDOW_NBYTES
from tests.support.acting import acting
from tests.support.checkpoint_models import random_bytes, read_header, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Arrays = dict[str, np.ndarray[Any, Any]]
Item = tuple[str, str, tuple[int, ...], "Callable[[], Any]"]


def arrays(seed: int = 1) -> Arrays:
    """Tensors that become frames, one of several windows, one without gain, a small, an empty and a scalar one."""
    return {
        "a.weight": np.frombuffer(weights(90_000, seed), np.uint16).reshape(300, 300).view(np.float16),
        "b.noise": np.frombuffer(random_bytes(70_000, seed), np.uint8),
        "c.large": np.frombuffer(weights(WINDOW_NBYTES // 4 + 12_345, seed + 1, "F32"), np.float32),
        "d.small": np.arange(seed, seed + 9, dtype=np.int64),
        "e.empty": np.zeros((0, 3), np.float32),
        "f.scalar": np.array(seed, np.float64),
    }


def later(old: Arrays) -> Arrays:
    """A few words of each changed."""
    new = {}
    for name, array in old.items():
        words = array.copy().reshape(-1).view(f"u{array.itemsize}")
        words[::97] += words.dtype.type(1)
        new[name] = words.view(array.dtype).reshape(array.shape)
    return new


def same(found: Arrays, expected: Arrays) -> bool:
    layouts = [{name: (a.dtype, a.shape, a.tobytes()) for name, a in both.items()} for both in (found, expected)]
    return layouts[0] == layouts[1]


# Arrays as a base ---------------------------------------------------------------------------------------------------


def test_a_base_of_arrays(tmp_path: Path) -> None:
    """It is as good as a file of the same tensors: the frames are the same, and both read them."""
    old, new = arrays(), later(arrays())
    save_file(old, tmp_path / "old")
    save_file(new, tmp_path / "by file", base=tmp_path / "old")
    save_file(new, tmp_path / "by arrays", base=old)
    for path in (tmp_path / "by file", tmp_path / "by arrays"):
        for base in (old, tmp_path / "old"):
            assert same(load_file(path, base=base), new)
            with open_file(path, base=base) as file:
                for name in ("a.weight", "c.large"):
                    assert file.get_slice(name)[7:200].tobytes() == new[name][7:200].tobytes()
    assert verify(tmp_path / "by arrays", base=tmp_path / "old").ok
    tensors = [inspect(tmp_path / name).tensors for name in ("by file", "by arrays")]
    assert tensors[0] == tuple(_in_file(tensor, "by file") for tensor in tensors[1])
    assert {tensor.name for tensor in tensors[1] if tensor.base_hash} == {"a.weight", "b.noise", "c.large"}
    written = [read_header(tmp_path / name)["__metadata__"] for name in ("by file", "by arrays")]
    assert written[0].keys() - written[1].keys() == {"tensorwire.base_name"}  # arrays have none
    assert written[0]["tensorwire.base_hash"] == written[1]["tensorwire.base_hash"]


def _in_file(tensor: Any, name: str) -> Any:
    import dataclasses

    return dataclasses.replace(tensor, file=name)


def test_arrays_of_every_kind_that_compress_takes(tmp_path: Path) -> None:
    import ml_dtypes

    torch = pytest.importorskip("torch")

    data = weights(6000, 3)
    old: dict[str, Any] = {
        "torch": torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(60, 100),
        "strided": np.frombuffer(data, ml_dtypes.bfloat16).reshape(60, 100).T,
        "buffer": memoryview(data).cast("H"),
    }
    new = {
        "torch": (old["torch"].view(torch.int16) + 1).view(torch.bfloat16),
        "strided": (old["strided"].view(np.uint16) + np.uint16(1)).view(ml_dtypes.bfloat16),
        "buffer": np.frombuffer(data, np.uint16) + np.uint16(1),
    }
    save_file(new, tmp_path / "f", base=old)
    assert {tensor.name for tensor in inspect(tmp_path / "f").tensors if tensor.base_hash} == old.keys()
    found = load_file(tmp_path / "f", base=old, framework="bytes")
    expected = {name: bytes(codec.tensor_view(array).data) for name, array in new.items()}
    assert found == expected
    assert load_file(tmp_path / "f", framework="pt", base=old)["torch"].equal(new["torch"])


@pytest.mark.parametrize(
    ("base", "error"),
    [
        ({"a": [1, 2]}, UnsupportedTensorError),
        ({1: np.zeros(2)}, TypeError),
        ({"__metadata__": np.zeros(2)}, ValueError),
        (5, TypeError),
        ([np.zeros(3)], TypeError),
    ],
)
def test_what_is_no_base(tmp_path: Path, base: Any, error: type[Exception]) -> None:
    save_file({"a": np.zeros(2)}, tmp_path / "f")
    with pytest.raises(error):
        load_file(tmp_path / "f", base=base)
    with pytest.raises(error):
        save_file({"a": np.zeros(2)}, tmp_path / "g", base=base)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_arrays_that_are_not_the_base(tmp_path: Path) -> None:
    old, new = arrays(), later(arrays())
    save_file(new, tmp_path / "f", base=old)
    for base, text in (
        (arrays(seed=2), r"the one in 'the mapping given as base' has [0-9a-f]{32}"),
        (new, "was applied already"),
        ({}, "the mapping given as base has no tensor of this name"),
        ({"a.weight": old["a.weight"][1:]}, "the one in 'the mapping given as base' has 179400 bytes"),
    ):
        with pytest.raises(BaseMismatchError, match=text) as caught:
            load_file(tmp_path / "f", base=base)
        assert caught.value.file == tmp_path / "f"
        assert caught.value.tensor in ("a.weight", "b.noise")  # threads read both


def test_arrays_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a tensor is read its base is hashed; one that changes later gives no whole tensor unnoticed."""
    old, new = arrays(), later(arrays())
    save_file(new, tmp_path / "f", base=old)
    with open_file(tmp_path / "f", base=old) as file:
        file.get_slice("a.weight")[:1]
        old["a.weight"] = old["a.weight"].copy()  # of which the reader knows nothing
        assert file.get_tensor("a.weight").tobytes() == new["a.weight"].tobytes()
    changing = {name: array.copy() for name, array in old.items()}
    with open_file(tmp_path / "f", base=changing) as file:
        file.get_slice("a.weight")[:1]
        changing["a.weight"][3, 3] += 1
        with pytest.raises(CorruptDataError, match="the base changed while it was read"):
            file.get_tensor("a.weight")
    read = BaseTensor.read

    def torn(self: BaseTensor, start: int, out: memoryview, *, threads: int | None) -> None:
        changing["a.weight"][5, 5] += 1
        read(self, start, out, threads=threads)
        changing["a.weight"][5, 5] += 1

    monkeypatch.setattr(BaseTensor, "read", torn)
    with pytest.warns(RuntimeWarning, match=r"stored without a base, which changed while it was read: 'a\.weight'"):
        save_file({"a.weight": new["a.weight"]}, tmp_path / "g", base=changing)
    assert same(load_file(tmp_path / "g"), {"a.weight": new["a.weight"]})


def test_a_base_whose_memory_is_freed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    old = {"w": torch.ones(1 << 16)}
    save_file({"w": torch.ones(1 << 16) * 2}, tmp_path / "f", base=old)
    with open_file(tmp_path / "f", base=old) as file:
        old["w"].untyped_storage().resize_(0)
        with pytest.raises(BufferError, match="tensor 'w': the memory of the array was freed"):
            file.get_tensor("w")


# Arrays that are made one by one ------------------------------------------------------------------------------------


class Maker:
    """What makes copies of arrays, and knows how many of them are alive.

    Attributes:
        calls: how often each was made.
        most: how many were alive at once.
    """

    def __init__(self, tensors: Arrays) -> None:
        self._tensors = tensors
        self._alive: list[weakref.ref[Any]] = []
        self.calls: Counter[str] = Counter()
        self.most = 0

    def items(self) -> Iterator[Item]:
        dtypes = {"float16": "F16", "uint8": "U8", "float32": "F32", "int64": "I64", "float64": "F64", "uint16": "U16"}
        for name, array in self._tensors.items():
            yield name, dtypes[array.dtype.name], array.shape, lambda name=name: self._make(name)  # type: ignore[misc]

    def _make(self, name: str) -> np.ndarray[Any, Any]:
        array = self._tensors[name].copy()
        self._alive = [*(ref for ref in self._alive if ref() is not None), weakref.ref(array)]
        self.most = max(self.most, len(self._alive))
        self.calls[name] += 1
        return array


@pytest.mark.parametrize("profile", ["fast", "compact", "enec", "resident"])
def test_made_arrays_give_the_same_file(tmp_path: Path, profile: Any) -> None:
    maker = Maker(arrays())
    sizes = save_file(maker.items(), tmp_path / "made", profile=profile, metadata={"k": "v"})
    assert save_file(arrays(), tmp_path / "held", profile=profile, metadata={"k": "v"}) == sizes
    assert (tmp_path / "made").read_bytes() == (tmp_path / "held").read_bytes()
    assert maker.most == 1
    assert maker.calls == {**dict.fromkeys(arrays(), 1), "b.noise": 2}  # the one that stays plain is read again


def test_one_array_is_alive_with_a_base(tmp_path: Path) -> None:
    """Also where tensors are looked for by their content, which only the array tells."""
    old, new = arrays(), later(arrays())
    new["g.renamed"] = old["a.weight"].copy()
    maker = Maker(new)
    save_file(maker.items(), tmp_path / "made", base=old)
    save_file(new, tmp_path / "held", base=old)
    assert (tmp_path / "made").read_bytes() == (tmp_path / "held").read_bytes()
    assert maker.most == 1
    tensors = {tensor.name: tensor.base_name for tensor in inspect(tmp_path / "made").tensors}
    assert tensors["g.renamed"] == "a.weight"


def test_arrays_are_made_again_where_a_base_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = arrays(), later(arrays())
    monkeypatch.setattr(BaseTensor, "still_has", lambda self, found, threads: self.name != "c.large")
    maker = Maker(new)
    with pytest.warns(RuntimeWarning, match="stored without a base"):
        save_file(maker.items(), tmp_path / "f", base=old)
    assert maker.most == 1
    assert maker.calls["c.large"] == 2
    assert {tensor.name for tensor in inspect(tmp_path / "f").tensors if tensor.base_hash} == {"a.weight", "b.noise"}
    assert same(load_file(tmp_path / "f", base=old), new)


@pytest.mark.parametrize("based", [False, True])
def test_the_sizes_are_those_of_the_file(tmp_path: Path, based: bool) -> None:
    new = later(arrays())
    sizes = save_file(new, tmp_path / "f", base=arrays() if based else None)
    header = read_header(tmp_path / "f")
    stored = {}
    for name in new:
        module, _, parameter = name.rpartition(".")
        entry = header.get(f"{module}._{parameter}_tensorwire", header[name])
        stored[name] = entry["data_offsets"][1] - entry["data_offsets"][0]
    assert sizes == stored
    assert list(sizes) == list(new)
    start = 8 + int.from_bytes((tmp_path / "f").read_bytes()[:8], "little")
    assert sum(sizes.values()) == (tmp_path / "f").stat().st_size - start


GOOD: Item = ("w", "F32", (100,), lambda: np.ones(100, np.float32))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: np.ones(100, np.int32), r"an array of F32 \(100,\), as was said before, got I32 \(100,\)"),
        (lambda: np.ones((10, 10), np.float32), r"got F32 \(10, 10\)"),
        (lambda: np.ones(99, np.float32), r"got F32 \(99,\)"),
        (lambda: np.ones(400, np.uint8), r"got U8 \(400,\)"),
        (lambda: [1.0] * 100, "expected a NumPy array, a torch tensor or a buffer, got list"),
        (lambda: 1 / 0, "division by zero"),
    ],
)
def test_a_callable_that_gives_something_else(tmp_path: Path, make: Any, text: str) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises((ValueError, TypeError, ArithmeticError), match=text) as caught:
        save_file([GOOD, ("x", "F32", (100,), make)], tmp_path / "f")
    assert "'x'" in str(caught.value) or isinstance(caught.value, ZeroDivisionError)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"old")]


def test_a_callable_that_changes_its_mind(tmp_path: Path) -> None:
    """The second array of a tensor that stays plain is the one that is written and hashed."""

    def save(*contents: bytes) -> None:
        made = iter([np.frombuffer(content, np.uint8) for content in contents])
        save_file([("v", "U8", (4000,), lambda: next(made)), GOOD], tmp_path / "f")

    first, second = random_bytes(4000, 1), random_bytes(4000, 2)
    save(first, second)
    assert load_file(tmp_path / "f", framework="bytes")["v"] == second
    with pytest.raises(ValueError, match=r"got U8 \(3999,\)"):
        save(first, first[1:])
    assert load_file(tmp_path / "f", framework="bytes")["v"] == second


@pytest.mark.parametrize(
    ("item", "error", "text"),
    [
        (GOOD, ValueError, "expected unique names, got 'w' twice"),
        (("_w_tensorwire", *GOOD[1:]), ValueError, "rename it"),
        (("x", "float32", (100,), GOOD[3]), ValueError, "tensor 'x': .*; did you mean \"F32\""),
        (("x", np.float32, (100,), GOOD[3]), TypeError, "tensor 'x': .*; did you mean \"F32\""),
        (("x", "F99", (100,), GOOD[3]), ValueError, r"tensor 'x': expected a dtype and shape of whole bytes"),
        (("x", "F16_E6", (4,), GOOD[3]), ValueError, r"got F16_E6 \(4,\); safetensors has no dtype F16_E6"),
        (("x", "F32", 4, GOOD[3]), TypeError, "tensor 'x': expected a shape as a sequence of whole numbers, got 4"),
        (("x", "F4", (3,), GOOD[3]), ValueError, r"of whole bytes, got F4 \(3,\)"),
        (("x", "F32", (-1,), GOOD[3]), ValueError, r"of whole bytes, got F32 \(-1,\)"),
        (("x", "F32", (1.5,), GOOD[3]), TypeError, "tensor 'x': .*float"),
        ((1, *GOOD[1:]), TypeError, "expected names that are str, got int"),
        (("x", np.ones(3)), TypeError, r"\(name, dtype, shape, callable\) for each of them, got tuple"),
        (("x", "F32", (100,), np.ones(100)), TypeError, "tensor 'x': expected a callable .*, got ndarray"),
        ("w", TypeError, "got str"),
    ],
)
def test_items_that_are_none(tmp_path: Path, item: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        save_file([GOOD, item], tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_an_iterator_that_raises(tmp_path: Path) -> None:
    def items() -> Iterator[Item]:
        yield GOOD
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        save_file(items(), tmp_path / "f")
    assert not list(tmp_path.iterdir())


def fail() -> None:
    raise OSError("no such weights")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [(lambda: None, TypeError, "tensor 'w': .*return an array, got None"), (fail, OSError, "no such weights")],
    ids=["nothing", "an error"],
)
def test_a_callable_without_an_array(tmp_path: Path, make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        save_file([("w", "F32", (100,), make)], tmp_path / "f")
    assert not list(tmp_path.iterdir())
    if make is fail and sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["raised by the callable of tensor 'w'"]


def test_no_arrays_at_all(tmp_path: Path) -> None:
    assert save_file(iter(()), tmp_path / "f") == {}
    assert load_file(tmp_path / "f", base={}) == {}


@pytest.mark.parametrize(("is_made", "freed"), [(True, "first"), (True, "last"), (False, "last")])
def test_memory_that_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool, freed: str) -> None:
    """As FSDP frees what a hook has gathered: behind the last look at an array, before the next one is made."""
    torch = pytest.importorskip("torch")

    tensors = {"first": torch.ones(1 << 16), "last": torch.ones(1 << 16)}

    def free(own: CompressedWriter, index: int, *_: Any) -> None:
        if [*tensors][index] == freed:
            tensors[freed].untyped_storage().resize_(0)

    acting(monkeypatch, CompressedWriter, "put", free, after=True)
    made = [(name, "F32", (1 << 16,), lambda t=t: t) for name, t in tensors.items()]
    with pytest.raises(BufferError, match=f"tensor '{freed}': the memory of the array was freed"):
        save_file(made if is_made else tensors, tmp_path / "f")
    assert not list(tmp_path.iterdir())
