"""Metadata of a distributed checkpoint that somebody forged: what it takes to refuse it is bounded, by its own size."""

from __future__ import annotations

import json
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tensorwire.checkpoint.directory import distributed, distributed_pickle
from tensorwire.errors import FormatError
from tests.support.processes import exit_code

P = pickle
METADATA = b"\x8c\x25torch.distributed.checkpoint.metadata"


def doubled(levels: int = 60) -> bytes:
    """A tuple of itself twice, and that of itself twice: 2^60 values in 300 bytes."""
    return b"K\x01\x85" + b"".join(b"q%ch%c\x86" % (level, level) for level in range(levels))


def called(module: bytes, name: bytes, arguments: bytes, opcode: bytes = P.REDUCE) -> bytes:
    return b"c" + module + b"\n" + name + b"\n" + arguments + opcode


def made(name: bytes, state: bytes) -> bytes:
    """An object of a class of metadata."""
    return METADATA + b"\x8c" + bytes([len(name)]) + name + P.STACK_GLOBAL + b")" + P.NEWOBJ + state + P.BUILD


def text(value: bytes) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value


def metadata(**members: bytes) -> bytes:
    """A whole one, with other members."""
    all_ = {"state_dict_metadata": b"}", "storage_data": b"}", "planner_data": b"N"} | members
    return made(b"Metadata", b"}(" + b"".join(text(name.encode()) + value for name, value in all_.items()) + b"u")


MANY = 300_000
LONG = b"X" + struct.pack("<I", MANY) + b"x" * MANY
PICKLES = {
    "a key of a dict": b"}" + doubled() + b"K\x01s",
    "a key of a dict, of many": b"}(" + doubled() + b"K\x01" + doubled() + b"K\x02u",
    "a member of a set": b"\x8f(" + doubled() + b"\x90",
    "a frozen set": b"(" + doubled() + b"\x91",
    "getattr": called(b"builtins", b"getattr", doubled() + text(b"x") + b"\x86"),
    "a member of an enumeration": called(
        b"torch.distributed.checkpoint.metadata", b"_MEM_FORMAT_ENCODING", doubled() + b"\x85"
    ),
    "a size": called(b"torch", b"Size", doubled() + b"\x85"),
    "an ordered dict": called(b"collections", b"OrderedDict", doubled() + b"\x85"),
    "a path": called(b"pathlib", b"PosixPath", doubled() + b"\x85"),
    "an index": made(b"MetadataIndex", b"}" + text(b"fqn") + doubled() + b"s"),
    "a state": made(b"TensorProperties", doubled()),
    "a state that is given to something else": doubled() + b"}b",
    "storage under it": metadata(storage_data=b"}" + doubled() + b"K\x01s"),
    "state under it": metadata(state_dict_metadata=b"}" + doubled() + b"Ns"),
    "of a planner": metadata(planner_data=b"}" + text(b"a") + doubled() + b"s"),
    "of a planner, under it": metadata(planner_data=b"}" + doubled() + b"Ns"),
    "lists of lists": b"]" + b"".join(b"q%ch%ch%c\x86" % (n, n, n) for n in range(60)),
    "a list in itself": b"]\x94h\x00a",
    "a dict in itself": b"}\x94K\x01h\x00s",
    "an object in itself": METADATA + text(b"Metadata") + b"\x93)\x81\x94}" + text(b"x") + b"h\x02sb",
    "tuples in tuples": b")" + b"\x85" * MANY,
    "lists in lists": b"]" * MANY + b"a" * (MANY - 1),
    "dicts in dicts": b"}" + b"N}s" * 10 + b"K\x01" * 3 + b"(" * MANY,
    "marks": b"(" * MANY,
    "values that are put into nothing": b"]" * MANY,
    "duplicates": b"K\x01" + b"2" * MANY,
    "an integer of many digits": b"\x8b" + struct.pack("<i", 4 * MANY) + b"\x7f" * 4 * MANY,
    "an integer of 255 bytes": b"\x8a\xff" + b"\x7f" * 255,
    "an integer as text": b"I" + b"9" * 4000 + b"\n",
    "a long as text": b"L" + b"9" * MANY + b"L\n",
    "a number as text": b"F" + b"9" * MANY + b"\n",
    "a text as it is shown": b"S'" + b"\\" * MANY + b"'\n",
    "bytes that are not there": b"\x96" + struct.pack("<Q", 1 << 62),
    "a text that is not there": b"\x8d" + struct.pack("<Q", 1 << 62),
    "more bytes that are not there": b"\x8e" + struct.pack("<Q", 1 << 40),
    "short ones that are not there": b"X\xff\xff\xff\xff" + b"B\xff\xff\xff\xff",
    "a frame that is not there": b"\x95" + struct.pack("<Q", (1 << 63) - 1) + b"}",
    "frames in frames": (b"\x95" + struct.pack("<Q", 10)) * 100_000,
    "a place of the memo far away": b"Nr\xff\xff\xff\xff\x94j\xff\xff\xff\xff",
    "a place of the memo that is empty": b"h\x07",
    "an extension": b"\x82\x01",
    "a larger extension": b"\x84\x01\x00\x00\x00",
    "something from elsewhere": b"Pname\n",
    "something from elsewhere, nested": doubled() + b"Q",
    "an instance": b"(ios\nsystem\n",
    "an object": b"(cos\nsystem\no",
    "arguments by name": METADATA + text(b"Metadata") + b"\x93)}\x92",
    "a buffer": b"\x97\x98",
    "a name that is long": b"c" + b"m" * MANY + b"\n" + b"n" * MANY + b"\n",
    "a name in two lines without an end": b"cos",
    "a key without a value": b"}(K\x01u",
    "a name put together again and again": text(b"torch")
    + b"\x94"
    + LONG
    + b"\x94]("
    + b"h\x00h\x01\x93" * MANY
    + b"e",
    "a torch function": metadata(planner_data=called(b"torch", b"load", text(b"x") + b"\x85")),
    "a pickle of another module": called(b"os", b"system", text(b"true") + b"\x85"),
    "nothing": b"",
}

