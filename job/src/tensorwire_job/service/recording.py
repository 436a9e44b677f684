"""Recordings: the observations of a job, to be analyzed again.

A recording is lines of JSON, compressed with gzip. The first names format and version, the second the thresholds of the
analyzer that made it, if one did. Each of the others is a stack or an observation: for each node, the changes since the
line before, as :mod:`encoding` reports them. So a replay sees what an analyzer behind a network saw: times to a
microsecond, CPU times to 10 ms.
"""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tensorwire._ground.copies import not_copied
from tensorwire._ground.new_file import check_regular, move_aside
from tensorwire.errors import CorruptDataError

from ..analyzer import Analyzer
from ..model import MAX_RANKS, Edge, Observation, Rank, Thresholds
from ..protocol.decoding import Decoder
from ..protocol.encoding import Encoder, from_json, to_json
from .merge import MAX_INTEGERS, MAX_NODES

if TYPE_CHECKING:
    from ..model import Finding

_FORMAT: Final = {"format": "tensorwire recording", "version": 1}
_START: Final = b'{"format":"tensorwire recording",'
_MAX_NBYTES = 64 << 20
_MAX_LINE_NBYTES = 256 << 20  # 16 KiB for each of 16,384 ranks: in a dozen process groups, with 40 connections
_MAX_HEAD_NBYTES = 4096  # of the line that names format and version
_MAX_VALUES = 1 << 24  # of JSON in a line: 1,024 for each of these ranks; all of them take up to 2 GiB while it is read
_MAX_SECONDS = 1e10  # no machine is up for three hundred years
_LEVEL = 6

NO_JSON_OF_OURS: Final = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
"""The errors that come of JSON which is not as it should be."""


