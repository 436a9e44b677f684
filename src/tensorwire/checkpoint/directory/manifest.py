"""``tensorwire.json``: what a compressed directory was made from. docs/checkpoints.md has the schema."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._ground.filesystem import resolved
from ..._ground.version import __version__
from ...errors import CorruptDataError, ErrorContext, LimitExceededError, UnsupportedVersionError
from ...files.json_object import check_nbytes, dump, load, seal
from ...files.names import BESIDE, MAX_DEPTH, MAX_JSON_NBYTES, check_required, is_version, shown_value
from ...files.original_record import SAFETENSORS, TORCH, Record, unpack
from ...storage.inputs import open_input
from .paths import MANIFEST_NAME, check_paths

if TYPE_CHECKING:
    from ...files.reader import StoredFile
    from ...storage.locations import Location

FORMAT = "tensorwire-checkpoint"
VERSION = 1
REPLACED, COPIED = "replaced", "copied"
NOT_COMPRESSED = "copied, not compressed"
"""How a notice begins of files that hold tensors and are COPIED."""
OF_TENSORS = (SAFETENSORS, TORCH)
"""The kinds of files that are coded."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT_HASH = re.compile(r"[0-9a-f]{32}")
_MEMBERS = {
    SAFETENSORS: {"path", "kind", "nbytes", "sha256", "header"},
    TORCH: {"path", "kind", "nbytes", "sha256", "header"},
    REPLACED: {"path", "kind", "nbytes", "sha256", "content", "stored_sha256"},
    COPIED: {"path", "kind", "nbytes", "sha256"},
}


class BaseRecord(NamedTuple):
    """What a manifest says of the base that its files are relative to.

    Attributes:
        name: what it was called.
        hash: of all its tensors.
    """

    name: str
    hash: str


class ManifestFile(NamedTuple):
    """One file of the original.

    Attributes:
        path: relative, with forward slashes.
        kind: SAFETENSORS, TORCH, REPLACED or COPIED.
        nbytes, sha256: of the original.
        header: what a record keeps of the original, packed; for SAFETENSORS and TORCH.
        content: the whole original, packed; for REPLACED.
        stored_sha256: of the file that stands in its place; for REPLACED.
        base_sha256: of the file of the same path in the base, if there is one; None for a file with relative frames,
            which know their bases themselves.
    """

    path: str
    kind: str
    nbytes: int
    sha256: str
    header: str | None = None
    content: str | None = None
    stored_sha256: str | None = None
    base_sha256: str | None = None

    def record(self) -> Record:
        """What restores the original of a file of tensors."""
        return Record(self.kind, unpack(self.header or ""), self.sha256)

    def unpacked_content(self) -> bytes:
        """The original of a REPLACED file, checked."""
        data = unpack(self.content or "")
        if len(data) != self.nbytes or hashlib.sha256(data).hexdigest() != self.sha256:
            raise CorruptDataError("the kept original does not have the recorded SHA-256", file=self.path)
        return data

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value is not None}


class Manifest(NamedTuple):
    """The whole manifest.

    Attributes:
        excluded: relative paths of the files and directories that were left out; a directory's ends with a slash.
        directories: relative paths, with a slash at the end, of the directories in which no file stands.
        writer: version of the package that wrote it.
        base: what files are relative to; None if none is.
        beside: whether files are relative to others of the directory.
        chain: whether it holds checkpoints, each relative to the one before it, which `transcode` keeps so.
    """

    profile: str
    files: tuple[ManifestFile, ...]
    excluded: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    writer: str = __version__
    base: BaseRecord | None = None
    beside: bool = False
    chain: bool = False

    def below(self, prefix: str) -> Manifest | None:
        """What it says of a directory in that one, whose paths begin so; None if it lists no file there."""

        def inside(paths: Iterable[str]) -> tuple[str, ...]:
            return tuple(path.removeprefix(prefix) for path in paths if path.startswith(prefix) and path != prefix)

        files = (file for file in self.files if file.path.startswith(prefix))
        found = tuple(file._replace(path=file.path.removeprefix(prefix)) for file in files)
        excluded, directories = inside(self.excluded), inside(self.directories)
        return self._replace(files=found, excluded=excluded, directories=directories, chain=False) if found else None

    def dump(self) -> bytes:
        """The text of the file.

        Raises:
            LimitExceededError: it would be longer than what `read_manifest` reads.
        """
        features = [TORCH] if any(file.kind == TORCH for file in self.files) else []
        required = " ".join([*features, BESIDE] if self.beside else features)
        body = {
            "format": FORMAT,
            "version": VERSION,
            **({"required": required} if required else {}),
            "writer": self.writer,
            "profile": self.profile,
            "files": [file.as_json() for file in self.files],
            "excluded": list(self.excluded),
            **({"directories": list(self.directories)} if self.directories else {}),
            **({} if self.base is None else {"base": self.base._asdict()}),
            **({"chain": True} if self.chain else {}),
        }
        data = dump({**body, "checksum": seal(body, sort_keys=True)})
        check_new_size(len(data))
        return data


def check_new_size(nbytes: int) -> None:
    """Raise LimitExceededError if a manifest of at least so many bytes could not be read again."""
    if nbytes > MAX_JSON_NBYTES:
        raise LimitExceededError(
            f"expected files whose manifest takes at most {MAX_JSON_NBYTES} bytes, "
            f"their names and headers take {nbytes} or more",
            advice="spread the files over several directories and compress each",
        )


