"""tensorwire job: the commands about a training job, one module each."""

from __future__ import annotations

import click

from ..group import CommandGroup


@click.group(cls=CommandGroup, package=__name__, modules=("watch", "diagnose", "report", "agent", "analyzer"))
def command() -> None:
    """Name the slow or hung rank of a training job.

    The probe reports on each rank: start the job with torchrun ARGS -m tensorwire.probe train.py instead of torchrun
    ARGS train.py. On one machine, watch, diagnose and report read what the probes write. For a job on several
    machines, run one analyzer, and one agent on each machine.

    \b
    Example:
      torchrun --nproc-per-node 8 -m tensorwire.probe train.py
      tensorwire job diagnose     # in another shell, when the job seems to hang
    """
