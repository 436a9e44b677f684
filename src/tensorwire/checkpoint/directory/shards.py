"""Which files of a directory hold its tensors, and which of them holds which."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ...errors import CorruptDataError, ErrorContext, FormatError
from ...files.json_object import load
from ...files.names import MAX_JSON_NBYTES, shown
from ...files.reader import may_be_compressed
from ...files.torch_file import torch_view
from ...storage.inputs import open_input, read_file
from ...storage.locations import path_in
from .config_and_index import WEIGHTS_KEY, parse_index, read_index
from .distributed import is_distributed, named_files, open_shard, refusal
from .paths import (
    CONFIG_NAME,
    MODEL_SUFFIXES,
    FoundFile,
    expect_ended,
    is_index,
    is_listable,
    is_safetensors,
    scan,
    without_dots,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...storage.locations import Location


WHOLE_NAME = "model.safetensors"
"""Where it stands, Transformers looks at no index."""


class Shards(NamedTuple):
    """The files of a model, in order, and by the name of a tensor the file that an index says it is in, which is
    `named_by` it."""

    files: tuple[Location, ...]
    home: dict[str, Location]
    named_by: Location | None = None


def find_shards(path: Location) -> Shards:
    """The files that make up one model: those of the index, or all safetensors files at the top of the directory.

    A file or index that config.json names as `transformers_weights` comes before all others, as it does for
    Transformers. Where ``model.safetensors`` stands beside an index that does not name it, one of both is stale. That
    file alone is the model then, as it is for Transformers, and a RuntimeWarning says so. Another one tells in what an
    index departs from how indexes are written.

    Args:
        path: a directory, an index of one that has several, or the one file of a model.

    Raises:
        ValueError: the directory has no safetensors file at its top, or several indexes; or it is a distributed
            checkpoint.
        CorruptDataError: the index is none, or leads out of its directory; an upload has not ended; or the files are
            not those that the metadata of a distributed checkpoint names.
    """
    if not path.is_dir():
        return _read(path) if is_index(path.name) else Shards((path,), {})
    entries = sorted(entry for entry in path.iterdir() if not entry.is_dir())
    expect_ended(path, (entry.name for entry in entries))
    if (named := _named_by_config(path, entries)) is not None:
        # The paths in such an index are relative to config.json.
        return _read(named, folder=path) if is_index(named.name) else Shards((named,), {})
    indexes = [entry for entry in entries if is_index(entry.name)]
    whole = next((entry for entry in entries if indexes and entry.name == WHOLE_NAME), None)
    if whole is not None:
        others, indexes = indexes, [index for index in indexes if whole in _read(index, tell=False).files]
        if not indexes:
            warnings.warn(
                f"{path}: {whole.name} is read, as Transformers does, and not the files that {others[0].name} names; "
                "to read those, give the path of the index",
                RuntimeWarning,
                stacklevel=2,
            )
            return Shards((whole,), {})
    if len(indexes) > 1:
        names = ", ".join(shown(index.name) for index in indexes)
        raise ValueError(f"{path} has several indexes: {names}; give the path of one of them")
    if indexes:
        return _read(indexes[0])
    present = [entry.name for entry in entries]
    if is_distributed(present):
        _named_by_distributed(path)  # one that is damaged is told first
    files = [entry for entry in entries if is_safetensors(entry.name)]
    if (refused := refusal(path, present)) and (is_distributed(present) or not files):
        raise refused
    if not files:
        below = sorted({file.parent.name for file in path.glob("*/*.safetensors")})
        advice = f"; {', '.join(shown(name) for name in below)} below it do" if below else ""
        raise ValueError(f"{path} holds no .safetensors file{advice}")
    return Shards(tuple(files), {})


def _named_by_config(folder: Location, entries: Iterable[Location]) -> Location | None:
    """What the config.json of a directory names as its weights; None if it names none.

    Raises:
        CorruptDataError: that lies outside the directory.
    """
    name = None
    for config in (entry for entry in entries if entry.name == CONFIG_NAME):
        with suppress(CorruptDataError, OSError):
            name = load(read_file(config, MAX_JSON_NBYTES), []).get(WEIGHTS_KEY)
    if not isinstance(name, str) or not (is_safetensors(name) or is_index(name)):
        return None
    plain = without_dots(name)
    if not is_listable(plain):
        raise CorruptDataError(
            f"expected {WEIGHTS_KEY} of {CONFIG_NAME} to be a path inside the directory, got {shown(name)}",
            file=folder / CONFIG_NAME,
            advice="Transformers refuses it too: correct it, or give the path of the file of weights",
        )
    return folder.joinpath(*plain.split("/"))


def _named_by_distributed(folder: Location) -> set[str]:
    """The files that the metadata of a distributed checkpoint names. Others count for nothing: a save that died leaves
    some.

    Raises:
        FormatError: the metadata is damaged, or a file of another save stands in the place of one.
        FileNotFoundError: one is missing.
    """
    named = named_files(folder)
    for name, checksum in named.items():
        open_shard(folder / name, checksum).close()
    return set(named)


def tensor_files(root: Location) -> dict[str, Location]:
    """The files of a directory that hold tensors, by relative path: safetensors files and torch files; those that an
    index names, or the one file that `root` is.

    Raises:
        ValueError: there is none.
        CorruptDataError: the index is none, or leads out of its directory.
    """
    if not root.is_dir():
        return {path_in(file, root.parent): file for file in find_shards(root).files}
    found = scan(root).files
    if is_distributed(file.path for file in found):
        named = _named_by_distributed(root)
        found = [file for file in found if not is_safetensors(file.path) or file.path in named]
    files = {file.path: file.location for file in found if holds_tensors(file)}
    if not files:
        raise ValueError(f"{root} holds no .safetensors file")
    return files


def holds_tensors(file: FoundFile) -> bool:
    """Whether a file counts as one of tensors: by its name, or as a torch file with a large storage. A compressed one
    counts also if it is damaged, and one that is called as a model is also if it cannot be opened, so that this is
    told; a torch file that cannot be looked into does not."""
    if is_safetensors(file.path):
        return True
    try:
        opened = open_input(file.location)
    except PermissionError:
        return file.path.lower().endswith(MODEL_SUFFIXES)
    with opened:
        try:
            return torch_view(opened) is not None
        except FormatError:
            return may_be_compressed(opened)


def _read(index: Location, *, folder: Location | None = None, tell: bool = True) -> Shards:
    with ErrorContext(file=index):
        _, home, notices = parse_index(read_index(index))
        if not home:
            raise CorruptDataError("expected an index that lists tensors, got an empty one")
    if tell:
        warn_of(index, notices)
    folder = index.parent if folder is None else folder
    files = {name: folder.joinpath(*name.split("/")) for name in sorted(set(home.values()))}
    return Shards(tuple(files.values()), {name: files[file] for name, file in home.items()}, index)


def warn_of(index: Location, notices: Iterable[str]) -> None:
    """Warn of what is odd in an index."""
    for notice in notices:
        warnings.warn(f"{index}: {notice}", RuntimeWarning, stacklevel=2)
