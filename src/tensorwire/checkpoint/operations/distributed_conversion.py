"""A distributed checkpoint as a model directory of safetensors files, or as one file of torch.save."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..._ground.destination import Destination
from ..._ground.packages import require
from ...codec import FROM_TORCH, num_threads
from ...errors import ErrorContext, UnsupportedTensorError
from ...files.header import build_header, packed
from ...files.loader import check_room
from ...files.names import shown
from ...files.writer import check_names
from ...storage.access import access_of
from ...storage.local import OutputFile
from ...storage.locations import locate, on_this_machine, said
from ...storage.progress import Meter
from ...storage.result import Local, Result
from ...storage.staging import Staging
from ...storage.upload import Upload
from ..bases import check_apart, check_apart_from, enter, name_of
from ..directory.distributed import stored_form
from ..directory.paths import MODEL_SUFFIXES, is_index
from ..directory.replaceable import replaced_by
from ..results import CheckpointReport, FileReport
from .distributed_tensors import DistributedTensors
from .state_dict_file import Item, write_state_dict

if TYPE_CHECKING:
    import os

    from ...files.header import Header
    from ...files.loader import Claim
    from ...storage.access import Access
    from ...storage.locations import Location
    from ...storage.progress import Progress
    from ..bases import BasePath
    from .distributed_tensors import Place, SavedTensor

Form: TypeAlias = Literal["safetensors", "torch"]

_MAX_SHARD_NBYTES = 5_000_000_000
_INDEX_NAME = "model.safetensors.index.json"


def convert_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    to: Form = "safetensors",
    key: str | None = None,
    base: BasePath | None = None,
    max_nbytes: int | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CheckpointReport:
    """Write what a distributed checkpoint of torch holds as plain files that other tools read.

    The tensors are put together of the parts that the ranks have saved, each with the bytes of ``full_tensor()``. Each
    part is read once, by a trusting reader of plain frames, a checking reader of all else (docs/format.md). One tensor
    at a time is in memory, and a part of it beside it.

    Args:
        src: the directory that `TensorwireWriter` or torch's FileSystemWriter has saved to. The latter needs PyTorch.
        dst: what is to be made; it appears at once, whole and synced.
        to: "safetensors" for a model directory: model.safetensors, or from 5 GB on shards with an index. What is no
            tensor is left out, and a notice of the report names it. Or "torch" for one file of torch.save, which needs
            PyTorch; it holds the state dict as it was nested, and passes through a temporary file beside `dst`.
        key: of the state dict: what stands below it is written alone, under names without it, such as "model" or
            "app.model". By default all is written under its flat names, in which a dot joins the keys.
        base: what a relative checkpoint is relative to, as for `TensorwireReader`.
        max_nbytes: refuse a checkpoint of which more bytes than this would be written, before any tensor is read. What
            is no tensor counts with what it takes in the checkpoint, and is also looked at while it is written.
        threads: that decode; by default all usable cores.
        force: replace an existing `dst`, once the new one is whole.
        progress: called from this thread with the bytes of tensors done and to be done, and the file at work.

    Raises:
        FileExistsError: `dst` exists and `force` is False, or holds what the result does not replace.
        BlockingIOError: another process is writing the same `dst`.
        FileNotFoundError, NotADirectoryError: `src` is no distributed checkpoint, or a file of it is missing.
        FormatError: `src` is damaged.
        LimitExceededError: more than `max_nbytes` would be written; the error names a tensor or file, and its size.
        UnsupportedTensorError: a tensor has a dtype that the files cannot hold.
        BaseMismatchError: `src` is relative, and `base` is missing or not the one that it needs.
        ValueError: nothing stands below `key`; there is no such form; `dst` ends as files of another form do; no tensor
            is left; with "torch" a value that is no tensor needs more than torch's weights_only loader; or `src` and
            `dst` lie in each other.
        ImportError: PyTorch is needed and missing.
        OSError: reading or writing fails, the disk is full.
    """
    if to not in ("safetensors", "torch"):
        raise ValueError(f'expected "safetensors" or "torch" as to, got {to!r:.60}')
    if to == "torch":
        require("torch", (2, 5), "a file of torch.save needs PyTorch")
    started = time.monotonic()
    source, target = locate(src, storage_options), locate(dst, storage_options)
    if source.is_file():
        text = "expected the directory that a distributed checkpoint was saved to, got a file"
        raise NotADirectoryError(errno.ENOTDIR, text, said(src))
    _check_ending(target, to)
    count = num_threads(threads)
    with ExitStack() as stack:
        opened = enter(stack, base, storage_options)
        if opened is not None:
            check_apart(target, opened)
        saved = stack.enter_context(closing(DistributedTensors(source, key, opened, count)))
        with ErrorContext(file=source):
            shards, notices = _plan(saved, key, to)
            check_room(_claims(saved, shards, to), max_nbytes)
        written = {target.name} if to == "torch" else {shard.path for shard in shards}
        if len(shards) > 1:
            written.add(_INDEX_NAME)
        result = stack.enter_context(closing(_result(source, target, to, written, force=force)))
        destination = Destination(
            result.place,
            force=force,
            is_directory=to == "safetensors",
            source=source if isinstance(source, Path) else None,
            source_files=on_this_machine([*saved.files, *([] if opened is None else opened.paths())]),
            owned=partial(replaced_by, written),
            example="model.pt",
        )
        work = stack.enter_context(
            Staging(destination, {"action": "convert", "src": str(source), "to": to, "key": key})
        )
        result.check(work)
        try:
            result.claim(work, written)
            meter = Meter(progress, sum(tensor.nbytes for tensor in saved.tensors.values()))
            saved.expect(old for shard in shards for old in shard.names.values())
            access = _access(saved.files)
            with ErrorContext(file=source):
                if to == "torch":
                    files = [_write_torch(saved, target.name, work.result, access, meter, key, max_nbytes)]
                else:
                    files = _write_safetensors(saved, shards, work.result, access, meter)
            result.put(work, written, progress)
        except BaseException:
            result.give_up(work)
            raise
    return CheckpointReport(
        action="convert",
        src=said(src),
        dst=said(dst),
        profile=None,
        files=tuple(sorted(files, key=lambda file: file.path)),
        seconds=time.monotonic() - started,
        notices=(*notices, *work.notices),
        base=name_of(base),
    )


def _check_ending(target: Location, to: Form) -> None:
    """Raise ValueError for a name that says something else than what would get it."""
    ending = next((each for each in MODEL_SUFFIXES if target.name.lower().endswith(each)), None)
    if to == "safetensors" and ending is not None:
        advice = "" if ending == ".safetensors" else '; to="torch" (--to torch) writes one file'
        raise ValueError(
            f'expected the name of a directory as dst: "safetensors" makes a model directory, with model.safetensors '
            f"or shards in it, got {shown(target.name)}; leave {ending} out{advice}"
        )
    if to == "torch" and ending == ".safetensors":
        raise ValueError(
            f'expected the name of a torch file as dst, such as model.pt, got {shown(target.name)}; to="safetensors" '
            "(--to safetensors) makes a directory with safetensors files"
        )


class _Shard(NamedTuple):
    """A file to be written: the names of its tensors there, and what the checkpoint calls them, in order of writing."""

    path: str
    names: dict[str, str]


def _plan(saved: DistributedTensors, key: str | None, to: Form) -> tuple[list[_Shard], list[str]]:
    """The files, and what the user has to know of them. Raises what keeps them from being written."""
    if to == "torch":
        for tensor in saved.tensors.values():
            _check_torch(tensor)
        return [_Shard("", dict(zip(saved.names, saved.names, strict=True)))], []
    if not saved.tensors:
        raise ValueError("expected a tensor to be written, got none; key (--key) says where they are")
    groups: list[dict[str, str]] = []
    nbytes = 0
    for name, tensor in saved.tensors.items():
        _form(tensor)
        if not groups or nbytes + tensor.nbytes > _MAX_SHARD_NBYTES:
            groups.append({})
            nbytes = 0
        nbytes += tensor.nbytes
        groups[-1][_below(name, key)] = name
    shards = []
    for number, names in enumerate(groups, 1):
        path = f"model-{number:05}-of-{len(groups):05}.safetensors" if len(groups) > 1 else "model.safetensors"
        # In the order of the file, since what is far away is fetched in that order.
        shards.append(_Shard(path, {entry.name: names[entry.name] for entry in _header(saved, names).entries}))
    return shards, _notices(saved, key)


def _claims(saved: DistributedTensors, shards: list[_Shard], to: Form) -> Iterator[Claim]:
    """What is to be written."""
    for tensor in saved.tensors.values():
        yield None, tensor.name, tensor.nbytes
    if to == "torch":
        yield from ((None, name, saved.value_nbytes(name)) for name in saved.names if name not in saved.tensors)
        return
    for path, names in shards:
        yield path, None, len(_header(saved, names).prefix)
    if len(shards) > 1:
        yield _INDEX_NAME, None, len(_index(saved, shards))


def _notices(saved: DistributedTensors, key: str | None) -> list[str]:
    found = []
    tops = sorted({str(saved.places[name][0]) for name in saved.tensors if len(saved.places.get(name, ())) > 1})
    if key is None and tops:
        listed = ", ".join(map(shown, tops))
        found.append(f"names begin with a key of the state dict, {listed}; key (--key) takes what stands below one")
    return found + [f"left out, since it is no tensor: {name}" for name in saved.names if name not in saved.tensors]


def _below(name: str, key: str | None) -> str:
    return name if key is None else name[len(key) + 1 :]


def _place(saved: DistributedTensors, name: str, key: str | None) -> Place:
    """Where something stands in the state dict, without the key."""
    place, left = saved.places.get(name, (name,)), key
    if ".".join(map(str, place)) != name:
        place = (name,)
    while left:
        first = str(place[0])
        if len(first) > len(left):
            return (first[len(left) + 1 :], *place[1:])
        place, left = place[1:], left[len(first) + 1 :]
    return place


def _form(tensor: SavedTensor) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape in a safetensors file.

    Raises:
        UnsupportedTensorError: no safetensors file holds this dtype.
    """
    if tensor.dtype == "complex128" or tensor.dtype not in FROM_TORCH:
        raise UnsupportedTensorError(
            f"no safetensors file holds {tensor.dtype}", tensor=tensor.name, advice='to="torch" (--to torch) holds it'
        )
    return stored_form(tensor.dtype, tensor.shape)


