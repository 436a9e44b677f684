"""Whether a checkpoint is whole and undamaged."""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..._ground.filesystem import following
from ..._ground.text import count, escape
from ...errors import BaseMismatchError, CorruptDataError, ErrorContext, FormatError, TensorwireError
from ...files.beside import NoFileBesideError
from ...files.names import shown
from ...files.original_record import SAFETENSORS, Spliced
from ...files.original_view import OriginalReader
from ...files.torch_file import open_stored
from ...storage.locations import locate, said
from ...storage.pipeline import Worker, read_windows
from ...storage.progress import Meter
from ..bases import enter, name_of
from ..directory.distributed import DISTRIBUTED_NAME, is_distributed, named_files, open_shard
from ..directory.manifest import OF_TENSORS, REPLACED
from ..directory.paths import MANIFEST_NAME, MODEL_SUFFIXES, is_safetensors, scan
from ..directory.shards import holds_tensors
from ..directory.sources import SourceFile, check_size, compressed_directory
from ..results import ChangedFile, Problem, VerifyReport
from .outcome import current_sha256, find_change

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from ...files.base import Base
    from ...files.reader import StoredFile
    from ...storage.locations import Location
    from ...storage.pipeline import Chunk
    from ...storage.progress import Progress
    from ..bases import BasePath


