"""How much may be relative to a base: a small file cannot claim what nobody can hold, and what tensorwire writes can
always be read."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire import LimitExceededError, checkpoint
from tensorwire.files import base as base_module
from tensorwire.files import loader
from tensorwire.files.base import MAX_RELATIVE
from tests.support.acting import interrupt

if TYPE_CHECKING:
    from pathlib import Path

OLD = np.random.default_rng(1).integers(0, 2**16, 2**13, np.uint16)


def forge(path: Path, base: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose tensors are all relative to the one of `base`, as a writer without a limit makes it."""
    with monkeypatch.context() as patch:
        patch.setattr(base_module, "MAX_RELATIVE", 10**6)
        checkpoint.save_file(dict.fromkeys(names, OLD), path, base=base)


def test_a_file_claims_no_more_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, forged = tmp_path / "base.safetensors", tmp_path / "forged.safetensors"
    checkpoint.save_file({"w": OLD}, base)
    forge(forged, base, [f"t{index}" for index in range(200)], monkeypatch)
    assert all(tensor.base_name == "w" for tensor in checkpoint.inspect(forged).tensors)
    expected = f"at most 16 times the {OLD.nbytes} bytes of the base, got {17 * OLD.nbytes} bytes or more"
    with monkeypatch.context() as patch:
        patch.setattr(loader, "_allocate", None)
        with pytest.raises(LimitExceededError, match=expected):
            checkpoint.load_file(forged, base=base)
    with pytest.raises(LimitExceededError, match=expected):
        checkpoint.decompress_checkpoint(forged, tmp_path / "out", base=base)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.safetensors", "forged.safetensors"]
    problems = checkpoint.verify(forged, base=base).problems
    assert [problem.kind for problem in problems] == ["LimitExceededError"] * (200 - MAX_RELATIVE)
    with checkpoint.open_file(forged, base=base) as reader:
        for name in reader.keys()[:MAX_RELATIVE]:
            assert reader.get_slice(name)[:1] == OLD[:1]
        with pytest.raises(LimitExceededError):
            reader.get_slice(reader.keys()[-1])[:1]
    assert checkpoint.verify(forged).num_unchecked == 200


def test_many_files_claim_no_more_than_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "base.safetensors"
    checkpoint.save_file({"w": OLD}, base)
    for count, fits in ((MAX_RELATIVE, True), (MAX_RELATIVE + 1, False)):
        model = tmp_path / str(count)
        model.mkdir()
        for index in range(count):
            forge(model / f"{index}.safetensors", base, [f"t{index}"], monkeypatch)
        assert checkpoint.verify(model, base=base).ok == fits
        if fits:
            assert len(checkpoint.load_file(model, base=base)) == count
        else:
            with pytest.raises(LimitExceededError):
                checkpoint.load_file(model, base=base)


def plain(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """An ordinary safetensors file."""
    header = {}
    position = 0
    for name, array in tensors.items():
        header[name] = {"dtype": "U16", "shape": [*array.shape], "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values()))


def back(root: Path, new: Path, old: Path) -> int:
    """How many tensors of the delta from `old` to `new` are relative; both come back from it byte for byte."""
    checkpoint.compress_checkpoint(new, root / "delta", base=old)
    checkpoint.decompress_checkpoint(root / "delta", root / "back", base=old)
    for path in new.iterdir():
        assert (root / "back" / path.name).read_bytes() == path.read_bytes()
    assert checkpoint.verify(root / "delta", base=old).ok
    return sum(tensor.base_hash is not None for tensor in checkpoint.inspect(root / "delta").tensors)


def two(root: Path) -> tuple[Path, Path]:
    for name in ("old", "new"):
        (root / name).mkdir()
    return root / "old", root / "new"


def test_an_unchanged_checkpoint_of_equal_tensors(tmp_path: Path) -> None:
    old, new = two(tmp_path)
    for path in (old, new):
        plain(path / "model.safetensors", {f"t{index}": OLD for index in range(100)})
    assert back(tmp_path, new, old) == 100


@pytest.mark.parametrize("num_files", [1, 4])
def test_a_base_of_one_tensor_that_many_equal(tmp_path: Path, num_files: int) -> None:
    """As many are relative as a reader takes, the others are stored without a base, in whatever file they are."""
    old, new = two(tmp_path)
    plain(old / "model.safetensors", {"w": OLD})
    for index in range(num_files):
        plain(new / f"{index}.safetensors", {f"t{index}.{number}": OLD for number in range(40 // num_files)})
    assert back(tmp_path, new, old) == MAX_RELATIVE


def test_a_run_that_goes_on_takes_no_more_room(tmp_path: Path) -> None:
    old, new = two(tmp_path)
    plain(old / "model.safetensors", {"w": OLD})
    for index in range(4):
        plain(new / f"{index}.safetensors", {f"t{index}.{number}": OLD for number in range(10)})

    interrupt(checkpoint.compress_checkpoint, new, tmp_path / "delta", base=old, at="2.safetensors")
    assert back(tmp_path, new, old) == MAX_RELATIVE


def test_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a writer without a limit made leaves the base as it is; what tensorwire made is applied."""
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    plain(old, {"w": OLD})
    before = old.read_bytes()
    plain(new, {f"t{index}": OLD for index in range(40)})
    with monkeypatch.context() as patch:
        patch.setattr(base_module, "MAX_RELATIVE", 10**6)
        checkpoint.compress_checkpoint(new, tmp_path / "forged.safetensors", base=old)
    with pytest.raises(LimitExceededError):
        checkpoint.apply_checkpoint(tmp_path / "forged.safetensors", old)
    assert old.read_bytes() == before
    checkpoint.compress_checkpoint(new, tmp_path / "delta.safetensors", base=old)
    checkpoint.apply_checkpoint(tmp_path / "delta.safetensors", old)
    assert old.read_bytes() == new.read_bytes()
