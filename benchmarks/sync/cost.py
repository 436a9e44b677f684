"""CPU seconds and bytes of a version, from arrays to arrays and through files, and where those of a follower go."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.sync import codecs
from benchmarks.sync.model import RATE, TENSORS, WORDS, Turn, model
from benchmarks.tables import Row, Table
from benchmarks.timing import pinned, spent
from tensorwire.codec.frame import core
from tensorwire.sync import Follower, Publisher

if TYPE_CHECKING:
    from collections.abc import Mapping

TURNS = 9
ARRAYS, FILES = "arrays", "files"
MEMCPY, REFRESHED = "memcpy", "tensorwire, fast, copy refreshed"
OURS, COPIED = "Publisher and Follower", "safetensors and cp"
STAGES: dict[str, tuple[Any, str]] = {
    "read the base": (os, "preadv"), "decode": (core, "decode"), "hash": (core, "hash_leaves"),
    "write": (os, "pwrite"), "wait for the disk": (os, "fsync"),
}  # fmt: skip
REST, ALL = "all else", "all"


class _Way:
    """A way to send a version."""

    name, through = "", ARRAYS

    def publish(self, turn: Turn) -> int:
        """Returns the bytes that travel."""
        raise NotImplementedError

    def apply(self) -> None:
        """What the receiver does."""

    def begin(self, turn: Turn) -> None:
        """Before the clock runs."""

    def end(self, turn: Turn) -> None:
        """After it has run: compare."""


class _Arrays(_Way):
    def __init__(self, name: str, codec: codecs.Codec, held: dict[str, np.ndarray]) -> None:
        self.name, self._codec, self._held = name, codec, held

    def begin(self, turn: Turn) -> None:
        _copy(turn.old, self._held)
        self._hashes = codecs.hashes(turn.old)

    def publish(self, turn: Turn) -> int:
        self._sent = {
            name: self._codec.encode(turn.old[name], new, self._hashes[name]) for name, new in turn.new.items()
        }
        return sum(len(each) for each in self._sent.values())

    def apply(self) -> None:
        for name, each in self._sent.items():
            self._codec.apply(each, self._held[name])

    def end(self, turn: Turn) -> None:
        del self._sent
        _compare(self._held, turn.new)


class _Refreshed(_Arrays):
    """The sender's copy becomes what it sends, which the next version is relative to."""

    def publish(self, turn: Turn) -> int:
        self._sent = {}
        return sum(len(codecs.encode_over(self._held[name], new, self._hashes[name])) for name, new in turn.new.items())


class _Memcpy(_Way):
    name = MEMCPY

    def __init__(self, held: dict[str, np.ndarray]) -> None:
        self._held = held

    def publish(self, turn: Turn) -> int:
        _copy(turn.new, self._held)
        return sum(each.nbytes for each in self._held.values())


class _Files(_Way):
    """Ours: the version is staged into the files of the one before the last."""

    name, through = OURS, FILES

    def __init__(self, folder: Path) -> None:
        self._served = folder / "served"
        self._publisher = Publisher(folder / "store", anchor_every=1000, threads=1)
        self._follower = Follower(folder / "store", self._served, threads=1)

    def publish(self, turn: Turn) -> int:
        return self._publisher.publish(turn.weights).nbytes

    def apply(self) -> None:
        self._follower.stage()

    def end(self, turn: Turn) -> None:
        self._follower.commit()
        served = load_file(self._served / "model.safetensors")
        _compare({name: each.view(np.uint16) for name, each in served.items()}, turn.new)


class _Copied(_Way):
    name, through = COPIED, FILES

    def __init__(self, folder: Path) -> None:
        self._file, self._copy = folder / "dense.safetensors", folder / "copy.safetensors"

    def begin(self, turn: Turn) -> None:
        self._file.unlink(missing_ok=True)
        self._copy.unlink(missing_ok=True)

    def publish(self, turn: Turn) -> int:
        save_file(turn.weights, self._file)
        return self._file.stat().st_size

    def apply(self) -> None:
        subprocess.run(["cp", self._file, self._copy], check=True)


