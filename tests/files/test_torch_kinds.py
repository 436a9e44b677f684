"""Kinds of torch files, as frameworks and tools write them: which are compressed, and that all come back."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import functools
import io
import pathlib
import random
import types
import uuid
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, inspect, load_file
from tensorwire.errors import FormatError

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class AttributeDict(dict[str, Any]):
    """As Lightning keeps its ``hyper_parameters``."""


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: str


class Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1


class Extended:
    """Made with keyword arguments, which protocol 4 has an opcode for."""

    def __new__(cls, *, value: int = 0) -> Extended:
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"value": 1}


WEIGHT = torch.arange(5000.0).sin()


def saved(value: Any, **options: Any) -> bytes:
    with io.BytesIO() as buffer:
        torch.save(value, buffer, **options)
        return buffer.getvalue()


def beside(value: Any, **options: Any) -> Callable[[], bytes]:
    """A file with this value beside a weight."""
    return lambda: saved({"state_dict": {"w": WEIGHT}, "beside": value}, **options)


def list_that_holds_itself() -> list[Any]:
    found: list[Any] = [1]
    found.append((found,))
    return found


def repacked(**options: Any) -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(io.BytesIO(saved({"w": WEIGHT}))) as old, zipfile.ZipFile(buffer, "w", **options) as new:
            for info in old.infolist():
                new.writestr(info.filename, old.read(info))
        return buffer.getvalue()


OPTIMIZER = {
    "state": {0: {"step": torch.tensor(1.0), "exp_avg": WEIGHT, "exp_avg_sq": WEIGHT.square()}},
    "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "foreach": None, "params": [0]}],
}

# All that `torch.load` takes with ``weights_only=True`` unasked.
PLAIN: dict[str, Callable[[], bytes]] = {
    "state dict": lambda: saved(torch.nn.Linear(60, 60).state_dict()),
    "optimizer": lambda: saved(OPTIMIZER),
    "views": lambda: saved({"a": WEIGHT, "b": WEIGHT[5:], "c": WEIGHT.view(50, 100).t()}),
    "parameter": lambda: saved(torch.nn.Parameter(WEIGHT)),
    "buffers with a name": lambda: saved({"w": torch.nn.Buffer(WEIGHT)}),
    "FP8": lambda: saved(WEIGHT.to(torch.float8_e4m3fn)),
    "BF16": lambda: saved(WEIGHT.bfloat16()),
    "complex": lambda: saved(torch.complex(WEIGHT, WEIGHT)),
    "uint16": lambda: saved(torch.arange(5000).to(torch.uint16)),
    "bool": lambda: saved(WEIGHT > 0),
    "sparse COO": lambda: saved(torch.eye(200).to_sparse()),
    "sparse CSR": lambda: saved(torch.eye(200).to_sparse_csr()),
    "quantized": lambda: saved(torch.quantize_per_tensor(WEIGHT, 0.1, 0, torch.quint8)),
    "nested": lambda: saved(torch.nested.nested_tensor([WEIGHT, WEIGHT[:9]])),
    "untyped storage": lambda: saved(WEIGHT.untyped_storage()),
    "random state": lambda: saved({"cpu": torch.get_rng_state(), "python": random.getstate()}),
    "texts, bytes, numbers": beside(["text", b"bytes", 1, 2.5, 2**70, None, True, 1j, {3}]),
    "counter": beside(collections.Counter("aab")),
    "shape, device, dtype": beside([torch.Size([1]), torch.device("cpu"), torch.bfloat16]),
    "bytes behind the archive": lambda: saved({"w": WEIGHT}) + b"\n",
    "packed again without packing": lambda: repacked(),
}

# What it takes only if it is told to, or never. Nothing is unpickled here, so they are as good as the others.
OBJECTS: dict[str, Callable[[], bytes]] = {
    "NumPy number": beside(np.float64(1.5)),
    "NumPy array": beside(np.arange(9)),
    "NumPy random state": beside(np.random.get_state()),  # noqa: NPY002 - what Trainer saves
    "Namespace": beside(argparse.Namespace(lr=1e-3)),
    "SimpleNamespace": beside(types.SimpleNamespace(lr=1e-3)),
    "path": beside(pathlib.PurePosixPath("runs") / "1"),
    "defaultdict": beside(collections.defaultdict(list, a=[1])),
    "deque": beside(collections.deque([1, 2], maxlen=5)),
    "date and time": beside(datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)),
    "time delta": beside(datetime.timedelta(hours=1)),
    "partial": beside(functools.partial(torch.optim.AdamW, lr=1e-3)),
    "function": beside(torch.nn.functional.gelu),
    "hyper_parameters": beside(AttributeDict(lr=1e-3, layers=[1, 2])),
    "enum": beside(Color.RED),
    "named tuple": beside(Pair(1, "b")),
    "class": beside(AttributeDict),
    "object with slots": beside(Slots(), pickle_protocol=2),
    "decimal, fraction, UUID": beside([decimal.Decimal(1), fractions.Fraction(1, 3), uuid.UUID(int=1)]),
    "range, slice, frozenset": beside([range(3), slice(1, 2), frozenset({1})]),
    "bytearray": beside(bytearray(b"x" * 400)),
    "module": lambda: saved(torch.nn.Linear(60, 60)),
    "tensor on meta": beside(torch.empty(3, 4, device="meta")),
    "generator state": beside(torch.Generator().get_state()),
    "list that holds itself": beside(list_that_holds_itself()),
    "made with keyword arguments": beside(Extended(), pickle_protocol=4),
    "protocol 1": beside([np.float64(1), {"a": 2**40}], pickle_protocol=1),
    "protocol 3": beside([b"bytes", np.float64(1)], pickle_protocol=3),
    "protocol 4": beside([{1, 2}, frozenset({3}), "x" * 300, np.float64(1)], pickle_protocol=4),
    "protocol 5": beside([bytearray(b"abc"), np.arange(9), pathlib.PurePosixPath("x")], pickle_protocol=5),
}

# No storage can be found, or none that is not packed already.
KEPT: dict[str, tuple[Callable[[], bytes], str]] = {
    "before torch 1.6": (lambda: saved({"w": WEIGHT}, _use_new_zipfile_serialization=False), "before torch 1.6"),
    "packed": (lambda: repacked(compression=zipfile.ZIP_DEFLATED), "is packed already"),
    "cut": (lambda: saved({"w": WEIGHT})[:-40], "zip archive is damaged"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says which kinds are in beta, or old
@pytest.mark.parametrize("kind", [*PLAIN, *OBJECTS])
def test_a_file_of_this_kind_gains_and_comes_back(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes((PLAIN | OBJECTS)[kind]())
    compress_checkpoint(path, tmp_path / "packed")
    assert (tmp_path / "packed").stat().st_size < path.stat().st_size
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert (tmp_path / "restored").read_bytes() == path.read_bytes()
    if kind in OBJECTS:  # the opcodes around a storage do not hide what it is
        assert max(inspect(path).tensors, key=lambda tensor: tensor.nbytes).dtype == "F32"


@pytest.mark.parametrize("kind", KEPT)
def test_a_file_in_which_no_storage_is_found_says_what_hinders(kind: str, tmp_path: Path) -> None:
    make, reason = KEPT[kind]
    (tmp_path / "x.ckpt").write_bytes(make())
    with pytest.raises(FormatError, match=reason):
        compress_checkpoint(tmp_path / "x.ckpt", tmp_path / "packed")


class Runs:
    """Leaves a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return pathlib.Path.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_code_in_a_file_never_runs_here(protocol: int, tmp_path: Path) -> None:
    path, made = tmp_path / "x.ckpt", tmp_path / "made"
    path.write_bytes(beside(Runs(made), pickle_protocol=protocol)())
    compress_checkpoint(path, tmp_path / "packed")
    assert load_file(tmp_path / "packed", framework="bytes")["data/0"] == WEIGHT.numpy().tobytes()
    inspect(path)
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert (tmp_path / "restored").read_bytes() == path.read_bytes()
    assert not made.exists()
    torch.load(path, weights_only=False)
    assert made.exists()  # it is such a file
