"""How tensors are named in a compressed file, and files in a compressed directory.

A compressed tensor ``{module}.{param}`` is stored as ``{module}._{param}_tensorwire``: one U8 tensor, a frame. Under
its own name stands an empty tensor, the marker. Its dtype is one that safetensors has and that no framework can hold,
so a loader that does not know us fails when it reads it, even if it was told to ignore what it does not know. The
leading underscore keeps the renaming patterns of model libraries away from the payload.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import CorruptDataError, UnsupportedVersionError

METADATA_PREFIX = "tensorwire."
"""Entries of ``__metadata__`` that begin so are ours."""

REQUIRED_KEY = METADATA_PREFIX + "required"
"""In the metadata of a file or an index: see `check_required`."""

EMPTY_METADATA_KEY = METADATA_PREFIX + "metadata"
"""In the metadata of a file whose original has an empty object there, not none: see `kept_metadata`."""

BESIDE = "beside"
"""The required feature of files with tensors that are relative to other files of their directory."""

MANIFEST_NAME = "tensorwire.json"
"""The file that lists all others of a compressed directory."""

MAX_JSON_NBYTES = 32 << 20
"""The most bytes of JSON that are parsed at once: manifests, indexes and configurations. Objects of the parser take
some thirty times as much, so this bounds memory."""

_MAX_PATH_LENGTH = 4096
MAX_DEPTH = 100
"""The most directories, one in another: copying or removing a tree takes a call within a call for each."""

GIVE_BASE = "name the checkpoint that it was made against: base=PATH (--base PATH)"
"""What to do about a tensor whose base is in no file of its directory."""
OUR_NAME = b"tensorwire"
"""What stands in the header of every compressed file: in the entries that are ours, and in the names of payloads."""

MARKER_DTYPE = "F6_E2M3"
MARKER_SHAPE = (0,)

FRAME_DTYPE = "F4"
"""The dtype of frames under the names of their tensors, without markers. A library that writes through torch does so,
since torch has no dtype of six bits. A loader fails on these too: they fit no shape, and torch converts them to no
other dtype."""

_SUFFIX = "_tensorwire"
_SHOWN_LENGTH = 200


def payload_name(name: str) -> str:
    """The name of the payload of tensor `name`."""
    module, dot, param = name.rpartition(".")
    return f"{module}{dot}_{param}{_SUFFIX}"


def tensor_name(payload: str) -> str | None:
    """The name of the tensor whose payload has this name; None if no payload is named so. Inverts `payload_name`."""
    module, dot, param = payload.rpartition(".")
    if not (param.startswith("_") and param.endswith(_SUFFIX) and len(param) > len(_SUFFIX)):
        return None
    return f"{module}{dot}{param[1 : -len(_SUFFIX)]}"


def kept_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """What a compressed file keeps of the metadata of its original, None if that has none."""
    if metadata is None:
        return {}
    return dict(metadata) or {EMPTY_METADATA_KEY: "{}"}


def check_required(features: object, place: str, known: frozenset[str] = frozenset()) -> None:
    """Refuse what only a newer reader understands.

    Args:
        features: the names of features that a reader must know, with spaces between; "" if there is no such entry.
        place: the key under which they stand.
        known: those that may stand there.

    Raises:
        UnsupportedVersionError: there are any.
        CorruptDataError: it is no text.
    """
    if not isinstance(features, str):
        raise CorruptDataError(f"expected a text of names in {place}, got {type(features).__name__}")
    if names := " ".join(name for name in features.split() if name not in known):
        raise UnsupportedVersionError(
            f"expected only features of this version in {place}, got {shown(names)}",
            advice="a newer version of tensorwire wrote this: upgrade",
        )


def is_plain_relative(path: str) -> bool:
    """Whether a path names something inside the directory that it is relative to, on any platform."""
    return (
        0 < len(path) <= _MAX_PATH_LENGTH
        and path.count("/") <= MAX_DEPTH
        and "\0" not in path
        and "\\" not in path
        and ":" not in path.split("/", 1)[0]
        and all(part not in ("", ".", "..") for part in path.split("/"))
    )


def is_version(number: object, version: int) -> bool:
    """Whether a JSON value is this version: an integer, which neither `true` nor `1.0` is."""
    return type(number) is int and number == version


def shown(name: str) -> str:
    """`name` for a message: quoted, control characters escaped, cut when it is long."""
    if len(name) > _SHOWN_LENGTH:
        return f"{name[:_SHOWN_LENGTH]!r}... ({len(name)} characters)"
    return repr(name)


def shown_value(value: object) -> str:
    """A value out of JSON for a message. What others are in, and what has very many digits, is told by its type: the
    text of it may be longer than memory."""
    if isinstance(value, str):
        return shown(value)
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() <= 64):
        return repr(value)
    return f"a value of type {type(value).__name__}"
