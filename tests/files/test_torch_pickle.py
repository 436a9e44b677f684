"""The pickle of a torch file, read as text: only what torch would load, in bounded memory, whoever wrote it."""

from __future__ import annotations

import ast
import io
import pickle
import re
import textwrap
import tracemalloc
import zipfile
from contextlib import suppress
from inspect import getsource
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire.errors import FormatError
from tensorwire.files.torch_pickle import ALLOWED, read_storages

torch = pytest.importorskip("torch")
_weights_only_unpickler = pytest.importorskip("torch._weights_only_unpickler")

if TYPE_CHECKING:
    from collections.abc import Callable


def test_what_is_read_torch_loads_with_weights_only() -> None:
    """Nothing that it would refuse is looked into: neither a global nor an opcode."""
    assert ALLOWED - _weights_only_unpickler._get_allowed_globals().keys() == set()
    ours = {opcode for opcode in range(256) if is_followed(opcode)}
    assert len(ours) > 30
    assert ours - followed_by(_weights_only_unpickler.Unpickler.load) == set()


def is_followed(opcode: int) -> bool:
    """Whether our reader knows an opcode; one alone is nearly always a damaged pickle."""
    try:
        read_storages(bytes([opcode]))
    except FormatError as error:
        return "has the opcode" not in error.message
    return True


def followed_by(load: Callable[..., Any]) -> set[int]:
    """The opcodes with which this method compares `key[0]`: ``key[0] == A[0]``, ``key[0] in [A[0], B[0]]``."""
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(getsource(load)))):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "key[0]":
            for name in re.findall(r"[A-Za-z_]\w*", ast.unparse(node.comparators[0])):
                found.add(getattr(pickle, name)[0])
    return found


@pytest.mark.parametrize("tuples", [b"\x85", b"(t"])
def test_deep_nesting_takes_no_stack(tuples: bytes) -> None:
    depth = 100_000
    deep = b"\x80\x02" + (b")" + b"\x85" * depth if tuples == b"\x85" else b"(" * depth + b"t" * depth) + b"."
    assert read_storages(deep) == {}


REBUILD = b"ctorch._utils\n_rebuild_tensor_v3\n"
WORD = b"U\x07storage"
NAMED_STORAGE = b"(" + WORD + b"ctorch\nFloatStorage\nU\x010U\x03cpuKdtQ"


def test_tuples_that_double_with_each_level_cost_nothing() -> None:
    """What has 60 levels would have 2^60 words, if somebody wrote it out."""
    levels = WORD + b"\x85q\x00"
    for level in range(60):
        levels += b"(" + WORD + b"h" + bytes([level]) + b"h" + bytes([level]) + b"NNtq" + bytes([level + 1])
    with pytest.raises(FormatError, match="makes a tensor in a way that torch does not write"):
        read_storages(b"\x80\x02" + levels + REBUILD + b"(" + NAMED_STORAGE + b"NNNNNh\x3ctR.")


@pytest.mark.parametrize("arguments", [WORD + b"NNNNNctorch\nuint16\n", NAMED_STORAGE + b"NNNNNN"])
def test_a_tensor_of_no_storage_or_no_dtype_is_refused(arguments: bytes) -> None:
    with pytest.raises(FormatError, match="makes a tensor in a way that torch does not write"):
        read_storages(b"\x80\x02" + REBUILD + b"(" + arguments + b"tR.")


def test_a_pickle_of_marks_is_refused_at_once() -> None:
    with pytest.raises(FormatError, match="nested more than 100000 levels"):
        read_storages(b"\x80\x02" + b"(" * (16 << 20))


def test_every_cut_and_every_changed_byte_of_a_pickle_is_read_or_refused() -> None:
    with io.BytesIO() as buffer:
        torch.save({"a": torch.zeros(100), "b": torch.zeros(9, dtype=torch.uint16)}, buffer)
        with zipfile.ZipFile(buffer) as archive:
            content = archive.read("archive/data.pkl")
    for position in range(len(content)):
        for damaged in (
            content[:position],
            bytes([*content[:position], content[position] ^ 0x55, *content[position + 1 :]]),
        ):
            with suppress(FormatError):
                read_storages(damaged)


def memo(count: int) -> bytes:
    """So many entries, which is how a table comes to be just larger than it was."""
    return b"N" + b"".join(b"r" + number.to_bytes(4, "little") for number in range(count))


FORGED = {
    "constants": b"N" * (1 << 17),
    "numbers": b"M\x34\x12" * (1 << 15),
    "texts": b"U\x02ab" * (1 << 15),
    "texts of wide characters": b"U\x01\xff" * (1 << 15),
    "globals": b"ctorch\nSize\n" * (1 << 13),
    "tuples": WORD + b"q\x00" + b"(h\x00NNNNt" * (1 << 13),
    "marks": b"(" * 50_000,
    "memo": memo(21_846),
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_memory_for_a_forged_pickle_is_bounded(content: bytes) -> None:
    """By 25 bytes for each of its own; docs/pytorch-files.md says what that is. Marks are bounded by their number."""
    tracemalloc.start()
    with pytest.raises(FormatError, match="damaged"):  # no STOP
        read_storages(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (25 * len(content) if b"((" not in content else 20 << 20)
