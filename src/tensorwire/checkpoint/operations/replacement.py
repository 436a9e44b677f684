"""Originals give way to compressed files, one after the other: the disk needs room for the largest one once more.

A staging directory in the checkpoint, ``tensorwire.json.partial``, is that of the manifest. A file is made there, and
decoded again. If it gives its original back, the journal gets its entry of the manifest, and then the file takes the
place of the original. So whenever the process ends, each file is the old or the new one, whole, and the journal knows
what restores the new ones. The manifest comes last. docs/checkpoints.md, "Compressing in place", specifies it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._ground.destination import Destination
from ..._ground.filesystem import alone_in, mark_of, mounts, real, resolved
from ...errors import ErrorContext
from ...files.beside import open_beside
from ...files.names import shown
from ...files.original_view import OriginalReader
from ...files.torch_file import open_stored
from ...files.transfer import check_file, sha256_of
from ...storage.locations import locate
from ...storage.progress import Meter
from ...storage.staging import Staging, partial_path
from ..directory.manifest import COPIED, OF_TENSORS, REPLACED, ManifestFile, parse_file, read_manifest
from ..directory.paths import MANIFEST_NAME, SYNC_DIRECTORY, is_history, is_in_hub_cache, parents
from ..directory.sources import USE_TRANSCODE, Sources, originals
from ..results import CheckpointReport, FileReport
from .converter import Converter, Task
from .outcome import Outcome

if TYPE_CHECKING:
    from ..._ground.destination import Existing
    from ...codec import Profile
    from ...storage.access import Access
    from ...storage.progress import Progress
    from ..directory.sources import SourceFile

_OUT = "compress it to another destination"
_TWICE = "its files would be changed for all who share them"


def replace_checkpoint(
    src: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    exclude: Sequence[str] = (),
    threads: int | None = None,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Compress a checkpoint in place: its files of tensors give way to compressed ones.

    In the end `src` is what ``compress_checkpoint(src, dst)`` writes; files that only would be copied are not touched.
    Each compressed file is decoded again, and takes the place of its original in one step if it gives that back, by its
    SHA-256. So each file is the old or the new one whenever the process ends; the same call, given again, does the
    rest. There must be room for the largest compressed file. Where `src` is compressed with this profile already,
    nothing is changed, and the report has no files.

    Args:
        src: a .safetensors file, a file of torch.save or a directory, on this machine.
        profile, threads, progress: as for `compress_checkpoint`. Tensors count twice, as they are decoded too.
        exclude: patterns as for `compress_checkpoint`; what matches stays as it is, and does not come back when `src`
            is decompressed. A run that goes on needs the same profile and patterns.

    Raises:
        FileExistsError: `src`, or a file that would give way, is a link; or an interrupted run had another profile or
            other patterns. The directory ``tensorwire.json.partial`` in `src`, which such a run leaves, holds what
            restores the originals: it must stay.
        BlockingIOError: another process changes `src`.
        ValueError: `src` is a URL, lies in a hub cache, is compressed with another profile, or is no source of
            `compress_checkpoint`; `exclude` takes in the history of a clone (``.git``).
        FormatError: a file of tensors is not valid. No file of `src` has changed, or only those before it.
        OSError: reading or writing fails, or a file of `src` changes meanwhile. Each file is the old or the new one.
    """
    started = time.monotonic()
    root = locate(src)
    if not isinstance(root, Path):
        raise ValueError(f"expected a checkpoint on this machine, whose files are replaced, got {root}; {_OUT}")
    if root.is_symlink():
        text = "is a link, and links are never followed to change files; name what it leads to"
        raise FileExistsError(errno.EEXIST, text, str(root))
    if is_in_hub_cache(resolved(root)):
        raise ValueError(f"{root} lies in a hub cache, and {_TWICE}; {_OUT}")
    replacing = _Replacing(root, profile, exclude, threads, progress)
    with ErrorContext(file=root), alone_in(root):
        outcome = replacing.replace_directory() if root.is_dir() else replacing.replace_file()
    return outcome.report("replace", str(src), str(src), None, started)


