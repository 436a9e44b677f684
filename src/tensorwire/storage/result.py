"""Where the result of a run is to stand: on this machine, or in a store. A run treats both alike."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from .progress import Progress
    from .staging import Staging


class Result(Protocol):
    """
    Attributes:
        place: the path at which the result is made on this machine, in a staging directory beside it.
    """

    place: Path

    def check(self, work: Staging) -> None:
        """Raise what stands against the result, before the work."""

    def claim(self, work: Staging, paths: Collection[str]) -> None:
        """Say that the result is being made, where others could begin one too. `paths` are those that it may have."""

    def put(self, work: Staging, paths: Collection[str], progress: Progress | None) -> None:
        """Let the whole result appear.

        Args:
            paths: of its files, relative, and with a slash at the end of its empty directories. A single file ignores
                them.
        """

    def give_up(self, work: Staging) -> None:
        """Take back the claim, if nothing has been put."""

    def close(self) -> None:
        """Leave nothing behind but what another run can go on with."""


class Local:
    """A path of this machine, as a `Result`. `Staging` has checked it, and its lock is the claim."""

    def __init__(self, place: Path, *, is_directory: bool, like: Path | None) -> None:
        """`like`: a directory that gives those of the result their permissions."""
        self.place = place
        self._is_directory, self._like = is_directory, like

    def check(self, work: Staging) -> None: ...

    def claim(self, work: Staging, paths: Collection[str]) -> None: ...

    def put(self, work: Staging, paths: Collection[str], progress: Progress | None) -> None:
        work.commit(paths if self._is_directory else None, self._like)

    def give_up(self, work: Staging) -> None: ...

    def close(self) -> None: ...
