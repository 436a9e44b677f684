"""tensorwire-job watch"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.cli import output

from ..model import Thresholds
from . import arguments, verdict

if TYPE_CHECKING:
    from ..report import History
    from ..service.follow import Poll


_NO_SCREEN = ("", "dumb", "unknown")  # terminals that cannot draw anew, as in an editor's shell


@click.command()
@arguments.dir_option()
@arguments.analyzer_dir_option
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Poll the job once in this many seconds.",
)
@arguments.seconds_option("End after this many seconds; by default, watch ends with the job.")
@arguments.on_finding_option
@arguments.threshold_options(Thresholds())
@click.option(
    "as_json", "--json", is_flag=True, help="Print a JSON document on a line of its own at each poll instead."
)
def command(
    directory: Path | None,
    analyzer_directory: Path | None,
    interval: float,
    seconds: float | None,
    on_finding: list[str] | None,
    as_json: bool,
    **thresholds: float,
) -> int:
    """Watch a job live.

    On a terminal, the screen shows the findings, the status of all ranks, and the slowest ranks. In a pipe, or where
    TERM is dumb, watch prints one line for each new finding. Ctrl-C ends watch; the job goes on. Exit code 0: no
    finding; 1: nothing to read; 3: a finding.

    \b
    Example:
      tensorwire-job watch
      tensorwire-job watch --hang-seconds 60 --json | jq .findings
    """
    from ..report import History
    from ..service.follow import follow

    limits = arguments.thresholds_of(thresholds)
    history = History()
    is_screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in _NO_SCREEN and not as_json
    troubles: list[str] = []  # of the command, while the screen hides standard error
    say = troubles.append if is_screen else arguments.warn
    with (
        arguments.open_job(directory, analyzer_directory, limits) as (source, path),
        arguments.finding_command(on_finding, say, path) as take,
    ):
        with arguments.until_ended():
            polls = _handed_on(follow(source, history, limits, seconds=seconds, interval=interval), history, take)
            if as_json:
                for findings, _ in polls:
                    output.print_json(verdict.as_object(history, findings))
                    sys.stdout.flush()
            elif is_screen:
                from .screen import screen

                with screen(path, arguments.used(source, limits)[0]) as show:
                    for findings, _ in polls:
                        show(history, findings, troubles)
            else:
                for _, started in polls:
                    for finding in started:
                        verdict.print_news(finding, as_json=False)
        limits, whose = arguments.used(source, limits)
        found = [episode.finding for episode in history.episodes.values()]
        if is_screen and history.last is not None:
            verdict.print_findings(found, history, path)  # the screen is gone
            verdict.print_summary(history, found, limits, path, whose)
    for trouble in troubles:
        arguments.warn(trouble)
    return verdict.exit_code(found)


def _handed_on(polls: Iterator[Poll], history: History, take: arguments.Take) -> Iterator[Poll]:
    """Each poll, after its findings went to the command of --on-finding."""
    for poll in polls:
        if history.last is not None:
            take(history.last.run_id, poll.findings)
        yield poll
