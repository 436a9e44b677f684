"""Frames by key in memory or in a directory, at most so many bytes; what was used least recently goes first.

Room is counted in whole units, which is how it is given. Any thread may call: a lock is held while the index changes,
and never while bytes are copied, read or written.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import threading
from array import array
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied
from .._ground.new_file import temporary_files, temporary_name
from ..errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable

BUFFER_NBYTES = 4096
"""Buffers that frames are copied from and to have a multiple of it."""

_ENDING = ".tensorwire"
_NAME = re.compile(r"((?:[0-9a-f]{2})+)\.([^.]+)" + re.escape(_ENDING))
"""Names of files: the frame's key, and the mark."""
_LABEL_NBYTES = 32
"""What is behind the frame in a file. Room does not count it, as a file rarely takes one more unit for it."""

_log = logging.getLogger(__name__)


class _Entry:
    """A frame that is kept. `units`: where it lies, in memory. Its room is free once it is gone and not being read."""

    __slots__ = ("nbytes", "num_readers", "num_units", "units")

    def __init__(self, nbytes: int, unit: int) -> None:
        self.nbytes = nbytes
        self.num_units = -(-nbytes // unit)
        self.num_readers = 0
        self.units = array("I")


class KeptFrames:
    """What both places have in common: the index, the order of use, and the room.

    Attributes:
        UNIT: bytes of a unit.
        num_evicted: how many frames have gone to make room.
    """

    __reduce_ex__ = not_copied("a lock", "make another one")

    UNIT = 4096  # of file systems

    def __init__(self, capacity_nbytes: int) -> None:
        self.num_evicted = 0
        self._lock = threading.Lock()
        self._entries = OrderedDict[bytes, _Entry]()
        self._capacity = self._free = capacity_nbytes // self.UNIT

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._entries

    def size(self) -> tuple[int, int]:
        """How many frames there are, and how many bytes their units have."""
        with self._lock:
            return len(self._entries), (self._capacity - self._free) * self.UNIT

    def touch(self, keys: Iterable[bytes]) -> None:
        """Take them for used just now."""
        with self._lock:
            for key in keys:
                if key in self._entries:
                    self._entries.move_to_end(key)

    def add(self, key: bytes, buffer: memoryview, nbytes: int) -> bool:
        """Keep the first `nbytes` of a buffer.

        Returns:
            Whether it is kept: not if there is no room, even after others have gone.

        Raises:
            OSError: a file cannot be written; nothing is left of it.
        """
        entry = _Entry(nbytes, self.UNIT)
        evicted = list[bytes]()
        with self._lock:
            found = self._make_room(entry.num_units, evicted)
            if found:
                self._free -= entry.num_units
                self._claim(entry)
        for each in evicted:
            self._remove(each)
        if not found:
            return False
        try:
            self._write(key, entry, buffer)
        except BaseException:
            with self._lock:
                self._release(entry)
            raise
        with self._lock:
            before = self._entries.pop(key, None)
            self._entries[key] = entry
            if before is not None and not before.num_readers:
                self._release(before)
        return True

    def read(self, key: bytes, buffer: memoryview) -> int | None:
        """Copy a frame into a buffer that has room for it in whole units; its size, or None if there is none.

        A file that is gone, by another process or since the index said where it was, is none.

        Raises:
            OSError: its file cannot be read.
            CorruptDataError: its file is cut, or was written under another name.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            entry.num_readers += 1
        try:
            self._read(key, entry, buffer)
        except FileNotFoundError:
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            return None
        finally:
            with self._lock:
                entry.num_readers -= 1
                if not entry.num_readers and self._entries.get(key) is not entry:  # it went meanwhile
                    self._release(entry)
        return entry.nbytes

    def drop(self, key: bytes) -> None:
        """Forget a frame, if it is there."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None and not entry.num_readers:
                self._release(entry)
        if entry is not None:
            self._remove(key)

    def _make_room(self, wanted: int, evicted: list[bytes]) -> bool:
        """Let frames go until so many units are free, or none if that is not enough. What is being read stays."""
        free = self._free
        for key, entry in self._entries.items():
            if free >= wanted or wanted > self._capacity:
                break
            if not entry.num_readers:
                evicted.append(key)
                free += entry.num_units
        if free < wanted:
            evicted.clear()
        for key in evicted:
            self._release(self._entries.pop(key))
        self.num_evicted += len(evicted)
        return free >= wanted

    def _release(self, entry: _Entry) -> None:
        self._free += entry.num_units

    def _claim(self, entry: _Entry) -> None:
        """Give it its units; the lock is held."""

    def _write(self, key: bytes, entry: _Entry, buffer: memoryview) -> None:
        raise NotImplementedError

    def _read(self, key: bytes, entry: _Entry, buffer: memoryview) -> None:
        raise NotImplementedError

    def _remove(self, key: bytes) -> None:
        """Take away what lies outside the index."""


class FramesInMemory(KeptFrames):
    """Frames in units of one range of memory.

    Allocated one by one, frames of unlike sizes leave gaps: with glibc the process takes a fifth more than their bytes.
    """

    __reduce_ex__ = not_copied("memory that is lent", "make another one")

    UNIT = 1024  # smaller ones would need more memory for their numbers than they save

    def __init__(self, capacity_nbytes: int) -> None:
        super().__init__(capacity_nbytes)
        memory = new_buffer(max(1, self._capacity) * self.UNIT)
        self._rows = np.frombuffer(memory, np.uint8).reshape(-1, self.UNIT)
        self._used_before = array("I")
        self._first_unused = 0

    def _claim(self, entry: _Entry) -> None:
        first = max(0, len(self._used_before) - entry.num_units)
        entry.units = self._used_before[first:]
        del self._used_before[first:]
        num_new = entry.num_units - len(entry.units)
        entry.units.extend(range(self._first_unused, self._first_unused + num_new))
        self._first_unused += num_new

    def _release(self, entry: _Entry) -> None:
        super()._release(entry)
        self._used_before.extend(entry.units)

    def _write(self, key: bytes, entry: _Entry, buffer: memoryview) -> None:
        self._rows[np.frombuffer(entry.units, np.uint32)] = self._rows_of(buffer, entry)

    def _read(self, key: bytes, entry: _Entry, buffer: memoryview) -> None:
        out = self._rows_of(buffer, entry)
        np.take(self._rows, np.frombuffer(entry.units, np.uint32), axis=0, out=out, mode="clip")  # "raise" would copy

    def _rows_of(self, buffer: memoryview, entry: _Entry) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        return np.frombuffer(buffer, np.uint8, entry.num_units * self.UNIT).reshape(entry.num_units, self.UNIT)


class FramesInDirectory(KeptFrames):
    """Frames in files, one each, for their owner alone, directly in the directory: no link in it leads elsewhere. Files
    of an earlier run are found.

    Behind its frame a file has a label, which follows from its name and from that of the directory: a file that was
    exchanged with another one, or comes from another directory, is damaged. It is no signature.
    """

    __reduce_ex__ = not_copied("an open directory", "make another one of the same directory")

    def __init__(self, directory: Path, mark: str, capacity_nbytes: int) -> None:
        """Make the directory and list it. Files that lie there count too; those with a key and another mark are
        removed, and no others.

        A second process may use the directory: what it adds meanwhile is not found, and what it takes away is missed.

        Args:
            mark: a word that goes into the names of files, of what the frames depend on beside their keys.
        """
        super().__init__(capacity_nbytes)
        self._directory = directory
        self._mark = mark
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._list()
        except OSError as error:
            _log.warning("frames are neither found nor stored in %s while this is so: %s", directory, error)
            return
        for _, key, nbytes in sorted(found):
            entry = _Entry(nbytes, self.UNIT)
            self._free -= entry.num_units
            self._entries[key] = entry
        evicted = list[bytes]()
        self._make_room(0, evicted)
        for key in evicted:
            self._remove(key)

    def _list(self) -> list[tuple[int, bytes, int]]:
        """When each file was written, its key, and its size. What a process was writing when it was killed goes."""
        for name in temporary_files(self._directory):
            self._unlink(self._directory / name)
        found = []
        for path in self._directory.glob(f"*{_ENDING}"):
            status = path.lstat()
            named = _NAME.fullmatch(path.name)
            if named is None or not stat.S_ISREG(status.st_mode):  # not ours
                continue
            if named[2] != self._mark:
                self._unlink(path)
            else:
                found.append((status.st_mtime_ns, bytes.fromhex(named[1]), max(0, status.st_size - _LABEL_NBYTES)))
        return found

    def _label(self, path: Path) -> bytes:
        place = os.fsencode(f"{self._directory.name}/{path.name}")
        return hashlib.blake2b(place, digest_size=_LABEL_NBYTES).digest()

    def _path(self, key: bytes) -> Path:
        return self._directory / f"{key.hex()}.{self._mark}{_ENDING}"

    def _write(self, key: bytes, entry: _Entry, buffer: memoryview) -> None:
        path, new = self._path(key), self._directory / temporary_name()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may have been removed meanwhile
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                for part in (buffer[: entry.nbytes], memoryview(self._label(path))):
                    left = part
                    while left:
                        left = left[file.write(left) :]
            new.replace(path)
        except BaseException:
            self._unlink(new)
            raise

    def _read(self, key: bytes, entry: _Entry, buffer: memoryview) -> None:
        path = self._path(key)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            left = buffer[: entry.nbytes]
            while left and (count := file.readinto(left)):
                left = left[count:]
            if file.read(_LABEL_NBYTES + 1) != self._label(path):
                raise CorruptDataError("expected the file that was written under this name, got a part, or another one")

    def _remove(self, key: bytes) -> None:
        self._unlink(self._path(key))

    @staticmethod
    def _unlink(path: Path) -> None:
        with suppress(OSError):
            path.unlink()