def read_manifest(root: Location) -> Manifest | None:
    """The manifest of a directory, checked; None if there is none.

    Raises:
        FormatError: it is damaged, or no file.
    """
    try:
        return _read(root)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EINVAL):
            raise
        found = "a directory" if error.errno == errno.EISDIR else "a pipe, a socket or a device"
        raise CorruptDataError(
            f"expected a file, got {found}",
            file=root / MANIFEST_NAME,
            advice="put the manifest in its place that compress has written there; without it no original is restored",
        ) from None


def _read(root: Location) -> Manifest | None:
    """The same, and OSError for what is no file."""
    path = root / MANIFEST_NAME
    try:
        with open_input(path) as file, ErrorContext(file=path):
            check_nbytes(file.nbytes, MAX_JSON_NBYTES, "a manifest")
            return parse_manifest(file.read(0, file.nbytes))
    except FileNotFoundError:
        return None


def manifest_of(root: Location) -> Manifest | None:
    """The manifest of a directory, or what that of a directory above says of it; None if there is none.

    Raises:
        FormatError: one is damaged.
    """
    if (own := read_manifest(root)) is not None:
        return own
    return _manifest_above(root) or (_manifest_above(resolved(root)) if isinstance(root, Path) else None)


def _manifest_above(root: Location) -> Manifest | None:
    """What the first manifest above a directory says of it."""
    prefix = f"{root.name}/"
    above = root.parent
    for _ in range(MAX_DEPTH):
        with suppress(OSError):  # what others own may not be looked at
            if (found := _read(above)) is not None:
                return found.below(prefix)
        prefix, last, above = f"{above.name}/{prefix}", above, above.parent
        if above == last:
            break
    return None


def record_of(stored: StoredFile) -> Record | None:
    """What restores the original of a compressed file: what the file says of it, or else the manifest of the directory
    that it stands in; None if neither does.

    Raises:
        FormatError: the record or the manifest is damaged.
    """
    record = stored.record()
    if record is not None or not stored.compressed:
        return record
    known = _known(stored.path) or (_known(resolved(stored.path)) if isinstance(stored.path, Path) else None)
    return None if known is None else known.record()


def _known(place: Location) -> ManifestFile | None:
    """What the manifest of its directory says of a file of tensors."""
    manifest = manifest_of(place.parent)
    files = () if manifest is None else manifest.files
    return next((file for file in files if file.path == place.name and file.kind in OF_TENSORS), None)


def parse_manifest(data: bytes) -> Manifest:
    body = load(data)
    if body.get("format") != FORMAT:
        raise CorruptDataError(f"expected a manifest of format {FORMAT!r}, got {shown_value(body.get('format'))}")
    if not is_version(body.get("version"), VERSION):
        raise UnsupportedVersionError(
            f"expected a manifest of version {VERSION}, got {shown_value(body.get('version'))}"
        )
    check_required(body.get("required", ""), "required", frozenset({TORCH, BESIDE}))
    if body.pop("checksum", None) != seal(body, sort_keys=True):
        raise CorruptDataError("the checksum of the manifest does not match")
    profile, writer, files = body.get("profile"), body.get("writer"), body.get("files")
    if not isinstance(profile, str) or not isinstance(writer, str) or not isinstance(files, list):
        raise CorruptDataError("expected profile, writer and files in the manifest")
    excluded, directories = (_parse_paths(body, name) for name in ("excluded", "directories"))
    entries = tuple(parse_file(file) for file in files)
    base = _parse_base(body["base"]) if "base" in body else None
    beside = BESIDE in body.get("required", "").split()
    chain = body.get("chain") is True
    manifest = Manifest(profile, entries, excluded, directories, writer, base, beside, chain)
    if not all(path.endswith("/") for path in directories):
        raise CorruptDataError("expected paths that end with a slash as directories in the manifest")
    paths = [*(file.path for file in manifest.files), *(path[:-1] for path in directories)]
    check_paths(paths)
    if MANIFEST_NAME in paths:
        raise CorruptDataError("expected a manifest that does not list itself")
    return manifest


def _parse_paths(body: dict[str, Any], name: str) -> tuple[str, ...]:
    """A list of paths, those of directories with a slash at the end; a manifest of files alone has no `directories`."""
    paths = body.get(name, [] if name == "directories" else None)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise CorruptDataError(f"expected a list of paths as {name} in the manifest")
    check_paths(path.removesuffix("/") for path in paths)
    return tuple(paths)


def _parse_base(value: object) -> BaseRecord:
    name, digest = (value.get("name"), value.get("hash")) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(digest, str) or not _CONTENT_HASH.fullmatch(digest):
        raise CorruptDataError("expected a name and a content hash of the base in the manifest")
    return BaseRecord(name, digest)


def parse_file(value: object) -> ManifestFile:
    """
    Raises:
        CorruptDataError: it is no record of a file.
    """
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str) or kind not in _MEMBERS:
        raise CorruptDataError(f"expected files of the kinds {', '.join(_MEMBERS)} in the manifest")
    if not _MEMBERS[kind] <= value.keys():
        raise CorruptDataError(f"expected {', '.join(sorted(_MEMBERS[kind]))} in each {kind} file of the manifest")
    known = {key: value[key] for key in (*_MEMBERS[kind], "base_sha256") if key in value}
    file = ManifestFile(**known)
    if not all(isinstance(text, str) for key, text in known.items() if key != "nbytes") or type(file.nbytes) is not int:
        raise CorruptDataError("expected strings and a size in each file of the manifest")
    digests = [text for key, text in known.items() if key.endswith("sha256")]
    if file.nbytes < 0 or not all(map(_SHA256.fullmatch, digests)):
        raise CorruptDataError("expected a size, and SHA-256 of 64 digits, in each file of the manifest")
    return file
