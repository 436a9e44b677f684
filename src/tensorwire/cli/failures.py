"""From an exception to an exit code, a line for a reader and an object for a program."""

from __future__ import annotations

import errno
import re
import signal
import sys

import click

from .._ground.text import escape
from ..errors import TensorwireError
from ..storage.remote import is_url
from . import output

BAD_DATA = 1
USAGE = 2
FINDING = 3
HUNG_UP = 129  # what a shell reports for a program that SIGHUP ended
INTERRUPTED = 130
CLOSED_PIPE = 141  # and SIGPIPE
TERMINATED = 143  # and SIGTERM

_NO_THREAD = "can't start new thread"  # Python's words
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room and repeat the command"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or name another destination"),
    errno.EROFS: "name a destination on another file system",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came, whose number it is given."""


def report(error: BaseException, program: str, *, as_json: bool) -> int:
    """Print an error of a program to stderr, and to stdout too as JSON if `as_json`; return the exit code.

    An exception that no command is known to raise is a defect. It is raised again, for its traceback.
    """
    code, message = _explain(error)
    if as_json:
        output.print_json({"error": _fields(error, message)})
    print(f"{program}: {escape(message)}", file=sys.stderr)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        print(f"Try '{error.ctx.command_path} --help'.", file=sys.stderr)
    return code


def _explain(error: BaseException) -> tuple[int, str]:
    if isinstance(error, Terminated):
        return {signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}[error.args[0]], "terminated"
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return INTERRUPTED, "interrupted"
    if isinstance(error, click.ClickException):
        return error.exit_code, _explain_usage(error.format_message())
    if isinstance(error, TensorwireError):
        return BAD_DATA, str(error)
    if isinstance(error, OSError):
        return USAGE if isinstance(error, FileExistsError) else BAD_DATA, _explain_os(error)
    if isinstance(error, MemoryError):
        return BAD_DATA, "out of memory; free some, or use fewer --threads"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return BAD_DATA, "no more threads can be started; end other processes, or raise the limit (ulimit -u, pids.max)"
    if isinstance(error, ValueError):
        return USAGE, str(error)
    raise error


def _explain_usage(text: str) -> str:
    """click's words on one line, without its own name of a type."""
    text = text.replace("\n\t", " ")  # it lists choices on lines of their own
    return re.sub(r"is not a valid (integer|float) range\b", r"is not a valid \1", text).replace(" float.", " number.")


def _explain_os(error: OSError) -> str:
    text = (error.strerror or str(error)).replace("pass force=True", "pass --force")
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        return f"standard output: {text}"  # what writes files names them
    if error.filename is not None:
        text = f"{str(error.filename)!r}: {text}"
    # A store's own errors say what to do.
    advice = None if is_url(error.filename) else _ADVICE.get(error.errno or 0)
    return f"{text}; {advice}" if advice else text


def _fields(error: BaseException, message: str) -> dict[str, object]:
    """The fields of checkpoint.Problem."""
    place: dict[str, object] = dict.fromkeys(("file", "tensor", "block", "byte"))
    if isinstance(error, TensorwireError):
        place.update(tensor=error.tensor, block=error.block, byte=error.byte)
        place["file"] = None if error.file is None else str(error.file)
    elif isinstance(error, OSError) and error.filename is not None:
        place["file"] = str(error.filename)
    kind = type(error).__name__
    if isinstance(error, click.ClickException):  # whose classes are click's own business
        kind = click.UsageError.__name__
    elif isinstance(error, (click.Abort, Terminated)):
        kind = KeyboardInterrupt.__name__
    return {"kind": kind, "message": message, **place}
