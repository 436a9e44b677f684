"""`python -m tensorwire_reference decompress SRC [-o OUT]`: needs NumPy alone, and runs wherever Python does."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .decompress import decompress
from .errors import BaseMismatchError, FormatError

_ABOUT = "Restores what tensorwire has compressed, on any machine with Python and NumPy."
_EXAMPLE = "Example: python -m tensorwire_reference decompress llama.tensorwire -o llama"

FAILED, USAGE, FINDING, INTERRUPTED = 1, 2, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 for bad data and for what cannot be read or written, 2 for usage, 3 for edited files."""
    parser = argparse.ArgumentParser(prog="python -m tensorwire_reference", description=_ABOUT, epilog=_EXAMPLE)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    does = "restore a compressed file or directory, byte for byte"
    command = commands.add_parser("decompress", help=does, description=f"{does.capitalize()}.", epilog=_EXAMPLE)
    command.add_argument("src", metavar="SRC", type=Path, help="a compressed file or directory, or a folder of one")
    command.add_argument("-o", "--output", metavar="OUT", type=Path, help="a new place; by default one beside SRC")
    command.add_argument(
        "--base",
        metavar="OLD",
        type=Path,
        action="append",
        default=[],
        help="what SRC is relative to, once for each; newest first",
    )
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    try:
        with _shown_progress() as progress:
            report = decompress(options.src, options.output, options.base, progress)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (FormatError, BaseMismatchError, MemoryError) as error:
        return _failed(error, FAILED)
    except (FileExistsError, FileNotFoundError, ValueError) as error:
        return _failed(error, USAGE)
    except OSError as error:
        return _failed(error, FAILED)
    for note in report.notes:
        print(f"note: {_printable(note)}", file=sys.stderr)
    files = "1 file" if report.num_files == 1 else f"{report.num_files} files"
    how = "every byte is that of the original" if report.exact else "see the notes"
    seconds = time.perf_counter() - begin
    print(f"{_printable(str(report.out))}: {files}, {report.nbytes / 1e6:.1f} MB in {seconds:.1f} s, {how}")
    return 0 if report.exact else FINDING


@contextmanager
def _shown_progress() -> Iterator[Callable[[int], None]]:
    """A line on a terminal, which goes at the end: a large model takes long."""
    done = 0

    def show(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if sys.stderr.isatty():
            print(f"\r{done / 1e6:.1f} MB restored", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if done and sys.stderr.isatty():
            print("\r" + " " * 40, end="\r", file=sys.stderr, flush=True)


def _failed(error: BaseException, code: int) -> int:
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{str(error.filename)!r}: {error.strerror}"
    print(f"error: {_printable(text) or type(error).__name__}", file=sys.stderr)
    return code


def _printable(text: str) -> str:
    """A text that names of files and tensors may stand in, without what a terminal would obey."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        if signal.getsignal(number) is signal.SIG_DFL:  # which would leave a staging directory behind
            signal.signal(number, _end)
    sys.exit(main())
