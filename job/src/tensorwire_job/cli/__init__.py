"""The command line of tensorwire-job, one module per command; tensorwire has the same commands as tensorwire job."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tensorwire.cli import program
from tensorwire.cli.group import CommandGroup

from ..version import __version__

__all__ = ["command", "main"]


@click.group(
    cls=CommandGroup,
    package=__name__,
    sections={"Commands": ("watch", "diagnose", "report", "agent", "analyzer", "completion")},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def command() -> None:
    """Name the slow or hung rank of a training job.

    The probe reports on each rank: start the job with torchrun ARGS -m tensorwire_job train.py instead of torchrun
    ARGS train.py. On one machine, watch, diagnose and report read what the probes write. For a job on several
    machines, run one analyzer, and one agent on each machine.

    \b
    Example:
      torchrun --nproc-per-node 8 -m tensorwire_job train.py
      tensorwire-job diagnose     # in another shell, when the job seems to hang

    Exit codes: 0 ok; 1 bad data, or reading or writing failed; 2 usage; 3 a finding; 129 SIGHUP; 130 Ctrl-C;
    141 closed pipe; 143 SIGTERM.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line, without the program's name; by default that of the process. Returns the exit code."""
    return program.run(command, "tensorwire-job", args)
