"""Whole checkpoints to checkpoints: compress, decompress, transcode.

`progress`, where taken, is called as ``progress(done, total, path)`` from the calling thread: uncompressed bytes done
and to be done in all files, and the relative path of the file at work. An exception that it raises (KeyboardInterrupt
too) ends the operation as a kill would: what is finished is kept for the next run.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ..._version import __version__
from ...errors import ErrorContext
from ..directory.manifest import Manifest
from ..directory.sources import absolute, check_places, compressed_directory, original_directory, single_file
from ..progress import Meter
from ..results import CheckpointReport
from ..storage.staging import Workplace
from .conversion import Conversion

if TYPE_CHECKING:
    import os

    from ...codec import Profile
    from ..progress import Progress
    from .conversion import Action


def compress_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    threads: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Compress a checkpoint.

    Args:
        src: a .safetensors file or a directory.
        dst: the file or directory to be made. Work happens in ``<dst>.partial``; `dst` appears at once, whole and
            synced. A run that was interrupted goes on where it stopped when it is repeated.
        profile: "fast", "compact" or "enec".
        threads: that code; by default all usable cores. Reading, hashing and writing have threads of their own.
        force: replace an existing `dst`, once the new one is whole.
        dry_run: encode, write nothing; `dst` is not looked at.

    Raises:
        FileExistsError: `dst` exists and `force` is False.
        BlockingIOError: another process is writing the same `dst`.
        FormatError: a .safetensors file of `src` is not valid (the subclass says how), or there are so many files or
            tensors that no manifest holds them (LimitExceededError).
        ValueError: `src` is compressed already (see `transcode_checkpoint`), is a pickle, contains a directory link,
            or a name that collides with one of ours; `dst` and `src` lie in each other.
        OSError: reading or writing fails, the disk is full; or a file of `src` changed while it was read.
    """
    return _convert("compress", src, dst, profile, threads, force, dry_run, progress)


def decompress_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    threads: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Restore the files that were compressed, byte for byte, and check them against their SHA-256.

    Arguments and errors are those of `compress_checkpoint`, and:

    Raises:
        FormatError: `src` is damaged; nothing appears at `dst`.
        ValueError: `src` is not compressed.
    """
    return _convert("decompress", src, dst, None, threads, force, dry_run, progress)


def transcode_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    profile: Profile,
    threads: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Compress a compressed checkpoint with another profile. The result is the one that compressing the original gives.

    Arguments and errors are those of `decompress_checkpoint`. The content is checked on the way.
    """
    return _convert("transcode", src, dst, profile, threads, force, dry_run, progress)


def _convert(
    action: Action,
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    profile: Profile | None,
    threads: int | None,
    force: bool,
    dry_run: bool,
    progress: Progress | None,
) -> CheckpointReport:
    started = time.monotonic()
    source_path, target_path = absolute(src), absolute(dst)
    is_directory = source_path.is_dir()
    if not is_directory:
        sources = single_file(source_path)
    elif action == "compress":
        sources = original_directory(source_path)
    else:
        sources = compressed_directory(source_path)
    purpose = {
        "format": "tensorwire-journal",
        "version": 0,
        "writer": __version__,
        "action": action,
        "profile": profile,
        "src": str(source_path),
    }
    meter = Meter(progress, sources.nbytes)
    place: Workplace | nullcontext[None] = nullcontext()
    if not dry_run:
        check_places(source_path, target_path)
        place = Workplace(target_path, purpose, force=force)
    with place as work:
        conversion = Conversion(action, profile, threads, work, meter, is_directory=is_directory)
        with ErrorContext(file=source_path):
            conversion.run(sources.files)
            if is_directory and profile is not None:
                conversion.write_manifest(Manifest(profile, tuple(sorted(conversion.entries))))
        if work is not None:
            work.commit(conversion.written if is_directory else None)
    return CheckpointReport(
        action=action,
        src=str(src),
        dst=str(dst),
        profile=profile or conversion.profile_found or (sources.manifest.profile if sources.manifest else None),
        files=tuple(sorted(conversion.reports, key=lambda report: report.path)),
        seconds=time.monotonic() - started,
        dry_run=dry_run,
        exact=conversion.exact,
        ignored=sources.ignored,
    )
