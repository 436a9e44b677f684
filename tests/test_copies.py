"""What belongs to one object of one process is not copied by accident: each class that owns such a thing says so."""

from __future__ import annotations

import ast
import copy
import dataclasses
import gc
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire
from tensorwire._ground.copies import not_copied
from tensorwire.codec.products import PlacedFrame
from tensorwire.codec.view.bytes_builder import BytesBuilder
from tensorwire.storage.direct import DirectFile
from tensorwire.storage.local import InputFile, OutputFile
from tensorwire.storage.spool import SpoolFile
from tests.support.checkpoint_models import container

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "src" / "tensorwire", ROOT / "job" / "src" / "tensorwire_job")

# Calls whose result belongs to one object: descriptors and files, temporary ones, maps, locks and what else threads
# wait for, threads and pools, sockets, processes, kernels, and what is done when an object goes.
MAKERS = re.compile(
    r"""
    os\.(open|dup|fdopen|eventfd|pidfd_open|memfd_create|pipe2?) | open | .*path\.open | open_to_append
    | (tempfile\.)?(TemporaryFile|NamedTemporaryFile|SpooledTemporaryFile|TemporaryDirectory|mkdtemp|mkstemp)
    | mmap\.mmap
    | (threading\.)?(Lock|RLock|Condition|Event|Semaphore|BoundedSemaphore|Barrier|local|Thread|Timer)
    | (ThreadPool|ProcessPool)Executor | begin | (queue\.)?(Queue|SimpleQueue)
    | socket\.(socket|create_server|create_connection) | (subprocess\.)?Popen
    | selectors\.DefaultSelector | select\.(poll|epoll)
    | (weakref\.)?finalize | ExitStack | torch\.library\.Library | Descriptor
    """,
    re.VERBOSE,
)
BASES = {"threading.local"}
TYPES = {"int", "Descriptor", "FileIO", "socket.socket"}
"""What a function returns that has made a descriptor, or a socket."""
ADDRESSES = {"address", "addressof", "data_ptr"}