def _check_torch(tensor: SavedTensor) -> None:
    import torch

    if not isinstance(getattr(torch, tensor.dtype, None), torch.dtype):
        raise UnsupportedTensorError(
            f"torch {torch.__version__} has no {tensor.dtype}", tensor=tensor.name, advice="upgrade torch"
        )
    _ = tensor.itemsize  # which raises for a dtype of torch that no frame has


def _header(saved: DistributedTensors, names: Mapping[str, str]) -> Header:
    """That of a shard with tensors of these names, by which those of the checkpoint are found."""
    entries = packed((new, *_form(saved.tensors[old]), saved.tensors[old].nbytes) for new, old in names.items())
    check_names(entries)
    return build_header({"format": "pt"}, entries)


def _index(saved: DistributedTensors, shards: list[_Shard]) -> bytes:
    total = sum(tensor.nbytes for tensor in saved.tensors.values())
    home = {name: path for path, names in shards for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(home.items()))}
    return f"{json.dumps(index, indent=2)}\n".encode()


def _write_safetensors(
    saved: DistributedTensors, shards: list[_Shard], root: Path, access: Access, meter: Meter
) -> list[FileReport]:
    root.mkdir(exist_ok=True)
    reports = []
    for path, names in shards:
        header = _header(saved, names)
        meter.begin(path, header.data_nbytes)
        with OutputFile(root / path, access) as file:
            file.write(0, header.prefix)
            for entry in header.entries:
                file.write(header.data_start + entry.start, saved.content(names[entry.name]))
                meter.advance(entry.nbytes)
            file.sync()
            reports.append(_report(saved, path, "safetensors", names.values(), file.nbytes))
        meter.end()
    if len(shards) > 1:
        with OutputFile(root / _INDEX_NAME, access) as file:
            file.write(0, _index(saved, shards))
            file.sync()
            reports.append(FileReport(_INDEX_NAME, "index", 0, file.nbytes))
    return reports


