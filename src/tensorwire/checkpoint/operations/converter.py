"""The files of a checkpoint, one after another: compress, restore or copy each, and note what became of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...errors import CorruptDataError, ErrorContext
from ...files.json_object import dump, load
from ...files.names import MAX_JSON_NBYTES
from ...files.original_record import SAFETENSORS, pack
from ...files.original_view import OriginalReader
from ...files.reader import StoredFile
from ...files.torch_file import open_stored
from ...files.transfer import compress_file, copy_file, file_sha256, restore_file
from ...files.writer import Coding
from ...storage.access import Access, access_of, dropped, give_access
from ...storage.inputs import read_file
from ...storage.local import OutputFile
from ..bases import BaseFiles
from ..directory.config_and_index import WEIGHTS_KEY, Shard, float_dtype, new_config, new_index, not_held, parse_index
from ..directory.manifest import COPIED, OF_TENSORS, REPLACED, BaseRecord, Manifest, ManifestFile, check_new_size
from ..directory.order import in_order
from ..directory.paths import MANIFEST_NAME, MODULES_NAME, is_index, is_listable, parent, without_dots
from ..directory.sources import check_compressed, check_original, check_size
from ..results import FileReport
from .outcome import current_sha256
from .preceding import Preceding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...codec import Profile
    from ...files.base import Base
    from ...files.writer import Written
    from ...storage.progress import Meter
    from ...storage.readable import Writable
    from ...storage.staging import Staging
    from ..directory.sources import SourceFile, Sources
    from .outcome import Outcome

Action = Literal["compress", "decompress", "transcode"]

_MIN_JOURNALED_NBYTES = 1 << 20
"""A smaller copied file is sooner made again than noted in the journal."""


class Task(NamedTuple):
    """What is to be done with the files of a checkpoint.

    Attributes:
        profile: of the result; None to restore originals.
        base: what is compressed is relative to it, and what is relative is read with it.
        is_directory: the checkpoint is one.
        chain: it holds checkpoints, each relative to the one before it.
    """

    action: Action
    profile: Profile | None
    threads: int | None
    base: Base | None
    is_directory: bool
    chain: bool = False

    @property
    def has_manifest(self) -> bool:
        """Whether the result has one."""
        return self.is_directory and self.profile is not None


class Converter:
    """Converts files; after `run` the outcome tells what became of them.

    Attributes:
        entries: what the manifest of a compressed directory says of the files.
        written: paths of the files of the result.
    """

    def __init__(self, task: Task, work: Staging, meter: Meter, outcome: Outcome) -> None:
        self._task = task
        self._work = work
        self._meter = meter
        self._outcome = outcome
        self._base_files = BaseFiles(task.base) if task.base is not None and task.has_manifest else None
        self._is_relative = False
        self._preceding: Preceding | None = None
        self._beside: list[str] = []
        self._shards: dict[str, Shard] = {}
        self._indexes: dict[str, set[str]] = {}  # by path the files that each names, as it names them
        self._configured: set[str] = set()  # the shards that a configuration tells of
        self._manifest_nbytes = 0
        self.entries: list[ManifestFile] = []
        self.written: list[str] = []
        self._access: Access | None = None
        self._dropped: dict[str, list[str]] = {}

    def run(self, sources: Sources, only: SourceFile | None = None) -> None:
        """Convert all files, or only one; those that depend on others come last."""
        self._take_room(sum(len(path.encode(errors="replace")) for path in (*sources.excluded, *sources.directories)))
        if self._task.is_directory:
            self._work.result.mkdir(0o700, exist_ok=True)
        if self._task.has_manifest and self._task.base is None:
            chain, alone = self._task.chain, only is not None
            self._preceding = Preceding(
                sources, self._directory(), self._finished_at, self._task.threads, chain=chain, alone=alone
            )
        self._outcome.expect_beside()
        for source in sorted(in_order(sources.files) if only is None else [only], key=_turn):
            self._meter.begin(source.path, self.effort(source))
            with ErrorContext(file=source.location):
                access = self._note_access(source)
                if source.kind == REPLACED:
                    self._replace(source, access)
                elif (facts := self._resumable(source)) is not None:
                    self._resume(source, facts, access)
                elif source.kind in OF_TENSORS:
                    self._transfer(source, access)
                elif source.known is not None and not source.location.exists():
                    self._outcome.note_change(source, None)
                else:
                    self._copy(source, access)
            self._meter.end()
        for name, paths in self._dropped.items():
            self._outcome.notices.append(f"not kept: {name} of {_first(paths)}")
        if self._beside:
            self._outcome.notices.append(
                f"relative to other files of the directory, without which they cannot be read: {_first(self._beside)}"
            )
        if self._preceding is not None and only is None:
            relative = {path.partition("/")[0] for path in self._beside}
            unlike = [path for path in self._preceding.older if path.partition("/")[0] not in relative]
            if unlike:
                self._outcome.notices.append(_unlike(unlike[0], self._preceding.older[unlike[0]], unlike))

    def effort(self, source: SourceFile) -> int:
        """What a file counts for, in bytes."""
        return source.nbytes

    def write_manifest(self, sources: Sources) -> int:
        """Write the manifest of a compressed directory; return its size. A file may be excluded for its name."""
        assert self._task.profile is not None
        excluded = tuple(path for path in sources.excluded if is_listable(path.removesuffix("/")))
        record = None
        if self._task.base is not None and self._is_relative:
            record = BaseRecord(self._task.base.name, self._task.base.tensors_hash(self._task.threads))
        data = Manifest(
            self._task.profile,
            tuple(sorted(self.entries)),
            excluded,
            sources.directories,
            base=record,
            beside=bool(self._beside),
            chain=self._task.chain,
        ).dump()
        with self._output(MANIFEST_NAME, self._access) as file:
            file.write(0, data)
            file.sync()
        return len(data)

    def _note_access(self, source: SourceFile) -> Access:
        """What the result of a file allows. The manifest tells of all files, so it allows what all of them do."""
        place = source.location
        if source.known is not None and not place.exists():  # what the manifest knows of it is as open as that
            folder = place.parents[source.path.count("/")]
            while not (folder / MANIFEST_NAME).exists():  # of a directory in the compressed one
                folder = folder.parent
            place = folder / MANIFEST_NAME
        access = access_of(place)
        self._access = access if self._access is None else self._access.meet(access)
        for name in dropped(place):
            self._dropped.setdefault(name, []).append(source.path)
        return access

    def _output(self, path: str, access: Access | None) -> OutputFile:
        self.written.append(path)
        location = self._place(path)
        location.parent.mkdir(parents=True, exist_ok=True)
        return OutputFile(location, access)

    def _transfer(self, source: SourceFile, access: Access) -> None:
        with open_stored(source.open()) as stored, self._output(source.path, access) as file:
            (check_original if self._task.action == "compress" else check_compressed)(stored)
            stored.use_base(self._task.base, source.path)
            record = source.record(stored) if self._task.action != "compress" else None
            original = OriginalReader(stored, record, self._task.threads)
            relative_before = self._num_relative_nbytes()
            self._outcome.profile = self._task.profile or stored.profile or self._outcome.profile
            done = self._write(source, original, file)
            check_size(source, original.nbytes)
            file.sync()
            content = pack(original.outline.content) if self._task.has_manifest else None
            entry = ManifestFile(source.path, original.outline.kind, original.nbytes, done.sha256, content)
            if not done.relative:
                entry = self._beside_base(entry)
            report = report_of_tensors(source.path, original, done)
            self._finish(source, stored.file.identity, entry, report, self._num_relative_nbytes() - relative_before)

    def _write(self, source: SourceFile, original: OriginalReader, file: Writable) -> Written:
        task, path = self._task, original.stored.base_file
        has_record = original.record is not None
        if task.profile is None:
            self._outcome.exact = self._outcome.exact and has_record
            return restore_file(original, file, advance=self._meter.advance)
        keep_record = not task.is_directory and (task.action == "compress" or has_record)
        coding = Coding(task.profile, task.threads, task.base)
        write = partial(compress_file, original, file, keep_record=keep_record, advance=self._meter.advance)
        if self._preceding is None:
            done = write(coding)
        else:
            with self._preceding.of(source, original.header.entries) as before:
                done = write(coding._replace(before=before))
            if done.relative and not self._preceding.is_readable(path):  # it would ask for too much of one tensor
                done = write(coding)
        self._is_relative = self._is_relative or bool(done.relative)
        if done.notice is not None:
            self._outcome.notices.append(f"{path}: {done.notice}")
        if original.outline.kind == SAFETENSORS:
            names = frozenset(original.stored.tensors)
            self._shards[path] = Shard(names, done.compressed, done.data_nbytes, float_dtype(original.stored))
        return done

    def _num_relative_nbytes(self) -> int:
        """How much of the base's room is taken."""
        return 0 if self._task.base is None else self._task.base.num_relative_nbytes

    def _beside_base(self, entry: ManifestFile) -> ManifestFile:
        """`entry` with what the base has at its path."""
        return entry if self._base_files is None else entry._replace(base_sha256=self._base_files.sha256(entry.path))

    def _copy(self, source: SourceFile, access: Access) -> None:
        with closing(source.open()) as origin, self._output(source.path, access) as file:
            sha256 = copy_file(origin, file, advance=self._meter.advance)
            if source.known is not None:
                self._outcome.note_change(source, sha256)
            file.sync()
            entry = self._beside_base(ManifestFile(source.path, COPIED, origin.nbytes, sha256))
            self._finish(source, origin.identity, entry, FileReport(source.path, COPIED, origin.nbytes, origin.nbytes))

    def _replace(self, source: SourceFile, access: Access) -> None:
        original = source.content()
        if source.known is not None:
            self._outcome.note_change(source, current_sha256(source))
        new = self._replacement(source, original)
        data = original if new is None else new
        with self._output(source.path, access) as file:
            file.write(0, data)
            file.sync()
        nbytes_in = source.location.stat().st_size if source.location.exists() else 0
        sha256 = hashlib.sha256(original).hexdigest()
        kind = COPIED if new is None else REPLACED
        entry = self._beside_base(ManifestFile(source.path, kind, len(original), sha256))
        if new is not None:
            entry = entry._replace(content=pack(original), stored_sha256=hashlib.sha256(new).hexdigest())
        report_kind = kind if self._task.profile is not None else source.kind
        self._finish(source, [], entry, FileReport(source.path, report_kind, nbytes_in, len(data)))

    def _replacement(self, source: SourceFile, original: bytes) -> bytes | None:
        """What stands in the place of a configuration or an index in the result; None for the original itself."""
        if self._task.profile is None:
            return None
        directory = parent(source.path)
        prefix = f"{directory}/" if directory else ""
        below = {path[len(prefix) :]: s for path, s in self._shards.items() if path.startswith(prefix)}
        if is_index(source.path):
            return self._new_index(source.path, original, below)
        return self._new_config(source.path, original, below, is_told=source.known is not None)

    def _new_index(self, path: str, original: bytes, below: Mapping[str, Shard]) -> bytes | None:
        index = parse_index(original)
        self._indexes[path] = set(index.files.values())
        missing = [name for name, file in index.files.items() if file in below and name not in below[file].names]
        notices = [*index.notices, not_held(missing)] if missing else index.notices
        self._outcome.notices += [f"{path}: {notice}" for notice in notices]
        return new_index(index, below)

    def _new_config(self, path: str, original: bytes, below: Mapping[str, Shard], *, is_told: bool) -> bytes | None:
        """It tells of the shards beside it, and of those that Transformers finds by it: those of the indexes beside it,
        and the file that it names, or those of the index that it names, whose paths are relative to it too. Where
        `is_told`, the checkpoint is compressed already, and it tells of one: an index may have stayed as it was then,
        and is not looked into again."""
        assert self._task.profile is not None
        try:
            config = load(original, [])
        except CorruptDataError as error:
            if any("/" not in name and shard.compressed for name, shard in below.items()):
                self._outcome.notices.append(f"copied as it is: {path}: {error.message}")
            return None
        explicit = config.get(WEIGHTS_KEY)
        named = {without_dots(explicit)} if isinstance(explicit, str) else set()
        prefix = path[: len(path) - len(path.rpartition("/")[2])]
        for index, files in self._indexes.items():
            if parent(index) == parent(path) or (index.startswith(prefix) and index[len(prefix) :] in named):
                named = named | files
        weights = sorted(name for name in below if "/" not in name or name in named)
        if not any(below[name].compressed for name in weights):
            if not is_told or not below:
                return None
            weights = sorted(below)
        self._configured.update(prefix + name for name in weights)
        if self._is_of_a_layer(path, config):
            return None
        main = below["model.safetensors"] if "model.safetensors" in weights else below[weights[0]]
        return new_config(config, self._task.profile, main.dtype)

    def _is_of_a_layer(self, path: str, config: Mapping[str, Any]) -> bool:
        """Whether a config.json is that of a layer which sentence-transformers loads by itself: its modules.json lists
        the folder, and a configuration of Transformers would say of what kind the model is."""
        folder, slash, name = parent(path).rpartition("/")
        listing = f"{folder}{slash}{MODULES_NAME}"
        if not name or listing not in self.written or not config.keys().isdisjoint(("model_type", "architectures")):
            return False
        with suppress(ValueError, OSError):
            modules = json.loads(read_file(self._finished_at(listing), MAX_JSON_NBYTES))
            return any(isinstance(each, dict) and each.get("path") == name for each in modules)
        return False

    def note_unconfigured(self) -> None:
        """After `run`: note models that Transformers would look for, and would not know to be compressed."""
        found = [
            path
            for path, shard in sorted(self._shards.items())
            if shard.compressed and path not in self._configured and path.rpartition("/")[2].startswith("model")
        ]
        if found:
            others = f" and {len(found) - 1} more" if len(found) > 1 else ""
            self._outcome.notices.append(
                f"no configuration tells of the compressed {found[0]}{others}; Transformers loads the model if you "
                "pass it a config whose quantization_config is TensorwireConfig().to_dict()"
            )

    def _finish(
        self,
        source: SourceFile,
        identity: list[int],
        entry: ManifestFile,
        report: FileReport,
        num_relative_nbytes: int = 0,
    ) -> None:
        """Note a file that is whole. Numbers of its source tell a later run that this is still what it was."""
        self._enter(entry, report.num_relative)
        self._outcome.files.append(report)
        is_changed = any(
            change.path == source.path for change in self._outcome.changed
        )  # a later run is to tell of it too
        is_large = source.kind in OF_TENSORS or report.nbytes_out >= _MIN_JOURNALED_NBYTES
        if is_large and source.kind != REPLACED and not is_changed:
            facts = {
                "source": identity,
                "entry": entry.as_json(),
                "report": asdict(report),
                "num_relative_nbytes": num_relative_nbytes,
                "profile": self._outcome.profile,
                "exact": self._outcome.exact,
            }
            self._work.record(source.path, facts)

    def _enter(self, entry: ManifestFile, num_relative: int = 0) -> None:
        """Add an entry for the manifest, of a file with so many relative tensors."""
        self.entries.append(entry)
        if self._preceding is not None:
            self._preceding.add(entry)
            if num_relative:
                self._beside.append(entry.path)
        self._take_room(len(dump(entry.as_json())))

    def _take_room(self, nbytes: int) -> None:
        """Count bytes of the manifest, and stop before more is coded for one that could not be read again."""
        if self._task.has_manifest:
            self._manifest_nbytes += nbytes
            check_new_size(self._manifest_nbytes)

    def _resumable(self, source: SourceFile) -> dict[str, Any] | None:
        """The journal's facts of a file that an earlier run has finished and that is still good; None otherwise. Then
        its relative tensors are counted."""
        facts = self._unchanged(source)
        base = self._task.base
        if facts is not None and self._preceding is not None and facts["report"]["num_relative"]:
            # One before it may have been made anew, and differ.
            facts = facts if self._preceding.is_readable(source.path) else None
        # A part was made without those before it, which may have taken the room.
        return facts if facts is None or base is None or base.has_room(facts["num_relative_nbytes"]) else None

    def _unchanged(self, source: SourceFile) -> dict[str, Any] | None:
        """The journal's facts of a file, if it is there and its source is what it was."""
        if source.path not in self._work.finished:
            return None
        facts = self._work.finished[source.path]
        location = self._place(source.path)
        if not location.is_file() or location.stat().st_size != facts["report"]["nbytes_out"]:
            return None
        identity = source.identity()
        if facts["source"] == identity:
            return facts
        # Touched, but perhaps not changed.
        may_be_same = self._task.action == "compress" and facts["source"][0] == identity[0]
        return facts if may_be_same and file_sha256(source.location) == facts["entry"]["sha256"] else None

    def _place(self, path: str) -> Path:
        """Where a file of the result is made."""
        return self._work.result.joinpath(*path.split("/")) if self._task.is_directory else self._work.result

    def _directory(self) -> Path:
        """Where files of the result stand that are finished."""
        return self._work.result

    def _finished_at(self, path: str) -> Path:
        """Where a finished file of the result stands."""
        return self._place(path)

    def _resume(self, source: SourceFile, facts: dict[str, Any], access: Access) -> None:
        place = self._finished_at(source.path)
        give_access(place, access)
        if self._task.profile is not None and source.kind == SAFETENSORS:
            with StoredFile(place) as stored:
                compressed = frozenset(tensor.name for tensor in stored.tensors.values() if tensor.compressed)
                self._shards[source.path] = Shard(
                    frozenset(stored.tensors), compressed, stored.header.data_nbytes, float_dtype(stored)
                )
        self.written.append(source.path)
        report = FileReport(**facts["report"])
        self._enter(ManifestFile(**facts["entry"]), report.num_relative)
        self._outcome.profile = facts["profile"]
        self._outcome.exact = self._outcome.exact and facts["exact"]
        self._is_relative = self._is_relative or report.num_relative > 0
        self._outcome.files.append(replace(report, resumed=True))


