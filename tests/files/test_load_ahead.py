"""Tensors that are loaded before they are asked for: whatever is asked for, in whatever order, is what comes."""

from __future__ import annotations

import _thread
import gc
import os
import random
import signal
import threading
import time
import weakref
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire import CorruptDataError
from tensorwire.checkpoint import compress_checkpoint
from tensorwire.files import load_ahead
from tensorwire.files.load_ahead import LoadAhead
from tensorwire.files.reader import StoredFile
from tensorwire.storage.ahead import Ahead
from tests.support.acting import raising
from tests.support.checkpoint_models import container, random_bytes, weights
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tensorwire.files.reader import StoredTensor

    Pair = tuple[StoredFile, StoredTensor]

LARGE = 3_000_000  # words: more than what a thread takes at a time
CONTENT = {
    "empty": b"",
    "large": weights(LARGE, 0),
    "norm": weights(64, 1),
    "plain": random_bytes(10_000, 2),
    "second": weights(1_000_000, 3),
    "small": weights(70_000, 4),
    "third": weights(1_000_000, 5),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ahead")
    entries = [(name, "BF16", (len(data) // 2,), data) for name, data in CONTENT.items()]
    (root / "a").mkdir()
    (root / "a/model.safetensors").write_bytes(container(entries))
    compress_checkpoint(root / "a", root / "b")
    return root


@pytest.fixture
def file(folder: Path) -> Iterator[StoredFile]:
    with StoredFile(folder / "b/model.safetensors") as stored:
        yield stored


def pairs(stored: StoredFile) -> list[Pair]:
    return [(stored, tensor) for _, tensor in sorted(stored.tensors.items())]


def never(stored: StoredFile, tensor: StoredTensor) -> bool:
    return False


def held_names(ahead: LoadAhead) -> list[str]:
    return [ahead._work._tensors[entry.key][1].name for entry in ahead._ahead._entries]


@pytest.mark.parametrize("lead", [0, 1 << 20, 128 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_order(file: StoredFile, threads: int, lead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_ahead, "_LEAD_NBYTES", lead)
    generator = random.Random(0)
    for _ in range(4):
        ahead = LoadAhead(pairs(file), never, threads)
        asked = generator.choices(list(CONTENT), k=generator.randrange(10))  # some twice, some never
        for name in generator.choice([sorted(CONTENT), asked]):
            loaded = ahead.take(file, file.tensors[name])
            assert not loaded.is_frame
            assert loaded.data == CONTENT[name]
        ahead.close()


def test_what_stays_as_it_is(file: StoredFile, folder: Path) -> None:
    raw = (folder / "b/model.safetensors").read_bytes()
    ahead = LoadAhead(pairs(file), lambda stored, tensor: tensor.name in ("large", "plain"), 2)
    for name in CONTENT:
        tensor = file.tensors[name]
        begin = file.header.data_start + tensor.entry.start
        loaded = ahead.take(file, tensor)
        assert loaded.is_frame == (name == "large")
        assert loaded.data == (raw[begin : begin + tensor.entry.nbytes] if loaded.is_frame else CONTENT[name])


def test_no_more_is_loaded_than_the_lead(file: StoredFile, monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = {name: tensor.entry.nbytes for name, tensor in file.tensors.items()}
    monkeypatch.setattr(load_ahead, "_LEAD_NBYTES", nbytes["large"] + nbytes["norm"] + nbytes["plain"])
    ahead = LoadAhead(pairs(file), never, 2)
    wait_for(lambda: held_names(ahead) == ["empty", "large", "norm", "plain"])
    wait_for(lambda: all(entry.ready for entry in ahead._ahead._entries))
    ahead.take(file, file.tensors["large"])
    wait_for(lambda: held_names(ahead)[-3:] == ["second", "small", "third"])


def test_what_nobody_asks_for_does_not_stop_the_rest(file: StoredFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as large as all that may be held: it is dropped once something is asked for that lies behind it."""
    monkeypatch.setattr(load_ahead, "_LEAD_NBYTES", file.tensors["large"].entry.nbytes)
    ahead = LoadAhead(pairs(file), never, 2)
    wait_for(lambda: held_names(ahead) == ["empty", "large"])
    assert ahead.take(file, file.tensors["norm"]).data == CONTENT["norm"]
    wait_for(lambda: held_names(ahead) == ["plain", "second", "small", "third"])
    assert ahead.take(file, file.tensors["large"]).data == CONTENT["large"]


@pytest.mark.parametrize("as_frame", [False, True], ids=["content", "frame"])
def test_damage_is_an_error_for_who_asks(folder: Path, tmp_path: Path, as_frame: bool) -> None:
    path = tmp_path / "model.safetensors"
    data = bytearray((folder / "b/model.safetensors").read_bytes())
    with StoredFile(folder / "b/model.safetensors") as whole:
        tensor = whole.tensors["second"]
        data[whole.header.data_start + tensor.entry.stop - 1000] ^= 1
    path.write_bytes(data)
    with StoredFile(path) as file:
        ahead = LoadAhead(pairs(file), lambda stored, tensor: as_frame and tensor.name == "second", 2)
        for name in CONTENT:
            if name != "second":
                assert ahead.take(file, file.tensors[name]).data == CONTENT[name]
                continue
            for _ in range(2):
                with pytest.raises(CorruptDataError, match=r"second.*block"):
                    ahead.take(file, file.tensors[name])


def test_a_closed_file(folder: Path) -> None:
    file = StoredFile(folder / "b/model.safetensors")
    file.close()
    ahead = LoadAhead(pairs(file), never, 2)
    with pytest.raises(ValueError, match="closed"):
        ahead.take(file, file.tensors["large"])


def test_threads_end_when_it_is_closed_or_forgotten(file: StoredFile) -> None:
    closed, forgotten = (LoadAhead(pairs(file), never, 3) for _ in range(2))
    threads = closed._ahead._threads, forgotten._ahead._threads
    wait_for(lambda: [len(own) for own in threads] == [2, 2])
    closed.close()
    wait_for(lambda: [len(own) for own in threads] == [0, 2])
    del forgotten
    wait_for(lambda: [len(own) for own in threads] == [0, 0])


def test_without_threads(file: StoredFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", raising(RuntimeError("can't start new thread")))
    ahead = LoadAhead(pairs(file), never, 3)
    for name, content in CONTENT.items():
        assert ahead.take(file, file.tensors[name]).data == content


def test_an_empty_tensor_after_the_end(file: StoredFile) -> None:
    ahead = LoadAhead(pairs(file), never, 1)
    ahead.close()
    assert bytes(ahead.take(file, file.tensors["empty"]).data) == b""


def test_the_collector_may_forget_it_in_a_thread_of_its_own(file: StoredFile) -> None:
    """That thread holds a lock that another one waits for."""
    dropped = threading.Event()

    def collect(stored: StoredFile, tensor: StoredTensor) -> bool:
        dropped.wait(10)
        time.sleep(0.1)
        gc.collect()
        return False

    large = [(file, file.tensors["large"])]
    gc.disable()
    try:
        holder: list[Any] = [LoadAhead(large, collect, 4)]
        engine, gone = holder[0]._ahead, weakref.ref(holder[0])
        wait_for(lambda: len(engine._threads) > 1)
        holder.append(holder)  # a cycle
        del holder
        dropped.set()
        wait_for(lambda: gone() is None and not engine._threads)
    finally:
        gc.enable()


class Slow:
    """Work that takes long in the background."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def nbytes(self, key: int) -> int:
        return 2

    def step(self, key: int) -> int:
        return 1

    def memory(self, key: int) -> bytearray:
        return bytearray(2)

    def make(self, key: int, memory: bytearray, start: int, stop: int, ahead: bool) -> None:
        if ahead:
            self.begun.set()
            time.sleep(0.5)
        memory[start:stop] = b"x" * (stop - start)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_a_caller_waits() -> None:
    """A signal handler forks; in the child the threads are gone that were at parts of what is waited for."""
    children = []

    def fork(*_: object) -> None:
        children.append(os.fork())
        if children == [0]:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # ends a child that hangs

    work, old = Slow(), signal.signal(signal.SIGALRM, fork)
    try:
        with closing(Ahead(work, 100, order=[0], threads=2)) as ahead:
            assert work.begun.wait(10)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            lease = ahead.take(0)
            if children == [0]:
                os._exit(0 if lease is None else 1)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert lease is not None
    assert len(children) == 1
    assert os.waitpid(children[0], 0)[1] == 0