def verify(
    path: str | os.PathLike[str],
    *,
    base: BasePath | None = None,
    strict: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Decode everything, check it against checksums and, where they are recorded, the SHA-256 of the original files: a
    checking reader (docs/format.md).

    Bad data is reported, not raised: look at ``report.ok``. Files beside the tensors that were edited or lost since
    compressing are no problems; they stand in ``report.changed``.

    Args:
        base: the checkpoint that this one is relative to: a file, directory or index, plain or compressed; if it is a
            delta, a list of it and what it is relative to, newest first. Without it the blocks of relative tensors are
            checked, and their content is not: ``report.num_unchecked`` counts them. A wrong base is a problem for each
            tensor that needs another one; a missing file of the same directory is one for all that need it.
        strict: count an edited or missing file as a problem.
        progress: called from this thread with the uncompressed bytes done and to be done in all files, and the relative
            path of the file at work: see `Progress`.

    Raises:
        OSError: `path` itself, or `base`, cannot be read.
        ValueError: `path` is a directory without a file of tensors; or `base` is, or lacks what it is relative to.
    """
    started = time.monotonic()
    root = locate(path, storage_options)
    with following(root):
        root.stat()
    with ExitStack() as stack:
        opened = enter(stack, base, storage_options)
        is_directory = root.is_dir()
        verifier = _Verifier(threads, progress, strict, opened, is_directory=is_directory)
        if not is_directory:
            verifier.run([SourceFile(root.name, root, SAFETENSORS, root.stat().st_size)])
            ignored: tuple[str, ...] = ()
        else:
            files, ignored = verifier.list_files(root)
            verifier.run(files)
    return VerifyReport(
        path=said(path),
        kind="compressed" if verifier.compressed else "plain",
        num_files=verifier.num_files,
        num_tensors=verifier.num_tensors,
        nbytes=verifier.nbytes,
        seconds=time.monotonic() - started,
        exact=verifier.exact and not verifier.problems and not verifier.num_unchecked,
        problems=tuple(verifier.problems),
        ignored=ignored,
        changed=tuple(verifier.changed),
        base=name_of(base),
        num_relative=verifier.num_relative,
        num_unchecked=verifier.num_unchecked,
        num_plain=verifier.num_plain,
    )


class _Verifier:
    """Checks files and counts."""

    def __init__(
        self, threads: int | None, progress: Progress | None, strict: bool, base: Base | None, *, is_directory: bool
    ) -> None:
        self._is_directory = is_directory
        self._threads = threads
        self._progress = progress
        self._strict = strict
        self._base = base
        self.num_relative = 0
        self.num_unchecked = 0
        self.num_plain = 0
        self.compressed = False
        self.exact = True
        self.num_files = 0
        self.num_tensors = 0
        self.nbytes = 0
        self.problems: list[Problem] = []
        self._without_file: dict[tuple[str, str], list[str]] = {}
        self.changed: list[ChangedFile] = []
        self._checksums: dict[str, str] = {}

    def list_files(self, root: Location) -> tuple[list[SourceFile], tuple[str, ...]]:
        """The files that the manifest of a directory lists, and of one without all that hold tensors; of safetensors
        files only those that the metadata of a distributed checkpoint names, if it is one. Then the files that are not
        checked: those that the manifest does not know, or that are called as files of a model are."""
        try:
            sources = compressed_directory(root)
        except TensorwireError as error:
            self.problems.append(_problem(error, MANIFEST_NAME))
            self.compressed = True
        except ValueError:
            pass  # no manifest
        else:
            self.compressed = True
            return list(sources.files), sources.ignored
        listing = scan(root).files
        if is_distributed(file.path for file in listing):
            self._read_distributed(root)
        others = (file for file in listing if not (self._checksums and is_safetensors(file.path)))
        named = {*self._checksums, *(file.path for file in others if holds_tensors(file))}
        if not (named or self.problems):
            raise ValueError(f"{root} holds no .safetensors file")
        nbytes = {file.path: file.nbytes for file in listing}
        files = [
            SourceFile(path, root.joinpath(*path.split("/")), SAFETENSORS, nbytes.get(path, 0))
            for path in sorted(named)
        ]
        ignored = (path for path in nbytes if path not in named and path.lower().endswith(MODEL_SUFFIXES))
        return files, tuple(ignored)

    def _read_distributed(self, root: Location) -> None:
        try:
            self._checksums = named_files(root)
        except FormatError as error:
            self.problems.append(_problem(error, DISTRIBUTED_NAME))
            self.compressed = True

    def run(self, files: list[SourceFile]) -> None:
        meter = Meter(self._progress, sum(file.nbytes for file in files))
        for source in files:
            meter.begin(source.path, source.nbytes)
            self.num_files += 1
            try:
                with ErrorContext(file=source.location):
                    if source.kind in OF_TENSORS:
                        self._check_tensors(source, meter)
                    else:
                        self._check_copy(source, meter)
            except (FormatError, OSError, ValueError) as error:
                self.problems.append(_problem(error, source.path))
            meter.end()
        for (path, found), users in self._without_file.items():
            self.problems.append(_missing(path, found, users))

    def _note(self, error: FormatError | BaseMismatchError, path: str) -> None:
        """Note what is wrong with a tensor of a file. Tensors that lack the same file are one problem."""
        if isinstance(error, NoFileBesideError):
            self._without_file.setdefault((error.path, error.found), []).append(path)
        else:
            self.problems.append(_problem(error, path))

    def _check_tensors(self, source: SourceFile, meter: Meter) -> None:
        checksum = self._checksums.get(source.path)
        with open_stored(source.location) if checksum is None else open_shard(source.location, checksum) as stored:
            self.compressed = self.compressed or stored.compressed
            self.num_tensors += len(stored.tensors)
            # A manifest that knows the files of the directory has been read, if it can be.
            record = stored.record() if self._is_directory and source.known is None else source.record(stored)
            if not stored.compressed and source.known is None:
                self.exact = False
                self.num_plain += len(stored.tensors)
                return
            self.exact = self.exact and record is not None
            stored.use_base(self._base, source.path)
            stored.expect(stored.tensors.values())
            reader = OriginalReader(stored, record, self._threads)
            bad: set[str] = set()
            unchecked: set[str] = set()
            self._look_at_relative(stored, source, bad, unchecked)
            skipped = bad | unchecked

            def fill(chunk: Chunk, out: memoryview) -> None:
                name = reader.header.entries[chunk.tensor].name
                if name in bad or name in skipped:
                    return
                try:
                    reader.fill(chunk, out)
                except (FormatError, BaseMismatchError) as error:
                    bad.add(name)
                    self._note(error, source.path)

            digest = hashlib.sha256()
            hash_data = Spliced(reader.outline.gaps, digest.update)
            names = [entry.name for entry in reader.header.entries]
            sizes = [0 if name in skipped else size for name, size in zip(names, reader.sizes, strict=True)]
            stream = read_windows(sizes, fill, unit=reader.block_nbytes)
            with Worker("hash") as hashing, stream as windows:
                for window in windows:
                    nbytes = len(window.data)
                    hashing.submit(hash_data, window.data, done=window.release)
                    self.nbytes += nbytes
                    meter.advance(nbytes)
            self.num_relative += len(stored.relative)
            self.num_unchecked += len(unchecked)
            check_size(source, reader.nbytes)
            if record is not None and not bad and not unchecked and digest.hexdigest() != record.sha256:
                raise CorruptDataError(f"expected SHA-256 {record.sha256}, got {digest.hexdigest()}")

    def _look_at_relative(self, stored: StoredFile, source: SourceFile, bad: set[str], unchecked: set[str]) -> None:
        """Find the relative tensors that are not to be read, since nothing but a base bounds what they claim: without
        one their blocks are checked, and one of another size is a problem."""
        for tensor in stored.tensors.values():
            try:
                if not stored.is_relative(tensor):
                    continue
            except FormatError:
                continue  # it is raised once more when the content is read
            try:
                if self._base is None and stored.needs_base(tensor):
                    unchecked.add(tensor.name)
                    stored.check_blocks(tensor)
                else:
                    stored.base_of(tensor, threads=self._threads, verify=False)
            except (FormatError, BaseMismatchError) as error:
                bad.add(tensor.name)
                self._note(error, source.path)

    def _check_copy(self, source: SourceFile, meter: Meter) -> None:
        if source.kind == REPLACED:
            source.content()

        def advance(nbytes: int) -> None:
            self.nbytes += nbytes
            meter.advance(nbytes)

        change = find_change(source, current_sha256(source, advance), strict=self._strict)
        if change is not None:
            self.changed.append(change)
            self.exact = self.exact and change.outcome == "restored"


def _missing(path: str, found: str, users: Sequence[str]) -> Problem:
    """The problem of a file that others of its directory need, by the file of each tensor that does."""
    files = sorted(set(users))
    where = shown(files[0]) if len(files) == 1 else f"{shown(files[0])} and {count(len(files) - 1, 'other file')}"
    return Problem(
        BaseMismatchError.__name__,
        escape(
            f"{count(len(users), 'tensor')} of {where} cannot be checked without {shown(path)}, which holds what they "
            f"are relative to: {found}; fetch that file and {MANIFEST_NAME} of the same compressed directory, as they "
            "were when it was compressed, each to its place"
        ),
        path,
    )


def _problem(error: Exception, path: str) -> Problem:
    kind, message = type(error).__name__, escape(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        message = escape(f"{str(error.filename)!r}: {error.strerror}")
    if isinstance(error, TensorwireError):
        return Problem(kind, message, path, error.tensor, error.block, error.byte)
    return Problem(kind, message, path)