class RecordingWriter:
    """Writes a recording, as a context manager or until `close`. For one thread.

    Args:
        thresholds: of the analyzer that sees the same, for a later analysis.

    The file stays readable up to its last line if the process dies. Only a line that the disk has no room for is
    missing. Past `max_nbytes` the file is moved to `path` with `.1` added, in place of an older one, and begun anew; so
    is one that is there at the start.

    Raises:
        FileExistsError: a file stands at one of the two paths that is not a recording.
        OSError: the file cannot be written.
    """

    __reduce_ex__ = not_copied("a file that it writes", "read the recording by its path")

    def __init__(self, path: Path, thresholds: Thresholds | None = None, *, max_nbytes: int = _MAX_NBYTES) -> None:
        self._path = path
        self._thresholds = thresholds
        self._max_nbytes = max_nbytes
        self._begin()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(self, observation: Observation) -> None:
        """Add what changed since the last observation."""
        if self._raw.closed:  # it could not be begun anew
            self._begin()
        elif self._raw.tell() > self._max_nbytes:
            with suppress(OSError):
                self.close()
            self._begin()
        self._line(encode_observation(observation, self._encoders))

    def add_stack(self, rank: int, text: str) -> None:
        """Add a stack that the analyzer was given. It is dropped while the file could not be begun anew."""
        if not self._raw.closed:
            self._line({"rank": rank, "stack": text})

    def close(self) -> None:
        try:
            if not self._raw.closed and self._is_whole:
                self._append(self._packer.flush())
        finally:
            self._raw.close()

    def _begin(self) -> None:
        for path in (self._path, self._path.with_name(self._path.name + ".1")):
            if check_regular(path) and not _is_recording(path):
                text = "is in the way and is not the recording of a job; move it, or name another place"
                raise FileExistsError(errno.EEXIST, text, str(path))
        if self._path.exists():
            move_aside(self._path)
        self._is_whole = False  # an interrupted line may be in the file or not: no trailer would be right
        self._encoders: dict[str, Encoder] = {}
        self._raw = self._path.open("xb", buffering=0)
        # gzip with neither the name nor the time of the file: the same observations make the same bytes.
        self._packer = zlib.compressobj(_LEVEL, wbits=zlib.MAX_WBITS | 16)
        try:
            self._line(_FORMAT)
            if self._thresholds is not None:
                self._line({"thresholds": dataclasses.asdict(self._thresholds)})
        except OSError:
            self._raw.close()
            self._path.unlink()
            raise

    def _line(self, entry: dict[str, Any]) -> None:
        packer = self._packer.copy()  # a line that is not written was never compressed
        data = packer.compress(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        data += packer.flush(zlib.Z_SYNC_FLUSH)
        self._is_whole = False
        self._append(data)
        self._packer = packer
        self._is_whole = True

    def _append(self, data: bytes) -> None:
        try:
            append_whole(self._raw, data)
        except OSError:
            self._encoders.clear()  # the next line has to stand on its own
            raise


def _is_recording(path: Path) -> bool:
    """Whether a file begins as a recording of any version does, even if its writer was cut off."""
    with path.open("rb") as file, suppress(zlib.error):
        text = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(file.read(4096), len(_START))
        return _START.startswith(text)
    return False


def append_whole(file: FileIO, data: bytes) -> None:
    """Append all of the data or nothing, unless two interrupts come. Raises OSError."""
    start = file.tell()
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
    except BaseException:  # Ctrl-C too
        file.truncate(start)
        file.seek(start)
        raise


def recorded_thresholds(path: Path) -> Thresholds | None:
    """The thresholds of the analyzer that made a recording; None where it has none. Raises as `replay` does."""
    for entry in islice(_entries(path), 1):
        with _telling(path, 2):
            return decode_thresholds(entry["thresholds"]) if "thresholds" in entry else None
    return None


def decode_thresholds(entry: dict[str, Any]) -> Thresholds:
    """Thresholds from JSON. Raises one of NO_JSON_OF_OURS for anything else."""
    return Thresholds(**{each.name: float(entry[each.name]) for each in dataclasses.fields(Thresholds)})


def replay(path: Path, thresholds: Thresholds | None = None) -> Iterator[tuple[Observation, list[Finding]]]:
    """The observations of a recording, each with the findings in it and all before.

    Args:
        thresholds: by default those of the analyzer that made it, if it tells them.

    A recording that breaks off, because its writer died, ends with its last whole line.

    Raises:
        CorruptDataError: the file is not a recording of this version, or is damaged.
        OSError: it cannot be read.
    """
    analyzer = Analyzer(thresholds or recorded_thresholds(path))
    decoders: dict[str, Decoder] = {}
    last = 0.0
    for number, entry in enumerate(_entries(path), 2):
        with _telling(path, number):
            if "thresholds" in entry:
                decode_thresholds(entry["thresholds"])
                continue
            if "stack" in entry:
                analyzer.add_stack(int(entry["rank"]), str(entry["stack"]))
                continue
            observation = decode_observation(entry, decoders)
            if observation.time < last:
                raise ValueError("its time is before that of an earlier line")
            last = observation.time
            findings = analyzer.update(observation).findings
        yield observation, findings


@contextmanager
def _telling(path: Path, number: int) -> Iterator[None]:
    """Turn an error about a line into one that names the line."""
    try:
        yield
    except (*NO_JSON_OF_OURS, zlib.error, gzip.BadGzipFile) as error:
        message = f"expected a recording of a job, line {number} is none: {error}"
        raise CorruptDataError(message, file=path, advice="record it again, with this tensorwire") from None


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines behind the first, which has to be that of a recording."""
    with gzip.open(path, "rb") as file:
        for number in count(1):
            with _telling(path, number):
                line = _line(file, _MAX_HEAD_NBYTES if number == 1 else _MAX_LINE_NBYTES)
                if number == 1 and not line:
                    raise ValueError("it is empty")
                entry: dict[str, Any] = json.loads(line) if line else {}
                if type(entry) is not dict:
                    raise TypeError("it is no object")
                if number == 1 and entry != _FORMAT:
                    raise ValueError("the first line is not that of a recording of this version")
            if not line:
                return
            if number > 1:
                yield entry


def _line(file: gzip.GzipFile, limit: int) -> bytes:
    """The next whole line; none where the recording ends or breaks off. Raises ValueError for one that no job needs."""
    try:
        line = file.readline(limit)
    except EOFError:
        return b""
    if not line.endswith(b"\n"):
        if len(line) == limit:
            raise ValueError(f"it is longer than {limit} bytes")
        return b""
    if sum(map(line.count, (b"[", b"{", b","))) > _MAX_VALUES:
        raise ValueError(f"it has more than {_MAX_VALUES} values")
    return line


def encode_observation(observation: Observation, encoders: dict[str, Encoder]) -> dict[str, Any]:
    """JSON of an observation. `encoders` are the nodes' so far, kept up to date; {} for an observation by itself."""
    parts = _by_node(observation)
    for name in encoders.keys() - parts.keys():
        del encoders[name]
    return {
        "time": observation.time,
        "run": observation.run_id,
        "world_size": observation.world_size,
        "silent_nodes": observation.silent_nodes,
        "nodes": {name: to_json(encoders.setdefault(name, Encoder()).report(part)) for name, part in parts.items()},
    }


def _by_node(observation: Observation) -> dict[str, Observation]:
    """The part of each node: its ranks, and their connections."""
    ranks: dict[str, dict[int, Rank]] = defaultdict(dict)
    for number, rank in observation.ranks.items():
        ranks[rank.node][number] = rank
    edges: dict[str, list[Edge]] = defaultdict(list)
    for edge in observation.edges:
        if edge.rank in observation.ranks:
            edges[observation.ranks[edge.rank].node].append(edge)
    time, run_id, world_size = observation.time, observation.run_id, observation.world_size
    return {name: Observation(time, run_id, world_size, part, edges[name]) for name, part in ranks.items()}


def decode_observation(entry: dict[str, Any], decoders: dict[str, Decoder]) -> Observation:
    """The inverse. Raises one of NO_JSON_OF_OURS for anything else."""
    time, world_size = float(entry["time"]), int(entry["world_size"])
    if not 0 <= time < _MAX_SECONDS or not 0 <= world_size <= MAX_RANKS:
        raise ValueError(f"expected a time and the size of a job, got {time} and {world_size}")
    ranks: dict[int, Rank] = {}
    edges: list[Edge] = []
    for name in decoders.keys() - entry["nodes"].keys():
        del decoders[name]
    for name, report in entry["nodes"].items():
        decoder = decoders.setdefault(name, Decoder())
        decoder.apply(from_json(report))
        ranks.update((rank.rank, rank) for rank in decoder.ranks(name, 0.0))
        edges += decoder.connections()
    if len(decoders) > MAX_NODES or sum(decoder.num_integers for decoder in decoders.values()) > MAX_INTEGERS:
        raise ValueError("no analyzer takes as much")
    return Observation(time, str(entry["run"]), world_size, ranks, edges, [str(name) for name in entry["silent_nodes"]])
