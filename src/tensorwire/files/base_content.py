"""What relative frames are read with, as a stored file asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ..codec import FrameInfo

    Place = tuple[str, str]
    """A tensor of a directory: the relative path of its file, and its name there."""


class BaseContent(Protocol):
    """What a relative frame is relative to."""

    def read(self, start: int, out: memoryview, *, threads: int | None) -> None:
        """Put content bytes from `start` on into `out`."""

    def still_has(self, content_hash: str, threads: int | None) -> bool:
        """Whether the content is the one with this hash."""

    def still_has_base(self, threads: int | None) -> bool:
        """False if something that it is relative to itself has changed."""

    def check_unchanged(self) -> None:
        """Raise OSError if a file that holds it, or what it is relative to, was written to."""


class Bases(Protocol):
    """Where the bases of relative frames are found."""

    def find(
        self, file: str, name: str, info: FrameInfo, *, called: str | None, threads: int | None, verify: bool
    ) -> BaseContent:
        """The base of a frame, in a checkpoint that was called so; BaseMismatchError if there is none."""

    def count_read(self, nbytes: int) -> None:
        """Count a relative tensor that is to be read; LimitExceededError if all are more than a file may claim."""


class Link(NamedTuple):
    """A tensor with a frame that is relative to a tensor of another file of its directory."""

    tensor: Place
    base: Place
    info: FrameInfo


class BasesBeside(Protocol):
    """Where the bases of frames are found that are relative to other files of their directory."""

    def find(self, link: Link, *, threads: int | None, verify: bool) -> BaseContent:
        """The base of a frame; BaseMismatchError if there is none."""

    def end_nbytes(self, link: Link) -> int:
        """What the tensor takes in its file to which bases lead in the end. Errors are those of `find`."""

    def close(self) -> None: ...
