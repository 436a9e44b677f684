"""What objects with a path, a kind or numbers say of themselves: one line, which nothing is read for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import tensorwire
from tensorwire._ground.text import in_a_line
from tensorwire.checkpoint import compress_checkpoint, diff, estimate_ratio, inspect, verify
from tensorwire.sync import Follower, Publisher

WEIGHTS = np.arange(4096, dtype=np.float32).reshape(64, 64)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    safetensors.numpy.save_file({"w": WEIGHTS, "b": WEIGHTS[0]}, "model.safetensors")
    compress_checkpoint("model.safetensors", "small.safetensors")
    return tmp_path


def test_readers_and_slices(model: Path) -> None:
    reader = tensorwire.open_file("small.safetensors")
    said = f"<TensorReader {model}/small.safetensors, 2 tensors, framework 'np'>"
    assert repr(reader) == said
    assert repr(reader.get_slice("w")) == f"<TensorSlice 'w', F32, (64, 64), {model}/small.safetensors>"
    safetensors.numpy.save_file({"other": WEIGHTS}, "other.safetensors")
    Path("small.safetensors").rename("a.safetensors")
    Path("model.safetensors").unlink()
    with tensorwire.open_file(".", framework="bytes") as several:
        assert repr(several) == f"<TensorReader {model}, 2 files, 3 tensors, framework 'bytes'>"
    reader.close()
    assert repr(reader) == said


def test_frames(model: Path) -> None:
    frame = tensorwire.compress(WEIGHTS)
    reader = tensorwire.FrameReader(frame)
    assert repr(reader) == f"<FrameReader F32, (64, 64), fast, 16.4 kB in {len(frame) / 1000:.3g} kB>"
    encoder = tensorwire.FrameEncoder("F32", (64, 64))
    assert repr(encoder) == "<FrameEncoder F32, (64, 64), 0 B of 16.4 kB in 0 B>"


def test_reports(model: Path) -> None:
    said = [
        (compress_checkpoint("model.safetensors", "again.safetensors"),
         "<CheckpointReport compress model.safetensors to again.safetensors, fast, 1 file, 16.8 kB to "),
        (verify("small.safetensors"), "<VerifyReport small.safetensors, compressed, 1 file, 2 tensors, 16.6 kB, ok>"),
        (inspect("small.safetensors"), "<InspectReport small.safetensors, compressed, 1 file, 2 tensors, 16.6 kB in "),
        (inspect("model.safetensors").tensors[0], "<TensorInfo 'b', F32, (64,), 256 B in 256 B>"),
        (diff("model.safetensors", "small.safetensors"),
         "<DiffReport model.safetensors and small.safetensors, 2 tensors equal, 0 tensors and 0 files not>"),
        (diff("model.safetensors", "small.safetensors", stats=True).stats, "<DeltaStats 16.6 kB, fast "),
        (estimate_ratio("model.safetensors"), "<Estimate model.safetensors, fast, 16.8 kB to about "),
    ]  # fmt: skip
    for report, text in said:
        assert repr(report).startswith(text)
        assert len(repr(report)) < 200


def test_publishers_and_followers(model: Path) -> None:
    publisher, arrays = Publisher("store", threads=1), dict[str, Any]()
    follower, other = Follower("store", arrays, threads=1), Follower("store", "served", in_place=True, threads=1)
    assert repr(publisher) == f"<Publisher {model}/store, no version>"
    assert repr(follower) == f"<Follower {model}/store, 0 arrays, no version>"
    published = publisher.publish({"w": WEIGHTS})
    assert repr(published).startswith("<Published version 0, an anchor, 1 tensor, ")
    staged = follower.stage()
    assert repr(staged) == "<Staged version 0, 1 tensor to change>"
    assert repr(follower) == f"<Follower {model}/store, 0 arrays, no version, version 0 staged>"
    follower.commit()
    assert repr(follower) == f"<Follower {model}/store, 1 array, version 0>"
    assert repr(other) == f"<Follower {model}/store, {model}/served, no version>"
    assert repr(Publisher("s", rank=1, num_ranks=2)) == f"<Publisher {model}/s, no version, rank 1 of 2>"


def test_a_name_cannot_drive_the_terminal() -> None:
    assert in_a_line(3, "a\x1b[2J\n", None, 7) == "<int a\\x1b[2J\\n, 7>"
