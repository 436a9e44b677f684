"""Reads the tensors of files, plain or compressed, alone or in directories, and finds what they are relative to.

A tensor is decoded when it is read, so that memory grows with the largest tensor and not with the file.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from .checkpoint import MANIFEST, MARKER, PREFIX, header_checksum, payload_name, tensor_name
from .containers import Content, Entry, Tensor, read_header, read_tensor
from .decoder import decode
from .errors import (
    BaseMismatchError,
    FormatError,
    LimitExceededError,
    UnsupportedVersionError,
    require,
)
from .folders import Folder
from .hashes import content_hash
from .header import FIXED_NBYTES, MAX_NDIM, Header, parse_fixed
from .manifest import OF_TENSORS, check_required, is_plain, read_manifest

_ZIP = b"PK\3\4"
MAX_LINKS = 100
MAX_RELATIVE = 16


class Place(NamedTuple):
    """A tensor of a file of a directory."""

    path: str
    name: str


class Checkpoint:
    """Files by their paths, and the checkpoints behind them, newest first, which tensors may be relative to.

    A single file has the path "". With a manifest the files are those of a compressed directory.
    """

    def __init__(self, files: Mapping[str, Content], behind: Sequence["Checkpoint"] = ()) -> None:
        self.files = files
        self.behind = behind
        self.manifest = read_manifest(files[MANIFEST]) if MANIFEST in files else None
        self._listed = set() if self.manifest is None else {file["path"] for file in self.manifest["files"]}
        self._opened: dict[str, TensorFile] = {}
        self._users: defaultdict[Place, set[Place]] = defaultdict(set)
        self._relative: set[Place] = set()
        self._relative_nbytes = 0

    def paths_of_tensors(self) -> list[str]:
        """The paths of the files that hold tensors."""
        if self.manifest is not None:
            return [file["path"] for file in self.manifest["files"] if file["kind"] in OF_TENSORS]
        return sorted(path for path in self.files if path.endswith(".safetensors") or not path)

    def open(self, path: str) -> "TensorFile":
        """Raises FileNotFoundError if there is no such file."""
        if path not in self._opened:
            if path not in self.files:
                raise FileNotFoundError(f"{path!r} is missing, which a {MANIFEST} lists")
            content = self.files[path]
            if is_zip(content):
                which = f"the torch file {path!r}" if path else "a torch file"
                raise BaseMismatchError(f"{which} is no base here: compress it, and name the result")
            try:
                self._opened[path] = TensorFile(content, self, path)
            except FormatError as error:
                raise type(error)(f"{path!r}: {error}" if path else str(error)) from None
        return self._opened[path]

    @cached_property
    def behind_nbytes(self) -> int:
        """The bytes of all tensors of the base, and of those behind it, that are relative to none."""
        files = [other.open(path) for other in self.behind for path in other.paths_of_tensors()]
        return sum(file.nbytes(name) for file in files for name in file.names if not file.is_relative(name))

    def find_behind(self, place: Place, called: str, header: Header) -> bytes:
        """The tensor of this name and content in a checkpoint behind this one."""
        if place not in self._relative:
            self._relative.add(place)
            self._relative_nbytes += header.uncompressed_nbytes
        most = MAX_RELATIVE * self.behind_nbytes
        if self.behind and self._relative_nbytes > most:
            raise LimitExceededError(f"relative tensors of more than {most} bytes, which is more than the base carries")
        for other in self.behind:
            for path in sorted(other.paths_of_tensors(), key=lambda path: path != place.path):  # its own path first
                file = other.open(path)
                if called in file.names and file.may_have(called, header):
                    found = file.read(called).data
                    if content_hash(found) == header.base_hash:
                        return found
        digest = "" if header.base_hash is None else header.base_hash.hex()
        raise BaseMismatchError(
            f"{place.name} is relative to a tensor {called} of hash {digest}, which no given base has"
            + ("" if self.behind else ": name the checkpoint that has it by --base")
        )

    def find_beside(self, place: Place, link: Place) -> bytes:
        """A tensor that another one of this directory is relative to."""
        end = self._end_of(place, link)
        self._users[end].add(place)
        if len([user for user in self._users[end] if user.path == place.path]) > MAX_RELATIVE:
            raise LimitExceededError(f"more than {MAX_RELATIVE} tensors of a file are relative to {end}")
        return self.open(link.path).read(link.name).data

    def _end_of(self, place: Place, link: Place) -> Place:
        """Where a row of tensors ends, each of which is relative to the next one."""
        trail = [place]
        while True:
            require(link not in trail, f"tensors are relative to each other in a circle: {link}")
            if len(trail) > MAX_LINKS:
                raise LimitExceededError(f"more than {MAX_LINKS} tensors, each relative to the next one")
            self._check_path(link.path, place.path)
            file = self.open(link.path)
            if link.name not in file.names or file.nbytes(link.name) != self.open(place.path).nbytes(place.name):
                raise BaseMismatchError(f"{place} is relative to {link}, which is not there, or of another size")
            trail.append(link)
            following = file.link(link.name) if file.is_relative(link.name) else None
            if following is None:
                return link
            link = following

    def _check_path(self, path: str, of: str) -> None:
        require(is_plain(path) and path != MANIFEST, f"{path!r} leads out of the directory")
        if not {path, of} <= self._listed or path not in self.files:
            raise BaseMismatchError(
                f"{of!r} needs {path!r}, and no {MANIFEST} of its directory lists both, or it is lost"
            )
        self.check_links(path, of)

    def check_links(self, path: str, of: str) -> None:
        """Raise `CorruptDataError` if a link leads out of the directory, and not to where `of` lies as well."""
        if isinstance(self.files, Folder):
            self.files.check_links(path, of)


class TensorFile:
    """The original tensors of a file, plain or compressed. `names` has them in the order of their data."""

    def __init__(self, content: Content, checkpoint: Checkpoint, path: str) -> None:
        self._content, self._checkpoint, self._path = content, checkpoint, path
        self._header = read_header(content)
        metadata, entries = self._header.metadata, self._header.entries
        self.ours = {key.removeprefix(PREFIX): text for key, text in metadata.items() if key.startswith(PREFIX)}
        self.metadata = {key: text for key, text in metadata.items() if not key.startswith(PREFIX)}
        self._check_header()
        markers = {name for name, entry in entries.items() if (entry.dtype, entry.shape) == MARKER}
        payloads = {name for name, entry in entries.items() if tensor_name(name) in markers and _is_payload(entry)}
        self._stored = {
            tensor_name(name) if name in payloads else name: name
            for name in entries
            if payload_name(name) not in payloads  # its marker
        }
        self.names = list(self._stored)
        self._headers: dict[str, Header] = {}  # of frames

    def _check_header(self) -> None:
        self.features = check_required(self.ours.get("required", ""))
        if self.ours.get("frames", "F4") != "F4":
            raise UnsupportedVersionError(f"frames of dtype {self.ours['frames']}")
        if "version" in self.ours or (self.ours and "frames" not in self.ours):
            if self.ours.get("version") != "1":
                raise UnsupportedVersionError(f"version {self.ours.get('version')}")
            tensors = ((name, entry.dtype, entry.shape) for name, entry in self._header.entries.items())
            found = header_checksum(self._header.metadata, tensors)
            require(self.ours.get("checksum") == found, "the checksum of the header does not match")
        legal = "beside" not in self.features or "path" in self.ours
        require(legal, "a file of a directory that does not say where it stands")

    def is_frame(self, name: str) -> bool:
        """Whether a tensor is compressed."""
        dtype, shape, _ = self._header.entries[self._stored[name]]
        return self._stored[name] != name or ("frames" in self.ours and dtype == "F4" and len(shape) == 1)

    def is_relative(self, name: str) -> bool:
        return self.is_frame(name) and self._frame_header(name).base_hash is not None

    def nbytes(self, name: str) -> int:
        """The uncompressed size of a tensor, as it is claimed."""
        if self.is_frame(name):
            return self._frame_header(name).uncompressed_nbytes
        return self._header.entries[name].nbytes

    def may_have(self, name: str, header: Header) -> bool:
        """Whether a tensor may be what a relative frame is relative to. The header of a frame says so; without it each
        of several bases would be decoded by way of all others."""
        is_other = self.is_frame(name) and self._frame_header(name).content_hash != header.base_hash
        return not is_other and self.nbytes(name) == header.uncompressed_nbytes

    def label(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape of a tensor."""
        found = self._frame_header(name) if self.is_frame(name) else self._header.entries[name]
        return found.dtype, found.shape

    def _frame_header(self, name: str) -> Header:
        if name not in self._headers:
            place = self._header.entries[self._stored[name]].data
            start = 8 + len(self._header.text) + place.start
            end = start + min(place.stop - place.start, FIXED_NBYTES + 8 * MAX_NDIM)
            self._headers[name] = parse_fixed(self._content[start:end])
        return self._headers[name]

    def link(self, name: str) -> Place | None:
        """The tensor of another file of the directory that one is relative to, if it is to such a one."""
        path = self.ours.get(f"beside:{name}") if "beside" in self.features else None
        return None if path is None else Place(path, self.ours.get(f"base:{name}", name))

    def read(self, name: str) -> Tensor:
        """A tensor as the original has it, with its hashes compared."""
        try:
            return self._read(name)
        except (FormatError, BaseMismatchError) as error:
            where = f"{self._path!r}, " if self._path else ""
            raise type(error)(f"{where}tensor {name!r}: {error}") from None

    def _read(self, name: str) -> Tensor:
        tensor = read_tensor(self._content, self._header, self._stored[name])
        if self.is_frame(name):
            frame = decode(tensor.data, self._base_of(name))
            tensor = Tensor(name, frame.header.dtype, frame.header.shape, frame.data)
        recorded = self.ours.get(f"hash:{name}")
        require(recorded in (None, content_hash(tensor.data).hex()), "its content is another one than recorded")
        return tensor

    def _base_of(self, name: str) -> bytes | None:
        if not self.is_relative(name):
            return None
        place, link = Place(self._path, name), self.link(name)
        if link is None:
            return self._checkpoint.find_behind(place, self.ours.get(f"base:{name}", name), self._frame_header(name))
        if self.ours.get("path") != self._path:
            raise BaseMismatchError(f"the file belongs at {self.ours.get('path')!r} of its directory")
        return self._checkpoint.find_beside(place, link)


def is_zip(content: Content) -> bool:
    """Whether a file is one of torch, which are archives."""
    return content[:4] == _ZIP


def _is_payload(entry: Entry) -> bool:
    return entry.dtype == "U8" and len(entry.shape) == 1 and entry.nbytes > 0
