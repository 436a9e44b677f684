"""Lightning: a CheckpointIO whose `.ckpt` files are compressed.

Nothing of Lightning is imported here. The class becomes one of its own kind as soon as Lightning is imported, under
either of its names.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._ground.text import in_a_line
from ...checkpoint.bases import form_of
from ...errors import TensorwireError
from .after_import import after_import
from .recoding import Recoder, clean, room_beside

if TYPE_CHECKING:
    from ...codec import Profile

__all__ = ["TensorwireCheckpointIO"]


class TensorwireCheckpointIO:
    """Compresses each checkpoint as it is saved: ``Trainer(..., plugins=[TensorwireCheckpointIO()])``.

    A `.ckpt` is a compressed torch file, which gives back every byte. The one that was saved last stands alone; the one
    before it becomes relative to it (docs/training.md). ``trainer.fit(model, ckpt_path=...)`` reads them. Lightning
    saves in one process, and each process may load. It is not thread-safe.
    """

    def __init__(self, profile: Profile = "fast", *, anchor_every: int = 8, threads: int | None = None) -> None:
        """
        Args:
            profile, anchor_every, threads: as for `TensorwireCallback`.

        Raises:
            ValueError: `anchor_every` is no integer from 1 on, there is no such profile, or `threads` is out of range.
        """
        self._recoder = Recoder(profile, anchor_every, threads)
        self._saved: dict[Path, list[Path]] = {}  # by directory, in the order in which they were saved

    def __repr__(self) -> str:
        return in_a_line(self, self._recoder.facts, *self._saved)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint. A kill leaves the old file at `path`, the new one dense, or the new one compressed.

        Raises:
            TypeError: there are `storage_options`.
            ValueError: `path` is a URL.
            OSError: it cannot be written.
        """
        if storage_options is not None:
            raise TypeError("TensorwireCheckpointIO takes no storage_options")
        place = _local(path)
        saved = self._saved_in(place.parent)
        if place.exists():
            self._recoder.release(place, _checkpoints(place.parent))
        with room_beside(place) as room:
            with (room / place.name).open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            (room / place.name).replace(place)
        saved[:] = [*(each for each in saved if each != place and each.is_file()), place]
        try:
            self._recoder.settle(saved)
        except (TensorwireError, ValueError, OSError) as error:
            warnings.warn(f"a checkpoint stays as it is, the next save tries again: {error}", stacklevel=2)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> Any:
        """Load a checkpoint, compressed or not, as ``torch.load`` does. A compressed one is dense beside it for as long
        as that takes.

        Raises:
            FileNotFoundError: there is none.
            FormatError: it is damaged, or lacks the one that it is relative to (BaseMismatchError).
        """
        place = Path(os.path.realpath(_local(path)))
        options = {"map_location": map_location or "cpu", "weights_only": weights_only}
        if not form_of(place).compressed:
            return torch.load(place, **options)
        with self._recoder.dense(place) as dense:
            return torch.load(dense, **options)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint. What is relative to it is made relative to another one before."""
        place = _local(path)
        if place.exists():
            self._recoder.release(place, _checkpoints(place.parent))
            place.unlink()

    def teardown(self) -> None:
        """Nothing is open between calls."""

    def _saved_in(self, folder: Path) -> list[Path]:
        """The checkpoints in a directory, the oldest first; at the first call those that an earlier run has left. The
        newest may be dense, if that run was killed."""
        if folder not in self._saved:
            folder.mkdir(parents=True, exist_ok=True)
            clean(folder, lambda name: True)
            found = sorted(_checkpoints(folder), key=lambda path: path.stat().st_mtime_ns)
            self._saved[folder] = [path for path in found if path == found[-1] or form_of(path).compressed]
        return self._saved[folder]


def _local(path: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(path):
        raise ValueError(
            f"TensorwireCheckpointIO writes files of this machine, got {os.fspath(path)!r}; save to a directory, and "
            "copy what tensorwire compress makes to a store"
        )
    return Path(path)


def _checkpoints(folder: Path) -> list[Path]:
    """The files in a directory; links, such as Lightning's to the last one, are none."""
    return [path for path in folder.glob("*.ckpt") if path.is_file() and not path.is_symlink()]


def _register_with_lightning() -> None:
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

    CheckpointIO.register(TensorwireCheckpointIO)


def _register_with_pytorch_lightning() -> None:
    from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO

    CheckpointIO.register(TensorwireCheckpointIO)


after_import("lightning.fabric.plugins.io.checkpoint_io", _register_with_lightning)
after_import("lightning_fabric.plugins.io.checkpoint_io", _register_with_pytorch_lightning)
