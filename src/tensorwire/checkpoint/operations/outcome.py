"""What becomes of the files of a checkpoint, for its report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..results import ChangedFile, CheckpointReport, FileReport
from .changes import find_change

if TYPE_CHECKING:
    import os

    from ..directory.sources import SourceFile, Sources


class Outcome:
    """What is known so far of an operation that writes.

    Attributes:
        profile: of the compressed side, as far as it is known.
        exact, files, changed, notices: as in `CheckpointReport`.
    """

    def __init__(self, sources: Sources, *, strict: bool) -> None:
        """`strict`: a file beside the tensors that was edited or lost is an error."""
        self._sources = sources
        self._strict = strict
        self.profile = sources.manifest.profile if sources.manifest is not None else None
        self.exact = True
        self.files: list[FileReport] = []
        self.changed: list[ChangedFile] = []
        self.notices: list[str] = []

    def note_change(self, source: SourceFile, current: str | None) -> None:
        """Note what has become of a file beside the tensors, as `find_change` takes it."""
        change = find_change(source, current, strict=self._strict)
        if change is not None:
            self.changed.append(change)
            self.exact = self.exact and change.outcome == "restored"

    def report(
        self,
        action: str,
        src: str | os.PathLike[str],
        dst: str | os.PathLike[str],
        base: str | os.PathLike[str] | None,
        started: float,
    ) -> CheckpointReport:
        return CheckpointReport(
            action=action,
            src=str(src),
            dst=str(dst),
            profile=self.profile,
            files=tuple(sorted(self.files, key=lambda file: file.path)),
            seconds=time.monotonic() - started,
            exact=self.exact,
            ignored=self._sources.ignored,
            changed=tuple(self.changed),
            notices=tuple(self.notices),
            excluded=self._sources.excluded,
            base=None if base is None else str(base),
        )