@cache
def measure(quick: bool) -> list[Row]:
    weights = model(quick)
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        held = {name: each.copy() for name, each in weights.turn(0).new.items()}
        ways: list[_Way] = [_Memcpy(held), _Refreshed(REFRESHED, codecs.CODECS[codecs.FAST], held)]
        ways += [_Arrays(name, codec, held) for name, codec in codecs.CODECS.items() if name != codecs.DENSE]
        ways += [_Copied(Path(folder)), _Files(Path(folder))]
        found: dict[str, list[Measured]] = {way.name: [] for way in ways}
        for number in range(2 if quick else TURNS):
            for way in ways:
                found[way.name].append(_measured(way, weights.turn(number)))
    changed = weights.changed()
    return [
        _row(found[way.name][1:], weights.nbytes) | {"with": way.name, "through": way.through, "changed": changed}
        for way in ways
    ]


Measured = tuple[float, float, int]
"""CPU seconds to publish and to apply, and the bytes between."""


def _measured(way: _Way, turn: Turn) -> Measured:
    way.begin(turn)
    began = _cpu_seconds()
    nbytes = way.publish(turn)
    published = _cpu_seconds()
    way.apply()
    applied = _cpu_seconds()
    way.end(turn)
    return published - began, applied - published, nbytes


def _row(turns: list[Measured], size: int) -> Row:
    publish, apply, nbytes = (median(each) for each in zip(*turns, strict=True))
    scale = 1e9 / size
    return {"publish": publish * scale, "apply": apply * scale, "nbytes": nbytes * scale, "ratio": size / nbytes}


def measure_stages(quick: bool) -> list[Row]:
    """Where the CPU seconds of a follower of a directory go."""
    weights = model(quick)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        way = _Files(Path(folder))
        for number in range(2 if quick else TURNS):
            turn = weights.turn(number)
            way.publish(turn)
            with spent(STAGES) as stages:
                began = _cpu_seconds()
                way.apply()
                seconds = _cpu_seconds() - began
            way.end(turn)
            each = {name: stage.seconds for name, stage in stages.items()}
            for name, took in {**each, REST: seconds - sum(each.values()), ALL: seconds}.items():
                found.setdefault(name, []).append(took * 1e9 / weights.nbytes)
    return [{"stage": name, "seconds": median(took[1:])} for name, took in found.items()]


def _cpu_seconds() -> float:
    """What this process has taken, and those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _copy(words: Mapping[str, np.ndarray], held: Mapping[str, np.ndarray]) -> None:
    for name, each in words.items():
        held[name][:] = each


def _compare(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    if any(not np.array_equal(found[name], each) for name, each in expected.items()):
        raise AssertionError("other words came out")


COST = Table(
    "cost",
    "What a version costs",
    f"A model of {TENSORS} BF16 tensors of {WORDS:,} words each, made after the law of AdamW at a learning rate of "
    f"{RATE:g}; a step changes the part of the words that the table says. CPU seconds for a gigabyte of weights, on "
    f"one core: medians of {TURNS - 1} turns, in each of which all publish and apply in the same order. Through arrays "
    "the hash of the base is known, and a version is applied in place. Through files a Publisher writes to a store, "
    "and a Follower stages into new files; beside it safetensors.save_file writes all weights, and cp copies them to a "
    "new file. xor and overwrite are the forms of slime, miles and SGLang, written anew.",
    (("with", "with", ""), ("through", "through", ""), ("changed", "changed", ".4f"),
     ("publish, s/GB", "publish", ".3f"), ("apply, s/GB", "apply", ".3f"), ("bytes a GB", "nbytes", ",.0f"),
     ("ratio", "ratio", ".1f")),
    measure,
)  # fmt: skip
STAGED = Table(
    "stages",
    "Where a follower's CPU seconds go",
    "The same model, followed by a directory: CPU seconds for a gigabyte, medians. The "
    "content of each tensor passes in pieces through the cache.",
    (("stage", "stage", ""), ("s/GB", "seconds", ".3f")),
    measure_stages,
)
