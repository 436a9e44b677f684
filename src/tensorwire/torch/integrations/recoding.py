"""The checkpoints of a training run, one beside the other: which form each has, and how it gets another one.

A checkpoint is dense, compressed by itself, or relative to a *newer* one beside it. So the newest needs no other, and
the oldest may go first, as trainers have it. docs/training.md says what that gives and what it costs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, get_args

from ..._ground.filesystem import alone_in, exchange
from ...checkpoint import compress_checkpoint, decompress_checkpoint, transcode_checkpoint, verify
from ...checkpoint.directory.manifest import read_manifest
from ...codec import Profile, num_threads
from ...errors import CorruptDataError, FormatError
from ...files.names import is_plain_relative, shown
from ...files.reader import StoredFile
from ...storage.local import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEW, _OLD = ".tensorwire", ".tensorwire-old"
"""How hidden names end that stand for a moment beside a checkpoint: of what is made, and of what it replaces where a
file system cannot exchange two directories."""


class Form(NamedTuple):
    """How a checkpoint is stored.

    Attributes:
        compressed: whether it is.
        base: the name of what it is relative to, beside it; None if it stands alone.
    """

    compressed: bool
    base: str | None = None


def form_of(path: Path) -> Form:
    """The form of a checkpoint, a directory or a torch file."""
    if path.is_dir():
        manifest = read_manifest(path)
        return Form(manifest is not None, manifest.base.name if manifest is not None and manifest.base else None)
    try:
        with StoredFile(path) as stored:
            return Form(True, stored.base_name)
    except FormatError:
        return Form(False)


def chain_of(path: Path) -> list[Path]:
    """What a checkpoint is relative to, what that is relative to, and so on."""
    found: list[Path] = []
    while (base := form_of(found[-1] if found else path).base) is not None:
        if "/" in base or not is_plain_relative(base):
            text = f"expected the name of a checkpoint beside it as that of its base, got {shown(base)}"
            raise CorruptDataError(text, file=path)
        base_path = path.with_name(base)
        if base_path in found or base_path == path:
            raise CorruptDataError(
                "expected a checkpoint that is relative to another one, and not to itself", file=path
            )
        found.append(base_path)
    return found


class Recoder:
    """Gives checkpoints another form, in place.

    A checkpoint stays what it was until its new form is whole, verified and synced; then both are exchanged. A run that
    is killed leaves one of both, whole, and hidden entries that `clean` removes.

    Attributes:
        facts: how it was set, in words.
    """

    def __init__(self, profile: Profile, anchor_every: int, threads: int | None) -> None:
        """
        Args:
            anchor_every: of so many checkpoints that follow each other one stands alone; 1 makes all stand alone.

        Raises:
            ValueError: it is no such number, there is no such profile, or `threads` is out of range.
        """
        if profile not in get_args(Profile):
            raise ValueError(f"expected one of the profiles {', '.join(get_args(Profile))}, got {profile!r:.60}")
        num_threads(threads)
        if type(anchor_every) is not int or anchor_every < 1:
            raise ValueError(f"expected an integer anchor_every from 1 on, got {anchor_every!r:.60}")
        self.facts = f"{profile}, anchor_every {anchor_every}"
        self._profile: Profile = profile
        self._anchor_every = anchor_every
        self._threads = threads

    def compress(self, path: Path, base: Path | None = None) -> None:
        """Make a checkpoint compressed, relative to `base` beside it or to nothing."""
        form = form_of(path)
        if form == Form(True, base.name if base else None):
            return
        bases = [base, *chain_of(base)] if base is not None else None

        def make(new: Path) -> None:
            if not form.compressed:
                compress_checkpoint(path, new, profile=self._profile, base=bases, threads=self._threads)
            elif form.base is None:
                transcode_checkpoint(path, new, profile=self._profile, base=bases, threads=self._threads)
            else:
                with self.dense(path) as dense:
                    compress_checkpoint(dense, new, profile=self._profile, base=bases, threads=self._threads)
            report = verify(new, base=bases, threads=self._threads)
            if not (report.ok and report.exact):
                raise CorruptDataError("what was written is not what was read", file=new)

        _replace(path, make)

    def decompress(self, path: Path) -> None:
        """Make a checkpoint dense."""
        if form_of(path).compressed:
            _replace(path, lambda new: self._restore(path, new))

    @contextmanager
    def dense(self, path: Path) -> Iterator[Path]:
        """A dense copy of a compressed checkpoint, which is removed in the end."""
        with (
            TemporaryDirectory(prefix=f".{path.name}.", suffix=_NEW, dir=path.parent) as folder,
            alone_in(Path(folder)),  # or another process would take it for what a killed run left
        ):
            self._restore(path, Path(folder) / path.name)
            yield Path(folder) / path.name

    def _restore(self, path: Path, new: Path) -> None:
        decompress_checkpoint(path, new, base=chain_of(path) or None, threads=self._threads)

    def settle(self, paths: Iterable[Path], *, dense: Path | None = None, alone: Path | None = None) -> None:
        """Give checkpoints the forms that they are to have: the newest stands alone, an older one is relative to the
        next newer one, unless so many are relative to it already, one behind the other.

        Args:
            paths: the oldest first.
            dense: one that is to be dense.
            alone: one that nothing else may be needed for.
        """
        below: dict[str, int] = {}  # by the name of a checkpoint: how many depend on it, one on the other
        ordered = list(paths)
        for path in ordered:
            base = form_of(path).base
            if base is not None:
                below[base] = below.get(path.name, 0) + 1
        newer: Path | None = None
        for path in reversed(ordered):
            form = form_of(path)
            if path == dense:
                self.decompress(path)
            elif newer is None or path == alone:
                self.compress(path)
            elif form.base is None:
                links = len(chain_of(newer)) + 1 + below.get(path.name, 0)
                self.compress(path, newer if links < self._anchor_every else None)
            newer = path

    def release(self, path: Path, among: Iterable[Path]) -> None:
        """Make what is relative to a checkpoint relative to what that one is relative to, so that it may go."""
        base = form_of(path).base
        for other in among:
            if form_of(other).base == path.name:
                self.compress(other, None if base is None else path.with_name(base))


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    """Put what `make` makes in the place of `path`, with its time: trainers sort checkpoints by it."""
    new, old = _beside(path, _NEW), _beside(path, _OLD)
    _remove(new)
    make(new)
    status = path.stat()
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    if exchange(new, path):
        old = new
    elif path.is_dir():
        path.rename(old)
        new.rename(path)
    else:
        new.replace(path)
    sync_directory(path.parent)
    _remove(old)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}{ending}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def clean(folder: Path, belongs: Callable[[str], bool]) -> None:
    """Remove what a killed run left beside checkpoints whose names belong to the caller; put one back that was about to
    be replaced. A dense copy that a process uses stays."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in sorted(folder.iterdir(), key=lambda path: _OLD not in path.name):
            name, mark, rest = entry.name.removeprefix(".").partition(_NEW)
            is_ours = rest in ("", _OLD.removeprefix(_NEW)) or rest.startswith(".part")  # what compressing stages
            if not (entry.name.startswith(".") and mark and is_ours and belongs(name)):
                continue
            if rest == _OLD.removeprefix(_NEW) and not entry.with_name(name).exists():
                entry.rename(entry.with_name(name))
                continue
            with suppress(BlockingIOError), alone_in(entry):
                _remove(entry)
