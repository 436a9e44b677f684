"""In which order the files of a directory may be relative to each other, and which is the older one of which."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from .manifest import OF_TENSORS
from .paths import is_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sources import SourceFile

ANCHOR_EVERY = 8
"""The first of so many checkpoints of a chain is relative to none, so that no file takes more than so many decodes."""

_OF_MODEL = re.compile(r"(model|-of-[0-9]+)\.safetensors$")
_NUMBER = re.compile(r"([0-9]+)")


def is_loaded_directly(path: str) -> bool:
    """Whether a file has a name by which model libraries load it, one by one: such a file needs no other one."""
    return _OF_MODEL.search(path) is not None


def rank(file: SourceFile) -> int:
    """Files of tensors of a higher rank may be relative to those of a lower one."""
    if file.kind not in OF_TENSORS:
        return -1
    return 0 if is_loaded_directly(file.path) else 1 if is_safetensors(file.path) else 2


def in_order(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Files so that each may be relative to those before it."""
    return sorted(files, key=lambda file: (rank(file), _natural(file.path)))


def older_files(paths: Iterable[str]) -> dict[str, str]:
    """The file of the checkpoint before by that of each checkpoint, in a directory of checkpoints, each a directory.
    Anchors have none."""
    series: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        checkpoint, slash, rest = path.partition("/")
        if slash:
            series[rest].append(checkpoint)
    found = {}
    for rest, checkpoints in series.items():
        checkpoints.sort(key=_natural)
        for number in range(1, len(checkpoints)):
            if number % ANCHOR_EVERY:
                found[f"{checkpoints[number]}/{rest}"] = f"{checkpoints[number - 1]}/{rest}"
    return found


def _natural(text: str) -> tuple[list[str | int], str]:
    """A key by which step-9 comes before step-10."""
    parts = _NUMBER.split(text)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], text