DEEP = "[" * 100_000 + "]" * 100_000
TEXTS = {
    "format of lists": json.dumps({"format": [[[]] * 1000] * 1000}),
    "version of many digits": f'{{"format": "tensorwire-dcp", "version": {"9" * 4000}}}',
    "version of too many digits": f'{{"format": "tensorwire-dcp", "version": {"9" * MANY}}}',
    "nested": f'{{"format": {DEEP}}}',
    "objects": '{"format":' * 100_000,
    "a key twice": '{"format": 1, "format": 2}',
    "a long format": json.dumps({"format": "\0" * MANY}),
    "no object": "[]",
    "no text": "\ud800",
}


def test_a_pickle_of_nothing_is_read(tmp_path: Path) -> None:
    """So what is refused below is refused for what was put into it."""
    whole = metadata(planner_data=b"}" + text(b"a") + text(b"b") + b"\x85s")
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + whole + b".")
    assert distributed.read(tmp_path) == {"state_dict": {}, "storage": [], "files": {}, "planner": {"a": ("b",)}}


def test_no_metadata_takes_more_than_its_own_size(tmp_path: Path) -> None:
    """In a process with a limit for memory and one for its own time: on a busy machine nothing is lost."""
    for kind, contents in ((".metadata", PICKLES), ("tensorwire-dcp.json", TEXTS)):
        for name, content in contents.items():
            folder = tmp_path / f"{kind} {name}"
            folder.mkdir()
            is_pickle = isinstance(content, bytes)
            data = b"\x80\x04" + content + b"." if is_pickle else content.encode(errors="surrogatepass")
            (folder / kind).write_bytes(data)

    def child() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        for folder in sorted(tmp_path.iterdir()):
            with pytest.raises(FormatError) as caught:
                distributed.read(folder)
            assert len(str(caught.value)) < 2000, folder

    assert exit_code(child) == 0


WEIGHER = """
import os, sys
from pathlib import Path
from tensorwire.checkpoint.directory import distributed, distributed_pickle
from tensorwire.errors import FormatError

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10

for folder in sys.argv[1:]:
    if os.fork() == 0:
        before = peak()
        try:
            distributed.read(Path(folder))
        except FormatError:
            print(peak() - before, flush=True)
        os._exit(0)
    os.wait()
"""
AGAIN = metadata(planner_data=b"}" + text(b"a") + b"](" + b"K\x01" * 250 + b"t\x94aCUTs").partition(b"CUT")
"""Values of a planner, one of which may be named again and again."""
FORGED = [
    ("tensorwire-dcp.json", b'{"format":"tensorwire-dcp","version":1,"x":[', b"[],", b"0]}", 40),
    ("tensorwire-dcp.json", b'{"format":"tensorwire-dcp","version":1,"x":[', b"[0],", b"0]}", 40),
    ("tensorwire-dcp.json", b'{"format":"tensorwire-dcp","version":1,"x":[', b"{},", b"0]}", 40),
    (".metadata", b"\x80\x04]", b"]a", b".", 100),
    (".metadata", b"\x80\x04]", b"\x94", b".", 100),
    (".metadata", b"\x80\x04]", b"]\x94a", b".", 100),
    (".metadata", b"\x80\x04" + AGAIN[0], b"h\x00a", AGAIN[2] + b".", 100),
]


@pytest.mark.parametrize("start", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_forged_metadata_takes_no_more_than_the_page_says(tmp_path: Path, start: int) -> None:
    """Each is read by a process that has nothing else in its memory."""
    forged = FORGED[start::2]
    folders = [tmp_path / str(number) for number in range(len(forged))]
    for folder, (name, first, each, last, _) in zip(folders, forged, strict=True):
        folder.mkdir()
        (folder / name).write_bytes(first + each * ((512 << 10) // len(each)) + last)
    run = subprocess.run([sys.executable, "-c", WEIGHER, *folders], capture_output=True, text=True, check=True)
    for folder, found, (name, *_, most) in zip(folders, run.stdout.split(), forged, strict=True):
        assert int(found) < most * (folder / name).stat().st_size


def test_no_chosen_index_makes_look_ups_slow() -> None:
    """The hashes of numbers are known to everybody, those of texts are not."""
    for kept in (b"q\x07", b"r\x07\0\0\0", b"\x94"):
        reader = distributed_pickle._MetadataReader(b"K\x01" + kept + b".")
        reader.run()
        assert [type(index) for index in reader._memo] == [str]


def test_no_chosen_corner_makes_look_ups_slow() -> None:
    assert distributed._corners([([0, 3], [2, 4])], [0, 1]) == {"[0, 3]": 1, "[0, 7]": -1, "[2, 3]": -1, "[2, 7]": 1}
