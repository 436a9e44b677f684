"""Arguments and options that several commands share."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from .._ground.filesystem import absolute, resolved
from .._ground.packages import how_to_install
from ..storage.locations import check_slashes, locate, said
from ..storage.remote import RemotePath, is_url
from .hub import advice_on

if TYPE_CHECKING:
    from ..storage.locations import Location

PROGRAM = "tensorwire"
SUFFIX = ".tensorwire"
_SAFETENSORS = ".safetensors"

STANDARD_STREAM = Path("-")
STDIN_NAME = "stdin"

_MOST_NBYTES = 1 << 60
_UNITS = {"B": 1, "": 1}
_UNITS |= {letter + "B": 1000**power for power, letter in enumerate("KMGTP", 1)}
_UNITS |= {letter + "IB": 1024**power for power, letter in enumerate("KMGTP", 1)}


class _Location(click.Path):
    """A path, or a URL of another store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            check_slashes(value)
            if is_url(value):
                return locate(value)
        except (ImportError, ValueError) as error:
            self.fail(str(error), param, ctx)
        return _converted(super().convert, value, param, ctx)


class _OnThisMachine(click.Path):
    """A path, and no URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_url(value):
            url = said(value)
            advice = f"first run tensorwire decompress {shlex.quote(url)} DIR, or download it if it is not compressed"
            self.fail(f"expected a path of this machine, got {url}; {advice}", param, ctx)
        return _converted(super().convert, value, param, ctx)


def _converted(
    convert: Callable[..., Any], value: Any, param: click.Parameter | None, ctx: click.Context | None
) -> Any:
    """The path, or an error that knows names of models on a hub."""
    try:
        return convert(value, param, ctx)
    except click.BadParameter as error:
        if os.path.lexists(value) or not (advice := advice_on(value)):
            raise
        raise click.BadParameter(error.message.removesuffix(".") + advice, ctx=ctx, param=param) from None


class _PathOrStream(_Location):
    """The same, or "-" for a standard stream; "./-" is a file of that name, as everywhere."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # a variable of the shell that is not set; a Path would make it the working directory
            self.fail("expected a path, got an empty argument", param, ctx)
        path = super().convert(value, param, ctx)
        return path.absolute() if path == STANDARD_STREAM and str(value) != "-" else path


class _Size(click.ParamType[int]):
    """24GB, 24GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_size(text: str) -> int:
    """Bytes of "24GB", "24 GiB", "80g"; ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?I?B|[KMGTP])", text.strip().upper())
    if match is None:
        raise ValueError(f"expected a size with its unit, such as 24GB or 24GiB, got {text!r}")
    unit = match[2] if match[2].endswith("B") else match[2] + "B"
    nbytes = float(match[1]) * _UNITS[unit]
    if nbytes > _MOST_NBYTES:
        raise ValueError(f"expected a size of at most {_MOST_NBYTES >> 50} PiB, got {text[:40]!r}")
    return int(nbytes)


SIZE = _Size()
LOCATION = _Location(path_type=Path)
EXISTING_PATH = _Location(exists=True, path_type=Path)
LOCAL_PATH = _OnThisMachine(path_type=Path)
EXISTING_LOCAL_PATH = _OnThisMachine(exists=True, path_type=Path)
EXISTING_PATH_OR_STREAM = _PathOrStream(exists=True, path_type=Path, allow_dash=True)
NEW_PATH = click.Path(path_type=Path)


class _PathAsWritten(_PathOrStream):
    """SRC or DST. A Path forgets a slash at its end, so the context remembers it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if ctx is not None and str(value).endswith("/"):
            ctx.find_root().meta.setdefault(__name__, set()).add(path)
        return path


def as_written(path: Location) -> str | RemotePath:
    """A place, with a slash at its end if it was written so: the slash says that a directory is meant."""
    if isinstance(path, RemotePath):
        return path
    slashed = click.get_current_context().meta.get(__name__, ())
    return f"{path}/" if path in slashed else str(path)


WRITTEN_PATH = _PathAsWritten(path_type=Path)
places_argument = click.argument("places", type=WRITTEN_PATH, nargs=-1, required=True, metavar="SRC... [DST]")
output_option = click.option(
    "-o", "--output", type=WRITTEN_PATH, metavar="DST", help="Write the result to DST. Every argument is a SRC then."
)

json_option = click.option(
    "as_json", "--json", is_flag=True, help='Print one JSON document instead; an error is {"error": ...}.'
)
threads_option = click.option(
    "-T",
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Use N threads to encode and decode; by default one per usable core.",
)
max_nbytes_option = click.option(
    "--max-nbytes",
    type=SIZE,
    metavar="SIZE",
    help="Write nothing if the result would have more bytes than SIZE, such as 24GB: a small file may claim large "
    "tensors. By default there is no limit.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print errors only: neither progress nor result.")
force_option = click.option(
    "-f",
    "--force",
    is_flag=True,
    help="Replace DST when the result is whole. A link, a directory with files of others, or a compressed DST of "
    "another content, which may be the only copy, is never replaced.",
)
base_option = click.option(
    "--base",
    type=EXISTING_PATH,
    multiple=True,
    metavar="OLD",
    callback=lambda context, parameter, given: given or None,
    help="The checkpoint that a delta is relative to: a file, directory or index, plain or compressed. If OLD is a "
    "delta itself, its own base comes behind it as one more --base, and so on.",
)
strict_option = click.option(
    "--strict", is_flag=True, help="Fail if a file beside the tensors was edited or is missing, instead of telling so."
)


class Choice(click.Choice[str]):
    """One of several words. The error of another word names the nearest of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = difflib.get_close_matches(str(value), self.choices, n=1)
            if not near:
                raise
            text = f"{error.message.rstrip('.')}; did you mean {near[0]!r}?"
            raise click.BadParameter(text, ctx=ctx, param=param) from None


