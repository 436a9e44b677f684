"""A delta applied in place: the base on the disk becomes the checkpoint that the delta leads to.

First every file of the base is looked at, and an error leaves all of them as they are. Then one file after the other is
made beside its old one, checked, synced and exchanged for it. So whenever the process ends, each file is the old or the
new one, whole, and the same call goes on from there. docs/checkpoints.md, "In place", specifies it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._ground.destination import Destination
from ..._ground.filesystem import alone_in, mark_of, resolved
from ...errors import BaseMismatchError, ErrorContext, FormatError
from ...files.base import Base, BaseTensor
from ...files.beside import open_beside
from ...files.names import shown
from ...files.original_view import OriginalReader
from ...files.torch_file import open_stored
from ...files.transfer import copy_file, file_sha256, restore_file
from ...storage.access import access_of, dropped, give_access
from ...storage.inputs import open_input
from ...storage.local import OutputFile, sync_directory
from ...storage.locations import inside, locate, on_this_machine, said, same
from ...storage.progress import Meter
from ...storage.staging import Staging
from ..directory.manifest import OF_TENSORS, REPLACED
from ..directory.paths import parents, scan
from ..directory.replaceable import check_same
from ..directory.shards import tensor_files
from ..directory.sources import compressed
from ..results import CheckpointReport, FileReport
from .outcome import Outcome, current_sha256
from .steps import OUT, Step, has_content, is_whole_new, listed, tensors_first, unlisted

if TYPE_CHECKING:
    from ...files.original_record import Record
    from ...files.reader import StoredFile, StoredTensor
    from ...storage.locations import Location
    from ...storage.progress import Progress
    from ..directory.sources import SourceFile, Sources

_PURPOSE = {"action": "apply"}


def apply_checkpoint(
    src: str | os.PathLike[str],
    base: str | os.PathLike[str],
    *,
    strict: bool = False,
    max_nbytes: int | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CheckpointReport:
    """Change `base` in place into the checkpoint that `src`, which is relative to it, was made from.

    What is written is what ``decompress_checkpoint(src, dst, base=base)`` writes, a checking reader too. Before the
    first file is changed all of them are checked: each must be that of the base, or the new one already; and the data
    of `src` must be whole, by its checksums. Each file is then replaced in one step, so that it is the old or the new
    one whenever the process ends; the same call, given again, does the rest. To apply a delta twice changes nothing.
    There must be room for the largest file once more.

    Args:
        src: a compressed file or directory with relative frames.
        base: a plain file or directory, of the same files. A tensor must be relative to one in the file of the same
            path. Files that `src` does not list stay as they are; the report names them in `notices`.
        strict: raise an error if a file of `src` beside the tensors was edited or is missing.
        max_nbytes: as for `decompress_checkpoint`.
        force: replace files of `base` beside the tensors that are neither those of the base nor the new ones.
        progress: as for `compress_checkpoint`.

    Raises:
        BaseMismatchError: a tensor of `base` is neither that of the base nor the new one; nothing is written.
        FileExistsError: another file of `base` was edited, and `force` is False, or one that would change is a link;
            nothing is written.
        BlockingIOError: another process changes `base`.
        FormatError: `src` is damaged. Nothing is written, unless its checksums are right and those of the originals
            wrong: then each file of `base` is the old or the new one.
        LimitExceededError: the files of `src` are larger than `max_nbytes`; nothing is written.
        ValueError: `src` is not relative, or lists files of the history of a clone (``.git``); `base` is compressed, or
            its tensors are in other files than the new ones.
        OSError: reading or writing fails, or a file of `base` changes meanwhile. Each file is the old or the new one.
    """
    started = time.monotonic()
    source_path, root = locate(src, storage_options), locate(base)
    if not isinstance(root, Path):
        raise ValueError(f"expected a base on this machine, whose files are changed in place, got {root}")
    if root.is_symlink():
        text = "is a link, and links are never followed to change files; name what it leads to"
        raise FileExistsError(errno.EEXIST, text, str(root))
    if not root.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no base; name the one that is to be changed", str(root))
    if source_path.is_dir() != root.is_dir():
        raise ValueError(f"{source_path} and {root} must both be files or both be directories; {OUT}")
    if same(source_path, root) or inside(source_path, root) or inside(root, source_path):
        raise ValueError(f"{source_path} and {root} are the same or lie in each other; name the base")
    sources = compressed(source_path)
    sources.check_room(max_nbytes)
    outcome = Outcome(sources, strict=strict)
    applying = _Application(source_path, root, sources, outcome, threads, force)
    with ErrorContext(file=source_path), alone_in(root):
        steps = applying.plan()
        applying.try_places(steps)
        applying.make_directories()
        meter = Meter(progress, sources.nbytes)
        outcome.files += [applying.take(step, meter) for step in steps]
    return outcome.report("apply", said(src), str(base), str(base), started)


def _refused_link(place: Path) -> FileExistsError:
    advice = f"put a copy of {str(resolved(place))!r} in its place" if place.exists() else "remove it"
    text = f"is a link, and links are never replaced; {advice}, or decompress the delta to a directory of its own"
    return FileExistsError(errno.EEXIST, text, str(place))


class _Application:
    """One delta, as the user has named it, and its base."""

    def __init__(
        self, src: Location, root: Path, sources: Sources, outcome: Outcome, threads: int | None, force: bool
    ) -> None:
        self._src = src
        self._root = root
        self._sources = sources
        self._outcome = outcome
        self._threads = threads
        self._force = force

    def plan(self) -> list[Step]:
        """What is to be done; files of tensors first. Nothing is written."""
        paths = listed(self._sources)
        self._check_directories(paths)
        steps = []
        for source in tensors_first(self._sources.files):
            place = self._place(source)
            is_link = place.is_symlink()
            if is_link and not place.is_file():
                raise _refused_link(place)
            if place.parent.is_dir() and not is_link:
                Destination(place, force=True).check()
            with ErrorContext(file=source.location):
                step = self._plan_tensors(source, place) if source.kind in OF_TENSORS else self._plan(source, place)
            if step is not None:
                if is_link and not step.is_done:
                    raise _refused_link(place)
                steps.append(step)
        if not any(step.num_relative for step in steps):
            raise ValueError(f"nothing of {self._src} is relative to a base; {OUT}")
        if self._root.is_dir():
            others = unlisted(paths, scan(self._root))
            self._outcome.notices += [f"left as it is, since the delta does not list it: {path}" for path in others]
        return steps

    def make_directories(self) -> None:
        """Make the directories in which no file stands, and that the base lacks."""
        for path in self._sources.directories:
            place, like = self._root / path, self._src / path
            if not place.is_dir():
                place.mkdir(parents=True)
                if like.is_dir():
                    give_access(place, access_of(like))
                sync_directory(place.parent)

    def try_places(self, steps: list[Step]) -> None:
        """Make and remove the staging directory of each file that is to change: what would stop us at the last one is
        found while the first one is whole.

        Raises:
            OSError: a directory cannot be written to, a name is too long with its suffix, something is in the way.
        """
        for step in steps:
            if not step.is_done and step.place.parent.is_dir():
                with self._staging(step.place) as work:
                    self._outcome.notices += work.notices

    def _staging(self, place: Path) -> Staging:
        """Where the new file is made that is to stand at a place."""
        sources = on_this_machine(source.location for source in self._sources.files)
        return Staging(Destination(place, force=True, source_files=sources), _PURPOSE)

    def _check_directories(self, paths: Iterable[str]) -> None:
        """Raise FileExistsError if something else stands where the delta needs a directory."""
        for directory in sorted({place for path in paths for place in parents(path)}) if self._root.is_dir() else ():
            place = self._root / directory
            if os.path.lexists(place) and not place.is_dir():
                text = f"stands where the new checkpoint has a directory; move it, or {OUT}"
                raise FileExistsError(errno.EEXIST, text, str(place))

    def _place(self, source: SourceFile) -> Path:
        return self._root.joinpath(*source.path.split("/")) if self._root.is_dir() else self._root

    def _plan_tensors(self, source: SourceFile, place: Path) -> Step:
        with open_beside(source.location) as stored:
            self._outcome.profile = stored.profile or self._outcome.profile
            record = source.record(stored)
            if record is None:
                raise ValueError(f"{stored.path} has no record of its original, whose bytes are to be restored; {OUT}")
            relative = [tensor for tensor in stored.tensors.values() if stored.needs_base(tensor)]
            num_compressed = sum(tensor.compressed for tensor in stored.tensors.values())
            step = Step(source, place, mark_of(place), False, len(stored.tensors), num_compressed, len(relative))
            if not relative and source.known is not None:
                step = step._replace(is_done=self._is_whole_new(source, place, source.known.sha256))
            else:
                with closing(self._open(place, source)) as base:
                    if self._is_new(stored, record, base):
                        return step._replace(is_done=True)
                    stored.use_base(base, source.path)
                    for tensor in relative:
                        self._check_base(stored, tensor, source, base)
                    step = step._replace(hashes={tensor.name: tensor.known_hash for tensor in base.tensors()})
            if not step.is_done:
                self._check_data(stored)
        return step

    def _open(self, place: Path, source: SourceFile) -> Base:
        """The file that is to be replaced, alone."""
        if not place.exists():
            raise BaseMismatchError(
                f"expected a file {str(place)!r} in the base, there is none",
                advice=f"name the checkpoint that it was made against; if that has other files, {OUT}",
            )
        try:
            stored = open_stored(place)
        except FormatError as error:
            error.advice = "this is not the base: name the checkpoint that the delta was made against"
            raise
        if stored.compressed:
            stored.close()
            raise ValueError(f"{place} is compressed, and only plain files are changed in place; {OUT}")
        return Base(self._root, self._root.name, {source.path: stored})

    def _is_new(self, stored: StoredFile, record: Record, base: Base) -> bool:
        """Whether the file is what the delta leads to: all the same but tensors, and tensors of the same content."""
        (current,) = base.files.values()
        if OriginalReader(current, None, self._threads).outline.content != record.content:
            return False
        if stored.tensors.keys() != current.tensors.keys():
            return False
        found = {tensor.name: tensor for tensor in base.tensors()}
        wanted = {
            name: stored.frame(tensor).info.content_hash if tensor.compressed else tensor.content_hash
            for name, tensor in stored.tensors.items()
        }
        return has_content(wanted, lambda name: found[name].hash(self._threads))

    def _check_data(self, stored: StoredFile) -> None:
        """Raise CorruptDataError if a file of the delta is damaged: that is to be found while the base is whole."""
        for tensor in stored.tensors.values():
            if tensor.compressed:
                stored.check_blocks(tensor)
            elif tensor.content_hash is not None:
                found = BaseTensor("", stored, tensor).hash(self._threads)
                stored.check_hash(tensor, tensor.content_hash, found)

    def _check_base(self, stored: StoredFile, tensor: StoredTensor, source: SourceFile, base: Base) -> None:
        try:
            stored.base_of(tensor, threads=self._threads)
        except BaseMismatchError:
            self._refuse_other_file(source, stored.name_in_base(tensor), base)
            raise

    def _refuse_other_file(self, source: SourceFile, name: str, base: Base) -> None:
        """Raise ValueError if a tensor stands in another file of the base than the new one."""
        if name in base.names() or not self._root.is_dir():
            return
        for path, place in tensor_files(self._root).items():
            with open_stored(place) as stored:
                if name in stored.tensors:
                    raise ValueError(
                        f"{shown(source.path)} needs tensor {shown(name)}, which the base has in {shown(path)}, and "
                        f"files are changed one by one; {OUT}"
                    )

    def _plan(self, source: SourceFile, place: Path) -> Step | None:
        """The step for a file beside the tensors; None for one that is left out."""
        current = current_sha256(source)
        self._outcome.note_change(source, current)
        assert source.known is not None
        new = source.known.sha256 if source.kind == REPLACED else current
        if new is None:
            return None
        return Step(source, place, mark_of(place), self._is_whole_new(source, place, new), sha256=new)

    def _is_whole_new(self, source: SourceFile, place: Path, new: str) -> bool:
        if mark_of(place) is None:
            return False
        if source.kind in OF_TENSORS:
            check_same(place, source.location)
        return is_whole_new(source, place, file_sha256(place), new, force=self._force)

    def take(self, step: Step, meter: Meter) -> FileReport:
        """Take one step."""
        source, place = step.source, step.place
        meter.begin(source.path, source.nbytes)
        left_over = os.path.lexists(place.with_name(f"{place.name}.partial"))
        if left_over or not step.is_done:
            with ErrorContext(file=source.location):
                self._make(step, meter)
        meter.end()
        return FileReport(
            source.path,
            source.kind,
            source.location.stat().st_size if source.location.exists() else 0,
            place.stat().st_size,
            step.num_tensors,
            step.num_compressed,
            step.num_relative,
            resumed=step.is_done,
        )

    def _make(self, step: Step, meter: Meter) -> None:
        """Make the new file beside the old one and exchange them; if it is there, only clear up after a killed run."""
        source, place = step.source, step.place
        place.parent.mkdir(parents=True, exist_ok=True)
        with self._staging(place) as work:
            self._outcome.notices += work.notices
            if step.is_done:
                return
            if (None if work.existing is None else work.existing.mark) != step.mark:
                raise OSError(errno.EBUSY, "the file changed while the delta was applied", str(place))
            access = work.access_of_existing()
            if access is None and source.location.exists():
                access = access_of(source.location)
            with OutputFile(work.result, access) as file:
                self._write(step, file, meter)
                file.sync()
            if step.mark is not None:
                self._outcome.notices += [f"not kept: {name} of {source.path}" for name in dropped(place)]
            work.commit(None)

    def _write(self, step: Step, file: OutputFile, meter: Meter) -> None:
        source = step.source
        if source.kind == REPLACED:
            file.write(0, source.content())
        elif source.kind not in OF_TENSORS:
            with open_input(source.location) as origin:
                if copy_file(origin, file, advance=meter.advance) != step.sha256:
                    raise OSError(errno.EBUSY, "the file changed while the delta was applied", str(source.location))
        else:
            with open_beside(source.location) as stored:
                record = source.record(stored)
                if not step.num_relative:
                    restore_file(OriginalReader(stored, record, self._threads), file, advance=meter.advance)
                    return
                with closing(self._open(step.place, source)) as base:
                    for tensor in base.tensors():
                        tensor.known_hash = step.hashes.get(tensor.name)
                    stored.use_base(base, source.path)
                    restore_file(OriginalReader(stored, record, self._threads), file, advance=meter.advance)
                    base.check_unchanged()
