"""The writer of distributed checkpoints: what a rank saves is one compressed safetensors file."""

from __future__ import annotations

import errno
import io
import os
import pickle
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ..._ground.text import in_a_line
from ...checkpoint.bases import check_apart_from, checked_base
from ...checkpoint.directory.distributed import (
    DISTRIBUTED_NAME,
    PICKLE_NAME,
    check_size,
    entry_name,
    named_files,
)
from ...checkpoint.tensors.saving import write_file
from ...codec import Profile, num_threads
from ...errors import ErrorContext, TensorwireError
from ...storage.locations import locate, said
from ...storage.upload import put_bytes, remove_if_there
from .metadata import Place, dump
from .stored_form import form_of, to_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

    from ...checkpoint.bases import BasePath


class TensorwireWriter(StorageWriter):  # type: ignore[misc]
    """Writes distributed checkpoints: ``dcp.save(state, storage_writer=TensorwireWriter(path))``, where `dcp` is
    torch.distributed.checkpoint.

    Each rank writes one file of its own, tensor by tensor, so that one tensor at a time is copied from its device.
    Files have new names in each save. So the checkpoint that stands at `path` stays whole until the coordinator has
    written the new metadata; then the files of the old one go.

    Args:
        path: a directory or a URL; `checkpoint_id` of `save` takes its place.
        profile: of the frames: "fast", or "compact", which is smaller and slower.
        base: an earlier distributed checkpoint of the same layout, which this one is then relative to. To load this
            one, the reader needs it. If the earlier one is relative itself, a list of it and what stands behind it,
            newest first.
        threads: that encode; by default all usable cores.
        storage_options: of URLs: docs/remote.md.

    Raises:
        ValueError: there is no such profile, or `threads` is out of range.
        TypeError: `path` or `base` is no path.

    Errors of a rank come to all ranks in torch's CheckpointException, which is a BaseException: look at `failures`.
    """

    def __repr__(self) -> str:
        return in_a_line(self, said(self._path), self._profile, "relative" if self._base else None)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        profile: Profile = "fast",
        base: BasePath | None = None,
        threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if profile not in get_args(Profile):
            raise ValueError(f"expected one of the profiles {', '.join(get_args(Profile))}, got {profile!r:.60}")
        num_threads(threads)
        self._path, self._profile, self._base = os.fspath(path), profile, checked_base(base)
        self._threads, self._storage_options = threads, storage_options
        self._rank = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self._path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError("expected use_collectives=True: without it ranks write no metadata in common")
        self._rank = dist.get_rank() if dist.is_initialized() else 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        entries = {entry_name(item.index.fqn, item.index.offset): item for item in plan.items}
        # Plans may come from the cache of another save, so the name is made here.
        name = f"__{self._rank}_{secrets.token_hex(8)}.safetensors"
        results = []
        if entries:
            folder = self._folder()
            for base in self._base or ():
                check_apart_from(folder, locate(base, self._storage_options))  # whose files `finish` removes
            written = write_file(
                _tensors(entries, planner),
                folder / name,
                profile=self._profile,
                base=self._base,
                threads=self._threads,
                storage_options=self._storage_options,
            )
            results = [
                WriteResult(item.index, written.sizes[entry], Place(name, entry, written.checksum))
                for entry, item in entries.items()
            ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {result.index: result.storage_data for part in results for result in part}
        metadata.storage_meta = self.storage_meta()
        folder = self._folder()
        current = {place.file for place in metadata.storage_data.values()}
        for file in sorted(current):
            if not (folder / file).exists():
                text = (
                    "what a rank has saved is gone: another save into this path has removed it, or the path is not the "
                    "same file system on all ranks"
                )
                raise FileNotFoundError(errno.ENOENT, text, str(folder / file))
        old = _files_of_the_last_one(folder)
        pickled = pickle.dumps(metadata, protocol=4)  # the newest one whose opcodes our reader knows
        try:
            described = dump(metadata, pickled)
        except TypeError:  # JSON cannot hold it, so readers go by the pickle
            described = None
        with ErrorContext(file=folder / DISTRIBUTED_NAME):
            check_size(max(len(pickled), len(described or b"")))
        put_bytes(pickled, folder / PICKLE_NAME)
        # Readers of ours go by this, so it comes last.
        if described is None:
            remove_if_there(folder / DISTRIBUTED_NAME)
        else:
            put_bytes(described, folder / DISTRIBUTED_NAME)
        for file in sorted(old - current):
            remove_if_there(folder / file)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=said(self._path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))

    def _folder(self) -> Any:
        folder = locate(self._path, self._storage_options)
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
        return folder


def _files_of_the_last_one(folder: Any) -> set[str]:
    """The files that the metadata there names, which this save replaces. What it does not name may be those of a save
    that is still running."""
    try:
        return set(named_files(folder))
    except (FileNotFoundError, TensorwireError):  # there is none, or none of ours
        return set()


def _tensors(
    entries: Mapping[str, WriteItem], planner: SavePlanner
) -> Iterator[tuple[str, str, tuple[int, ...], Callable[[], torch.Tensor]]]:
    for name, item in entries.items():
        data = planner.resolve_data(item)
        if isinstance(data, io.BytesIO):
            tensor = torch.frombuffer(bytearray(data.getbuffer()) or bytearray(1), dtype=torch.uint8)
            tensor = tensor[: data.getbuffer().nbytes]
        else:
            tensor = cast("torch.Tensor", data).detach()
        with ErrorContext(tensor=item.index.fqn):
            dtype, shape = form_of(tensor)
        yield name, dtype, shape, lambda tensor=tensor: to_form(tensor)  # type: ignore[misc]