PROFILE = Choice(["fast", "compact", "resident", "enec"])
PROFILE_HELP = (
    "fast is for most uses; compact is smaller and slower, for disks and networks; resident is for weights that stay "
    "compressed in memory; enec decodes without gathers, and is meant for NPUs."
)


def program(text: str | None) -> list[str] | None:
    """A command of the user's and its arguments, checked before it is needed."""
    if text is None:
        return None
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{error} in {text!r}") from None
    if not arguments or shutil.which(arguments[0]) is None:
        raise click.BadParameter(f"expected a program that can be run, and its arguments, got {text!r}")
    return arguments


def require(package: str, needed_by: str, extra: str) -> None:
    """Raises click.UsageError, with what to type, if an optional package is not installed."""
    if find_spec(package) is None:
        raise click.UsageError(f"{needed_by} needs {package}, which is not installed: {how_to_install(extra)}")


def standard_input() -> BinaryIO:
    """The bytes of standard input; a terminal is refused."""
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("'-' reads standard input, which is a terminal: redirect a .safetensors file to it")
    return sys.stdin.buffer


@contextmanager
def readable(path: Path) -> Iterator[Path]:
    """`path`, or for "-" a temporary file that holds all of standard input."""
    if path != STANDARD_STREAM:
        yield path
        return
    from ..checkpoint.operations.stream import received

    with received(standard_input()) as location:
        yield location


def standard_output(*, force: bool) -> BinaryIO:
    """Where bytes go to standard output; a closed one is refused, and a terminal without `force`."""
    if sys.__stdout__ is None:
        raise click.UsageError("'-' writes to standard output, which is closed: redirect it to a file or a pipe")
    if sys.stdout.isatty() and not force:
        raise click.UsageError(
            "'-' writes binary data to standard output, which is a terminal: redirect it, or pass --force"
        )
    sys.stdout.flush()
    return sys.stdout.buffer


def compressed_path(src: Location) -> Path:
    """Where `compress` writes unless told: model -> model.tensorwire, a.safetensors -> a.tensorwire.safetensors."""
    path = named(_beside(src))
    if path.suffix == _SAFETENSORS and not path.is_dir():
        return path.with_name(path.stem + SUFFIX + _SAFETENSORS)
    return path.with_name(path.name + SUFFIX)


def decompressed_path(src: Location) -> Path:
    """Where `decompress` writes unless told: the name without the suffix of `compressed_path`.

    A name that lacks the suffix gains ".decompressed" in its place.
    """
    path = named(_beside(src))
    extension = _SAFETENSORS if path.suffix == _SAFETENSORS and not path.is_dir() else ""
    stem = path.name.removesuffix(extension)
    plain = stem.removesuffix(SUFFIX)
    if plain in ("", stem):
        plain = stem + ".decompressed"
    return path.with_name(plain + extension)


def _beside(src: Location) -> Path:
    """A path, beside which a result may stand without being asked for."""
    from ..checkpoint.directory.paths import MANIFEST_NAME, is_in_hub_cache

    if isinstance(src, Path):
        text = None
        if is_in_hub_cache(resolved(absolute(named(src)).parent)):
            text = "lies in a hub cache, which takes all that stands there for its own: name a DST"
        elif src.is_dir() and any((above / MANIFEST_NAME).exists() for above in absolute(src).parents):
            text = "lies in a compressed directory, where nothing is written unasked: name a DST"
        if text is not None:
            raise click.UsageError(f"{str(src)!r} {text}")
        return src
    raise click.UsageError(f"{str(src)!r} lies in a store, where nothing is written unasked: name a DST")


def named(path: Path) -> Path:
    """`path`; "." and "..", which have no name of their own, are made absolute."""
    return resolved(absolute(path)) if path.name in ("", "..") else path
