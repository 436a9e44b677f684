"""The reader of distributed checkpoints: it decodes the blocks of the parts that a rank needs."""

from __future__ import annotations

import io
import os
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ..._ground.text import in_a_line
from ...checkpoint import open_file
from ...checkpoint.bases import checked_base
from ...checkpoint.directory import distributed
from ...codec import num_threads
from ...errors import CorruptDataError, ErrorContext
from ...files.names import shown
from ...storage.locations import locate, said
from ...storage.pool import mapped
from .metadata import parse
from .stored_form import from_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ...checkpoint import TensorReader
    from ...checkpoint.bases import BasePath
    from ...storage.locations import Location
    from .metadata import Place

_AT_ONCE = 8
"""So many parts of tensors are asked of a store at once."""


def read_metadata(folder: Location) -> Metadata:
    """As torch has it. Errors are those of `distributed.read`."""
    body = distributed.read(folder)
    with ErrorContext(file=folder / distributed.DISTRIBUTED_NAME):
        return parse(body)


class TensorwireReader(StorageReader):  # type: ignore[misc]
    """Reads what `TensorwireWriter` has written: ``dcp.load(state, storage_reader=TensorwireReader(path))``.

    On another number of ranks, or with another layout, each rank decodes the blocks that hold its part: a trusting
    reader (docs/format.md).

    Args:
        path: a directory or a URL; `checkpoint_id` of `load` takes its place.
        base: what the checkpoint is relative to; if that is relative itself, a list of it and what stands behind it,
            newest first.
        threads: that decode; by default all usable cores.
        storage_options: of URLs: docs/remote.md.

    Raises:
        ValueError: `threads` is out of range.
        TypeError: `path` or `base` is no path.

    Errors come in torch's CheckpointException, which is a BaseException: look at `failures`.
    """

    def __repr__(self) -> str:
        return in_a_line(self, said(self._path), "relative" if self._base else None)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        base: BasePath | None = None,
        threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        num_threads(threads)
        self._path, self._base = os.fspath(path), checked_base(base)
        self._threads, self._storage_options = threads, storage_options
        self._places: Mapping[MetadataIndex, Place] = {}
        self._chunks: Mapping[MetadataIndex, torch.Size] = {}
        self._dtypes: Mapping[str, torch.dtype] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._places = {}
        if checkpoint_id:
            self._path = os.fspath(checkpoint_id)

    def read_metadata(self) -> Metadata:
        # No keywords: with them torch asks a rank whose first look failed for metadata of its own. If it gets some now,
        # it goes on alone, and the others wait for it.
        metadata = read_metadata(locate(self._path, self._storage_options))
        metadata.storage_meta = StorageMeta()
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._places = metadata.storage_data
        self._chunks = {
            MetadataIndex(name, chunk.offsets): chunk.sizes
            for name, each in metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata)
            for chunk in each.chunks
        }
        self._dtypes = {
            name: each.properties.dtype
            for name, each in metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata)
        }

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: defaultdict[tuple[str, str], list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            place = self._places[item.storage_index]
            by_file[place.file, place.checksum].append(item)
        folder: Any = locate(self._path, self._storage_options)
        at_once = 1 if isinstance(folder, Path) else _AT_ONCE
        for (name, checksum), items in by_file.items():
            with self._open(folder / name) as reader:
                distributed.check_shard(reader.files[0], checksum)
                self._read(items, reader, planner, at_once)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _open(self, place: Any) -> TensorReader[Any]:
        try:
            return open_file(
                place,
                framework="pt",
                base=self._base,
                threads=self._threads,
                storage_options=self._storage_options,
            )
        except FileNotFoundError:
            if place.exists():
                raise  # the base is not there
            raise distributed.missing(place) from None

    def _read(self, items: list[ReadItem], reader: TensorReader[Any], planner: LoadPlanner, at_once: int) -> None:
        """First what is wanted whole, in the order of its data and fetched ahead. Then parts, which take the blocks of
        their rows, so many at once, since each waits for its own answer of a store."""
        order = {entry: place for place, entry in enumerate(reader.offset_keys())}
        for item in items:
            if self._entry(item) not in order:
                raise CorruptDataError(
                    f"expected {shown(self._entry(item))} in the file that the metadata names",
                    tensor=item.storage_index.fqn,
                )
        items.sort(key=lambda item: order[self._entry(item)])
        whole: list[ReadItem] = []
        parts: list[ReadItem] = []
        for item in items:
            (whole if self._is_whole(item) else parts).append(item)
        reader.expect([self._entry(item) for item in whole])
        for item in whole:
            self._give(item, self._content(item, reader), planner)
        with closing(mapped(lambda item: self._content(item, reader), parts, at_once, "tensorwire-dcp")) as contents:
            for item, found in zip(parts, contents, strict=True):
                self._give(item, found, planner)

    def _content(self, item: ReadItem, reader: TensorReader[Any]) -> torch.Tensor:
        with ErrorContext(tensor=item.storage_index.fqn):
            entry = self._entry(item)
            if item.type == LoadItemType.BYTE_IO:
                return cast("torch.Tensor", reader.get_tensor(entry))
            if self._is_whole(item):
                found = reader.get_tensor(entry)
            else:
                box = zip(item.storage_offsets, item.lengths, strict=True)
                found = reader.get_slice(entry)[tuple(slice(start, start + length) for start, length in box)]
            return from_form(found, self._dtypes[item.storage_index.fqn], len(item.lengths))

    def _give(self, item: ReadItem, found: torch.Tensor, planner: LoadPlanner) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(found.numpy().tobytes()))
            return
        target = planner.resolve_tensor(item).detach()
        if target.shape != found.shape:
            raise CorruptDataError(
                f"expected a part of shape {tuple(target.shape)}, got {tuple(found.shape)}",
                tensor=item.storage_index.fqn,
            )
        target.copy_(found)
        planner.commit_tensor(item, target)

    def _entry(self, item: ReadItem) -> str:
        """Its name in the file."""
        return self._places[item.storage_index].entry

    def _is_whole(self, item: ReadItem) -> bool:
        """Whether all of its entry is wanted. The metadata knows, without a look into the file."""
        return item.type == LoadItemType.BYTE_IO or bool(self._chunks.get(item.storage_index) == item.lengths)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))
