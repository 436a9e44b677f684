"""A file that one thread closes while others read it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint.directory.sources import originals
from tensorwire.storage.local import InputFile

if TYPE_CHECKING:
    from pathlib import Path


def test_a_read_that_goes_on_while_the_file_is_closed_reads_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the next one, which would get the number of its descriptor."""
    (tmp_path / "a").write_bytes(b"a" * 8)
    (tmp_path / "b").write_bytes(b"b" * 8)
    begun, closed = threading.Event(), threading.Event()
    preadv = os.preadv

    def slow(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        begun.set()
        assert closed.wait(10)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", slow)
    file = InputFile(tmp_path / "a")
    out = bytearray(8)
    reader = threading.Thread(target=file.read_into, args=(0, memoryview(out)))
    reader.start()
    assert begun.wait(10)
    file.close()
    with InputFile(tmp_path / "b"):
        closed.set()
        reader.join()
    assert out == b"a" * 8
    with pytest.raises(ValueError, match="is closed"):
        file.read_into(0, memoryview(out))


def test_a_closed_file_gives_its_descriptor_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    for _ in range(10):
        with InputFile(tmp_path / "a"):
            pass
        with pytest.raises(OSError, match="not a regular file"):
            InputFile(fifo(tmp_path))
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208


def test_a_first_look_that_refuses_a_file_closes_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "tensorwire"}}')
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(ValueError, match="compressed already") as refusal:
        originals(tmp_path, ())
    assert len(os.listdir("/proc/self/fd")) == before, refusal  # noqa: PTH208 - which keeps what the frames hold


def fifo(folder: Path) -> Path:
    path = folder / "pipe"
    if not path.exists():
        os.mkfifo(path)
    return path
