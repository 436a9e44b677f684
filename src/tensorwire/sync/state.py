"""What a follower of a directory knows of it, in a file that is replaced whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .._ground.new_file import NewFile
from .versions import Position, Tensor

Marks = Mapping[str, str | None]
"""By file what tells it from any other: see `mark_of`."""


class Spare(NamedTuple):
    """A file of the staging folder: its mark, and by tensor the hash of what it holds."""

    mark: str | None
    hashes: Mapping[str, str]


class Next(NamedTuple):
    """A version that is staged.

    Attributes:
        token: of who staged it.
        committing: whether its files are to take their places, whatever happens.
        position, files, spare: what the state will say once they have.
        staged: the files that are to take their places.
        gone: files that stand and are no part of it.
    """

    token: str
    committing: bool
    position: Position
    files: Marks
    spare: Mapping[str, Spare]
    staged: tuple[str, ...]
    gone: tuple[str, ...]


_NONE: Mapping[str, Any] = MappingProxyType({})


class State(NamedTuple):
    """
    Attributes:
        position: what stands there; None if nobody knows.
        files: of the version that stands there.
        spare: files that the next version may be written over.
        next: None if nothing is staged.
    """

    position: Position | None = None
    files: Marks = _NONE
    spare: Mapping[str, Spare] = _NONE
    next: Next | None = None

    def write(self, path: Path) -> None:
        """Replace what the file says, and wait until it is on the disk."""
        body = {
            "position": _dumped(self.position),
            "files": dict(self.files),
            "spare": dict(self.spare),
            "next": self.next and {**self.next._asdict(), "position": _dumped(self.next.position)},
        }
        NewFile(path, force=True, example=path.name).write(json.dumps(body).encode())


def read_state(path: Path) -> State:
    """The state in a file. One that is missing or damaged says nothing, so that the tensors are hashed anew."""
    try:
        body = json.loads(path.read_bytes())
        coming = body["next"]
        if coming is not None:
            coming = Next(**{**coming, "position": _loaded(coming["position"]), "spare": _spare(coming["spare"])})
        return State(_loaded(body["position"]), body["files"], _spare(body["spare"]), coming)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return State()


def _dumped(position: Position | None) -> dict[str, Any] | None:
    return None if position is None else position._asdict()


def _loaded(body: Any) -> Any:
    if body is None:
        return None
    tensors = {name: Tensor(dtype, tuple(shape), found) for name, (dtype, shape, found) in body["tensors"].items()}
    return Position(**{**body, "tensors": tensors})


def _spare(body: Any) -> dict[str, Spare]:
    return {file: Spare(*facts) for file, facts in body.items()}
