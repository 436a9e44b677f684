"""What a result may replace: what tensorwire wrote, never an original; nor what is compressed and restores another
original than the result: it may be the only copy."""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import FormatError, UnsupportedVersionError
from ...files.names import shown
from ...files.original_view import OriginalReader
from ...files.reader import StoredFile
from ...storage.staging import left_over
from .manifest import OF_TENSORS, read_manifest
from .paths import MANIFEST_NAME, MODEL_SUFFIXES, is_safetensors

if TYPE_CHECKING:
    from ...storage.locations import Location
    from .manifest import Manifest, ManifestFile
    from .sources import SourceFile, Sources

_ADVICE = "move it, or name another destination"


def made_of(sources: Sources, whole: Sequence[Location], path: Location) -> frozenset[str]:
    """What may go with `path` when `sources` are compressed there: of a directory all that its manifest lists, and what
    killed runs have left; of a file nothing. What is compressed restores no other original than the result does.

    Args:
        whole: compressed, and with the content of the result: that itself as soon as it is whole. Until then less is
            known of a directory: sizes, or what the manifest of `sources` says of files of tensors.

    Raises:
        FileExistsError: it holds another content, may be an original, or is not a compressed checkpoint alone.
    """
    if not path.is_dir():
        _check_file(path)
        for holder in whole:
            check_same(path, holder)
        if not whole:
            _check_size(path, sources.files[0].nbytes)
        return frozenset()
    manifest = _manifest_of(path)
    restored = {file.path: file for holder in whole for file in _manifest_of(holder).files}
    given = {file.path: file for file in sources.files}
    for file in manifest.files:
        if not (_is_restored(file, restored) if whole else _may_be_restored(file, given)):
            raise _other(path, f", such as {shown(file.path)}")
        place = path.joinpath(*file.path.split("/"))
        if not place.is_file() or place.is_symlink():
            continue
        if file.kind in OF_TENSORS or is_safetensors(file.path):  # even if a manifest says otherwise
            _check_file(place)
        elif _is_model(place) and place.stat().st_size not in (0, file.nbytes):
            raise _refusal(place, f"is not the model that {MANIFEST_NAME} lists, so it is never replaced")
        for holder in whole:
            check_same(place, holder.joinpath(*file.path.split("/")))
    return frozenset({MANIFEST_NAME, *(file.path for file in manifest.files), *manifest.directories, *_left_over(path)})


def _check_size(path: Location, nbytes: int) -> None:
    """Raise FileExistsError for a compressed file whose original has another size."""
    with suppress(FormatError), StoredFile(path) as old:
        if (record := old.record()) is not None and OriginalReader(old, record, None).nbytes != nbytes:
            raise _other(path)


def _is_restored(old: ManifestFile, restored: Mapping[str, ManifestFile]) -> bool:
    return old.path in restored and restored[old.path].sha256 == old.sha256


def _may_be_restored(old: ManifestFile, given: Mapping[str, SourceFile]) -> bool:
    """The same as far as it is known before the work."""
    source = given.get(old.path)
    if source is None or source.known is None:
        return source is not None and source.nbytes == old.nbytes
    return source.kind not in OF_TENSORS or source.known.sha256 == old.sha256  # others may have been edited since


def restored_from(sources: Sources, written: Collection[str], path: Location) -> frozenset[str]:
    """What may go with `path` when `written` is restored there: the same paths, and what killed runs have left.

    Raises:
        FileExistsError: one of them is a compressed file with another content than the file of `sources`.
    """
    is_directory = path.is_dir()
    for source in sources.files:
        place = path.joinpath(*source.path.split("/")) if is_directory else path
        if place.is_file():
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
    known to be, as it is damaged: it may be the only copy."""
    with ExitStack() as stack:
        try:
            old = stack.enter_context(StoredFile(path))
        except UnsupportedVersionError:
            raise _other(path) from None
        except FormatError:  # nothing of ours
            return
        if not old.compressed:
            return
        try:
            is_same = source is not None and _is_same(old, stack.enter_context(StoredFile(source)))
        except (FormatError, FileNotFoundError):  # damaged, or `source` is none of ours
            is_same = False
        if not is_same:
            raise _other(path)


def _is_same(old: StoredFile, new: StoredFile) -> bool:
    """Whether a compressed file restores the original that another one does, or has its tensors if that has none."""
    record = old.record()
    if record is not None:
        return record == new.record()
    return old.metadata == new.metadata and _tensors(old) == _tensors(new)


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


def _other(path: Location, example: str = "") -> FileExistsError:
    what = f"is compressed and holds another content than the source{example}, or is damaged"
    return _refusal(path, f"{what}, so it is never replaced by it")


def _refusal(path: Location, text: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, f"{text}; {_ADVICE}", str(path))
