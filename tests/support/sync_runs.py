"""Weights that change step by step, and calls before which a process is killed, for the tests of tensorwire.sync."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tensorwire._ground import destination
from tensorwire._ground.folder import Folder
from tensorwire.codec import tensor_view
from tensorwire.storage import upload
from tensorwire.sync import Follower, Publisher
from tensorwire.sync.directories import making

Weights = dict[str, Any]
OWN = ".tensorwire-sync"
"""What a follower of a directory keeps is in it."""
FORMS: dict[str, dict[str, bool]] = {"links": {}, "copies": {"copies": True}, "in place": {"in_place": True}}
"""How a directory may follow."""
FOLLOWER: Sequence[tuple[Any, str]] = [
    (making, "write_at"), (os, "fsync"), (Folder, "write"), (Folder, "make_link"), (Folder, "move"),
    (Folder, "exchange"), (Folder, "share"), (Folder, "set_time"), (Folder, "remove"), (Folder, "remove_folder"),
]  # fmt: skip
PUBLISHER: Sequence[tuple[Any, str]] = [
    (Path, "mkdir"), (upload.NewFile, "write"), (os, "fsync"), (destination, "rename_new"), (destination, "exchange"),
    (upload, "sync_directory"), (Path, "unlink"), (shutil, "rmtree"),
]  # fmt: skip
STRIDES = [4, pytest.param(1, marks=pytest.mark.slow)]
"""The quick tests end a process before every fourth call, and take every fourth note."""


def weights(seed: int = 0) -> Weights:
    """Tensors of several dtypes, a tied, a scalar and an empty one; NaN and -0 among them."""
    generator = np.random.default_rng(seed)
    found: Weights = {
        "embed": generator.standard_normal((64, 96)).astype(np.float32),
        "layer.0.weight": generator.standard_normal((128, 64)).astype(ml_dtypes.bfloat16),
        "layer.1.weight": generator.standard_normal((128, 64)).astype(ml_dtypes.bfloat16),
        "norm": generator.standard_normal(48).astype(np.float16),
        "scale": np.array(0.5),
        "nothing": np.zeros((0, 4), np.float32),
    }
    found["embed"][0, :3] = np.nan, -0.0, np.inf
    found["head"] = found["embed"]
    return found


def stepped(before: Weights, seed: int) -> Weights:
    """The weights after a step: new arrays, in which a few values differ."""
    generator = np.random.default_rng(seed)
    after = {name: array.copy() for name, array in before.items()}
    for name in generator.choice(["embed", "layer.0.weight", "layer.1.weight", "norm"], 2, replace=False):
        content = after[name].reshape(-1).view(f"u{after[name].itemsize}")
        content[generator.integers(0, len(content), len(content) // 50)] += 1
    after["head"] = after["embed"]
    return after


FIRST = weights()
SECOND = stepped(FIRST, 1)
THIRD = stepped(SECOND, 2)


def follow(follower: Follower, version: int | None = None) -> None:
    """Take the newest version, which is to be this one."""
    staged = follower.stage()
    assert staged is not None
    assert version in (None, staged.version)
    follower.commit()
    assert (follower.version, follower.state) == (staged.version, "at")


def catch_up(follower: Follower, version: int) -> None:
    """Take the newest version, which is this one, unless the follower has it."""
    if follower.stage() is not None:
        follower.commit()
    assert follower.version == version


def follow_anew(store: Any, target: Any, **options: Any) -> None:
    """A new follower takes the newest version."""
    follow(Follower(store, target, threads=1, **options))


def fetched(store: Any, version: int | None = None) -> Weights:
    """What a new follower gets."""
    arrays: Weights = {}
    follow(Follower(store, arrays, threads=1), version)
    return arrays


def begun(store: Any, **options: Any) -> tuple[Publisher, Follower, Weights]:
    """A publisher of `FIRST`, and a follower that has it, with its arrays."""
    arrays: Weights = {}
    publisher, follower = Publisher(store, threads=1, **options), Follower(store, arrays, threads=1)
    publisher.publish(FIRST)
    follow(follower, 0)
    return publisher, follower, arrays


def one_behind(store: Any, target: Any, **options: Any) -> tuple[Publisher, Follower]:
    """A publisher of `FIRST` and `SECOND`, and a follower that holds `FIRST`."""
    publisher, follower = Publisher(store, threads=1), Follower(store, target, threads=1, **options)
    publisher.publish(FIRST)
    follow(follower, 0)
    publisher.publish(SECOND)
    return publisher, follower


def contents(found: Weights) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What to compare: bits, not values; the same ones for arrays of NumPy and tensors of torch."""
    views = {name: tensor_view(array) for name, array in found.items()}
    return {name: (view.dtype, view.shape, bytes(view.data)) for name, view in views.items()}


def write_plain(path: Path, tensors: dict[str, Any]) -> None:
    """A plain file, by the package itself."""
    safetensors.numpy.save_file({name: array.copy() for name, array in tensors.items()}, path)


def folders(store: Path) -> list[str]:
    """The names of folders of a store, which are versions unless something else was put there."""
    return sorted(path.name for path in store.iterdir() if path.is_dir())


def takes_new(follower: Follower, arrays: Weights, before: Weights, after: Weights) -> bool:
    """Take what a publisher has left that may have been killed. It is one of these two, whole: whether the second."""
    if follower.stage() is not None:
        follower.commit()
    is_new = contents(arrays) == contents(after)
    assert is_new or contents(arrays) == contents(before)
    return is_new
