"""A program of commands: parse, call, print; streams, exit codes and completion as every program here has them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from . import failures

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_CLEANING_SECONDS = 5.0  # so long a second signal ends nothing: those who stop services send several at once


def completion_variable(program: str) -> str:
    """The environment variable by which a shell asks a program for completions."""
    return f"_{program.upper().replace('-', '_')}_COMPLETE"


def run(commands: click.Group, program: str, args: Sequence[str] | None = None) -> int:
    """Run one command line, without the program's name; by default that of the process. Returns the exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    _prepare_streams()
    try:
        code = _run(commands, program, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python must not find the pipe closed once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.CLOSED_PIPE
    except OSError as error:  # standard output cannot be written: /dev/full
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the process ends
        return failures.report(error, program, as_json=False)
    return code


def _run(commands: click.Group, program: str, arguments: list[str]) -> int:
    # Not click's own main(): it takes a closed pipe for an error, and writes an empty line when it is interrupted.
    variable = completion_variable(program)
    instruction = os.environ.get(variable)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(commands, {}, program, variable, instruction)
    try:
        with _terminated_in_order(), commands.make_context(program, arguments) as ctx:
            code: int | None = commands.invoke(ctx)
    except BrokenPipeError:
        raise
    except click.exceptions.Exit as end:
        return end.exit_code
    except (Exception, KeyboardInterrupt) as error:
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return failures.report(error, program, as_json="--json" in options)
    return code or 0


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that temporary files go; where the caller has chosen
    otherwise, as nohup does, they do not."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {each: signal.getsignal(each) for each in (*_ENDING, signal.SIGINT)} if is_main else {}
    ours = [each for each in _ENDING if before.get(each) == signal.SIG_DFL]
    begun: list[float] = []

    def end(number: int, frame: object) -> None:
        if not begun:
            begun.append(time.monotonic())
            if before[signal.SIGINT] is signal.default_int_handler:
                signal.signal(signal.SIGINT, end)
            raise failures.Terminated(number)
        if time.monotonic() > begun[0] + _CLEANING_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for each in ours:
        signal.signal(each, end)
    try:
        yield
    finally:
        if not begun:  # else they stay until the process has ended
            for each in ours:
                signal.signal(each, before[each])


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name outside the terminal's encoding is no error
