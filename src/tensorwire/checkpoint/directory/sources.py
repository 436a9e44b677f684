"""The files of a checkpoint that is to be converted: on the disk as they are, and as a manifest knows them."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..._ground.filesystem import following
from ..._ground.text import count, size
from ...errors import CorruptDataError, ErrorContext, FormatError, LimitExceededError
from ...files.foreign import PREFIX_NBYTES, TORCH_FILE, recognise
from ...files.json_object import check_nbytes
from ...files.loader import check_room, claim
from ...files.names import MAX_JSON_NBYTES, shown
from ...files.original_record import SAFETENSORS, TORCH, Record, pack
from ...files.original_view import OriginalReader
from ...files.reader import StoredFile, may_be_compressed
from ...files.torch_file import TorchFile, open_stored, torch_view
from ...files.transfer import sha256_of
from ...storage.inputs import open_input, read_file
from ...storage.local import InputFile, identity_of
from ...storage.staging import has_finished, partial_path
from .config_and_index import is_compressed_config, is_model_config
from .distributed import DATA_SUFFIX, is_distributed, refusal
from .manifest import (
    COPIED,
    NOT_COMPRESSED,
    OF_TENSORS,
    REPLACED,
    Manifest,
    ManifestFile,
    manifest_of,
    record_of,
)
from .paths import MANIFEST_NAME, FoundFile, expect_ended, is_config, is_index, is_safetensors, parents, scan

if TYPE_CHECKING:
    from ...files.loader import Claim
    from ...storage.inputs import Opened
    from ...storage.locations import Location
    from ...storage.readable import Readable

USE_TRANSCODE = "is compressed already; transcode changes its profile, decompress restores the original"

MAX_KEPT, MAX_KEPT_NBYTES = 256, 64 << 20
"""So many files of this machine stay open from their first look until their turn, and so much is kept of the beginnings
of objects and of what was found in torch files. Further ones are opened or looked into again."""

_ENTRY_NBYTES = 1 << 10
"""What the objects for a tensor of a header take, about."""

_NOTED_NBYTES = 1_000_000
"""Fewer bytes of other formats are not worth a note."""

_MAX_OTHER_CONFIG_NBYTES = 1 << 18
"""A configuration that has not its usual name is looked for in files up to this size: tokenizers have larger ones."""

_MAX_RECORDS_NBYTES = MAX_JSON_NBYTES * 3 // 4
"""What of a manifest the records of torch files may take: the headers of safetensors files need far less."""

_MIN_NOTICE_NBYTES = 64 << 10
"""A smaller file, such as a trainer's random numbers, has so little to gain that nothing is said."""


class SourceFile(NamedTuple):
    """A file to be converted.

    Attributes:
        path: relative.
        location: where it is.
        kind: SAFETENSORS, TORCH, REPLACED (it may have to be) or COPIED.
        nbytes: size of the original.
        known: its entry in the manifest; None if it is the original itself.
        kept: the open file, as its first look has left it; see `open`.
    """

    path: str
    location: Location
    kind: str
    nbytes: int
    known: ManifestFile | None = None
    kept: list[Readable] | None = None

    def open(self) -> Readable:
        """The file, which the caller closes: as its first look has opened it, if that is kept, was not taken, and the
        file is still the same."""
        self._drop_changed()
        return self.kept.pop() if self.kept else open_input(self.location)

    def identity(self) -> list[int]:
        """Numbers that differ once the file has other bytes."""
        self._drop_changed()
        if self.kept:
            return self.kept[0].identity
        with open_input(self.location) as file:
            return file.identity

    def _drop_changed(self) -> None:
        """Close what is kept of a file that was written to or replaced since. A new one has its own permissions."""
        if self.kept and isinstance(self.location, Path) and self.kept[0].identity != identity_of(self.location):
            self.kept.pop().close()

    def record(self, stored: StoredFile) -> Record | None:
        """What restores the original of `stored`, which is this file."""
        if self.known is None:
            return record_of(stored)
        with ErrorContext(file=self.location):
            return self.known.record()

    def content(self) -> bytes:
        """The original of a REPLACED file."""
        if self.known is not None:
            with ErrorContext(file=self.location):
                return self.known.unpacked_content()
        with closing(self.open()) as file, ErrorContext(file=self.location):
            check_nbytes(file.nbytes, MAX_JSON_NBYTES, "JSON")
            return file.read(0, file.nbytes)


