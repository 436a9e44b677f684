"""What becomes of the files of a checkpoint, for its report; among them those that changed since it was compressed."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..._ground.filesystem import absolute, leads_out, resolved
from ...errors import CorruptDataError
from ...files.transfer import file_sha256
from ..directory.manifest import OF_TENSORS, REPLACED
from ..directory.paths import MANIFEST_NAME
from ..results import ChangedFile, CheckpointReport, FileReport

if TYPE_CHECKING:
    from ...files.transfer import Advance
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
        self.notices = list(sources.notices)

    def expect_beside(self) -> None:
        """If changes are errors, raise that of the first file beside the tensors that has one: before hours of work."""
        for source in self._sources.files if self._strict else ():
            if source.known is not None and source.kind not in OF_TENSORS:
                find_change(source, current_sha256(source), strict=True)

    def note_change(self, source: SourceFile, current: str | None) -> None:
        """Note what has become of a file beside the tensors, as `find_change` takes it."""
        change = find_change(source, current, strict=self._strict)
        if change is not None:
            self.changed.append(change)
            self.exact = self.exact and change.outcome == "restored"

    def report(self, action: str, src: str, dst: str, base: str | None, started: float) -> CheckpointReport:
        return CheckpointReport(
            action=action,
            src=src,
            dst=dst,
            profile=self.profile,
            files=tuple(sorted(self.files, key=lambda file: file.path)),
            seconds=time.monotonic() - started,
            exact=self.exact,
            ignored=self._sources.ignored,
            changed=tuple(self.changed),
            notices=tuple(self.notices),
            excluded=self._sources.excluded,
            base=base,
        )


def current_sha256(source: SourceFile, advance: Advance = lambda _: None) -> str | None:
    """SHA-256 of the file that stands at a listed place now; None if there is none."""
    try:
        return file_sha256(source.location, advance)
    except FileNotFoundError:
        return None


def find_change(source: SourceFile, current: str | None, *, strict: bool) -> ChangedFile | None:
    """What has become of a file that the manifest lists beside the tensors; None if it is as it was.

    Args:
        current: what `current_sha256` gives.
        strict: raise an error instead.

    Raises:
        CorruptDataError: it is strict, and the file holds other bytes; or these stand elsewhere, behind a link.
        FileNotFoundError: it is strict, and there is no file.
    """
    known = source.known
    assert known is not None
    is_kept = source.kind == REPLACED
    expected = known.stored_sha256 if is_kept else known.sha256
    if current == expected:
        return None
    if current is None:
        if strict:
            kept = "it is restored from tensorwire.json" if is_kept else "it is left out"
            text = f"this file, which tensorwire.json lists, is missing; without strict (--strict) {kept}"
            raise FileNotFoundError(errno.ENOENT, text, str(source.location))
        return ChangedFile(source.path, "missing", "restored" if is_kept else "left out")
    change = ChangedFile(source.path, "edited", "restored" if is_kept else "kept")
    if strict:
        raise CorruptDataError(
            f"expected a file with SHA-256 {expected}, got {current}",
            advice="the file was edited or damaged; without strict (--strict) "
            + ("its original is restored from tensorwire.json" if is_kept else "it is kept as it is now"),
        )
    if not is_kept and isinstance(source.location, Path) and source.location.is_symlink():
        _check_link(source.location)
    return change


def _check_link(link: Path) -> None:
    """Raise CorruptDataError for a link out of its compressed directory: what stands elsewhere is not carried along
    unless it is what was compressed."""
    places = (absolute(link).parent, resolved(link.parent))
    above = (place for path in places for place in (path, *path.parents))
    root = next((place for place in above if (place / MANIFEST_NAME).exists()), link.parent)
    if leads_out(link, root, root / MANIFEST_NAME):
        raise CorruptDataError(
            f"expected what {MANIFEST_NAME} lists or a file of {str(root)!r}, got a link that leads out of it",
            file=link,
            advice="put a copy of the file in its place",
        )
