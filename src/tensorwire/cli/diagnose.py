"""tensorwire diagnose"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import job, options, output, verdict

if TYPE_CHECKING:
    from pathlib import Path

    from ..diagnosis.model import Finding

_INTERVAL = 1.0


@click.command()
@job.dir_option
@click.option(
    "seconds",
    "--for",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Look for so long at most. Slowness shows over minutes: use more than --slow-seconds.",
)
@job.threshold_options(hang_seconds=job.ASKED_HANG_SECONDS)
@options.json_option
def command(directory: Path | None, seconds: float, as_json: bool, **thresholds: float) -> int:
    """Name the rank that hangs or slows a job.

    Looks at a job that runs, or at what a dead one left behind, and prints findings with their evidence, the stacks
    of suspects, and where all ranks stand. The job must have been started with the probe:
    torchrun ARGS -m tensorwire.probe train.py. Exit code 0: no finding; 1: nothing to read; 3: a finding.

    \b
    Example:
      tensorwire diagnose
      tensorwire diagnose --for 90 --json
    """
    from ..diagnosis.report import History

    limits = job.thresholds_of(thresholds)
    history = History()
    with job.open_job(directory, limits) as source:
        findings: list[Finding] = []
        for findings, started in job.follow(source, history, limits, interval=_INTERVAL, seconds=seconds):
            if verdict.exit_code(findings) and not (started or source.awaits_stacks):
                break  # told twice, and as complete as it gets
    if as_json:
        output.print_json(verdict.as_object(history, findings))
    else:
        verdict.print_findings(findings)
        verdict.print_standings(history)
        print()
        verdict.print_summary(history, findings, limits)
    return verdict.exit_code(findings)
