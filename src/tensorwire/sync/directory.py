"""A directory of plain safetensors files that follows a publisher.

``.tensorwire-sync`` in it holds a lock, ``state.json`` and ``staged``, a folder with the files of the next version. A
commit exchanges these for the ones that stand. What stood then lies in ``staged``, and the version after the next one
is written over it: pages that are in the cache cost less than new ones.

Before a staged file is written to, the state no longer says what it holds. Before the first exchange it says which
files are to stand. So the next run knows what is where after a crash, and finishes a commit that had begun.

In place no second copy lies in ``staged``: what changes waits in memory, compressed, and a commit writes into the files
that stand. Before its first byte the state no longer says what they hold, so after a crash they are hashed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .._ground.filesystem import close, exchange, mark_of
from ..checkpoint.directory.manifest import dump_object
from ..checkpoint.directory.paths import SYNC_DIRECTORY, is_index
from ..checkpoint.directory.shards import find_shards
from ..codec import ContentHasher, dtype_bits, new_buffer
from ..errors import BaseMismatchError
from ..files.header import Header, TensorEntry, build_header
from ..files.reader import StoredFile
from ..storage.local import InputFile, sync_directory, write_at
from ..storage.locations import path_in
from .checkpoints import nbytes_of
from .state import Marks, Next, Spare, State, read_state
from .versions import INDEX_NAME, Position, Tensor

if TYPE_CHECKING:
    from .frames import Fetched, Frames
    from .versions import Tensors, Version

    Checkpoint = Mapping[str, StoredFile]
    Plan = Mapping[str, Sequence[Version]]
    Fetch = Callable[[str, Version], Fetched]

_FILE_NBYTES = 4 << 30
"""About how large a file becomes where no files stood before."""
_PIECE_NBYTES = 1 << 20
"""What a thread makes at once: it fits into a core's own cache."""


class _Waiting(NamedTuple):
    """A version that is to be written into the files that stand.

    Attributes:
        position, plan: as in `DirectoryTarget.stage`.
        fetched: what `plan` needs, by tensor and version.
        changed: files of which a tensor changes.
        marks: of all files.
        held: what stands there.
    """

    position: Position
    plan: Plan
    fetched: Mapping[tuple[str, int], Fetched]
    changed: Sequence[str]
    marks: Marks
    held: Tensors