def _write_torch(
    saved: DistributedTensors,
    name: str,
    place: Path,
    access: Access,
    meter: Meter,
    key: str | None,
    max_nbytes: int | None,
) -> FileReport:
    """`name`: that of the result, which is made at `place`."""

    def content(tensor: str) -> memoryview:
        found = saved.content(tensor)
        meter.advance(len(found))
        return found

    items = [
        Item(_place(saved, each, key), tensor, partial(saved.value if tensor is None else content, each))
        for each in saved.names
        for tensor in [saved.tensors.get(each)]
    ]
    meter.begin(name, sum(tensor.nbytes for tensor in saved.tensors.values()))
    with OutputFile(place, access) as file:
        write_state_dict(items, file, place.parent, lambda nbytes: check_room([(name, None, nbytes)], max_nbytes))
        file.sync()
        meter.end()
        return _report(saved, name, "torch", saved.names, file.nbytes)


def _report(saved: DistributedTensors, path: str, kind: str, names: Any, nbytes: int) -> FileReport:
    return FileReport(
        path=path,
        kind=kind,
        nbytes_in=sum(map(saved.stored_nbytes, names)),
        nbytes_out=nbytes,
        num_tensors=sum(name in saved.tensors for name in names),
        num_compressed=sum(name in saved.tensors and saved.is_compressed(name) for name in names),
    )


def _access(files: list[Location]) -> Access:
    """What all files of the checkpoint allow."""
    access = access_of(files[0])
    for file in files[1:]:
        access = access.meet(access_of(file))
    return access


def _result(source: Location, target: Location, to: Form, written: set[str], *, force: bool) -> Result:
    is_directory = to == "safetensors"
    if isinstance(target, Path):
        return Local(target, is_directory=is_directory, like=source if isinstance(source, Path) else None)
    check_apart_from(target, source)
    return Upload(
        target,
        force=force,
        owned=partial(replaced_by, written),
        is_directory=is_directory,
        last=[is_index],
        gone_first=is_index,
    )
