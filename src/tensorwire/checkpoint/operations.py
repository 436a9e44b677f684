"""Operations on whole checkpoints: a .safetensors file, or a directory of them with everything beside them.

`progress`, where taken, is called as ``progress(done, total, path)`` from the calling thread: uncompressed bytes done and
to be done in all files, and the relative path of the file at work. An exception that it raises (KeyboardInterrupt too)
ends the operation as a kill would: what is finished is kept for the next run.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ..codec import Profile
    from .results import CheckpointReport, DiffReport, InspectReport, VerifyReport

    Progress = Callable[[int, int, str], None]


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
        FormatError: a .safetensors file of `src` is not valid (the subclass says how).
        ValueError: `src` is compressed already (see `transcode_checkpoint`), is a pickle, contains a directory link,
            a name that collides with one of ours, or `dst` lies inside `src`.
        OSError: reading or writing fails, the disk is full; or a file of `src` changed while it was read.
    """
    raise NotImplementedError


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
    raise NotImplementedError


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
    raise NotImplementedError


def verify(
    path: str | os.PathLike[str], *, threads: int | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Decode everything, check it against checksums and, where they are recorded, the SHA-256 of the original files.

    Bad data is reported, not raised: look at ``report.ok``.

    Raises:
        OSError: `path` itself cannot be read.
        ValueError: `path` is neither a .safetensors file nor a directory that contains one.
    """
    raise NotImplementedError


def inspect(path: str | os.PathLike[str], *, threads: int | None = None, progress: Progress | None = None) -> InspectReport:
    """Describe every tensor of a file or directory, plain or compressed: see `TensorInfo`. Reads all data once.

    Raises:
        FormatError: the data is damaged.
        OSError: `path` cannot be read.
        ValueError: `path` is neither a .safetensors file nor a directory that contains one.
    """
    raise NotImplementedError


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> DiffReport:
    """Compare the tensors of two files or directories, each plain or compressed, by bits.

    How tensors are spread over files does not matter. Raises as `inspect`.
    """
    raise NotImplementedError