class Sources(NamedTuple):
    """A checkpoint that is to be converted.

    Attributes:
        files: all of them.
        manifest: None for originals.
        directories: relative paths, with a slash at the end, of the directories in which no file stands.
        ignored: files and directories that the manifest does not know; a directory's path ends with a slash.
        excluded: those that were left out when it was compressed, or are to be.
        notices: why files are copied that hold tensors.
    """

    files: tuple[SourceFile, ...]
    directories: tuple[str, ...] = ()
    manifest: Manifest | None = None
    ignored: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)

    def check_room(self, max_nbytes: int | None) -> None:
        """Raise LimitExceededError if what is restored of a compressed checkpoint is larger than this: tensors by their
        frames, what stands beside them by its record, and every other file.

        Raises:
            FormatError: a file is damaged, as far as its header and its record tell.
        """
        check_room(self._claims(), max_nbytes)

    def _claims(self) -> Iterator[Claim]:
        for file in self.files:
            if file.kind in OF_TENSORS:
                with open_stored(file.location) as stored, ErrorContext(file=file.location):
                    claims = [claim(stored, tensor) for tensor in stored.tensors.values()]
                    original = OriginalReader(stored, file.record(stored), None)
                    check_size(file, original.nbytes)
                yield from claims
                yield file.location, None, max(0, original.nbytes - sum(nbytes for _, _, nbytes in claims))
            elif file.kind == REPLACED:
                yield file.location, None, file.nbytes
            elif file.location.exists():  # a copied file may have grown since
                yield file.location, None, file.location.stat().st_size

    def only(self, paths: Sequence[str]) -> Sources:
        """The same with these files of tensors alone.

        Raises:
            ValueError: there is no such file, or it holds no tensors.
            TypeError: `paths` is one path, not a list of them.
        """
        if isinstance(paths, (str, bytes)):
            raise TypeError(f"expected a list of paths as files, got {paths!r}; put it into brackets")
        found = {file.path: file for file in self.files if file.kind in OF_TENSORS}
        for path in paths:
            if path not in found:
                raise ValueError(
                    f"expected files of tensors by their paths in the source, such as {shown(min(found))}, got "
                    f"{shown(path)}; leave it out: the call without files makes all others"
                )
        return self._replace(files=tuple(found[path] for path in sorted(set(paths))))


def originals(src: Location, exclude: Sequence[str], replaced: Mapping[str, ManifestFile] | None = None) -> Sources:
    """What is to be compressed: a file, or the files of a directory but those that match `exclude`.

    Args:
        replaced: what a run in place has noted of the files of a directory that it has replaced. A file that it has
            left so is `known`.
    """
    if src.is_dir():
        return _original_directory(src, exclude, replaced)
    if exclude:
        raise ValueError(f"exclude is for the files of a directory, {src} is a file")
    with following(src):
        return Sources((SourceFile(src.name, src, SAFETENSORS, src.stat().st_size),))


