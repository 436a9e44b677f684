"""What the reference restores of compressed files in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.tensorwire_reference.restoring import restore_directory, restore_single
from reference.tensorwire_reference.tensor_files import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping


def restored(files: Mapping[str, bytes], *bases: Mapping[str, bytes]) -> dict[str, bytes]:
    """The original files of a compressed directory, relative to `bases`, newest first, each with those behind it."""
    behind: list[Checkpoint] = []
    for base in reversed(bases):
        behind.insert(0, Checkpoint(base, tuple(behind)))
    found = Checkpoint(files, behind)
    if found.manifest is not None:
        return {path: b"".join(parts) for path, parts in restore_directory(found)}
    parts = restore_single(found.open(""))
    assert parts is not None
    return {"": b"".join(parts)}
