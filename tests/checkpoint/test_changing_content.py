"""Tensors, files and bases that somebody writes to while they are compressed: what is written can always be read, and
is what was hashed."""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
from tensorwire import checkpoint, codec
from tensorwire.codec.frame import core
from tensorwire.codec.frame import relative as _relative
from tensorwire.files import given_arrays as given
from tensorwire.files.base import BaseTensor
from tensorwire.files.reader import StoredFile
from tensorwire.storage.local import InputFile
from tests.support.acting import acting
from tests.support.checkpoint_models import container, random_bytes
from tests.support.stepping import mapped_and_written, step, stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Arrays = dict[str, np.ndarray[Any, Any]]


def arrays(seed: int, numel: int = 300_000) -> Arrays:
    """Weights that are frames, bytes that stay plain, and one that is too small for a frame."""
    random = np.random.default_rng(seed)
    return {
        "weights": random.normal(size=numel).astype(np.float32),
        "half": random.normal(size=(numel // 384, 384)).astype(np.float16),
        "noise": random.integers(0, 256, 3 * numel, dtype=np.uint8),
        "small": random.normal(size=9).astype(np.float32),
    }


def check_readable(path: Path, base: Path | None = None) -> None:
    """The file decodes, and each tensor has the content that its hash says."""
    loaded = tensorwire.load_file(path, base=base)
    with StoredFile(path) as stored:
        for name, tensor in stored.tensors.items():
            assert codec.content_hash(loaded[name]) == tensor.content_hash, name


def write_file(path: Path, tensors: Arrays) -> int:
    """A plain file; returns where its data begin."""
    names = {"float32": "F32", "float16": "F16", "uint8": "U8"}
    data = container([(n, names[str(a.dtype)], a.shape, a.tobytes()) for n, a in tensors.items()])
    path.write_bytes(data)
    return 8 + int.from_bytes(data[:8], "little")


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_tensors_that_a_thread_steps_are_saved(tmp_path: Path, profile: Any) -> None:
    tensors = arrays(1)
    with stepped(*tensors.values()):
        for _ in range(2):
            tensorwire.save_file(tensors, tmp_path / "saved.safetensors", profile=profile)
            check_readable(tmp_path / "saved.safetensors")


@pytest.mark.parametrize("packed", [False, True])
def test_tensors_that_a_thread_steps_are_saved_as_a_delta(tmp_path: Path, packed: bool) -> None:
    tensors = arrays(2)
    base = tmp_path / "base.safetensors"
    tensorwire.save_file(tensors, base) if packed else write_file(base, tensors)
    with stepped(*tensors.values()):
        for _ in range(2):
            tensorwire.save_file(tensors, tmp_path / "delta.safetensors", base=base)
            check_readable(tmp_path / "delta.safetensors", base)
    with StoredFile(tmp_path / "delta.safetensors") as stored:
        assert stored.is_relative(stored.tensors["weights"])


@pytest.mark.parametrize("profile", ["enec", "fast", "compact", "resident"])
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F8_E4M3"])
def test_a_frame_holds_what_its_hash_says(dtype: str, profile: Any) -> None:
    content = np.random.default_rng(3).normal(size=300_000).astype(np.float32)
    base = content.copy()
    step([content], 5)
    with stepped(content):
        for _ in range(2):
            shape = (8 * content.nbytes // codec.dtype_bits(dtype),)
            frame = tensorwire.compress(content, dtype=dtype, shape=shape, profile=profile)
            data = tensorwire.decompress(frame, framework="bytes")
            assert codec.content_hash(data) == tensorwire.frame_info(frame).content_hash
            if profile != "resident":
                delta = tensorwire.compress(content, profile=profile, base=base)
                data = tensorwire.decompress(delta, framework="bytes", base=base)
                assert codec.content_hash(data) == tensorwire.frame_info(delta).content_hash


@contextmanager
def first(wait: Callable[[], None], place: Any, name: str) -> Iterator[None]:
    """Wait before each call of a function. Without, a busy machine may let nobody write between two reads."""
    with pytest.MonkeyPatch.context() as patch:
        acting(patch, place, name, lambda *_: wait())
        yield


def test_a_base_that_changes_while_it_is_read_is_left_out() -> None:
    base = np.random.default_rng(4).normal(size=700_000).astype(np.float32)
    content = base.copy()
    with (
        stepped(base) as wait,
        first(wait, _relative, "hash_of"),
        pytest.warns(RuntimeWarning, match="the base changed while it was read"),
    ):
        frame = tensorwire.compress(content, base=base)
    assert tensorwire.frame_info(frame).base_hash is None
    assert np.array_equal(tensorwire.decompress(frame), content)


def test_a_file_of_a_base_that_changes_is_left_out(tmp_path: Path) -> None:
    tensors = arrays(5)
    base, delta = tmp_path / "base.safetensors", tmp_path / "delta.safetensors"
    start = write_file(base, tensors)
    with (
        mapped_and_written(base, start) as wait,
        first(wait, BaseTensor, "still_has"),
        pytest.warns(RuntimeWarning, match="without a base, which changed"),
    ):
        tensorwire.save_file(tensors, delta, base=base)
    loaded = tensorwire.load_file(delta)  # no base is asked for
    assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())

    new = tmp_path / "new.safetensors"
    write_file(new, tensors)
    with mapped_and_written(base, start) as wait, first(wait, BaseTensor, "still_has"):
        report = checkpoint.compress_checkpoint(new, tmp_path / "file", base=base)
    assert [note for note in report.notices if "new.safetensors: stored without a base, which changed" in note]
    checkpoint.decompress_checkpoint(tmp_path / "file", tmp_path / "restored")
    assert (tmp_path / "restored").read_bytes() == new.read_bytes()


def test_only_the_tensors_whose_base_changed_have_none(tmp_path: Path) -> None:
    """The other process writes behind the first tensor alone."""
    tensors = arrays(6)
    base, delta = tmp_path / "base.safetensors", tmp_path / "delta.safetensors"
    start = write_file(base, tensors)
    behind = start + tensors["weights"].nbytes
    with (
        mapped_and_written(base, behind) as wait,
        first(wait, BaseTensor, "still_has"),
        pytest.warns(RuntimeWarning, match="'?half"),
    ):
        tensorwire.save_file(tensors, delta, base=base)
    with StoredFile(delta) as stored:
        assert stored.is_relative(stored.tensors["weights"])
        assert not stored.is_relative(stored.tensors["half"])
    loaded = tensorwire.load_file(delta, base=base)
    assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())


@pytest.mark.parametrize("relative", [False, True])
def test_a_file_that_another_process_maps_and_writes_is_compressed(tmp_path: Path, relative: bool) -> None:
    source, base = tmp_path / "model.safetensors", tmp_path / "base.safetensors"
    tensors = arrays(7)
    start = write_file(source, tensors)
    write_file(base, tensors)
    with mapped_and_written(source, start):
        for attempt in range(2):
            packed = tmp_path / f"packed{attempt}"
            report = checkpoint.compress_checkpoint(source, packed, base=base if relative else None)
            assert not report.notices
            restored = tmp_path / f"restored{attempt}"
            assert checkpoint.decompress_checkpoint(packed, restored, base=base if relative else None).exact
            assert restored.stat().st_size == source.stat().st_size


def test_a_directory_that_another_process_maps_and_writes_is_compressed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    start = write_file(model / "model.safetensors", arrays(8))
    (model / "notes.bin").write_bytes(random_bytes(3, 3 << 20))
    with mapped_and_written(model / "model.safetensors", start), mapped_and_written(model / "notes.bin", 0):
        checkpoint.compress_checkpoint(model, tmp_path / "packed")
    report = checkpoint.verify(tmp_path / "packed")
    assert report.exact
    checkpoint.decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")


def test_a_file_that_changes_its_size_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model.safetensors"
    write_file(source, arrays(11))
    acting(monkeypatch, StoredFile, "read", lambda *_, **__: os.truncate(source, size), after=True)
    size = source.stat().st_size + 1
    with pytest.raises(OSError, match="got longer while it was read"):
        checkpoint.compress_checkpoint(source, tmp_path / "packed")
    write_file(source, arrays(11))
    size = 1_500_000
    with pytest.raises(tensorwire.TruncatedDataError, match="tensor 'half'"):
        checkpoint.compress_checkpoint(source, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_a_copied_file_that_gets_longer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_file(model / "model.safetensors", arrays(13))
    (model / "notes.bin").write_bytes(b"notes")

    def append(own: InputFile, offset: int, out: memoryview) -> None:
        if own.path.name == "notes.bin":
            os.truncate(own.path, own.nbytes + 4)

    acting(monkeypatch, InputFile, "read_into", append, after=True)
    with pytest.raises(OSError, match="got longer while it was read") as caught:
        checkpoint.compress_checkpoint(model, tmp_path / "packed")
    assert caught.value.filename == str(model / "notes.bin")
    assert not (tmp_path / "packed").exists()


def test_memory_that_is_freed_or_moved_is_an_error(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    array = np.arange(1 << 20, dtype=np.float32)
    view = codec.tensor_view(array)
    array.resize(1 << 23, refcheck=False)
    with pytest.raises(BufferError, match="freed, moved or cut"):
        view.check_memory()
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    view = codec.tensor_view(tensor)
    view.check_memory()
    tensor.untyped_storage().resize_(0)
    with pytest.raises(BufferError, match="freed, moved or cut"):
        view.check_memory()

    first, second = torch.ones(1 << 20), torch.ones(1 << 20)

    tensors = {"first": first, "second": second}

    def free_after_a_look(tensor: Any) -> Any:
        view = codec.tensor_view(tensor)
        if tensor is second:
            second.untyped_storage().resize_(0)
        return view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(given, "tensor_view", free_after_a_look)
        with pytest.raises(BufferError, match="tensor 'second': the memory"):
            tensorwire.save_file(tensors, tmp_path / "saved.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("freed", ["array", "base"])
def test_memory_that_is_freed_while_a_frame_is_made(freed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    tensors = {"array": torch.ones(1 << 20), "base": torch.ones(1 << 20)}
    acting(monkeypatch, core, "compress", lambda *_, **__: tensors[freed].untyped_storage().resize_(0), after=True)
    with pytest.raises(BufferError, match="freed, moved or cut"):
        tensorwire.compress(**tensors)


@pytest.mark.slow
def test_two_thousand_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A thread steps the weights; every second save is relative to a file, in turns plain and compressed."""
    tensors = arrays(12, numel=60_000)
    base = [tmp_path / "base.safetensors", tmp_path / "packed.safetensors"]
    write_file(base[0], tensors)
    tensorwire.save_file(tensors, base[1])
    saved = tmp_path / "saved.safetensors"
    num_relative = 0
    with stepped(*tensors.values()), warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(2000):
            profile: Any = ("fast", "compact", "enec")[number % 3]
            of = base[number // 2 % 2] if number % 2 else None
            tensorwire.save_file(tensors, saved, profile=profile, base=of)
            check_readable(saved, of)
            with StoredFile(saved) as stored:
                num_relative += sum(stored.is_relative(tensor) for tensor in stored.tensors.values()) > 0
    assert num_relative == 1000
    assert [path.name for path in tmp_path.iterdir() if path not in (saved, *base)] == []
    with capsys.disabled():
        print(f"\n2000 saves while a thread steps the weights, {num_relative} relative: all are readable")


def test_the_recipe_for_an_asynchronous_checkpoint(tmp_path: Path) -> None:
    """docs/api.md: the file has the weights of one moment, though an optimizer steps them."""
    torch = pytest.importorskip("torch")

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    snapshot = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    expected = {name: tensor.numpy().tobytes() for name, tensor in snapshot.items()}
    saved, torn = tmp_path / "saved.safetensors", tmp_path / "torn.safetensors"
    saving = threading.Thread(
        target=lambda: [tensorwire.save_file(*job) for job in 3 * [(snapshot, saved), (model.state_dict(), torn)]]
    )
    saving.start()
    while saving.is_alive():
        model(torch.ones(4, 512)).sum().backward()
        optimizer.step()
    loaded = tensorwire.load_file(saved)
    assert {name: array.tobytes() for name, array in loaded.items()} == expected
    check_readable(torn)


@pytest.mark.parametrize("wrong", [[np.ones(3)], np.ones(3), None])
def test_what_is_no_mapping_is_told_so(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected a mapping of names to tensors"):
        tensorwire.save_file(wrong, tmp_path / "x.safetensors")