class DirectoryTarget:
    """The files of a directory. The lock is held inside each call, and no longer."""

    def __init__(self, root: Path, threads: int, *, in_place: bool = False) -> None:
        """
        Raises:
            FileExistsError: it is a file.
            BlockingIOError: another follower works in it.
        """
        self._root, self._threads, self._in_place = root, threads, in_place
        place = root / SYNC_DIRECTORY
        self._lock_path, self._state_path, self._staging = place / "lock", place / "state.json", place / "staged"
        self._staging.mkdir(parents=True, exist_ok=True)
        self._state = State()
        self._staged: Next | _Waiting | None = None
        with self._locked():
            """A commit that was interrupted is finished."""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Others may have worked here since, so the state is read anew."""
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = "another follower works in this directory; end one of the two"
                raise BlockingIOError(errno.EWOULDBLOCK, text, str(self._root)) from None
            self._state = read_state(self._state_path)
            if self._state.next is not None and self._state.next.committing:
                self._take_places(self._state.next)
            yield
        finally:
            close(descriptor)

    @property
    def number(self) -> int | None:
        return None if self._state.position is None else self._state.position.number

    @property
    def staged(self) -> Position | None:
        return None if self._staged is None else self._staged.position

    def position(self) -> Position:
        """What stands there. If somebody has written to a file since the commit, all are hashed."""
        with self._locked():
            return self._position()

    def forget(self) -> None:
        """What stands there is not what it was: hash it."""
        with self._locked():
            self._write_state(State())

    def stage(self, goal: Position, plan: Plan, frames: Frames) -> None:
        """Write the files of which a tensor changes, and wait until they are on the disk; in place, keep the frames.

        Raises:
            BaseMismatchError: what is there is not what `plan` begins with.
            FileExistsError: a checkpoint stands there that is none of the store's.
        """
        self._staged = None
        with self._locked(), self._opened() as current:
            marks, held = _marks(self._root, current), self._position()
            if any(not links and held.tensors.get(name) != goal.tensors[name] for name, links in plan.items()):
                raise BaseMismatchError("somebody has written to the directory meanwhile", file=self._root)
            if current and any(plan.values()) and held.number is None and not self._state_path.exists():
                text = "holds a checkpoint that the store does not have; name another directory, or empty this one"
                raise FileExistsError(errno.EEXIST, text, str(self._root))
            headers = {file: stored.header for file, stored in current.items()}
            is_new = _layouts(headers) != {name: tensor.layout for name, tensor in goal.tensors.items()}
            layout = _new_layout(goal.tensors) if is_new else headers
            changed = [file for file in layout if is_new or any(plan[each.name] for each in layout[file].entries)]
            if self._in_place and not is_new:
                self._remove_spare()
                links = ((name, link) for name, links in plan.items() for link in links)
                fetched = {(name, link.number): frames.fetch(name, link) for name, link in links}
                self._staged = _Waiting(goal, plan, fetched, changed, marks, held.tensors)
                return
            before = self._state.spare
            kept = {file: spare for file, spare in before.items() if file not in (*changed, INDEX_NAME)}
            self._write_state(self._state._replace(spare=kept, next=None))
            writer = _Writer(current, goal.tensors, plan, frames.fetch, self._threads)
            with self._removing(changed):
                for file in changed:
                    writer.write(self._staging / file, layout[file], before.get(file))
                    kept[file] = Spare(mark_of(self._staging / file), _hashes(layout[file], goal.tensors))
            if is_new and len(layout) > 1:
                (self._staging / INDEX_NAME).write_bytes(_index_of(layout))
                changed.append(INDEX_NAME)
            sync_directory(self._staging)
            if _marks(self._root, current) != marks:
                text = "somebody has written to a file of it while a version was staged; stage again"
                raise OSError(errno.EBUSY, text, str(self._root))
            self._staged = self._next(goal, changed, layout, current, kept, held.tensors, is_new=is_new)
            self._write_state(self._state._replace(spare=kept, next=self._staged))

    @contextmanager
    def _removing(self, files: Sequence[str]) -> Iterator[None]:
        """After an error nothing stays of staged files: the disk may be full."""
        try:
            yield
        except BaseException:
            for file in files:
                (self._staging / file).unlink(missing_ok=True)
            raise

    def _next(
        self,
        goal: Position,
        staged: Sequence[str],
        layout: Mapping[str, Header],
        current: Checkpoint,
        spare: Mapping[str, Spare],
        held: Tensors,
        *,
        is_new: bool,
    ) -> Next:
        """What the state will say once the staged files have taken their places."""
        indexes = [entry.name for entry in self._root.iterdir() if is_index(entry.name)]
        stays = {*layout, *staged} if is_new else {*layout, *indexes}
        left = {
            file: Spare(mark_of(self._root / file), _hashes(current[file].header, held))
            for file in staged
            if file in current
        }
        files = {file: mark_of((self._staging if file in staged else self._root) / file) for file in sorted(stays)}
        gone = sorted({*self._state.files, *current, *indexes} - stays)
        unused = {file: each for file, each in spare.items() if file not in staged}
        return Next(secrets.token_hex(8), False, goal, files, {**unused, **left}, tuple(staged), tuple(gone))

    def commit(self) -> None:
        """Have the staged files take their places: nothing is decoded. In place, decode and write.

        Raises:
            OSError: somebody has written to the directory since; nothing was changed. Or the disk fails.
            BaseMismatchError: in place, a file does not hold what it held.
        """
        staged, self._staged = self._staged, None
        assert staged is not None
        with self._locked():
            if isinstance(staged, _Waiting):
                self._write_in_place(staged)
                return
            if self._state.next is None or self._state.next.token != staged.token:
                raise OSError(errno.EBUSY, "another follower has worked here since; stage again", str(self._root))
            for file, mark in staged.files.items():
                place = (self._staging if file in staged.staged else self._root) / file
                if mark_of(place) != mark:
                    raise OSError(
                        errno.EBUSY, "somebody has written to it since it was staged; stage again", str(place)
                    )
            self._write_state(self._state._replace(next=staged._replace(committing=True)))
            self._take_places(staged)

    def _write_in_place(self, staged: _Waiting) -> None:
        with self._opened() as current:
            if _marks(self._root, current) != staged.marks:
                text = "somebody has written to a file of it since a version was staged; stage again"
                raise OSError(errno.EBUSY, text, str(self._root))
            self._write_state(State(files=self._state.files))
            fetched = staged.fetched
            writer = _Writer(
                current,
                staged.position.tensors,
                staged.plan,
                lambda name, link: fetched[name, link.number],
                self._threads,
            )
            for file in staged.changed:
                header = current[file].header
                writer.write(self._root / file, header, Spare(staged.marks[file], _hashes(header, staged.held)))
            indexes = [entry.name for entry in self._root.iterdir() if is_index(entry.name)]
            self._write_state(State(staged.position, _marks(self._root, sorted({*current, *indexes}))))

    def _take_places(self, staged: Next) -> None:
        """Finish a commit; files that have their places already are left alone."""
        for file in staged.staged:
            new, place = self._staging / file, self._root / file
            if mark_of(place) != staged.files[file]:
                place.parent.mkdir(parents=True, exist_ok=True)
                if mark_of(place) is None or not exchange(new, place):
                    new.replace(place)
        for file in staged.gone:
            (self._root / file).unlink(missing_ok=True)
        sync_directory(self._root)
        self._write_state(State(staged.position, staged.files, staged.spare))
        if self._in_place:
            self._remove_spare()

    def _remove_spare(self) -> None:
        """In place nothing is written over the files of the version before."""
        shutil.rmtree(self._staging, ignore_errors=True)  # first: the disk may be full
        self._staging.mkdir(exist_ok=True)
        self._write_state(self._state._replace(spare={}, next=None))

    def _write_state(self, state: State) -> None:
        state.write(self._state_path)
        self._state = state

    def _position(self) -> Position:
        known = self._state.position
        if known is not None and self._state.files == _marks(self._root, self._state.files):
            return known
        with self._opened() as current:
            tensors = {}
            for stored in current.values():
                for tensor in stored.tensors.values():
                    found = stored.hash_content(tensor, self._threads)
                    tensors[tensor.name] = Tensor(*stored.layout(tensor.name)[:2], found)
        return Position(None, "", "", tensors)

    @contextmanager
    def _opened(self) -> Iterator[Checkpoint]:
        """The checkpoint that stands there, open; nothing if it is ours and somebody has broken it."""
        with ExitStack() as stack:
            files: dict[str, StoredFile] = {}
            try:
                if any(entry.name.endswith(".safetensors") or is_index(entry.name) for entry in self._root.iterdir()):
                    for place in find_shards(self._root).files:
                        stored = stack.enter_context(StoredFile(place))
                        files[path_in(place, self._root)] = stored
                        if stored.compressed:
                            text = "is compressed; a follower needs plain files, so name another directory"
                            raise FileExistsError(errno.EEXIST, text, str(place))
            except (FileNotFoundError, ValueError):
                if not self._state_path.exists():
                    raise
                files = {}
            yield files


class _Writer:
    """Writes staged files. A piece of a tensor stays in the cache from reading its base to writing it."""

    def __init__(self, current: Checkpoint, goal: Tensors, plan: Plan, fetch: Fetch, threads: int) -> None:
        self._places = {
            name: (stored, tensor) for stored in current.values() for name, tensor in stored.tensors.items()
        }
        self._goal, self._plan, self._fetch, self._threads = goal, plan, fetch, threads
        self._buffer = new_buffer(0)

    def write(self, path: Path, header: Header, spare: Spare | None) -> None:
        """Write a file, over the one that is there: what that holds already is left as it is."""
        known: Mapping[str, str] = {}
        if spare is not None and mark_of(path) == spare.mark and _begins_with(path, header.prefix):
            known = spare.hashes
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if not known:
                write_at(descriptor, 0, memoryview(header.prefix), path)
            for entry in header.entries:
                if known.get(entry.name) != self._goal[entry.name].hash:
                    self._write_tensor(descriptor, path, header.data_start + entry.start, entry)
            os.fsync(descriptor)
        finally:
            close(descriptor)

    def _write_tensor(self, descriptor: int, path: Path, position: int, entry: TensorEntry) -> None:
        for number, group in enumerate(self._groups(entry)):
            read = self._base_of(entry) if number == 0 else _reader(path, position)
            hasher = ContentHasher(threads=self._threads)
            for start, out in self._pieces(entry.nbytes, group):
                if read is not None:
                    read(start, out)
                for each in group:
                    each.make_piece(entry.name, start, out, self._threads)
                if group:
                    hasher.update(out)
                write_at(descriptor, position + start, out, path)
            if group:
                group[-1].check(entry.name, hasher.hexdigest(), had_base=group[0].is_relative)

    def _base_of(self, entry: TensorEntry) -> Callable[[int, memoryview], None] | None:
        """Reads what the tensor is now, if it has the same layout then."""
        stored, tensor = self._places.get(entry.name, (None, None))
        if stored is None or tensor is None or stored.layout(entry.name)[:2] != self._goal[entry.name].layout:
            return None
        return partial(stored.read, tensor, threads=self._threads)

    def _groups(self, entry: TensorEntry) -> Iterator[list[Fetched]]:
        """What makes the tensor, one after the other. What is applied in one go takes about as much memory as it."""
        group: list[Fetched] = []
        for link in self._plan[entry.name]:
            if sum(len(each.data) for each in group) >= entry.nbytes:
                yield group
                group = []
            group.append(self._fetch(entry.name, link))
        yield group

    def _pieces(self, nbytes: int, group: Sequence[Fetched]) -> Iterator[tuple[int, memoryview]]:
        """Where each piece of a tensor begins, and memory for it. They are whole blocks of all frames."""
        block = lcm(*(each.frame.block_nbytes for each in group if each.frame is not None))
        piece = max(self._threads * _PIECE_NBYTES // block, 1) * block
        if len(self._buffer) < min(piece, nbytes):
            self._buffer = new_buffer(min(piece, nbytes))
        for start in range(0, nbytes, piece):
            yield start, self._buffer[: min(piece, nbytes - start)]


def _reader(path: Path, position: int) -> Callable[[int, memoryview], None]:
    """Reads what was written there."""
    file = InputFile(path)
    return lambda start, out: file.read_into(position + start, out)


def _begins_with(path: Path, prefix: bytes) -> bool:
    """Whether a file may be written over. A link may not: what it leads to is somebody else's."""
    if path.is_symlink():
        return False
    with path.open("rb") as file:
        return file.read(len(prefix)) == prefix


