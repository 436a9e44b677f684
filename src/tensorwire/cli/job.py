"""Options that name a job and say when something counts as trouble."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from ..diagnosis.model import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..diagnosis.model import Finding
    from ..diagnosis.report import History
    from .sources import Job

dir_option = click.option(
    "directory",
    "--dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the probes of the job write; by default that of your newest job on this machine.",
)

key_option = click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Key of the job, the same on all nodes: 16 random bytes or more that only you can read.",
)

analyzer_dir_option = click.option(
    "analyzer_directory",
    "--analyzer-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Ask an analyzer that writes to this directory (tensorwire analyzer) instead of the ranks on this machine.",
)

ASKED: Final = {"hang_seconds": 30.0, "slow_seconds": 5.0}
"""Thresholds of commands that a person calls who suspects trouble already. What speaks up by itself waits longer."""

ASKED_SECONDS: Final = 20.0
"""That these look for. Slowness takes the window to show, three seconds until all ranks begin to time operations, and
twelve of those; where each takes up to half a second, that is enough."""

_ANSWER_SECONDS = 40.0  # longer while an answer is due: operations may take as long as two of them fit into the window

_HELP = {
    "hang_seconds": "An operation that is open for longer and moves nothing hangs.",
    "slow_seconds": "Slowness that does not last for so long is none.",
    "theta": "Slow is what takes so many times the baseline.",
    "alpha": "P from here on: slow computation.",
    "beta": "P up to here: slow communication.",
    "lost_seconds": "A rank without a sign of life for longer is lost.",
}


def threshold_options(**defaults: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for each threshold; `defaults` are those that differ from the analyzer's."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, text in reversed(_HELP.items()):
            function = click.option(
                f"--{name.replace('_', '-')}",
                type=click.FloatRange(min=0, min_open=True),
                default=defaults.get(name, getattr(Thresholds(), name)),
                show_default=True,
                metavar="X",
                help=text,
            )(function)
        return function

    return add


def thresholds_of(options: dict[str, float]) -> Thresholds:
    """From what `threshold_options` give.

    Raises:
        click.UsageError: they contradict each other, or the analyzer that is asked has its own.
    """
    if click.get_current_context().params.get("analyzer_directory") is not None:
        given = [name for name in options if is_given(name)]
        if given:
            name = f"--{given[0].replace('_', '-')}"
            raise click.UsageError(f"{name} has no effect with --analyzer-dir; give it to tensorwire analyzer")
    if options["beta"] >= options["alpha"]:
        raise click.UsageError(f"expected --beta below --alpha, got {options['beta']} and {options['alpha']}")
    return Thresholds(**options)


def is_given(option: str) -> bool:
    """Whether an option of the present command was written down, and is not its default."""
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


def looks(
    source: Job, history: History, limits: Thresholds, *, interval: float, seconds: float
) -> Iterator[tuple[list[Finding], list[Finding]]]:
    """What `sources.follow` gives in `seconds`, and for a while after them if that is when an answer is due.

    That is: ranks time their operations because they seem slow and nothing is found yet, or a suspect's stack is on
    its way.
    """
    from . import sources

    findings: list[Finding] = []
    for findings, started in sources.follow(source, history, limits, interval=interval, seconds=seconds):
        yield findings, started
    if _is_answer_due(source, history, findings):
        for findings, started in sources.follow(source, history, limits, interval=interval, seconds=_ANSWER_SECONDS):
            yield findings, started
            if not _is_answer_due(source, history, findings):
                return


def _is_answer_due(source: Job, history: History, findings: list[Finding]) -> bool:
    ranks = history.last.ranks.values() if history.last else ()
    return source.awaits_stacks or (not findings and any(rank.armed for rank in ranks))
