"""Text that every machine has: Python's standard library, as docstrings and as bytes."""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_WORDS = 4
_NOT_READ = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
_TENTHS = 10


def sentence_pairs(seed: int) -> list[tuple[str, str]]:
    """(first sentence, rest) of each docstring in which both have words enough, in an order that `seed` gives.

    They are those of the Python that runs, so they differ a little between its versions.
    """
    pairs = {}
    for path in _sources():
        pairs.update(_pairs(path))
    ordered = sorted(pairs.items())
    random.Random(seed).shuffle(ordered)
    return ordered


def library_bytes(*, validation: bool) -> bytes:
    """The sources, one behind the other. The hash of its name puts a tenth of the files apart, for validation."""
    chosen = (path for path in _sources() if (_tenth(path.name) == 0) == validation)
    return b"".join(path.read_bytes() for path in chosen)


def _tenth(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % _TENTHS


def _sources() -> Iterator[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not _NOT_READ.intersection(path.relative_to(root).parts):
            yield path


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_bytes())):
        text = ast.get_docstring(node) if isinstance(node, documented) else None
        first, _, rest = " ".join((text or "").split()).partition(". ")
        if min(len(first.split()), len(rest.split())) >= MIN_WORDS:
            yield first, rest