def _marks(root: Path, files: Iterable[str]) -> dict[str, str | None]:
    return {file: mark_of(root / file) for file in files}


def _layouts(headers: Mapping[str, Header]) -> dict[str, tuple[str, tuple[int, ...]]]:
    entries = chain.from_iterable(header.entries for header in headers.values())
    return {entry.name: (entry.dtype, entry.shape) for entry in entries}


def _hashes(header: Header, tensors: Tensors) -> dict[str, str]:
    return {entry.name: tensors[entry.name].hash for entry in header.entries if entry.name in tensors}


def _new_layout(tensors: Tensors) -> dict[str, Header]:
    """Files for tensors, in their order; inside a file the widest dtypes come first, so that all are aligned."""
    files: list[list[str]] = [[]]
    nbytes = 0
    for name, tensor in tensors.items():
        if files[-1] and nbytes + nbytes_of(tensor) > _FILE_NBYTES:
            files.append([])
            nbytes = 0
        files[-1].append(name)
        nbytes += nbytes_of(tensor)
    layout = {}
    for number, names in enumerate(files, 1):
        entries, position = [], 0
        for name in sorted(names, key=lambda name: -dtype_bits(tensors[name].dtype)):
            stop = position + nbytes_of(tensors[name])
            entries.append(TensorEntry(name, *tensors[name].layout, position, stop))
            position = stop
        file = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        layout[file] = build_header({"format": "pt"}, entries)
    return layout


def _index_of(layout: Mapping[str, Header]) -> bytes:
    total = sum(header.data_nbytes for header in layout.values())
    homes = {entry.name: file for file, header in layout.items() for entry in header.entries}
    return dump_object({"metadata": {"total_size": total}, "weight_map": homes})