# Classes in which the test finds something that no object of theirs keeps, and what becomes of it.
KEEP_NOTHING = {
    "tensorwire._ground.new_file.NewFile": "closed before the method returns",
    "tensorwire.codec.view.arrays._Source": "it makes a view of the address, and Python lets nothing copy a view",
    "tensorwire_job.page.process.WaitClock": "closed before the method returns",
    "tensorwire_job.page.worker_server._UnixConnection": "closed before the method returns",
    "tensorwire.torch.products.joint._Waiting": "the module keeps the only one",
    "tensorwire.torch.tensors.elsewhere._Pickling": "the module keeps the only one",
    "tensorwire.torch.integrations.verl.TensorwireCheckpointEngine": "closed before the method returns",
    "tensorwire.storage.remote.RemotePath": "one lock for each store, which the module keeps",
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            yield ".".join(path.relative_to(package.parent).with_suffix("").parts), ast.parse(path.read_text())


def text_of(node: ast.expr) -> str:
    """Its source; that of a dotted name, which most are, without going through all that a source may be."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{text_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def made_in(nodes: list[ast.AST], others: set[str]) -> set[str]:
    """The makers that are called, unless a ``with`` statement ends what they make; `others` are makers too."""
    ended = {id(item.context_expr) for each in nodes if isinstance(each, ast.With) for item in each.items}
    calls = [each for each in nodes if isinstance(each, ast.Call) and id(each) not in ended]
    names = {text_of(call.func) for call in calls}
    return {name for name in names if MAKERS.fullmatch(name) or name in others}


def held_by(owner: ast.ClassDef, makers: set[str]) -> set[str]:
    """What belongs to one object of a class alone."""
    nodes = list(ast.walk(owner))
    found = made_in(nodes, makers) | ({text_of(base) for base in owner.bases} & BASES)
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            found.add("__del__")
        if isinstance(node, ast.arg) and node.annotation is not None:
            text = text_of(node.annotation)
            if text == "socket.socket" or (node.arg, text) == ("handle", "int"):  # by which native code knows memory
                found.add(f"{node.arg}: {text}")
        if isinstance(node, ast.Assign) and "self." in text_of(node.targets[0]):
            found |= {name for each in ast.walk(node.value) if (name := getattr(each, "attr", "")) in ADDRESSES}
    return found


def refuses(owner: ast.ClassDef) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and text_of(node.targets[0]) == "__reduce_ex__"
        and ast.unparse(node.value).startswith("not_copied(")
        for node in owner.body
    )


def test_each_owner_says_what_becomes_of_copies() -> None:
    owners, silent = set(), {}
    for module, tree in trees():
        makers = {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and node.returns is not None
            and text_of(node.returns).removesuffix(" | None") in TYPES
            and made_in(list(ast.walk(node)), set())
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and (held := held_by(node, makers)):
                owners.add(f"{module}.{node.name}")
                if not refuses(node):
                    silent[f"{module}.{node.name}"] = held
    assert len(owners) > len(KEEP_NOTHING)
    new = {name: held for name, held in silent.items() if name not in KEEP_NOTHING}
    assert not new, f"{new}: say not_copied in the class, or in KEEP_NOTHING why no object keeps it"
    assert silent.keys() == KEEP_NOTHING.keys(), "what owns nothing any more is to leave KEEP_NOTHING"


class Owner:
    __reduce_ex__ = not_copied("an open file", "open it again by its path")


@dataclasses.dataclass
class Holder:
    held: list[object]


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a dict": lambda value: copy.deepcopy({"held": value}),
    "asdict": lambda value: dataclasses.asdict(Holder([value])),
    **{f"pickle {number}": lambda value, number=number: pickle.dumps(value, number) for number in range(6)},
    "pickle of a list": lambda value: pickle.dumps([value]),
}


ONE, TWO = (np.full((64, 100), value, np.float32) for value in (1, 2))


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Two plain files of one layout."""
    found = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, array in zip(found, (ONE, TWO), strict=True):
        path.write_bytes(container([("w", "F32", array.shape, array.tobytes())]))
    return found


def test_all_ways_to_a_copy_ask_the_class() -> None:
    try_to_copy(Owner(), "got Owner, which has an open file; open it again by its path")


def try_to_copy(value: object, match: str = "expected an object that can be copied") -> None:
    for copied in WAYS.values():
        with pytest.raises(TypeError, match=match):
            copied(value)
    gc.collect()


@pytest.mark.parametrize("kind", ["a file", "a directory", "a slice"])
def test_a_reader_that_somebody_tried_to_copy_reads_on(paths: list[Path], kind: str) -> None:
    """A twin of its descriptor would close it, and the file that is opened next would get the number."""
    if kind == "a directory":
        other = paths[1].rename(paths[1].with_suffix(".other"))
        paths = [paths[0].parent, other]
    with tensorwire.open_file(paths[0]) as reader:
        try_to_copy(reader.get_slice("w") if kind == "a slice" else reader, "call open_file with the path again")
        with tensorwire.open_file(paths[1]) as other_reader:
            assert np.array_equal(reader.get_tensor("w"), ONE)
            assert np.array_equal(reader.get_slice("w")[:], ONE)
            assert np.array_equal(other_reader.get_tensor("w"), TWO)
        del other_reader
        gc.collect()
        assert np.array_equal(reader.get_tensor("w"), ONE)


def test_files_that_somebody_tried_to_copy_are_whole(tmp_path: Path) -> None:
    """These hold their descriptors as numbers, which anything copies."""
    with OutputFile(tmp_path / "new") as written, closing(SpoolFile()) as spool:
        written.write(0, b"content")
        spool.write(0, b"content")
        try_to_copy(written)
        try_to_copy(spool)
        written.sync()
        assert spool.read(0, 7) == b"content"
    assert (tmp_path / "new").read_bytes() == b"content"


def test_what_has_an_address_is_not_copied() -> None:
    builder = BytesBuilder(1 << 20)
    frame = bytes(tensorwire.compress(ONE))
    reader = tensorwire.FrameReader(frame)
    for value in (
        builder,
        PlacedFrame(reader, frame[reader.info.header_nbytes :], verify=True),
        tensorwire.FrameEncoder("F32", (3,)),
    ):
        try_to_copy(value)
    assert len(builder.finish(1 << 20)) == 1 << 20


def test_a_file_may_be_open_twice(paths: list[Path]) -> None:
    """Both go on by themselves, whichever is closed first."""
    first = InputFile(paths[0])
    second = first.duplicate()
    direct = DirectFile(first)
    expected = paths[0].read_bytes()
    first.close()
    assert second.read(0, second.nbytes) == direct.file.read(0, second.nbytes) == expected
    second.close()
    assert direct.file.read(0, len(expected)) == expected
    with pytest.raises(ValueError, match="is closed"):
        second.read(0, 1)
