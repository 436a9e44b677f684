"""The checkpoints of a training run, one beside the other: which form each has, and how it gets another one.

A checkpoint is dense, compressed by itself, or relative to a *newer* one beside it. So the newest needs no other, and
the oldest may go first, as trainers have it. docs/training.md says what that gives and what it costs.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, get_args

from ..._ground.destination import Destination
from ..._ground.filesystem import absolute, walk
from ...checkpoint import compress_checkpoint, decompress_checkpoint, transcode_checkpoint, verify
from ...checkpoint.bases import Form, bases_beside, form_of
from ...checkpoint.directory.manifest import NOT_COMPRESSED
from ...codec import Profile, num_threads
from ...errors import CorruptDataError
from ...storage.staging import Staging, is_staging

if TYPE_CHECKING:
    from collections.abc import Iterator

_STAGED = ".tensorwire.partial"


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
        self._has_told = False
        self._threads = threads

    def compress(self, path: Path, base: Path | None = None) -> None:
        """Make a checkpoint compressed, relative to `base` beside it or to nothing."""
        form = form_of(path)
        if form == Form(True, base.name if base else None):
            return
        bases = [base, *bases_beside(base)] if base is not None else None

        def make(new: Path) -> None:
            if not form.compressed:
                made = compress_checkpoint(path, new, profile=self._profile, base=bases, threads=self._threads)
                self._tell(path, made.notices)
            elif form.base is None:
                transcode_checkpoint(path, new, profile=self._profile, base=bases, threads=self._threads)
            else:
                with self.dense(path) as dense:
                    compress_checkpoint(dense, new, profile=self._profile, base=bases, threads=self._threads)
            report = verify(new, base=bases, threads=self._threads)
            if not (report.ok and report.exact):
                raise CorruptDataError("what was written is not what was read", file=new)

        _replace(path, make)

    def _tell(self, path: Path, notices: Sequence[str]) -> None:
        """Warn once of files of tensors that stay as they are: each later checkpoint has them too."""
        found = [notice for notice in notices if notice.startswith(NOT_COMPRESSED)]
        if found and not self._has_told:
            self._has_told = True
            more = f" (and {len(found) - 1} more such notes)" if len(found) > 1 else ""
            warnings.warn(f"{path}: {found[0]}{more}; each checkpoint has such files", stacklevel=2)

    def decompress(self, path: Path) -> None:
        """Make a checkpoint dense."""
        if form_of(path).compressed:
            _replace(path, lambda new: self._restore(path, new))

    @contextmanager
    def dense(self, path: Path) -> Iterator[Path]:
        """A dense copy of a compressed checkpoint, which is removed in the end."""
        with room_beside(path) as room:
            self._restore(path, room / path.name)
            yield room / path.name

    def _restore(self, path: Path, new: Path) -> None:
        decompress_checkpoint(path, new, base=bases_beside(path) or None, threads=self._threads)

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
                links = len(bases_beside(newer)) + 1 + below.get(path.name, 0)
                self.compress(path, newer if links < self._anchor_every else None)
            newer = path

    def release(self, path: Path, among: Iterable[Path]) -> None:
        """Make what is relative to a checkpoint relative to what that one is relative to, so that it may go."""
        base = form_of(path).base
        for other in among:
            if form_of(other).base == path.name:
                self.compress(other, None if base is None else path.with_name(base))


@contextmanager
def room_beside(path: Path) -> Iterator[Path]:
    """A directory beside a checkpoint, for what stands there for a moment. It goes in the end; what a killed run leaves
    of it, `clean` removes."""
    with _staging(path.with_name(f"{path.name}.{token_hex(4)}")) as work:
        work.result.mkdir()
        yield work.result


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    """Put what `make` makes in the place of `path`, with its time: trainers sort checkpoints by it."""
    with _staging(path) as work:
        make(work.result)
        status = path.stat()
        os.utime(work.result, ns=(status.st_atime_ns, status.st_mtime_ns))
        work.commit(None)
    for notice in work.notices:
        warnings.warn(notice, stacklevel=2)


def _staging(path: Path) -> Staging:
    """Where a checkpoint is made that takes the place of another one, of which nothing is left. Its name is hidden from
    trainers, which look for checkpoints by the names that they begin with."""
    is_directory = not path.is_file()  # only a directory has moments without its name
    owned = _all_in if is_directory else None
    destination = Destination(absolute(path), force=True, is_directory=is_directory, owned=owned)
    return Staging(destination, {"action": "recode"}, destination.path.with_name(f".{path.name}{_STAGED}"))


def _all_in(place: Path) -> set[str]:
    return {f"{path}/" if stat.S_ISDIR(status.st_mode) else path for path, status in walk(place)}


def clean(folder: Path, belongs: Callable[[str], bool]) -> None:
    """Remove what a killed run left beside checkpoints whose names belong to the caller; put one back that was about to
    be replaced. What a process works in stays, and so does what is beside a checkpoint that nothing may replace."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in sorted(folder.iterdir()):
            name = entry.name.removeprefix(".").removesuffix(_STAGED)
            if entry.name == f".{name}{_STAGED}" and belongs(name) and is_staging(entry):
                with suppress(BlockingIOError, FileExistsError), _staging(entry.with_name(name)):
                    """What was begun ends here."""
