"""What a result may replace: what tensorwire wrote, never an original; nor a compressed file that has another content
than the compressed file that the result is made of."""

from __future__ import annotations

import errno
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import FormatError, UnsupportedVersionError
from ...files.reader import StoredFile
from ...storage.staging import left_over
from .manifest import OF_TENSORS, read_manifest
from .paths import MANIFEST_NAME, MODEL_SUFFIXES, is_safetensors

if TYPE_CHECKING:
    from ...storage.locations import Location
    from .manifest import Manifest
    from .sources import Sources

_ADVICE = "move it, or name another destination"
_OTHER = "is compressed and holds another content than the source, so it is never replaced by it"


def made_by_us(path: Location) -> frozenset[str]:
    """What may go with the directory `path`: all that its manifest lists, and what killed runs have left; of a file
    nothing.

    Raises:
        FileExistsError: it is not a compressed checkpoint, or not only one, or a file that may be an original.
    """
    if not path.is_dir():
        _check_file(path)
        return frozenset()
    manifest = _manifest_of(path)
    for file in manifest.files:
        place = path.joinpath(*file.path.split("/"))
        if not place.is_file() or place.is_symlink():
            continue
        if file.kind in OF_TENSORS or is_safetensors(file.path):  # even if a manifest says otherwise
            _check_file(place)
        elif _is_model(place) and place.stat().st_size not in (0, file.nbytes):
            raise _refusal(place, f"is not the model that {MANIFEST_NAME} lists, so it is never replaced")
    return frozenset({MANIFEST_NAME, *(file.path for file in manifest.files), *manifest.directories, *_left_over(path)})


def made_of(sources: Sources, path: Location) -> frozenset[str]:
    """`made_by_us` for a result that is made of compressed files: what gives way to it holds the same content.

    Raises:
        FileExistsError: it holds another content, or may be an original.
    """
    owned = made_by_us(path)
    if not path.is_dir():
        check_same(path, sources.files[0].location)
    elif sources.manifest is not None:
        known = {file.path: file.sha256 for file in sources.manifest.files}
        for file in _manifest_of(path).files:
            if file.kind in OF_TENSORS and known.get(file.path) != file.sha256:
                raise _refusal(path.joinpath(*file.path.split("/")), _OTHER)
    return owned


def restored_from(sources: Sources, written: Collection[str], path: Location) -> frozenset[str]:
    """What may go with `path` when `written` is restored there: the same paths, and what killed runs have left.

    Raises:
        FileExistsError: one of them is a compressed file with another content than the file of `sources`.
    """
    is_directory = path.is_dir()
    for source in sources.files:
        place = path.joinpath(*source.path.split("/")) if is_directory else path
        if source.kind in OF_TENSORS and place.is_file():
            check_same(place, source.location)
    return frozenset({*written, *(_left_over(path) if is_directory else ())})


def replaced_by(written: Collection[str], path: Location) -> frozenset[str]:
    """What may go with `path` when plain files are written there: those of these paths, and what killed runs have left.

    Raises:
        FileExistsError: one of them is a compressed file, which may be the only copy.
    """
    is_directory = path.is_dir()
    for name in written:
        place = path / name if is_directory else path
        if place.is_file():
            check_same(place, None)
    return frozenset({*written, *(_left_over(path) if is_directory else ())})


def check_same(path: Location, source: Location | None) -> None:
    """Raise FileExistsError for a compressed file whose content is not that of the compressed file `source`, or is not
    known to be: it may be the only copy."""
    with ExitStack() as stack:
        try:
            stored = stack.enter_context(StoredFile(path))
        except UnsupportedVersionError:
            raise _refusal(path, _OTHER) from None
        except FormatError:  # nothing of ours
            return
        if stored.compressed and (source is None or not _is_same(stored, stack.enter_context(StoredFile(source)))):
            raise _refusal(path, _OTHER)


def _is_same(a: StoredFile, b: StoredFile) -> bool:
    """Whether two compressed files restore one original."""
    records = a.record(), b.record()
    if None not in records:
        return records[0] == records[1]
    return records == (None, None) and a.metadata == b.metadata and _tensors(a) == _tensors(b)


def _tensors(stored: StoredFile) -> dict[str, object]:
    """Layout and content of each tensor; of one without a recorded hash the content is read."""
    return {
        name: (stored.layout(name), tensor.content_hash or stored.hash_content(tensor, None))
        for name, tensor in stored.tensors.items()
    }


def _left_over(path: Location) -> set[str]:
    """What killed runs have left; they leave nothing in a store that counts."""
    return left_over(path) if isinstance(path, Path) else set()


def _manifest_of(path: Location) -> Manifest:
    try:
        manifest = read_manifest(path)
    except FormatError as error:
        raise _refusal(path, f"has a {MANIFEST_NAME} that does not say what tensorwire wrote: {error}") from None
    if manifest is None:
        raise _refusal(path, f"has no {MANIFEST_NAME}: tensorwire did not write it, so it is never replaced")
    return manifest


def _check_file(path: Location) -> None:
    """Raise FileExistsError for a safetensors file without anything of ours, and for every other model."""
    if path.stat().st_size == 0:
        return
    try:
        with StoredFile(path) as stored:
            if not stored.compressed:
                raise _refusal(path, "is a safetensors file that tensorwire did not write, so it is never replaced")
    except FormatError:
        if _is_model(path):
            raise _refusal(path, "looks like a model that tensorwire did not write, so it is never replaced") from None


def _is_model(path: Location) -> bool:
    return path.name.lower().endswith(MODEL_SUFFIXES)


def _refusal(path: Location, text: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, f"{text}; {_ADVICE}", str(path))
