"""Tensors of more than one window, and, slow, of more than memory should hold."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    load_file,
    open_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.files.base import BaseTensor
from tensorwire.storage.pipeline import WINDOW_NBYTES, Worker, plan_windows, read_windows
from tests.support.acting import acting, raising
from tests.support.checkpoint_models import Entry, container, random_bytes, weights
from tests.support.deltas import step
from tests.support.processes import PRINT_PEAK_MEMORY

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def large_entries() -> list[Entry]:
    """Tensors of several windows that shrink and that do not, and small ones between them."""
    odd = 2 * WINDOW_NBYTES + 12_345
    rows = 10_000  # whose blocks do not divide a window
    return [
        ("a.small", "F32", (700,), weights(700, 1, "F32")),
        ("b.random", "U8", (odd,), random_bytes(odd, 2)),
        ("c.large", "BF16", (odd,), weights(odd, 3)),
        ("d.random", "F64", (WINDOW_NBYTES // 8,), random_bytes(WINDOW_NBYTES, 4)),
        ("e.scalar", "I64", (), bytes(8)),
        ("f.window", "F16", (WINDOW_NBYTES // 2,), weights(WINDOW_NBYTES // 2, 5, "F16")),
        ("g.small", "BF16", (3000,), weights(3000, 6)),
        ("h.rows", "BF16", (rows, 1000), weights(rows * 1000, 7)),
    ]


def test_tensors_of_several_windows(tmp_path: Path) -> None:
    source = tmp_path / "a"
    entries = large_entries()
    source.write_bytes(container(entries))
    report = compress_checkpoint(source, tmp_path / "b")
    assert report.files[0].num_compressed == 5  # all but noise and the scalar
    decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == source.read_bytes()
    loaded = load_file(tmp_path / "b", threads=3)
    assert {name: array.tobytes() for name, array in loaded.items()} == {entry[0]: entry[3] for entry in entries}


def large_pair(folder: Path) -> tuple[Path, Path]:
    """Files whose rows do not divide a window, one a training step behind the other."""
    old, new = folder / "old.safetensors", folder / "new.safetensors"
    shape = (6_001, 1_500)
    data = weights(6_001 * 1_500, 7)
    noise = ("b", "U8", (3000,), random_bytes(3000, 1))  # without a base, between two that have one
    old.write_bytes(container([("a", "BF16", shape, data), ("c", "BF16", (3000,), data[:6000])]))
    entries = [("a", "BF16", shape, step(data, 8)), noise, ("c", "BF16", (3000,), step(data[:6000], 9))]
    new.write_bytes(container(entries))
    return old, new


@pytest.mark.parametrize("form", ["plain", "compressed"])
def test_the_base_is_read_ahead_in_the_chunks_of_the_source(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = large_pair(tmp_path)
    reads: list[tuple[str, bool]] = []

    def count(own: BaseTensor, *_: Any, **__: Any) -> None:
        reads.append((own.name, threading.current_thread() is threading.main_thread()))

    acting(monkeypatch, BaseTensor, "read", count)
    if form == "plain":
        compress_checkpoint(new, tmp_path / "delta", base=old)
    else:
        compress_checkpoint(new, tmp_path / "packed")
        transcode_checkpoint(tmp_path / "packed", tmp_path / "delta", profile="compact", base=old)
    assert [name for name, _ in reads] == ["a"] * 3 + ["c"]
    assert not any(own for _, own in reads), "the thread that encodes reads nothing"
    monkeypatch.undo()
    decompress_checkpoint(tmp_path / "delta", tmp_path / "back", base=old)
    assert (tmp_path / "back").read_bytes() == new.read_bytes()


def test_a_base_that_cannot_be_read_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = large_pair(tmp_path)

    monkeypatch.setattr(BaseTensor, "read", raising(OSError(errno.EIO, os.strerror(errno.EIO), str(old))))
    with pytest.raises(OSError, match="Input/output error") as caught:
        compress_checkpoint(new, tmp_path / "delta", base=old)
    assert caught.value.filename == str(old)
    assert not (tmp_path / "delta").exists()


def test_an_interrupt_as_reading_begins_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more windows than buffers, so it waits for one that nothing gives back."""
    monkeypatch.setattr("tensorwire.storage.pipeline.WINDOW_NBYTES", 1000)
    own, caught = Worker.submit, threading.Event()

    def submit(self: Worker, *arguments: Any, **options: Any) -> None:
        own(self, *arguments, **options)
        raise KeyboardInterrupt

    def read() -> None:
        with pytest.raises(KeyboardInterrupt), read_windows([20_000], lambda chunk, out: None):
            raise AssertionError("it goes on")
        caught.set()

    monkeypatch.setattr(Worker, "submit", submit)
    threading.Thread(target=read, daemon=True).start()
    assert caught.wait(30)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [5, 0, WINDOW_NBYTES, 0, 7],
        [WINDOW_NBYTES - 1, 1, 1],
        [3 * WINDOW_NBYTES + 1, 2, WINDOW_NBYTES + 1],
        [MIB] * 20,
    ],
)
def test_windows_cover_everything_once(sizes: list[int]) -> None:
    windows = list(plan_windows(sizes))
    chunks = [chunk for window in windows for chunk in window]
    assert all(sum(chunk.stop - chunk.start for chunk in window) <= WINDOW_NBYTES for window in windows)
    covered = [0] * len(sizes)
    order = []
    for chunk in chunks:
        assert chunk.start == covered[chunk.tensor]
        assert chunk.stop == sizes[chunk.tensor] or (chunk.stop - chunk.start) % MIB == 0
        covered[chunk.tensor] = chunk.stop
        order.append(chunk.tensor)
    assert covered == sizes
    assert order == sorted(order)
    assert set(order) == set(range(len(sizes)))


