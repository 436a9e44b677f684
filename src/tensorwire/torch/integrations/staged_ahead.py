"""Weights of a store for an engine that serves: a thread makes the newest version before the engine is to take it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import torch

from ..._ground.copies import not_copied
from ...checkpoint import open_file
from ...sync import Follower

if TYPE_CHECKING:
    import os

    from torch import Tensor

_POLL_SECONDS, _MAX_POLL_SECONDS = 0.5, 64.0

_EMPTY = "has no version yet; if the trainer has published one, this is another place"
_log = logging.getLogger(__name__)

_Layout = tuple[torch.dtype, tuple[int, ...]]


class _Closed(BaseException):
    pass


class StagedAhead:
    """The tensors that a model is to take, version by version, and how far it has taken them.

    They begin as those of the checkpoint that the model was loaded from. Their hashes say which version of the store
    that is, so the next one takes nothing but what changed; if it is none, an anchor is fetched. All of them stay in
    the memory of the host, and what changes is there twice from when it is staged until it is taken. Any thread may use
    this; one at a time gets an update.
    """

    __reduce_ex__ = not_copied("a thread and a lock", "make another one")

    def __init__(
        self, store: str | os.PathLike[str], checkpoint: str | os.PathLike[str], threads: int | None = None
    ) -> None:
        """Begin to stage.

        Args:
            store: what a `Publisher` writes to.
            checkpoint: the directory that the model was loaded from, plain or compressed.
            threads: for decoding; by default all usable cores.

        Raises:
            FormatError, OSError: a header of the checkpoint is damaged, or a file is missing.
            ValueError, TypeError: an argument is none.
        """
        self._store, self._checkpoint = store, checkpoint
        self._held: dict[str, Tensor] = {}
        self._layouts: dict[str, _Layout] = {}
        self._follower = Follower(store, self._held, framework="pt", threads=threads)
        open_file(checkpoint, framework="pt").close()  # what is missing is told at once, and not by the thread
        self._differing: set[str] | None = None  # names of which the model may not have what we have; None for all
        self._lock, self._closed = Lock(), Event()
        self._thread = Thread(target=self._stage_ahead, name="tensorwire-stage", daemon=True)
        self._thread.start()

    @contextmanager
    def update(self, version: int, *, changed_only: bool = False) -> Iterator[list[tuple[str, Tensor]]]:
        """The tensors of a version by name, for a model that takes them inside the ``with`` statement.

        What is staged already comes at once; any other version is staged now. If the body raises an error, the model is
        taken to hold parts of two versions: the next update then has all tensors.

        Args:
            version: its number, which may be an older one.
            changed_only: leave out what the model has already. The first update has all tensors.

        Raises:
            FileNotFoundError: the store has no such version, or lacks a part of it.
            FormatError: the version is damaged.
            ValueError: it has other tensors than the checkpoint, or `version` is no number of a version.
            OSError: the store, or the checkpoint, cannot be read.
            RuntimeError: this is closed.
            Each before the body is entered.
        """
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the engine was shut down; initialize it again")
            self._read_checkpoint()
            staged = self._follower.stage(version)
            if staged is None and self._follower.version != version:
                text = f"version {version:06d} is not in this store; publish it, or ask for one that is there"
                raise FileNotFoundError(errno.ENOENT, text, str(self._store))
            if staged is not None:  # else it is held
                self._follower.commit()
                if self._differing is not None:
                    self._differing.update(staged.names)
            self._check(version)
            left_out = self._layouts.keys() - self._differing if changed_only and self._differing is not None else ()
            self._differing = None
            # In this order those of a layer stand together.
            yield [(name, self._held[name]) for name in sorted(self._layouts) if name not in left_out]
            self._differing = set()

    def close(self) -> None:
        """End the thread, and let the tensors go. A tensor that is being made is finished first."""
        self._closed.set()
        self._thread.join()
        with self._lock:
            self._held.clear()

    def _read_checkpoint(self) -> None:
        if not self._layouts:
            with open_file(self._checkpoint, framework="pt") as reader:
                self._held.update({name: reader.get_tensor(name) for name in reader})
            self._layouts = {name: _layout(tensor) for name, tensor in self._held.items()}

    def _check(self, version: int) -> None:
        """Raise ValueError if the version is of another model than the checkpoint.

        A name more is taken if it has the content of one that is known: tied weights may be published twice.
        """
        found = {name: _layout(tensor) for name, tensor in self._held.items()}
        text = f"expected version {version:06d} to have the tensors of {self._checkpoint}, got"
        for name, layout in self._layouts.items():
            if name not in found:
                raise ValueError(f"{text} none named {name!r}; publish all tensors that the checkpoint has")
            if found[name] != layout:
                shown = " and not as ".join(f"{dtype} {shape}" for dtype, shape in (found[name], layout))
                raise ValueError(f"{text} {name!r} as {shown}")
        for name in sorted(found.keys() - self._layouts.keys()):
            known = [each for each, layout in self._layouts.items() if layout == found[name]]
            if not any(_are_equal(self._held[each], self._held[name]) for each in known):
                raise ValueError(f"{text} {name!r} besides; publish the tensors that the checkpoint has")

    def _stage_ahead(self) -> None:
        """What the thread does until this is closed. An error is told once: the caller of `update` gets it as well."""
        told, wait = "", _POLL_SECONDS
        try:
            while not self._closed.is_set():
                try:
                    with self._lock:
                        self._read_checkpoint()
                        staged = self._follower.stage(progress=self._go_on)
                    news = _EMPTY if staged is None and self._follower.version is None else ""
                    if news and news != told:
                        _log.warning("tensorwire: %s %s", self._store, news)
                    told, wait = news, _POLL_SECONDS
                except Exception as error:
                    if told != str(error):
                        _log.warning("tensorwire cannot stage the newest version of %s: %s", self._store, error)
                    told, wait = str(error), min(2 * wait, _MAX_POLL_SECONDS)  # it would be fetched again and again
                self._closed.wait(wait)
        except _Closed:
            pass

    def _go_on(self, *_: object) -> None:
        if self._closed.is_set():
            raise _Closed


def _layout(tensor: Tensor) -> _Layout:
    return tensor.dtype, tuple(tensor.shape)


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)))
