"""A small file may claim a large tensor: `max_nbytes` refuses it before memory or a disk gives room."""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire
from tensorwire import (
    CorruptDataError,
    LimitExceededError,
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    open_file,
    save_file,
)
from tensorwire.files import loader
from tensorwire.files.original_record import pack
from tests.support.checkpoint_models import container, edit_manifest, tree_hashes, weights, write_model
from tests.support.command_line import forked

CLAIMED = 1 << 24
LARGE = np.zeros(CLAIMED, np.uint8)
SMALL = np.arange(3000, dtype=np.float32)
WAY_OUT = r"allow a larger max_nbytes \(--max-nbytes\) if you trust the data$"
ONE = rf"expected a tensor of at most 1000000 bytes, got one of {CLAIMED} \(file '.*', tensor 'large'\); {WAY_OUT}"


@pytest.fixture(scope="module")
def claiming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("claims") / "model.safetensors"
    save_file({"small": SMALL, "large": LARGE}, path, profile="compact")
    assert path.stat().st_size < CLAIMED / 500
    return path


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_allocate", None)
    monkeypatch.setattr(loader, "new_buffer", None)


@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (math.nan, TypeError)])
def test_no_number_of_bytes(claiming: Path, tmp_path: Path, limit: Any, error: type[Exception]) -> None:
    for call in (
        lambda: tensorwire.load_file(claiming, max_nbytes=limit),
        lambda: open_file(claiming, max_nbytes=limit),
        lambda: decompress_checkpoint(claiming, tmp_path / "restored.safetensors", max_nbytes=limit),
    ):
        with pytest.raises(error, match="expected max_nbytes to be"):
            call()
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize(
    "options", [{}, {"framework": "bytes"}, {"framework": "pt", "compressed": True}, {"verify": False}], ids=str
)
def test_load_file(claiming: Path, options: dict[str, Any]) -> None:
    if options.get("framework") == "pt":
        pytest.importorskip("torch")
    for path in (claiming, claiming.parent):
        with pytest.raises(LimitExceededError, match=ONE):
            tensorwire.load_file(path, max_nbytes=1_000_000, **options)


@pytest.mark.usefixtures("no_memory")
def test_plain_files_too(tmp_path: Path) -> None:
    (tmp_path / "plain.safetensors").write_bytes(container([("w", "BF16", (500,), weights(500, 1))]))
    with pytest.raises(LimitExceededError, match="at most 999 bytes, got one of 1000"):
        tensorwire.load_file(tmp_path / "plain.safetensors", max_nbytes=999)


def test_tensors_that_fit_alone_count_together(tmp_path: Path) -> None:
    for number in range(2):
        save_file({f"{number}.a": SMALL, f"{number}.b": SMALL}, tmp_path / f"{number}.safetensors")
    total = 4 * SMALL.nbytes
    assert len(tensorwire.load_file(tmp_path, max_nbytes=total)) == 4
    text = rf"at most {total - 1} bytes together, got {total} with {SMALL.nbytes} of this tensor \(file '.*1\.safe"
    with pytest.raises(LimitExceededError, match=text):
        tensorwire.load_file(tmp_path, max_nbytes=total - 1)


def test_an_open_file_has_the_limit_for_each_call(claiming: Path) -> None:
    with tensorwire.open_file(claiming, max_nbytes=1_000_000) as reader:
        assert reader.get_tensor("small").tobytes() == SMALL.tobytes()
        rows = reader.get_slice("large")
        assert rows.get_shape() == [CLAIMED]
        assert not rows[5_000_000:6_000_000].any()
        for read in (
            lambda: reader.get_tensor("large"),
            lambda: reader.get_tensors(),
            lambda: rows[...],
            lambda: rows[::2],
            lambda: rows[:1_000_001],
        ):
            with pytest.raises(LimitExceededError, match=r"at most 1000000 bytes, got one of .*tensor 'large'"):
                read()


def test_decompress_writes_nothing(claiming: Path, tmp_path: Path) -> None:
    for name, array in (("a", SMALL), ("b", LARGE)):
        folder = tmp_path / "src" / name
        folder.mkdir(parents=True)
        content = {f"{name}.w": array} if name == "a" else {"small": SMALL, "large": array}
        (folder / "model.safetensors").write_bytes(
            container([(key, "U8", (each.nbytes,), each.tobytes()) for key, each in content.items()])
        )
    compress_checkpoint(tmp_path / "src", tmp_path / "dst")
    for path in (claiming, tmp_path / "dst"):
        with pytest.raises(LimitExceededError, match=ONE):
            decompress_checkpoint(path, tmp_path / "out", max_nbytes=1_000_000)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["dst", "src"]
    room = sum(path.stat().st_size for path in (tmp_path / "src").rglob("*.safetensors"))
    with pytest.raises(LimitExceededError, match="bytes together, got"):  # headers count, which a manifest holds packed
        decompress_checkpoint(tmp_path / "dst", tmp_path / "out", max_nbytes=room - 1)
    decompress_checkpoint(tmp_path / "dst", tmp_path / "out", max_nbytes=room)
    assert tree_hashes(tmp_path / "out") == tree_hashes(tmp_path / "src")


