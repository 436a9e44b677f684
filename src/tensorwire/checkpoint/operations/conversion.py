"""Whole checkpoints to checkpoints, file by file: compress, decompress, transcode."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._ground.destination import Destination
from ..._ground.version import __version__
from ...codec import check_takes_base
from ...errors import ErrorContext
from ...files.torch_file import open_stored
from ...storage.locations import locate, on_this_machine, said
from ...storage.progress import Meter
from ...storage.result import Local, Result
from ...storage.staging import Staging, part_of
from ...storage.upload import Upload
from ..bases import check_another, check_apart, check_apart_from, enter, fingerprint, name_of
from ..directory.manifest import OF_TENSORS
from ..directory.paths import MANIFEST_NAME, is_config, is_index
from ..directory.replaceable import made_of, restored_from
from ..directory.sources import check_compressed, check_original, compressed, originals
from ..results import CheckpointReport, FileReport
from .converter import Converter, Task
from .outcome import Outcome

if TYPE_CHECKING:
    import os

    from ...codec import Profile
    from ...files.base import Base
    from ...storage.locations import Location
    from ...storage.progress import Progress
    from ...storage.remote import RemotePath
    from ..bases import BasePath
    from ..directory.sources import Sources
    from .converter import Action


def compress_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    base: BasePath | None = None,
    chain: bool = False,
    exclude: Sequence[str] = (),
    files: Sequence[str] | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CheckpointReport:
    """Compress a checkpoint.

    In a directory without a `base` each content is stored once (docs/directories.md): a tensor of more than 4096 bytes
    that another file has too, under any name, is relative to that one. Such files are read in their directory alone,
    and find by themselves what they need. Files of the names by which model libraries load them need no other one.

    Another process may write to the files of `src` meanwhile, without changing their sizes. The result then holds what
    was read, which may be a mix of old and new values (docs/api.md).

    Args:
        src: a .safetensors file, a file of torch.save (docs/pytorch-files.md) or a directory.
        dst: the file or directory to be made. Work happens in ``<dst>.partial``; `dst` appears at once, whole and
            synced. A run that was interrupted goes on where it stopped when it is repeated.
        profile: "fast", "compact", "resident" or "enec".
        base: a file, directory or index, plain or compressed, that the result is to be relative to: it then holds what
            differs, and only with this base it can be decompressed. If the base is a delta, it comes in a list with
            what it is relative to, newest first. A tensor is relative to the one of the same name or else of the same
            content in the first of them, if dtype and size are the same; how tensors are spread over files does not
            matter. Tensors without a match are compressed without a base, and so are those whose base is written to
            meanwhile; a notice of the report tells of the latter.
        chain: `src` is a directory of checkpoints, each a directory in it. Every tensor is relative to the one of the
            same path, name, dtype and size in the checkpoint before, by the numbers in their names; every eighth
            checkpoint is relative to none.
        exclude: patterns as in a .gitignore; what matches in a directory is left out, and the report and the manifest
            say so. The directory `.git` is left out anyway, unless a pattern is "!.git".
        files: relative paths of files of tensors in the directory `src`. These alone are compressed, each in a staging
            directory of its own beside `dst`, and `dst` does not appear. Many processes may do so at once. The call
            without `files` adopts what is finished, makes the rest, and gives the bytes that it gives alone
            (docs/many-machines.md).
        threads: that code; by default all usable cores. Reading, hashing and writing have threads of their own.
        force: replace an existing `dst`, once the new one is whole. What is compressed gives way to the same content
            alone.
        progress: called from this thread with the uncompressed bytes done and to be done in all files, and the relative
            path of the file at work: see `Progress`. What is finished when it raises is kept for the next run.

    Raises:
        FileExistsError: `dst` exists and `force` is False, or it must stay (docs/cli.md, "What may be replaced").
        BlockingIOError: another process is writing the same `dst`, or the same one of `files`.
        FormatError: a .safetensors file of `src` is not valid (the subclass says how), or there are so many files or
            tensors that no manifest holds them (LimitExceededError).
        BaseMismatchError: a checkpoint of `base` is relative to another one that is not the one behind it.
        ValueError: `base` lacks what it is relative to itself, or one of `src`, `dst` and `base` is another or lies in
            it; `src` is compressed already (see `transcode_checkpoint`), contains a directory link, or a name that
            collides with one of ours; it is a model's directory in a hub cache, whose snapshots are the checkpoints;
            `dst` and `src` lie in each other; `src` has no such file of tensors as `files` says.
        OSError: reading or writing fails, the disk is full; or a file of `src` got longer or shorter meanwhile.
    """
    options = _Settings(
        profile, base, exclude, files, chain=chain, threads=threads, force=force, storage_options=storage_options
    )
    return _convert("compress", src, dst, options, progress)


def decompress_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    base: BasePath | None = None,
    strict: bool = False,
    max_nbytes: int | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CheckpointReport:
    """Restore the files that were compressed, byte for byte, and check them against their SHA-256: a checking reader
    (docs/format.md).

    A file that holds tensors is restored exactly, or the call fails. Other files in a directory, such as a
    README.md, may have been edited or lost since. Where the manifest holds the original of one it is restored, another
    is kept as it is now, and the report tells in `changed`.

    Arguments and errors are those of `compress_checkpoint`, and:

    Args:
        base: the checkpoint that `src` is relative to; of several, newest first. Every tensor of it that is needed is
            hashed before it is used. It is ignored if nothing of `src` is relative.
        strict: raise CorruptDataError for an edited file, FileNotFoundError for a missing one.
        max_nbytes: refuse a checkpoint whose restored files, copied ones too, have more bytes than this together,
            before anything is written.

    Raises:
        BaseMismatchError: `src` is relative, and `base` is missing or not the one that it needs; the error names the
            tensor, its file and the hashes. Nothing appears at `dst`.
        FormatError: `src` is damaged; nothing appears at `dst`.
        LimitExceededError: the files are larger than `max_nbytes`; the error names a tensor or a file, and its size.
        ValueError: `src` is not compressed.
    """
    options = _Settings(
        base=base, strict=strict, max_nbytes=max_nbytes, threads=threads, force=force, storage_options=storage_options
    )
    return _convert("decompress", src, dst, options, progress)


def transcode_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    profile: Profile,
    base: BasePath | None = None,
    strict: bool = False,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CheckpointReport:
    """Compress a compressed checkpoint with another profile.

    The result is the one that compressing what `decompress_checkpoint` gives would give, with `base` in both. So
    what is relative stays so, and what is not becomes relative to a `base` that is given. The content is checked on
    the way, by a checking reader. Arguments and errors are those of `decompress_checkpoint`, but for `max_nbytes`.
    """
    options = _Settings(
        profile=profile, base=base, strict=strict, threads=threads, force=force, storage_options=storage_options
    )
    return _convert("transcode", src, dst, options, progress)


def check_source(action: Action, src: str | os.PathLike[str] | RemotePath, *, exclude: Sequence[str] = ()) -> None:
    """Raise what makes `src` no source of a conversion, as far as its headers tell."""
    path = locate(src)
    with ErrorContext(file=path):
        _sources(action, path, exclude)
        if not path.is_dir():
            with open_stored(path) as stored:
                (check_original if action == "compress" else check_compressed)(stored)


def _sources(action: Action, src: Location, exclude: Sequence[str]) -> Sources:
    return originals(src, exclude) if action == "compress" else compressed(src)


class _Settings(NamedTuple):
    """What the public functions take by keyword."""

    profile: Profile | None = None
    base: BasePath | None = None
    exclude: Sequence[str] = ()
    files: Sequence[str] | None = None
    chain: bool = False
    strict: bool = False
    max_nbytes: int | None = None
    threads: int | None = None
    force: bool = False
    storage_options: Mapping[str, Any] | None = None


def _convert(
    action: Action,
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    options: _Settings,
    progress: Progress | None,
) -> CheckpointReport:
    started = time.monotonic()
    profile = options.profile
    source, target = locate(src, options.storage_options), locate(dst, options.storage_options)
    is_directory = source.is_dir()
    everything = sources = _sources(action, source, options.exclude)
    chain = options.chain or (action == "transcode" and sources.manifest is not None and sources.manifest.chain)
    if options.chain:
        _check_chain(source, options, is_directory=is_directory)
    if options.files is not None:
        if not is_directory:
            raise ValueError(f"files is for the files of a directory, {source} is a file")
        sources = sources.only(options.files)
    sources.check_room(options.max_nbytes)
    meter = Meter(progress, sources.nbytes)
    with ExitStack() as stack:
        opened = enter(stack, options.base, options.storage_options, profile=profile)
        if opened is not None:
            if profile is not None:
                check_another(source, opened)
            check_apart(target, opened)
        written = {*(file.path for file in sources.files), *sources.directories}
        # Compressed, with the content of the result: what a file is transcoded from, and the result when it is whole.
        whole: list[Location] = [source] if action == "transcode" and not is_directory else []
        owned = partial(made_of, everything, whole)
        if action == "decompress":
            owned = partial(restored_from, sources, written)
        result = stack.enter_context(closing(_result(source, target, force=options.force, owned=owned)))
        destination = Destination(
            result.place,
            force=options.force,
            is_directory=is_directory,
            source=source if isinstance(source, Path) else None,
            source_files=on_this_machine(
                [*(file.location for file in sources.files), *([] if opened is None else opened.paths())]
            ),
            owned=owned,
            example=source.name,
        )
        purpose = _purpose(action, profile, source, opened, chain=chain)
        task = Task(action, profile, options.threads, opened, is_directory, chain)
        outcome = Outcome(sources, strict=options.strict)
        converter = partial(Converter, task, meter=meter, outcome=outcome)
        if options.files is not None:
            destination.check()
            for file in sources.files:
                with Staging(part_of(destination, file.path), purpose) as work:
                    result.check(work)
                    converter(work).run(everything, file)
            return outcome.report(action, said(src), said(dst), name_of(options.base), started)
        work = stack.enter_context(Staging(destination, purpose))
        result.check(work)
        try:
            result.claim(work, {*written, MANIFEST_NAME})
            if action == "compress" and is_directory:
                work.adopt(file.path for file in sources.files if file.kind in OF_TENSORS)
            conversion = converter(work)
            with ErrorContext(file=source):
                conversion.run(sources)
                if is_directory and action == "compress":
                    conversion.note_unconfigured()
                if is_directory:
                    own = source / MANIFEST_NAME
                    nbytes_in = own.stat().st_size if sources.manifest is not None and own.exists() else 0
                    nbytes_out = conversion.write_manifest(sources) if profile is not None else 0
                    outcome.files.append(FileReport(MANIFEST_NAME, "manifest", nbytes_in, nbytes_out))
            paths = {*conversion.written, *sources.directories}
            # `owned` reads both again before the old result goes: a path that was left out must not go with it.
            written.intersection_update(paths)
            if profile is not None:
                whole.append(work.result)
            _put(result, work, paths, progress)
        except BaseException:
            result.give_up(work)
            raise
    outcome.notices += work.notices
    return outcome.report(action, said(src), said(dst), name_of(options.base), started)


def _put(result: Result, work: Staging, paths: Collection[str], progress: Progress | None) -> None:
    try:
        result.put(work, paths, progress)
    except FileExistsError as error:
        text = f"{error.strerror}; the result is whole in {work.result}, and the same command goes on with it"
        raise FileExistsError(error.errno, text, error.filename) from None


def _result(source: Location, target: Location, *, force: bool, owned: Callable[[Location], Collection[str]]) -> Result:
    """Where the result is to stand. An upload puts what readers go by last, and removes it first from an old result."""
    is_directory = source.is_dir()
    if isinstance(target, Path):
        like = source if is_directory and isinstance(source, Path) else None
        return Local(target, is_directory=is_directory, like=like)
    check_apart_from(target, source)
    return Upload(
        target,
        force=force,
        owned=owned,
        is_directory=is_directory,
        last=[is_config, is_index, _is_manifest],
        gone_first=lambda path: is_index(path) or _is_manifest(path),
    )


def _is_manifest(path: str) -> bool:
    return path == MANIFEST_NAME


def _check_chain(source: Location, options: _Settings, *, is_directory: bool) -> None:
    """Raise ValueError for what goes with no chain."""
    if not is_directory:
        raise ValueError(f"chain is for the checkpoints of a directory, {source} is a file")
    if options.base is not None:
        raise ValueError("expected chain without base: the first checkpoint of a chain is relative to none")
    if options.profile is not None:
        check_takes_base(options.profile)


def _purpose(
    action: Action, profile: Profile | None, src: Location, base: Base | None, *, chain: bool
) -> dict[str, Any]:
    """What a run has in common with the one that goes on where it stopped."""
    purpose: dict[str, Any] = {
        "format": "tensorwire-journal",
        "version": 3,
        "writer": __version__,
        "action": action,
        "profile": profile,
        "src": str(src),
    }
    if base is not None:
        purpose["base"] = fingerprint(base)
    if chain:
        purpose["chain"] = True
    return purpose
