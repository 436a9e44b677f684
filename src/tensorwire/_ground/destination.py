"""Where results go: what may give way to a result, and how the result takes its place.

Everything in this package that writes to a path that a user named goes through here. The rules are in docs/cli.md,
"What may be replaced". In short: a file replaces only a regular file, a directory replaces only a directory in which
every file is one that the writer answers for, and all that came while the result was being made stays.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .filesystem import (
    exchange,
    holds,
    is_same,
    kind,
    lies_in,
    lstat,
    mark,
    mounts,
    open_up,
    real,
    remove_empty,
    rename_new,
    resolved,
    walk,
)

if TYPE_CHECKING:
    Owned = Callable[[Path], Collection[str]]

NAMED_OTHERWISE = "name another destination"


class Existing(NamedTuple):
    """A file or directory that stands at a destination.

    Attributes:
        mark: changes when it becomes another file or directory, or another content.
        mode: its permissions.
        inside: the marks of everything in a directory, at any depth, by relative path; None for a file.
    """

    mark: str
    mode: int
    inside: dict[str, str] | None = None


@dataclass(eq=False)
class Destination:
    """A path at which a result is to appear.

    `check` it before the work and give what it returns to `replace` when the result is whole.

    Attributes:
        path: absolute.
        force: whether anything at all may be replaced.
        is_directory: whether the result is a directory.
        source: the file or directory that the result is made from.
        source_files: the files in it, and all others that the result is made from.
        owned: called with `path` if what stands there is of the result's kind. It raises FileExistsError if that must
            stay. For a directory it returns the relative paths of all that may go with it: files, and with a slash at
            the end directories in which no such file stands.
        example: the name of a file, for advice.
    """

    path: Path
    _: KW_ONLY
    force: bool
    is_directory: bool = False
    source: Path | None = None
    source_files: Sequence[Path] = ()
    owned: Owned | None = None
    example: str = "model.safetensors"

    def check(self) -> Existing | None:
        """The thing that stands there and may be replaced; None if nothing stands there.

        Raises:
            FileExistsError: something stands there that must stay; the message says why and what to do.
            FileNotFoundError, NotADirectoryError: the directory that the result is to stand in is not there.
            ValueError: it is the same as a source, holds one, or lies in one.
        """
        self._check_source()
        self._check_parent()
        status = lstat(self.path)
        if status is None:
            return None
        self._check_kind(status)
        existing = Existing(mark(status), status.st_mode & 0o777)
        if self.is_directory:
            self._check_place(status)
            existing = existing._replace(inside=self._check_inside(status))
        elif self.owned is not None:
            self.owned(self.path)
        if not self.force:
            raise self._refusal(f"already exists; pass force=True to replace it, or {NAMED_OTHERWISE}")
        return existing

    def check_no_source_in(self, place: Path) -> None:
        """Raise ValueError if a source is, or lies in, a path whose content will be removed."""
        sources = [*self.source_files, *([] if self.source is None else [self.source])]
        for source in sources if place.is_dir() else ():
            if lies_in(source, place):
                raise ValueError(f"{source} lies in {place}, which tensorwire writes to; move it")

    def confirm(self, checked: Existing | None) -> Existing | None:
        """`check` again, now that the result is whole.

        Raises:
            FileExistsError: something stands there that did not when `checked` was looked at.
        """
        now = self.check()
        if now is not None and (came := _came(checked, now)):
            raise self._intrusion(came)
        return now

    def replace(self, new: Path, checked: Existing | None, spare: Path) -> Path | None:
        """Rename `new` to the destination and remove what stood there, if that is what `confirm` has returned.

        At every moment either the old or the new one has the name. On a file system that cannot exchange two paths
        there is a moment at which an old directory is at `spare` and nothing has the name.

        Returns:
            A directory beside the destination in which files are kept that came into the old one at the last moment.
        """
        if checked is None:
            try:
                rename_new(new, self.path)
            except FileExistsError:
                raise self._intrusion(["."]) from None
            return None
        if exchange(new, self.path):
            self._confirm_moved(new, checked, lambda: exchange(new, self.path))
            return self.discard(new, checked)
        if not self.is_directory:
            new.replace(self.path)  # all that this file system can do: `confirm` was a moment ago
            return None
        self.path.rename(spare)
        self._confirm_moved(spare, checked, lambda: rename_new(spare, self.path))
        rename_new(new, self.path)
        return self.discard(spare, checked)

    def _confirm_moved(self, old: Path, checked: Existing, undo: Callable[[], object]) -> None:
        """Put `old` back if it is not what was checked: it came, or something in it, a moment before."""
        now = existing_at(old)
        came = [] if now is None else _came(checked, now)
        if came:
            try:
                undo()
            except OSError:
                raise self._refusal(
                    f"another process put something here at the last moment; it is at {self.keep(old)} now"
                ) from None
            raise self._intrusion(came)

    def discard(self, old: Path, checked: Existing) -> Path | None:
        """Remove what was checked, and nothing else. Returns where the rest of a directory is kept, None if there is
        no rest."""
        if checked.inside is None:
            old.unlink()
            return None
        for path in sorted(checked.inside, key=lambda path: -path.count("/")):
            place = old / path
            status = lstat(place)
            if status is None or mark(status) != checked.inside[path]:
                continue
            open_up(place.parent)
            if stat.S_ISDIR(status.st_mode):
                remove_empty(place)  # what it holds is kept
            else:
                place.unlink()
        return None if remove_empty(old) else self.keep(old)

    def keep(self, place: Path) -> Path:
        """Move what must not be lost out of our way, to a name beside the destination that nothing has."""
        number = 1
        while True:
            kept = self.path.with_name(f"{self.path.name}.kept" + (f"-{number}" if number > 1 else ""))
            with suppress(FileExistsError):
                rename_new(place, kept)
                return kept
            number += 1

    def _check_parent(self) -> None:
        parent = self.path.parent
        if not parent.exists():
            raise FileNotFoundError(
                errno.ENOENT, f"no such directory; make it first, or {NAMED_OTHERWISE}", str(parent)
            )
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"not a directory; {NAMED_OTHERWISE}", str(parent))

    def _check_source(self) -> None:
        if self.source is None:
            return
        if is_same(self.path, self.source):
            raise ValueError(f"{self.path} and {self.source} are the same; {NAMED_OTHERWISE}")
        if self.is_directory and (lies_in(self.path, self.source) or lies_in(self.source, self.path)):
            raise ValueError(f"{self.path} and {self.source} must not lie in each other; {NAMED_OTHERWISE}")

    def _check_kind(self, status: os.stat_result) -> None:
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            target = resolved(self.path)
            advice = f"put a copy of {str(target)!r} in its place" if target.exists() else "remove it"
            raise self._refusal(f"is a link, and links are never replaced; {advice}, or {NAMED_OTHERWISE}")
        if self.path.is_mount() or os.fsencode(real(self.path)) in mounts():
            raise self._refusal(f"is a mount point, which is never replaced; {NAMED_OTHERWISE}")
        if stat.S_ISDIR(mode) and not self.is_directory:
            place = self.path / self.example
            raise self._refusal(f"is a directory, and the result is a file; name the file: {str(place)!r}")
        if stat.S_ISREG(mode) and self.is_directory:
            raise self._refusal(f"is a file, and the result is a directory; {NAMED_OTHERWISE}")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise self._refusal(f"is {kind(mode)}, which is never replaced; {NAMED_OTHERWISE}")

    def _check_place(self, status: os.stat_result) -> None:
        """Refuse directories that are more than what lies in them."""
        advice = f"{NAMED_OTHERWISE}, such as one in it"
        with suppress(FileNotFoundError):  # a working directory that is gone
            if holds(status, Path.cwd()):
                raise self._refusal(f"is the working directory or holds it, and is never replaced; {advice}")
        with suppress(RuntimeError):  # a user without a home
            if holds(status, Path.home()):
                raise self._refusal(f"is your home directory or holds it, and is never replaced; {advice}")

    def _check_inside(self, status: os.stat_result) -> dict[str, str]:
        """The marks of all that lies in the directory. Stops at the first thing that must stay."""
        inside: dict[str, str] = {}
        inodes = set()
        mount_points = mounts()
        owned: Collection[str] | None = None
        directories: set[str] = set()
        for path, entry in walk(self.path):
            if owned is None:  # an empty directory has no owner
                owned = frozenset(() if self.owned is None else self.owned(self.path))
                directories = {str(parent) for path in owned for parent in Path(f"{path}*").parents}
            mode = entry.st_mode
            if not (path in directories if stat.S_ISDIR(mode) else path in owned and stat.S_ISREG(mode)):
                raise self._refusal(
                    f"holds {kind(mode)} that the result does not replace: {path!r}; move it, or {NAMED_OTHERWISE}"
                )
            if entry.st_dev != status.st_dev or os.fsencode(real(self.path) / path) in mount_points:
                raise self._refusal(f"holds a mount point: {path!r}; {NAMED_OTHERWISE}")
            inside[path] = mark(entry)
            inodes.add(entry.st_ino)
        if inodes:
            self._check_no_source_inside(status.st_dev, inodes)
        return inside

    def _check_no_source_inside(self, device: int, inodes: set[int]) -> None:
        """Links may lead from a source into the directory."""
        for source in self.source_files:
            with suppress(FileNotFoundError):
                status = source.stat()
                if status.st_dev == device and status.st_ino in inodes:
                    raise ValueError(f"{source} is a file of {self.path}, under another name; {NAMED_OTHERWISE}")

    def _refusal(self, text: str) -> FileExistsError:
        return FileExistsError(errno.EEXIST, text, str(self.path))

    def _intrusion(self, came: Sequence[str]) -> FileExistsError:
        what = "it" if came[0] == "." else repr(came[0])
        return self._refusal(f"{what} came here while the result was being made, so nothing was replaced; look at it")


def existing_at(path: Path) -> Existing | None:
    """The thing that stands at a path, whether it may be replaced or not."""
    status = lstat(path)
    if status is None:
        return None
    inside = {name: mark(entry) for name, entry in walk(path)} if stat.S_ISDIR(status.st_mode) else None
    return Existing(mark(status), status.st_mode & 0o777, inside)


def _came(checked: Existing | None, now: Existing) -> list[str]:
    """The paths of all that is there now and was not."""
    if checked is None or checked.mark != now.mark:
        return ["."]
    before = checked.inside or {}
    return sorted(path for path, mark in (now.inside or {}).items() if before.get(path) != mark)