def test_files_that_a_manifest_holds(tmp_path: Path) -> None:
    """A manifest packs a configuration that it replaces a thousand to one."""
    write_model(tmp_path / "model")
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    with open_file(tmp_path / "packed") as reader:
        room = 2 * sum(reader.get_tensor(name).nbytes for name in reader.keys())  # noqa: SIM118

    def swell(body: dict[str, Any]) -> None:
        held = next(file for file in body["files"] if file["kind"] == "replaced")
        content = bytes(1 << 24)
        held.update(nbytes=len(content), sha256=hashlib.sha256(content).hexdigest(), content=pack(content))

    edit_manifest(tmp_path / "packed", swell)
    message = rf"expected a file of at most {room} bytes, got one of {1 << 24} \(file '.*\.json'\); {WAY_OUT}"
    with pytest.raises(LimitExceededError, match=message):
        decompress_checkpoint(tmp_path / "packed", tmp_path / "out", max_nbytes=room)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "packed"]
    decompress_checkpoint(tmp_path / "packed", tmp_path / "out", max_nbytes=room + (1 << 24))


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_what_a_file_has_beside_its_tensors(tmp_path: Path, kind: str) -> None:
    """A record packs it a thousand to one, and so does a manifest, whatever size that claims for the file."""
    original = tmp_path / "model" / "model"
    original.parent.mkdir()
    if kind == "safetensors":
        original = original.with_suffix(".safetensors")
        original.write_bytes(container([("w", "BF16", (9000,), weights(9000, 1))], {"text": "x" * (1 << 20)}))
    else:
        torch = pytest.importorskip("torch")
        torch.save({"w": torch.zeros(9000), "text": "x" * (1 << 20)}, original)
    compress_checkpoint(original, tmp_path / "single")
    compress_checkpoint(original.parent, tmp_path / "packed")
    room, before = original.stat().st_size, {*tmp_path.iterdir()}
    for path in (tmp_path / "single", tmp_path / "packed"):
        with pytest.raises(LimitExceededError, match=r"at most 50000 bytes, got one of 10.* "):
            decompress_checkpoint(path, tmp_path / "out", max_nbytes=50_000)
        with pytest.raises(LimitExceededError, match=rf"together, got {room} with .* of this file"):
            decompress_checkpoint(path, tmp_path / "out", max_nbytes=room - 1)
        assert {*tmp_path.iterdir()} == before
        decompress_checkpoint(path, tmp_path / "out", max_nbytes=room)
        (shutil.rmtree if path.is_dir() else Path.unlink)(tmp_path / "out")

    def shrink(body: dict[str, Any]) -> None:
        body["files"][0]["nbytes"] = 40_000

    edit_manifest(tmp_path / "packed", shrink)
    with pytest.raises(CorruptDataError, match=f"an original of 40000 bytes, got {room}"):
        decompress_checkpoint(tmp_path / "packed", tmp_path / "out", max_nbytes=50_000)
    assert {*tmp_path.iterdir()} == before


def test_copied_files_as_large_as_they_are_now(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    room = sum(path.stat().st_size for path in (tmp_path / "model").rglob("*") if path.is_file())
    copied = tmp_path / "packed" / "tokenizer.json"
    with copied.open("r+b") as file:
        file.truncate(1 << 26)  # which takes nothing of the disk
    with pytest.raises(LimitExceededError, match=rf"got one of {1 << 26} \(file '.*tokenizer\.json'"):
        decompress_checkpoint(tmp_path / "packed", tmp_path / "out", max_nbytes=room)
    copied.unlink()
    room -= (tmp_path / "model" / "tokenizer.json").stat().st_size
    with pytest.raises(LimitExceededError, match="together"):
        decompress_checkpoint(tmp_path / "packed", tmp_path / "out", max_nbytes=room - 1)
    decompress_checkpoint(tmp_path / "packed", tmp_path / "out", max_nbytes=room)


def test_apply_changes_nothing(tmp_path: Path) -> None:
    old, new, delta = (tmp_path / f"{name}.safetensors" for name in ("old", "new", "delta"))
    first = ("w", "BF16", (9000,), weights(9000, 1))
    old.write_bytes(container([first]))
    new.write_bytes(container([first, ("large", "U8", (CLAIMED,), LARGE.tobytes())]))
    compress_checkpoint(new, delta, base=old)
    before = tree_hashes(tmp_path)
    with pytest.raises(LimitExceededError, match=ONE):
        apply_checkpoint(delta, old, max_nbytes=1_000_000)
    assert tree_hashes(tmp_path) == before
    room = new.stat().st_size
    with pytest.raises(LimitExceededError, match=r"together, got .* of this file"):
        apply_checkpoint(delta, old, max_nbytes=room - 1)
    apply_checkpoint(delta, old, max_nbytes=room)
    assert old.read_bytes() == new.read_bytes()


def test_the_command_line(claiming: Path, tmp_path: Path) -> None:
    for source in (str(claiming), "-"):
        stream = claiming.read_bytes() if source == "-" else None
        run = forked("decompress", source, str(tmp_path / "out"), "--max-nbytes", "1MB", input=stream)
        assert run.returncode == 1
        assert f"at most 1000000 bytes, got one of {CLAIMED}" in run.stderr.decode()
        assert list(tmp_path.iterdir()) == []
    run = forked("decompress", str(claiming), str(tmp_path / "out"), "--max-nbytes", "1")
    assert run.returncode == 2
    assert "expected a size with its unit, such as 24GB" in run.stderr.decode()
