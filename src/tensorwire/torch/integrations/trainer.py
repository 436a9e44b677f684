"""Transformers' Trainer: checkpoints that compress themselves as they are saved, and from which training resumes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from transformers.trainer_callback import TrainerCallback

from ..._ground.text import in_a_line
from ...checkpoint.bases import form_of
from ...errors import TensorwireError
from .recoding import Recoder, clean

if TYPE_CHECKING:
    import os

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from ...codec import Profile

__all__ = ["TensorwireCallback"]

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"
"""What Trainer writes last."""
_UPLOADED = ("checkpoint", "all_checkpoints")


class TensorwireCallback(TrainerCallback):  # type: ignore[misc] # the checker does not see transformers
    """Compresses each checkpoint as soon as it is saved: ``Trainer(..., callbacks=[TensorwireCallback()])``.

    ``checkpoint-N`` becomes a compressed directory that gives every file back byte for byte, with optimizer, scheduler
    and random numbers. The newest one stands alone; older ones are relative to the next newer one (docs/training.md).
    Only one process compresses, and the others wait. A callback serves one Trainer; it is not thread-safe.
    """

    def __init__(self, profile: Profile = "fast", *, anchor_every: int = 8, threads: int | None = None) -> None:
        """
        Args:
            profile: "fast" or "compact", as for `compress_checkpoint`.
            anchor_every: of so many checkpoints that follow each other one stands alone, and the others are relative.
                With 1 each stands alone.
            threads: that code; by default all usable cores.

        Raises:
            ValueError: `anchor_every` is no integer from 1 on, there is no such profile, or `threads` is out of range.
        """
        self._recoder = Recoder(profile, anchor_every, threads)
        self._output_dir: Path | None = None
        self._is_writer = True

    def __repr__(self) -> str:
        return in_a_line(self, self._recoder.facts, self._output_dir or "not given to a Trainer")

    def restore(self, checkpoint: str | os.PathLike[str] | None = None) -> str | None:
        """Make a checkpoint dense again, in place, and return its path:
        ``trainer.train(resume_from_checkpoint=callback.restore())``.

        All processes call it. Once training has saved its next checkpoint, this one is compressed again.

        Args:
            checkpoint: its path; by default the newest one in the Trainer's `output_dir` that was saved as a whole.

        Returns:
            None if there is none: training begins anew then.

        Raises:
            RuntimeError: the callback was not given to a Trainer yet.
            FormatError, OSError: it is damaged, lacks the one that it is relative to, or cannot be written.
        """
        if self._output_dir is None:
            raise RuntimeError("give the callback to a Trainer first: Trainer(..., callbacks=[callback])")
        found = _checkpoints(self._output_dir)
        path = Path(checkpoint) if checkpoint is not None else (found[-1] if found else None)
        if path is not None and self._is_writer:
            self._recoder.decompress(path)
        _wait()
        return None if path is None else str(path)

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        """
        Raises:
            ValueError: the Trainer uploads checkpoints, which another thread reads while they are replaced.
        """
        if args.push_to_hub and args.hub_strategy in _UPLOADED:
            raise ValueError(
                f"hub_strategy={str(args.hub_strategy.value)!r} uploads checkpoints while they are compressed; choose "
                'hub_strategy="every_save" or "end", or leave TensorwireCallback out'
            )
        self._output_dir, self._is_writer = Path(args.output_dir), args.should_save
        if self._is_writer:
            clean(self._output_dir, _is_checkpoint)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        """
        Raises:
            ValueError: Trainer would write over compressed checkpoints.
        """
        found = _checkpoints(Path(args.output_dir))
        newer = [path for path in found if _step(path) > state.global_step and form_of(path).compressed]
        if newer:
            raise ValueError(
                f"training begins at step {state.global_step} and would write over {newer[0]}, which is compressed: "
                "resume from the newest checkpoint, trainer.train(resume_from_checkpoint=callback.restore()), or "
                f"move the checkpoints that are newer than step {state.global_step} away"
            )
        if args.load_best_model_at_end and state.best_model_checkpoint is not None and self._is_writer:
            self._recoder.decompress(Path(state.best_model_checkpoint))
        _wait()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any) -> None:
        self._settle(args, state, best_is_dense=args.load_best_model_at_end)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        self._settle(args, state, best_is_dense=False)

    def _settle(self, args: TrainingArguments, state: TrainerState, *, best_is_dense: bool) -> None:
        """Compress what is to be. Trainer loads the best model itself, so that one is dense until then; and it keeps
        the best checkpoint while it removes newer ones, so that one stands alone."""
        _wait()  # for the files of other ranks
        if self._is_writer:
            best = None if state.best_model_checkpoint is None else Path(state.best_model_checkpoint)
            try:
                self._recoder.settle(
                    _checkpoints(Path(args.output_dir)), dense=best if best_is_dense else None, alone=best
                )
            except (TensorwireError, ValueError, OSError) as error:
                # Training is worth more than what is saved. The checkpoint stays whole, as it was.
                warnings.warn(f"a checkpoint stays as it is, the next save tries again: {error}", stacklevel=2)
        _wait()


def _step(path: Path) -> int:
    found = _CHECKPOINT.fullmatch(path.name)
    return -1 if found is None else int(found[1])


def _is_checkpoint(name: str) -> bool:
    """Whether a name is that of a checkpoint, or begins with it as that of a temporary directory does."""
    return _CHECKPOINT.fullmatch(name.partition(".")[0]) is not None


def _checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints that were saved as a whole, the oldest first."""
    found = output_dir.iterdir() if output_dir.is_dir() else ()
    return sorted((path for path in found if _step(path) >= 0 and (path / _STATE).is_file()), key=_step)


def _wait() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
