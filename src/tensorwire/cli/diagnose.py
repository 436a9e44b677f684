"""tensorwire diagnose"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import job, options, output, verdict

if TYPE_CHECKING:
    from pathlib import Path

    from ..diagnosis.model import Finding

_INTERVAL = 1.0
_FIRM = ("TW-LOST", "TW-H1", "TW-H2")  # no counter of bytes or time makes them more certain


@click.command()
@job.dir_option
@job.analyzer_dir_option
@click.option(
    "seconds",
    "--for",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Look for so long, or until a verdict is firm. Slowness takes three times --slow-seconds to tell.",
)
@job.threshold_options(hang_seconds=job.ASKED_HANG_SECONDS)
@options.json_option
def command(
    directory: Path | None, analyzer_directory: Path | None, seconds: float, as_json: bool, **thresholds: float
) -> int:
    """Name the rank that hangs or slows a job.

    Looks at a job that runs, or at what a dead one left behind, and prints findings with their evidence, the stacks
    of suspects, and where all ranks stand. The job must have been started with the probe:
    torchrun ARGS -m tensorwire.probe train.py. Exit code 0: no finding; 1: nothing to read; 3: a finding.

    \b
    Example:
      tensorwire diagnose
      tensorwire diagnose --for 180 --json
    """
    from ..diagnosis.report import History
    from . import sources

    limits = job.thresholds_of(thresholds)
    history = History()
    with sources.open_job(directory, analyzer_directory, limits) as (source, path):
        findings: list[Finding] = []
        for findings, started in sources.follow(source, history, limits, interval=_INTERVAL, seconds=seconds):
            told_twice = findings and not started and not source.awaits_stacks
            if told_twice and all(finding.code in _FIRM for finding in findings):
                break
    sources.check_in_view(history, path)
    if as_json:
        output.print_json(verdict.as_object(history, findings))
    else:
        verdict.print_findings(findings)
        verdict.print_standings(history)
        print()
        verdict.print_summary(history, findings, limits, path)
    return verdict.exit_code(findings)
