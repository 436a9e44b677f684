"""Section "tensorwire.json" of docs/checkpoints.md."""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from .checkpoint import MANIFEST, manifest_checksum
from .containers import Content, parse_json
from .errors import LimitExceededError, UnsupportedVersionError, require

FEATURES = {"torch", "beside"}
OF_TENSORS = ("safetensors", "torch")
MAX_NBYTES = 32 << 20
MAX_PATH_LENGTH, MAX_DEPTH = 4096, 100
_SHA256, _CONTENT_HASH = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{32}")
_MEMBERS = {
    "safetensors": {"header"},
    "torch": {"header"},
    "replaced": {"content", "stored_sha256"},
    "copied": set[str](),
}
_OF_ALL = {"path", "kind", "nbytes", "sha256"}


def check_required(features: object) -> set[str]:
    """Section "What later versions may add". The features that are named."""
    require(isinstance(features, str), "the required features are no text")
    named = set(str(features).split())
    if named - FEATURES:
        raise UnsupportedVersionError(f"features of a later version: {features}")
    return named


def read_manifest(data: Content) -> dict[str, Any]:
    """A manifest that keeps every rule of the page. Members that it does not name are skipped."""
    if len(data) > MAX_NBYTES:
        raise LimitExceededError(f"a manifest of {len(data)} bytes; at most {MAX_NBYTES}")
    manifest = parse_json(data[:], MANIFEST)
    require(manifest.get("format") == "tensorwire-checkpoint", "the format is another one")
    version = manifest.get("version")
    if type(version) is not int or version != 1:
        raise UnsupportedVersionError(f"version {version}; this program reads version 1")
    check_required(manifest.get("required", ""))
    require(manifest.get("checksum") == manifest_checksum(manifest), "the checksum of the manifest does not match")
    require(all(isinstance(manifest.get(key), str) for key in ("profile", "writer")), "profile or writer is no text")
    files = manifest.get("files")
    require(isinstance(files, list), "files is no list")
    for file in files or ():
        _check_file(file)
    excluded, directories = (_paths(manifest.get(key, least), key) for key, least in _LISTS)
    require(all(path.endswith("/") for path in directories), "a directory without a slash at its end")
    listed = [*(file["path"] for file in files or ()), *(path.removesuffix("/") for path in directories)]
    require(MANIFEST not in listed, "the manifest lists itself")
    check_paths(listed)
    check_paths(path.removesuffix("/") for path in excluded)
    if "base" in manifest:
        base = manifest["base"]
        legal = isinstance(base, dict) and isinstance(base.get("name"), str) and _is(_CONTENT_HASH, base.get("hash"))
        require(legal, "the base is no name and identity")
    return manifest


_LISTS: tuple[tuple[str, Any], ...] = (("excluded", None), ("directories", []))


def _paths(paths: Any, what: str) -> list[str]:
    require(isinstance(paths, list) and all(isinstance(path, str) for path in paths), f"{what} is no list of paths")
    found: list[str] = paths
    return found


def _is(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and bool(pattern.fullmatch(text))


def _check_file(file: Any) -> None:
    require(isinstance(file, dict), "a file is no object")
    kind = file.get("kind")
    require(isinstance(kind, str) and kind in _MEMBERS, f"files of kind {kind}")
    members = _OF_ALL | _MEMBERS[kind]
    require(members <= file.keys(), f"a file of kind {kind} lacks {', '.join(sorted(members - file.keys()))}")
    known = {key: file[key] for key in (*members, "base_sha256") if key in file}
    require(type(known.pop("nbytes")) is int and file["nbytes"] >= 0, "the size of a file is no number")
    require(all(isinstance(text, str) for text in known.values()), "a member of a file is no text")
    require(all(_is(_SHA256, text) for key, text in known.items() if key.endswith("sha256")), "a SHA-256 of 64 digits")


def is_plain(path: str) -> bool:
    """Whether a path leads to something in the directory that it is relative to, on any system."""
    parts = path.split("/")
    surrogates = any("\ud800" <= character <= "\udfff" for character in path)
    return (
        len(path) <= MAX_PATH_LENGTH
        and len(parts) <= MAX_DEPTH + 1
        and not {"", ".", ".."} & set(parts)
        and not {"\0", "\\"} & set(path)
        and ":" not in parts[0]
        and not surrogates
    )


def check_paths(paths: Iterable[str]) -> None:
    """No path is there twice, and none is a directory of another one."""
    beginnings = []
    for path in paths:
        require(is_plain(path), f"{path!r} is no plain relative path")
        beginnings.append(f"{path}/")
    for one, other in pairwise(sorted(beginnings)):  # what lies in a directory comes right behind it
        require(not other.startswith(one), f"{one[:-1]!r} is there twice, or is a directory of {other[:-1]!r}")
