"""Where the results of several sources go."""

from __future__ import annotations

import errno
import os
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._ground.destination import NAMED_OTHERWISE
from .._ground.filesystem import absolute, lstat, resolved
from ..storage.locations import inside, same
from ..storage.remote import RemotePath
from .options import named

if TYPE_CHECKING:
    from ..storage.locations import Location


def targets(
    sources: Sequence[Location],
    dst: str | os.PathLike[str] | RemotePath | None,
    beside: Callable[[Location], Path] | None,
) -> Sequence[Location]:
    """Where the results of files and directories go; nothing is written.

    With several sources `dst` is the directory that takes a result for each, under the source's name; it exists or the
    caller makes it. With one source it is the result itself. Without `dst` each result stands where `beside` says.
    """
    places: Sequence[Location]
    if dst is None:
        assert beside is not None
        places = [beside(source) for source in sources]
    elif isinstance(dst, RemotePath):
        places = [dst] if len(sources) == 1 else [dst / source.name for source in sources]
    elif len(sources) == 1:
        if os.fspath(dst).endswith(os.sep) and sources[0].is_file():
            result = Path(dst) / sources[0].name
            text = f"is the name of a directory, and the result is a file; name the file: {str(result)!r}"
            raise FileExistsError(errno.EEXIST, text, os.fspath(dst))
        return [Path(dst)]  # the operation itself says more if it is wrong
    else:
        directory = Path(dst)
        if not directory.is_dir() and (lstat(directory) is not None or not directory.parent.is_dir()):
            text = f"expected a directory for the results of {len(sources)} sources, or the name of one to be made"
            raise NotADirectoryError(errno.ENOTDIR, text, str(directory))
        places = [directory / (named(source) if isinstance(source, Path) else source).name for source in sources]
    seen: dict[str, Location] = {}
    for source, place in zip(sources, places, strict=True):
        # Names that differ only by case are one on some file systems, and nothing says on which.
        real = resolved(absolute(place)) if isinstance(place, Path) else place
        name = unicodedata.normalize("NFC", str(real)).casefold()
        if name in seen:
            raise ValueError(f"{seen[name]} and {source} would both become {place}; name a destination for each")
        seen[name] = source
        for other in sources:
            if same(place, other):
                raise ValueError(f"the result of {source} would replace {other}; {NAMED_OTHERWISE}")
            if inside(place, other):
                raise ValueError(f"the result of {source} would lie in {other}; {NAMED_OTHERWISE}")
    return places