def _original_directory(root: Location, exclude: Sequence[str], replaced: Mapping[str, ManifestFile] | None) -> Sources:
    """The files of an uncompressed directory but those that match `exclude`: see `scan`.

    Raises:
        ValueError: it is compressed, has no file of tensors, is or holds a model's directory in a hub cache, or holds
            something that cannot be carried along.
    """
    _refuse_hub_cache(root)
    if replaced is None:
        expect_replaced(root)
    found, directories, excluded = scan(root, exclude)
    for directory in sorted({file.location.parent.parent for file in found if file.location.parent.name == "refs"}):
        _refuse_hub_cache(directory)
    paths = [file.path for file in found]
    if is_distributed(paths) and (refused := refusal(root, paths, "; its files are compressed already")):
        raise refused
    if any(file.path == MANIFEST_NAME for file in found):
        raise ValueError(f"{root} {USE_TRANSCODE}")
    looks = _Looks(root, replaced or {})
    files = sorted(map(looks.look, sorted(found, key=lambda file: (not is_config(file.path), file.path))))
    if not any(file.kind in OF_TENSORS for file in files):
        raise refusal(root, paths) or ValueError(f"{root} holds no .safetensors file{_other_model(files)}")
    notices = [*looks.notices, *(looks.note_others() if replaced is None else ())]
    return Sources(tuple(files), tuple(directories), excluded=tuple(excluded), notices=tuple(notices))


