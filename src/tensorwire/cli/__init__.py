"""The command line: parse, call, print. One module per command, imported when called; docs/cli.md is its manual."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .._ground.version import __version__
from . import program
from .group import CommandGroup
from .options import PROGRAM

__all__ = ["main"]


@click.group(
    cls=CommandGroup,
    package=__name__,
    sections={
        "Checkpoints": ("compress", "decompress", "transcode", "convert", "verify", "diff", "inspect"),
        "Models": ("run", "fit"),
        "Training": ("sync", "job"),
        "This machine": ("doctor", "bench", "completion"),
    },
    others={"job": "tensorwire-job"},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def _commands() -> None:
    """Lossless compression of model checkpoints, bit for bit.

    A checkpoint is a .safetensors file, or a directory of them with everything beside them. Each command that has a
    result prints it as JSON with --json. The commands of job come with the package tensorwire-job.

    \b
    Example:
      tensorwire compress llama             # makes llama.tensorwire, smaller
      tensorwire verify llama.tensorwire
      tensorwire decompress llama.tensorwire copy
      tensorwire run llama.tensorwire "Once upon a time"

    Exit codes: 0 ok; 1 bad data, or reading or writing failed; 2 usage; 3 finding (diff: a difference;
    verify, decompress, transcode: an edited or missing file beside the tensors; fit:
    no form fits; doctor: something differs); 129 SIGHUP; 130 Ctrl-C; 141 closed pipe; 143 SIGTERM.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line, without the program's name; by default that of the process. Returns the exit code."""
    return program.run(_commands, PROGRAM, args)
