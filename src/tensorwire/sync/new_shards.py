"""The files of a version that is being written."""

from __future__ import annotations

import json
import secrets
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..codec import content_hash
from ..errors import FormatError
from ..files.frame_file import frame_file
from ..files.names import shown
from .small_files import SmallFile
from .versions import Tensor

if TYPE_CHECKING:
    from ..files.frame_file import Stored
    from .store import Store

_SHARD_NBYTES = 128 << 20
"""A file is written once it holds so many bytes of frames, which are in memory until then."""
_HEADER_NBYTES = 64 << 20
"""The same of its header, which may have 100 MB."""

_RANK = 100_000
"""Files are numbered from the rank times this on."""


class NewShards:
    """The files of a version that is being written.

    Attributes:
        tensors, homes, files: as in `Version`.
        seconds: of the stages.
    """

    def __init__(self, store: Store, number: int, rank: int, profile: str) -> None:
        self._store, self._number, self._rank, self._profile = store, number, rank, profile
        self._begun = time.perf_counter()
        self.seconds = {"encode": 0.0, "write": 0.0}
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.tensors: dict[str, Tensor] = {}
        self.homes: dict[str, str] = {}
        self.files: dict[str, int] = {}
        self._small: list[str] = []
        self._waiting: list[Stored] = []
        self._waiting_nbytes = self._header_nbytes = 0

    def add(self, stored: Stored) -> None:
        """Add a tensor."""
        self._waiting.append(stored)
        self._waiting_nbytes += len(stored.data)
        self._header_nbytes += _entries_nbytes(stored.name)
        if self._waiting_nbytes >= _SHARD_NBYTES or self._header_nbytes >= _HEADER_NBYTES:
            self._write()

    def add_small(
        self, given: Mapping[str, bytes] | None, before: Mapping[str, SmallFile], *, is_anchor: bool
    ) -> dict[str, SmallFile]:
        """Put the small files that changed, of an anchor all. If none are given, they are those before; one of these
        that the store has lost is told of, and left out."""
        found: dict[str, SmallFile] = {}
        for name in before if given is None else given:
            old = before.get(name)
            data = None if given is None else given[name]
            if old is not None and not is_anchor and (data is None or old[:2] == (len(data), content_hash(data))):
                found[name] = old
                continue
            if data is None:
                try:
                    data = self._store.read_small(before[name])
                except (FileNotFoundError, FormatError) as error:
                    text = f"{shown(name)} is no longer in the store, publish with small_files=: {error}"
                    warnings.warn(text, RuntimeWarning, stacklevel=4)
                    continue
            home = f"small-{len(self._small) + 1:05d}-{secrets.token_hex(8)}"
            self._small.append(home)
            self._store.put_file(self._number, home, data)
            found[name] = SmallFile(len(data), content_hash(data), self._number, home)
        self._lap("write")
        return found

    def end(self) -> None:
        """Write what is left."""
        if self._waiting:
            self._write()
        self._lap("encode")

    def remove(self) -> None:
        """Begin anew; no index names what was written."""
        files = [*self.files, *self._small]
        self.clear()
        self._store.remove_files(self._number, files)

    def _write(self) -> None:
        self._lap("encode")
        # No file ever had this name, so no other version changes.
        file = f"model-{self._rank * _RANK + len(self.files) + 1:05d}-{secrets.token_hex(8)}.safetensors"
        data = frame_file(self._waiting, self._profile)
        self.files[file] = len(data)
        self._store.put_file(self._number, file, data)
        for each in self._waiting:
            self.tensors[each.name] = Tensor(each.dtype, each.shape, each.content_hash)
            self.homes[each.name] = file
        self._waiting, self._waiting_nbytes, self._header_nbytes = [], 0, 0
        self._lap("write")

    def _lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self._begun
        self._begun = now


def _entries_nbytes(name: str) -> int:
    """About what a tensor takes of the header of a file: its name three times, and up to 400 bytes."""
    return 3 * len(json.dumps(name)) + 400
