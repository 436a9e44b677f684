"""Writes originals to the disk: at a new place, which appears whole or not at all."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .checkpoint import MANIFEST
from .errors import FormatError
from .folders import FileContent, Folder
from .manifest import MAX_DEPTH
from .restoring import restore_directory, restore_single, restored_file, without_record
from .tensor_files import Checkpoint, is_zip

Progress = Callable[[int], None]
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


class Report(NamedTuple):
    """What was written, and what is to be said of it. `exact` if it is the original, byte for byte."""

    out: Path
    num_files: int
    nbytes: int
    notes: list[str]
    exact: bool


def default_out(src: Path) -> Path:
    """`x` for `x.tensorwire`, `x.safetensors` for `x.tensorwire.safetensors`, else with `.decompressed` in the name."""
    if src.name in ("", ".."):
        raise ValueError(f"{str(src)!r} has no name that a result could have too: name a place by -o")
    stem, suffix = (src.stem, src.suffix) if src.suffix == ".safetensors" else (src.name, "")
    shorter = stem.removesuffix(".tensorwire")
    return src.with_name((shorter if shorter and shorter != stem else f"{stem}.decompressed") + suffix)


def decompress(
    src: Path, out: Path | None = None, bases: Sequence[Path] = (), progress: Progress = lambda nbytes: None
) -> Report:
    """Restore a compressed file or directory, which may be relative to `bases`, newest first. `progress` is told of how
    many bytes each piece is that was written.

    Raises FormatError, BaseMismatchError, ValueError or OSError, and then there is nothing at `out`.
    """
    src = src.absolute()
    if not src.exists():
        raise FileNotFoundError(f"there is no {str(src)!r}")
    out = (default_out(src) if out is None else out).absolute()
    if os.path.lexists(out):
        raise FileExistsError(f"{str(out)!r} is there already, and is not overwritten: name another place by -o")
    if src.resolve() in out.parent.resolve().joinpath(out.name).parents:
        raise ValueError(f"{str(out)!r} lies in {str(src)!r}: name another place by -o")
    if not out.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(out.parent)!r} for the result: make it, or name another place"
        )
    behind: list[Checkpoint] = []
    for base in reversed(bases):
        behind.insert(0, _checkpoint(base, behind))
    staging = Path(tempfile.mkdtemp(prefix=f"{out.name}.", suffix=".partial", dir=out.parent))
    try:
        result = staging / "result"
        report = _restore(src, result, behind, progress)._replace(out=out)
        _name(result, out)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(
                errno.ENOSPC, f"{error.strerror}; make room, or name a place on another disk by -o", str(out)
            ) from None
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if src.is_dir():  # not earlier: what may not be written to cannot be moved
        _copy_mode(src, out)
    return report


def _name(result: Path, out: Path) -> None:
    """Give a result its name, which nothing may have."""
    try:
        if os.path.lexists(out):
            raise FileExistsError
        if result.is_dir():  # takes the place of no file, and of no directory that holds one
            result.rename(out)
        else:
            os.link(result, out)
    except FileExistsError:
        raise FileExistsError(f"{str(out)!r} has appeared meanwhile, and is not overwritten") from None
    except OSError:
        if result.is_dir():
            raise
        result.rename(out)  # a file system without hard links


def _checkpoint(path: Path, behind: Sequence[Checkpoint]) -> Checkpoint:
    """A file, or a directory of files, with the checkpoints behind it."""
    return Checkpoint(Folder(path) if path.is_dir() else {"": FileContent(path)}, tuple(behind))


def _restore(src: Path, result: Path, behind: Sequence[Checkpoint], progress: Progress) -> Report:
    root, prefix = _root_of(src)
    if src.is_dir():
        if root is None:
            raise ValueError(f"{str(src)!r} has no {MANIFEST}, so it is no compressed directory")
        return _restore_directory(Checkpoint(Folder(root), behind), prefix, src, result, progress)
    content = FileContent(src)
    if is_zip(content):
        raise ValueError(f"{str(src)!r} is not compressed")
    try:
        alone = Checkpoint({"": content}, behind).open("")
    except FormatError as error:
        raise type(error)(f"{str(src)!r} is damaged, or no safetensors file: {error}") from None
    if not alone.ours and not any(map(alone.is_frame, alone.names)):
        raise ValueError(f"{str(src)!r} is not compressed")
    parts, exact = restore_single(alone), True
    if parts is None and root is not None:
        parts = restored_file(Checkpoint(Folder(root), behind), prefix)
    if parts is None:
        parts, exact = without_record(alone), False
    nbytes = _write(result, parts, src, progress)
    notes = (
        [] if exact else ["nothing says what the original was: all tensors are here, bit for bit, under a new header"]
    )
    return Report(result, 1, nbytes, notes, exact)


def _root_of(src: Path) -> tuple[Path | None, str]:
    """The compressed directory that something is or stands in, and its path there."""
    for found in (src, src.resolve()):
        for above in (found, *list(found.parents)[:MAX_DEPTH]):
            if (above / MANIFEST).is_file():
                path = found.relative_to(above).as_posix()
                return above, "" if path == "." else path
    return None, ""


def _restore_directory(checkpoint: Checkpoint, path: str, src: Path, result: Path, progress: Progress) -> Report:
    prefix = f"{path}/" if path else ""
    notes: list[str] = []
    nbytes = num_files = 0
    result.mkdir()
    for name, parts in restore_directory(checkpoint, prefix, notes.append):
        relative = name.removeprefix(prefix)
        nbytes += _write(_inside(result, relative), parts, src / relative, progress)
        num_files += 1
    if not num_files:
        raise ValueError(f"the {MANIFEST} above {str(src)!r} lists no file in it")
    assert checkpoint.manifest is not None
    for name in checkpoint.manifest.get("directories", ()):
        if name.startswith(prefix) and name != prefix:
            _inside(result, name[len(prefix) : -1]).mkdir(parents=True, exist_ok=True)
    _copy_modes_of_directories(src, result)
    return Report(result, num_files, nbytes, notes, not notes)


def _inside(result: Path, path: str) -> Path:
    """Where a path of a manifest, which has been checked, lies in a result."""
    parts = path.split("/")
    if os.name == "nt" and not all(map(is_windows_name, parts)):
        raise ValueError(f"Windows can hold no file of the name {path!r}")
    return result.joinpath(*parts)


def is_windows_name(part: str) -> bool:
    """Whether Windows takes this name for that of a file and of nothing else."""
    return not (set(part) & set('<>:"|?*') or min(part) < " " or part[-1] in ". " or _RESERVED.fullmatch(part))


def _write(path: Path, parts: Iterator[bytes], like: Path, progress: Progress) -> int:
    """Write a new file with the permissions of another one; the number of its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        nbytes = 0
        for part in parts:
            nbytes += file.write(part)
            progress(len(part))
        file.flush()
        os.fsync(file.fileno())
    if like.exists():
        _copy_mode(like, path)
    return nbytes


def _copy_mode(like: Path, path: Path) -> None:
    """The permission bits. A set-id bit would let all who may run the file act as the one who has restored it."""
    path.chmod(like.stat().st_mode & 0o777)


def _copy_modes_of_directories(src: Path, result: Path) -> None:
    """The modes of directories in others come first, since one may forbid to write."""
    for path in sorted((path for path in result.rglob("*") if path.is_dir()), reverse=True):
        like = src / path.relative_to(result)
        if like.is_dir():
            _copy_mode(like, path)