class _Replacing:
    """A checkpoint that is to be compressed in place."""

    def __init__(
        self, root: Path, profile: Profile, exclude: Sequence[str], threads: int | None, progress: Progress | None
    ) -> None:
        self._root, self._profile, self._exclude = root, profile, exclude
        self._threads, self._progress = threads, progress

    def replace_directory(self) -> Outcome:
        place = self._root / MANIFEST_NAME
        manifest = read_manifest(self._root)
        destination = Destination(place, force=manifest is not None)
        if manifest is not None:
            self._check_profile(manifest.profile)
            return self._nothing(destination)
        with Staging(destination, self._purpose()) as work:
            with ErrorContext(file=partial_path(place)):
                entries = {path: parse_file(facts.get("entry")) for path, facts in work.finished.items()}
            replaced = {path: entry for path, entry in entries.items() if entry.kind != COPIED}
            sources = originals(self._root, self._exclude, replaced)
            own = f"{partial_path(place).name}/"
            sources = sources._replace(excluded=tuple(path for path in sources.excluded if path != own))
            conversion, outcome = self._conversion(sources, work, self._places(sources))
            conversion.run(sources)
            outcome.files.append(FileReport(MANIFEST_NAME, "manifest", 0, conversion.write_manifest(sources)))
            work.hand_over(MANIFEST_NAME, destination, None)
            work.drop()
        outcome.notices += work.notices
        return outcome

    def replace_file(self) -> Outcome:
        destination = Destination(self._root, force=True)
        with open_stored(self._root) as stored:
            is_done = stored.compressed
            if is_done:
                self._check_profile(stored.profile)
        if is_done:
            return self._nothing(destination)
        with Staging(destination, self._purpose()) as work:
            sources = originals(self._root, self._exclude)
            conversion, outcome = self._conversion(sources, work, {})
            before = mark_of(self._root)
            conversion.run(sources)
            if mark_of(self._root) != before:
                raise _changed(self._root)
            work.commit(None)
        outcome.notices += work.notices
        return outcome

    def _purpose(self) -> dict[str, Any]:
        """What a run has in common with the one that goes on. The directory may have been moved meanwhile, and another
        version may do the rest."""
        options = [f"--profile {self._profile}", *(f"--exclude {pattern!r}" for pattern in self._exclude)]
        return {
            "format": "tensorwire-journal",
            "version": 2,
            "action": "replace",
            "profile": self._profile,
            "exclude": list(self._exclude),
            "repeat": f"go on as it was begun: compress --replace {' '.join(options)}",
        }

    def _check_profile(self, found: str | None) -> None:
        if found != self._profile:
            raise ValueError(f"{self._root} {USE_TRANSCODE}")

    def _nothing(self, destination: Destination) -> Outcome:
        """The outcome of a run that finds all done; it clears up after one that was killed at its end."""
        if os.path.lexists(partial_path(destination.path)):
            with Staging(destination, self._purpose()) as work:
                work.drop()
        outcome = Outcome(Sources(()), strict=False)
        outcome.profile = self._profile
        return outcome

    def _places(self, sources: Sources) -> dict[str, tuple[Destination, Existing | None]]:
        """Where files are to give way, by path, and what stands there. What would stop a run at its last file is found
        before the first one has changed.

        Raises:
            FileExistsError: one is a link or a mount point.
            OSError: a directory cannot be written to, or is another file system.
            ValueError: one lies in the history of a clone, which knows its files by their hashes; or a follower keeps
                them at the newest version.
        """
        if any(path.endswith(f"{SYNC_DIRECTORY}/") for path in sources.excluded):
            raise ValueError(f"{self._root} holds what a follower keeps, which would replace its files again; {_OUT}")
        places = {}
        for source in sources.files:
            if is_history(source.path):
                raise ValueError(f"{shown(source.path)} lies in the history of a clone, which is never changed; {_OUT}")
            if source.kind != COPIED:
                destination = Destination(self._root / source.path, force=True)
                places[source.path] = destination, destination.check()
        mounted = mounts()
        for above in sorted({"", *(above for path in places for above in parents(path))}):
            directory = self._root / above
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "files of this directory cannot be replaced", str(directory))
            if above and os.fsencode(real(directory)) in mounted:
                text = f"is another file system, to which no file can be moved in one step; {_OUT}"
                raise OSError(errno.EXDEV, text, str(directory))
        return places

    def _conversion(
        self, sources: Sources, work: Staging, places: Mapping[str, tuple[Destination, Existing | None]]
    ) -> tuple[_InPlace, Outcome]:
        task = Task("compress", self._profile, self._threads, None, self._root.is_dir())
        outcome = Outcome(sources, strict=False)
        meter = Meter(self._progress, sum(map(_effort, sources.files)))
        return _InPlace(task, work, meter, outcome, places), outcome


