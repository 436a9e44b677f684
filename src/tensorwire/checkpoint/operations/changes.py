"""Files beside the tensors that are not what they were when the checkpoint was compressed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ...errors import CorruptDataError
from ...files.transfer import file_sha256
from ..directory.manifest import REPLACED
from ..results import ChangedFile

if TYPE_CHECKING:
    from ...files.transfer import Advance
    from ..directory.sources import SourceFile


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
        CorruptDataError: it is strict, and the file holds other bytes.
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
    return change
