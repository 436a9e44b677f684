"""Files of frames that are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tensorwire import compress, frame_info, load_file, verify
from tensorwire.codec import content_hash
from tensorwire.files.frame_file import Stored, frame_file
from tensorwire.files.reader import StoredFile
from tests.support.checkpoint_models import random_bytes, weights
from tests.support.encoders import encode

if TYPE_CHECKING:
    from pathlib import Path

    from tensorwire.files.header import TensorEntry

CONTENT = {name: weights(6000, seed) for seed, name in enumerate("abcdef")}
FORMS = {"a": (32, 32), "b": (32, 4096), "c": (64, 256), "d": (4096, 4096), "e": (32, 1 << 16)}


def stored(name: str, frame: bytes | None) -> Stored:
    data = CONTENT[name] if frame is None else frame
    return Stored(name, "BF16", (6000,), data, frame is not None, content_hash(CONTENT[name]))


def aligned_frames() -> dict[str, bytes]:
    return {
        name: encode(CONTENT[name], "BF16", (6000,), block_alignment=block, frame_alignment=frame)
        for name, (block, frame) in FORMS.items()
    }


def places(path: Path) -> dict[str, tuple[int, TensorEntry]]:
    """Where each tensor lies in its file, in the order of the data."""
    with StoredFile(path) as file:
        return {name: (file.header.data_start + each.entry.start, each.entry) for name, each in file.tensors.items()}


@pytest.mark.parametrize("order", ["abcdef", "fedcba"])
def test_every_frame_begins_at_a_multiple_of_its_alignment(tmp_path: Path, order: str) -> None:
    frames = aligned_frames()
    path = tmp_path / "model.safetensors"
    path.write_bytes(frame_file([stored(name, frames.get(name)) for name in order], "fast"))
    found = places(path)
    for name, frame in frames.items():
        start, entry = found[name]
        assert path.read_bytes()[start : start + entry.nbytes] == frame
        assert start % frame_info(frame).frame_alignment == 0
    same = [name for name in order if name in "bd"]
    assert [*found] == ["e", *same, "c", "a", "f"], "the largest come first, those that are alike in the given order"
    assert found["e"][0] == 1 << 16
    assert load_file(path, framework="bytes") == CONTENT
    assert verify(path).ok


def test_the_usual_frames_take_no_more_room(tmp_path: Path) -> None:
    tensors = [stored(name, compress(CONTENT[name], dtype="BF16", shape=(6000,))) for name in "cab"]
    (tmp_path / "x").write_bytes(frame_file(tensors, "fast"))
    with StoredFile(tmp_path / "x") as file:
        assert [*file.tensors] == ["c", "a", "b"]
        assert file.header.data_start % 64 == 0
        assert file.header.data_start - len(file.header.raw.rstrip()) - 8 < 64


def test_random_content_is_plain_behind_the_frames(tmp_path: Path) -> None:
    noise = random_bytes(5000, 1)
    tensors = [
        Stored("noise", "U8", (5000,), noise, False, content_hash(noise)),
        stored("b", aligned_frames()["b"]),
    ]
    (tmp_path / "x").write_bytes(frame_file(tensors, "fast"))
    assert [start % 4096 for start, _ in places(tmp_path / "x").values()] == [0, 0]
    assert load_file(tmp_path / "x", framework="bytes") == {"b": CONTENT["b"], "noise": noise}