def _first(paths: Sequence[str]) -> str:
    others = f" and {len(paths) - 1} other file{'s' * (len(paths) > 2)}" if len(paths) > 1 else ""
    return f"{paths[0]}{others}"


def _unlike(path: str, older: str, paths: Sequence[str]) -> str:
    """The notice of checkpoints in a chain that have nothing in common with the one before them, by all their files."""
    others = len({each.partition("/")[0] for each in paths}) - 1
    more = f" (so it is for {others} more)" if others else ""
    return (
        f"the chain makes {path.partition('/')[0]} no smaller{more}: {older} has no tensor of the same name, dtype and "
        "size that one of it could be relative to, or none that it gains by"
    )


def _turn(source: SourceFile) -> int:
    """Files of tensors and others first, then indexes, which tell of them, then configurations, which tell of both."""
    return 0 if source.kind != REPLACED else 1 if is_index(source.path) else 2


def report_of_tensors(path: str, original: OriginalReader, done: Written) -> FileReport:
    """The report of a file that was coded or decoded."""
    return FileReport(
        path=path,
        kind=original.outline.kind,
        nbytes_in=original.stored.file.nbytes if original.stored.compressed else original.nbytes,
        nbytes_out=done.nbytes,
        num_tensors=len(original.sizes),
        num_compressed=len(done.compressed),
        num_relative=len(done.relative),
    )