class _Looks:
    """The first look at each file of an original directory.

    Attributes:
        notices: why files are copied that might have been compressed.
    """

    def __init__(self, root: Location, replaced: Mapping[str, ManifestFile]) -> None:
        self._root, self._replaced = root, replaced
        # A quarter of the files that the process may still open, at most.
        left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(list(Path("/proc/self/fd").iterdir()))
        self._num_left, self._nbytes_left = min(MAX_KEPT, left // 4), MAX_KEPT_NBYTES
        self._records_room = _MAX_RECORDS_NBYTES
        self._others: dict[str, int] = {}
        self._distributed: list[FoundFile] = []
        self.notices: list[str] = []

    def look(self, file: FoundFile) -> SourceFile:
        """
        Raises:
            ValueError: it is compressed already, or says that the model beside it is.
        """
        opened = open_input(file.location)
        with ExitStack() as stack:
            stack.callback(opened.close)
            known = self._replaced.get(file.path)
            if known is not None and _is_replaced(known, opened):
                return SourceFile(file.path, file.location, known.kind, known.nbytes, known)
            kind, view = self._kind(file, opened)
            if kind in OF_TENSORS:
                self._refuse_compressed(file, opened)
            elif kind == COPIED:
                self._note_other(file, opened)
            number, nbytes = (1, 0) if isinstance(opened, InputFile) else (0, len(opened.beginning))
            if nbytes + _held(view) > self._nbytes_left:
                view = opened
            nbytes += _held(view)
            if number > self._num_left or nbytes > self._nbytes_left:
                return SourceFile(file.path, file.location, kind, file.nbytes)
            self._num_left -= number
            self._nbytes_left -= nbytes
            stack.pop_all()
            return SourceFile(file.path, file.location, kind, file.nbytes, kept=[view])

    def _kind(self, file: FoundFile, opened: Opened) -> tuple[str, Readable]:
        """What is to become of a file, and as what it is read."""
        if is_safetensors(file.path):
            return SAFETENSORS, opened
        is_small_config = self._is_config(file, opened)
        if is_small_config and is_compressed_config(opened.read(0, opened.nbytes)):
            if file.location.parent == self._root:
                raise ValueError(f"{file.location} says that {self._root} {USE_TRANSCODE}")
            raise _holds_compressed(self._root, "model", file.path.rpartition("/")[0])
        try:
            view = torch_view(opened)
            if view is not None:
                self._take_room(view)
                return TORCH, view
        except FormatError as error:
            if file.nbytes >= _MIN_NOTICE_NBYTES and not file.path.endswith(DATA_SUFFIX):
                self.notices.append(f"{NOT_COMPRESSED}: {file.path}: {error.message}")
        if file.path.endswith(DATA_SUFFIX):
            self._distributed.append(file)
        return REPLACED if is_index(file.path) or is_small_config else COPIED, opened

    def _note_other(self, file: FoundFile, opened: Opened) -> None:
        """Count a model in another format: hubs often have the same weights in several."""
        foreign = recognise(opened.read(0, PREFIX_NBYTES))
        if foreign is not None and foreign.holds_tensors and foreign is not TORCH_FILE:
            name = file.path.rpartition("/")[2]
            pattern = f"*.{name.rpartition('.')[2]}" if "." in name else name
            self._others[pattern] = self._others.get(pattern, 0) + file.nbytes

    def note_others(self) -> list[str]:
        """One note of what torch's writer of distributed checkpoints has written, and one of all models in other
        formats, if they are large."""
        found = []
        nbytes = sum(file.nbytes for file in self._distributed)
        if nbytes >= _MIN_NOTICE_NBYTES:
            found.append(
                f"{NOT_COMPRESSED}: {count(len(self._distributed), 'file')} of torch's FileSystemWriter, such as "
                f"{self._distributed[0].path}, {size(nbytes)}; TensorwireWriter saves compressed ones, and a Trainer "
                'under FSDP one file that can be compressed with fsdp_config={"state_dict_type": "FULL_STATE_DICT"}'
            )
        nbytes = sum(self._others.values())
        if nbytes < _NOTED_NBYTES:
            return found
        patterns = sorted(self._others, key=lambda pattern: -self._others[pattern])
        options = " ".join(f"--exclude {pattern!r}" for pattern in patterns)
        return [*found, f"{nbytes / 1e6:,.1f} MB in other formats are copied as they are: {options} leaves them out"]

    def _is_config(self, file: FoundFile, opened: Opened) -> bool:
        """Whether a file may be a configuration that says how a model beside it is stored."""
        if is_config(file.path):
            return opened.nbytes <= MAX_JSON_NBYTES
        if not file.path.endswith(".json") or opened.nbytes > _MAX_OTHER_CONFIG_NBYTES:
            return False
        return is_model_config(opened.read(0, opened.nbytes))

    def _take_room(self, view: Readable) -> None:
        """Count what the record of a torch file takes in the manifest. A file for whose record there is no room is
        copied."""
        nbytes = len(pack(view.outline.content)) if isinstance(view, TorchFile) else len(pack(b""))
        if nbytes > self._records_room:
            raise LimitExceededError(
                f"expected a torch file whose record fits into the {self._records_room} bytes that are left of the "
                f"manifest, got {nbytes}"
            )
        self._records_room -= nbytes

    def _refuse_compressed(self, file: FoundFile, opened: Opened) -> None:
        """Before the work: a result that stands among originals, where compressing a shard puts it."""
        with suppress(FormatError):
            if may_be_compressed(opened) and StoredFile(opened.duplicate()).compressed:
                raise _holds_compressed(self._root, "file", file.path)


def _is_replaced(known: ManifestFile, opened: Opened) -> bool:
    """Whether a file is not the original that a run in place has noted, but what has taken its place."""
    if known.kind == REPLACED:
        return sha256_of(opened, lambda _: None) == known.stored_sha256
    with suppress(FormatError):
        return may_be_compressed(opened) and StoredFile(opened.duplicate()).compressed
    return False


def _held(view: Readable) -> int:
    """About how much memory it takes what was found in a file: in a torch file its header, and what stands between."""
    if not isinstance(view, TorchFile):
        return 0
    _, header, gaps = view.outline
    return 2 * len(header.raw) + _ENTRY_NBYTES * len(header.entries) + sum(len(gap.data) for gap in gaps)


def _holds_compressed(root: Location, what: str, path: str) -> ValueError:
    return ValueError(
        f"{root} holds a {what} that is compressed already: {path}; move it to another directory, leave it out with "
        f"--exclude {path!r} (exclude=[{path!r}]), or transcode it to change its profile"
    )


def expect_replaced(root: Location) -> None:
    """Raise ValueError for a directory whose files are being replaced by compressed ones, or were in part."""
    staged = partial_path(root / MANIFEST_NAME) if isinstance(root, Path) else None
    if staged is not None and has_finished(staged):
        raise ValueError(
            f"{root} holds originals and compressed files, since their replacement has not ended: repeat the command "
            f"that began it, compress --replace"
        )


def compressed_directory(root: Location) -> Sources:
    """The files of a compressed directory, or of a directory in one, as its manifest lists them.

    Raises:
        ValueError: it has no manifest.
        FormatError: the manifest is damaged.
    """
    manifest = manifest_of(root)
    if manifest is None:
        expect_replaced(root)
        names = [entry.name for entry in root.iterdir()]
        expect_ended(root, names)
        raise refusal(root, names) or ValueError(
            f"{root} is not a compressed checkpoint: it has no {MANIFEST_NAME}; if its .safetensors files are "
            "compressed, fetch that file or decompress them one by one; if not, compress makes it one"
        )
    files = tuple(
        SourceFile(file.path, root.joinpath(*file.path.split("/")), file.kind, file.nbytes, file)
        for file in manifest.files
    )
    known = {file.path for file in files} | {MANIFEST_NAME}
    found, directories, excluded = scan(root)
    places = {place for path in known for place in parents(path)} | set(manifest.directories)
    ignored = [file.path for file in found if file.path not in known]
    ignored += [path for path in (*directories, *excluded) if path not in places]
    return Sources(files, manifest.directories, manifest, tuple(sorted(ignored)), manifest.excluded)


def compressed(src: Location) -> Sources:
    """What is to be restored: a file, or the files of a directory that its manifest lists.

    Raises:
        FileNotFoundError: one that holds tensors is missing: that is told before hours of work, not after.
    """
    if not src.is_dir():
        with open_stored(src) as stored:
            nbytes = sum(stored.layout(name)[2] for name in stored.tensors)
        return Sources((SourceFile(src.name, src, SAFETENSORS, nbytes),))
    sources = compressed_directory(src)
    missing = [file.location for file in sources.files if file.kind in OF_TENSORS and not file.location.exists()]
    if missing:
        others = f"; so are {len(missing) - 1} others" if len(missing) > 1 else ""
        text = f"this file of tensors, which {MANIFEST_NAME} lists, is missing{others}; fetch it"
        raise FileNotFoundError(errno.ENOENT, text, str(missing[0]))
    return sources


def check_original(stored: StoredFile) -> None:
    """Raise ValueError for a file that is compressed already."""
    if stored.compressed:
        raise ValueError(f"{stored.path} {USE_TRANSCODE}")


def check_compressed(stored: StoredFile) -> None:
    """Raise ValueError for a file with nothing of ours in it."""
    if not stored.compressed:
        raise ValueError(f"{stored.path} is not compressed")


def check_size(source: SourceFile, nbytes: int) -> None:
    """Raise CorruptDataError if an original does not have the size that the manifest says."""
    if source.known is not None and source.nbytes != nbytes:
        raise CorruptDataError(f"expected an original of {source.nbytes} bytes, got {nbytes}", file=source.location)


def _refuse_hub_cache(root: Location) -> None:
    """Raise ValueError for the directory of a model in a hub's cache, which holds each file as a blob and as a link."""
    if not isinstance(root, Path):
        return
    snapshots = root / "snapshots"
    if not ((root / "blobs").is_dir() and (root / "refs").is_dir() and snapshots.is_dir()):
        return
    main = root / "refs" / "main"
    revision = read_file(main, 4096).decode(errors="replace").strip() if main.is_file() else ""
    paths = sorted(snapshots.iterdir(), key=lambda path: (path.name != revision, path.name))
    advice = f"name a snapshot in it, and a DST: {' or '.join(map(str, paths))}" if paths else "it holds no snapshot"
    raise ValueError(f"{root} is a model's directory in a hub cache, which holds each file twice; {advice}")


def _other_model(files: Sequence[SourceFile]) -> str:
    """What is said of the largest file that holds a model in another format; nothing if there is none."""
    for file in sorted(files, key=lambda file: -file.nbytes):
        with closing(file.open()) as opened:
            foreign = recognise(opened.read(0, PREFIX_NBYTES))
        if foreign is not None and foreign.holds_tensors:
            return f"; {shown(file.path)} is {foreign.name}: {foreign.advice}"
    return ": there is nothing to compress"