def test_windows_of_large_tensors_are_whole_units() -> None:
    units = {1: 64_000, 3: 2_000_000}
    sizes = [5, 3 * WINDOW_NBYTES, 7, 2 * WINDOW_NBYTES + 1]
    chunks = [chunk for window in plan_windows(sizes, units.__getitem__) for chunk in window]
    for tensor, unit in units.items():
        *whole, last = [chunk for chunk in chunks if chunk.tensor == tensor]
        assert {chunk.stop - chunk.start for chunk in whole} == {WINDOW_NBYTES // unit * unit}
        assert last.stop == sizes[tensor]
        assert last.stop - last.start <= WINDOW_NBYTES


def write_sparse(path: Path, entries: list[tuple[str, str, int]]) -> None:
    """A file of vectors (name, dtype, size in MiB): zeros, with islands of weights at both ends and in the middle."""
    sizes = {"BF16": 2, "F32": 4, "U8": 1}
    island = np.frombuffer(weights(3 * MIB, 1), np.uint8).tobytes()
    header = container([(name, dtype, (mib * MIB // sizes[dtype],), b"") for name, dtype, mib in entries])
    text = header[8:].decode()
    position = 0
    for _, _, mib in entries:
        text = text.replace('"data_offsets": [0, 0]', f'"data_offsets": [{position}, {position + mib * MIB}]', 1)
        position += mib * MIB
    raw = text.encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        start = file.tell()
        file.truncate(start + position)
        for _, _, mib in entries:
            for at in (0, mib * MIB // 2 + 1, (mib - 6) * MIB):
                file.seek(start + at)
                file.write(island)
            start += mib * MIB


@pytest.mark.slow
def test_peak_memory(tmp_path: Path) -> None:
    """About 200 MiB, as docs/checkpoints.md says, whatever the size of model and tensor."""
    write_sparse(tmp_path / "a", [("large", "BF16", 1500), ("other", "F32", 300), ("small", "U8", 20)])
    code = """
        import os, sys
        from tensorwire import checkpoint
        os.chdir(sys.argv[1])
        checkpoint.compress_checkpoint("a", "b", threads=4)
        checkpoint.transcode_checkpoint("b", "c", profile="compact", threads=4)
        checkpoint.decompress_checkpoint("c", "d", threads=4)
        assert checkpoint.verify("b", threads=4).ok
        checkpoint.inspect("b", threads=4)
        assert checkpoint.diff("b", "d", threads=4).equal
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code) + PRINT_PEAK_MEMORY, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=True)
    assert subprocess.run(["cmp", tmp_path / "a", tmp_path / "d"], check=False).returncode == 0
    assert int(done.stdout) < 250 * MIB


@pytest.mark.slow
def test_memory_of_many_tensors(tmp_path: Path) -> None:
    """What a tensor takes of memory, however small it is, as docs/checkpoints.md says."""
    code = """
        import os, sys
        from tensorwire import checkpoint
        os.chdir(sys.argv[1])
        {
            "compress": lambda: checkpoint.compress_checkpoint("a", "b"),
            "decompress": lambda: checkpoint.decompress_checkpoint("b", "c"),
            "verify": lambda: checkpoint.verify("b"),
            "load": lambda: checkpoint.load_file("b"),
            "inspect a plain file": lambda: checkpoint.inspect("a"),
        }[sys.argv[2]]()
    """
    few, many = 10_000, 40_000
    for number in (few, many):
        (tmp_path / str(number)).mkdir()
        entries = [(f"model.layers.{i}.weight", "U8", (1,), b"1") for i in range(number)]
        (tmp_path / str(number) / "a").write_bytes(container(entries))
    for operation in ("compress", "decompress", "verify", "load", "inspect a plain file"):
        peaks = []
        for number in (few, many):
            program = textwrap.dedent(code) + PRINT_PEAK_MEMORY
            arguments = [sys.executable, "-c", program, str(tmp_path / str(number)), operation]
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=True)
            peaks.append(int(done.stdout))
        nbytes = (peaks[1] - peaks[0]) / (many - few)
        assert 100 < nbytes < (1000 if "plain" in operation else 3000), operation


@pytest.mark.slow
def test_a_tensor_beyond_4_gib(tmp_path: Path) -> None:
    mib = 4500
    write_sparse(tmp_path / "a", [("large", "BF16", mib)])
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").stat().st_size < 100 * MIB
    report = verify(tmp_path / "b")
    assert report.ok
    assert report.exact
    island = weights(3 * MIB, 1)
    with open_file(tmp_path / "b") as file:
        view = file.get_slice("large")
        start = (mib - 6) * MIB // 2
        assert view[start : start + 3 * MIB].tobytes() == island
        assert not view[start - 1000 : start].view(np.uint16).any()
    decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert subprocess.run(["cmp", tmp_path / "a", tmp_path / "c"], check=False).returncode == 0


@pytest.mark.slow
def test_thousands_of_flips_in_a_large_file(tmp_path: Path) -> None:
    entries = [("w", "BF16", (5 * MIB,), weights(5 * MIB, 1)), ("r", "U8", (MIB,), random_bytes(MIB, 2))]
    entries += [(f"norm.{i}", "F32", (100 + i,), weights(100 + i, i, "F32")) for i in range(50)]
    (tmp_path / "a").write_bytes(container(entries))
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    generator = np.random.default_rng(11)
    nbytes = (tmp_path / "b").stat().st_size
    with (tmp_path / "b").open("r+b") as file:
        for position in [*generator.integers(0, nbytes, 2000), *generator.integers(0, 20_000, 1000)]:
            mask = 1 << int(generator.integers(8))
            original = os.pread(file.fileno(), 1, int(position))
            os.pwrite(file.fileno(), bytes([original[0] ^ mask]), int(position))
            assert not verify(tmp_path / "b").ok, position
            os.pwrite(file.fileno(), original, int(position))
    assert verify(tmp_path / "b").ok
