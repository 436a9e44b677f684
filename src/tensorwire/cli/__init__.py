"""The command line: parse, call, print. One module per command, imported when called; docs/cli.md is its manual."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from .._ground.version import __version__
from . import failures
from .group import CommandGroup
from .options import COMPLETION_VARIABLE, PROGRAM

__all__ = ["main"]


@click.group(
    cls=CommandGroup,
    package=__name__,
    modules=(
        *("compress", "decompress", "run", "transcode", "verify", "diff", "inspect", "fit", "doctor", "bench"),
        *("sync", "job", "completion"),
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def _commands() -> None:
    """Lossless compression of model checkpoints, bit for bit; and the slow or hung rank of a training job, by name.

    A checkpoint is a .safetensors file, or a directory of them with everything beside them. A job is what was started
    with torchrun ARGS -m tensorwire.probe train.py. Each command that has a result prints it as JSON with --json.

    \b
    Example:
      tensorwire compress llama             # makes llama.tensorwire, smaller
      tensorwire verify llama.tensorwire
      tensorwire decompress llama.tensorwire copy
      tensorwire run llama.tensorwire "Once upon a time"
      tensorwire job diagnose               # names the rank that a job waits for

    Exit codes: 0 ok; 1 bad data, or reading or writing failed; 2 usage; 3 finding (diff: a difference;
    verify, decompress, transcode: an edited or missing file beside the tensors; fit:
    no form fits; doctor: something differs; job: trouble); 130 Ctrl-C.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line, without the program's name; by default that of the process. Returns the exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    _prepare_streams()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python must not find the pipe closed once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.CLOSED_PIPE
    except OSError as error:  # standard output cannot be written: /dev/full
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the process ends
        return failures.report(error, as_json=False)
    return code


def _run(arguments: list[str]) -> int:
    # Not click's own main(): it takes a closed pipe for an error, and writes an empty line when it is interrupted.
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(_commands, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
    try:
        with _commands.make_context(PROGRAM, arguments) as ctx:
            code: int | None = _commands.invoke(ctx)
    except BrokenPipeError:
        raise
    except click.exceptions.Exit as end:
        return end.exit_code
    except (Exception, KeyboardInterrupt) as error:
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return failures.report(error, as_json="--json" in options)
    return code or 0


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name outside the terminal's encoding is no error