class _InPlace(Converter):
    """Compresses files, proves each, and lets it take the place of its original."""

    def __init__(
        self,
        task: Task,
        work: Staging,
        meter: Meter,
        outcome: Outcome,
        places: Mapping[str, tuple[Destination, Existing | None]],
    ) -> None:
        super().__init__(task, work, meter, outcome)
        self._places = places

    def effort(self, source: SourceFile) -> int:
        return _effort(source)

    def _copy(self, source: SourceFile, access: Access) -> None:
        """What would be copied stays."""
        with closing(source.open()) as file:
            entry = ManifestFile(source.path, COPIED, file.nbytes, sha256_of(file, self._meter.advance))
            self._finish(source, file.identity, entry, FileReport(source.path, COPIED, file.nbytes, file.nbytes))

    def _resumable(self, source: SourceFile) -> dict[str, Any] | None:
        return None if source.known is None else self._work.finished[source.path]

    def _directory(self) -> Path:
        return self._work.result.parent.parent

    def _finished_at(self, path: str) -> Path:
        made = self._place(path)
        return made if made.exists() or path not in self._places else self._places[path][0].path

    def _resume(self, source: SourceFile, facts: dict[str, Any], access: Access) -> None:
        destination, _ = self._places[source.path]
        self._prove(destination.path, ManifestFile(**facts["entry"]))
        self._place(source.path).unlink(missing_ok=True)  # the original, if the run was killed before it went
        super()._resume(source, facts, access)

    def _finish(
        self,
        source: SourceFile,
        identity: list[int],
        entry: ManifestFile,
        report: FileReport,
        num_relative_nbytes: int = 0,
    ) -> None:
        made = self._place(source.path)
        if entry.kind in OF_TENSORS:
            self._prove(made, entry)
        super()._finish(source, identity, entry, report, num_relative_nbytes)
        is_there = source.known is not None and source.known.stored_sha256 == entry.stored_sha256
        if entry.kind == COPIED or is_there or source.path not in self._places:
            return
        if entry.kind == REPLACED:
            self._work.record(source.path, {"entry": entry.as_json()})
        destination, before = self._places[source.path]
        existing = destination.check()
        if existing != before:
            raise _changed(destination.path)
        self._work.hand_over(source.path, destination, existing)

    def _prove(self, path: Path, entry: ManifestFile) -> None:
        """
        Raises:
            CorruptDataError: a compressed file does not give its original back.
        """
        with open_beside(path, self._directory()) as stored:
            record = stored.record() if entry.header is None else entry.record()
            check_file(OriginalReader(stored, record, self._task.threads), advance=self._meter.advance)


def _effort(source: SourceFile) -> int:
    """What a file counts for: tensors are compressed and decoded."""
    return source.nbytes * (2 if source.kind in OF_TENSORS else 1)


def _changed(path: Path) -> OSError:
    return OSError(errno.EBUSY, "the file changed while it was compressed; repeat the command", str(path))
