"""The pickle of a torch file, read as text: every opcode, in bounded memory, whatever wrote it."""

from __future__ import annotations

import io
import pickle
import pickletools
import tracemalloc
import zipfile
from contextlib import suppress
from fractions import Fraction

import pytest

from tensorwire.errors import FormatError
from tensorwire.files import torch_pickle
from tensorwire.files.torch_pickle import read_storages

torch = pytest.importorskip("torch")


def test_every_opcode_of_every_protocol_is_followed() -> None:
    """What one does to the stack is read off the standard library; here each stands among what it needs."""
    for described in pickletools.opcodes:
        before = b"".join(b"(" if each is pickletools.markobject else b"N" for each in described.stack_before)
        if described.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            before = b"N"
        code = described.code.encode("latin-1")
        if code == b"." or "PERSID" in described.name:  # the end, and what no storage is refused for
            continue
        argument = ARGUMENTS.get(described.arg.name, b"") if described.arg is not None else b""
        assert read_storages(before + code + argument + b".") == {}, described.name


ARGUMENTS = {
    "uint1": b"\1", "uint2": b"\1\0", "uint4": b"\1\0\0\0", "uint8": bytes(8), "int4": bytes(4), "float8": bytes(8),
    "string1": b"\1a", "bytes1": b"\1a", "unicodestring1": b"\1a", "long1": b"\1\1", "string4": b"\1\0\0\0a",
    "bytes4": b"\1\0\0\0a", "unicodestring4": b"\1\0\0\0a", "long4": b"\1\0\0\0\1",
    "bytes8": b"\1" + bytes(7) + b"a", "bytearray8": b"\1" + bytes(7) + b"a", "unicodestring8": b"\1" + bytes(7) + b"a",
    "decimalnl_short": b"0\n", "decimalnl_long": b"7L\n", "floatnl": b"1.5\n", "stringnl": b"'a'\n",
    "unicodestringnl": b"a\n", "stringnl_noescape": b"a\n", "stringnl_noescape_pair": b"a\nb\n",
}  # fmt: skip


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("numel", [100, 2**33])
def test_a_storage_is_found_in_every_protocol(protocol: int, numel: int) -> None:
    class Key:
        values = ("storage", torch.BFloat16Storage, "7", "cpu", numel)

    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol)
    pickler.persistent_id = lambda each: each.values if isinstance(each, Key) else None  # type: ignore[method-assign]
    pickler.dump([Fraction(1, 3), Key(), {"x" * 300: Fraction}, Key()])
    assert read_storages(buffer.getvalue()) == {"7": ("BF16", 2 * numel)}


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


LONG_NAME = b"ctorch\n" + b"x" * 60 + b"\n"
"""It would be copied and hashed for each tensor that has it as its dtype."""


@pytest.mark.parametrize(
    "arguments", [WORD + b"NNNNNctorch\nuint16\n", NAMED_STORAGE + b"NNNNNN", NAMED_STORAGE + b"NNNNN" + LONG_NAME]
)
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


def test_no_chosen_index_makes_look_ups_slow() -> None:
    """The hashes of numbers are known to everybody, those of texts are not."""
    for kept in (b"p7\n", b"q\x07", b"r\x07\0\0\0", b"\x94"):
        reader = torch_pickle._StorageReader(WORD + kept + b".")
        reader.run()
        assert [type(index) for index in reader._memo] == [str]


def test_values_that_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte is enough to have one kept, which takes a hundred."""
    monkeypatch.setattr(torch_pickle, "_MAX_MEMO", 10)
    assert read_storages(WORD + b"\x94" * 10 + b".") == read_storages(b"N" + b"\x94" * 1000 + b".") == {}
    with pytest.raises(FormatError, match="comes back to more than 10 values"):
        read_storages(WORD + b"\x94" * 11 + b".")
