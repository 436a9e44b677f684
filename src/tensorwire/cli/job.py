"""What watch, diagnose and report have in common: the options that name a job and the thresholds, and looking at it."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from ..diagnosis.model import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..diagnosis.model import Finding, Observation
    from ..diagnosis.report import History

dir_option = click.option(
    "directory",
    "--dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the probes of the job write; by default that of your newest job on this machine.",
)

ASKED_HANG_SECONDS = 30.0
"""For commands that a person calls who suspects a hang already. What speaks up by itself waits longer."""

_HELP = {
    "hang_seconds": "An operation that is open for longer and moves nothing hangs.",
    "slow_seconds": "Slowness that does not last for so long is none.",
    "theta": "Slow is what takes so many times the baseline.",
    "alpha": "P from here on: slow computation.",
    "beta": "P up to here: slow communication.",
    "lost_seconds": "A rank without a sign of life for longer is lost.",
}


class Job(Protocol):
    """Where observations and findings come from."""

    def poll(self) -> tuple[Observation, list[Finding]]:
        """What there is to see now, and what is found in it and all before."""

    @property
    def awaits_stacks(self) -> bool:
        """The stack of a suspect is on its way."""


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
    """From what `threshold_options` give."""
    if options["beta"] >= options["alpha"]:
        raise click.UsageError(f"expected --beta below --alpha, got {options['beta']} and {options['alpha']}")
    return Thresholds(**options)


def follow(
    job: Job, history: History, thresholds: Thresholds, *, interval: float, seconds: float | None
) -> Iterator[tuple[list[Finding], list[Finding]]]:
    """Look once an `interval`, for `seconds` or until the job has ended.

    Yields what is found now, and what of it was not found before. Of a job that has just ended more can be found for
    a while: the first to die is known once the others are gone too.
    """
    begin = due = time.monotonic()
    while True:
        observation, findings = job.poll()
        yield findings, history.add(observation, findings)
        due = max(due + interval, time.monotonic())
        if (seconds is not None and due > begin + seconds) or is_over(observation, thresholds):
            return
        time.sleep(max(0.0, due - time.monotonic()))


def is_over(observation: Observation, thresholds: Thresholds) -> bool:
    """Whether no process lives any more, and none has for as long as it takes to count as lost."""
    return bool(observation.ranks) and all(
        rank.process.life in ("exited", "lost") and (rank.process.gone_seconds or 0.0) > thresholds.lost_seconds
        for rank in observation.ranks.values()
    )


@contextmanager
def open_job(directory: Path | None, thresholds: Thresholds) -> Iterator[Job]:
    """The job whose probes write to a directory of this machine, by default the newest of this user.

    Raises:
        FileNotFoundError: there is no frame of a rank.
    """
    found = directory_of(directory)
    from ..diagnosis.service import LocalJob

    source = LocalJob(found, thresholds)
    try:
        yield source
    finally:
        source.close()


def directory_of(given: Path | None) -> Path:
    """Where there are frames: in the given directory, or that of the newest job of this user."""
    root = given or Path(os.environ.get("TENSORWIRE_PROBE_DIR", f"/dev/shm/tensorwire-{os.getuid()}"))
    folders = [root] if given else [root, *root.glob("*/")]
    frames = [frame for folder in folders for frame in folder.glob("rank-*.frame")]
    if not frames:
        message = (
            "no frames of ranks; start the job with torchrun ARGS -m tensorwire.probe train.py, or name the directory "
            "of one that runs, or ran, on this machine with --dir"
        )
        raise FileNotFoundError(errno.ENOENT, message, str(root))
    return max(frames, key=lambda frame: frame.stat().st_ctime).parent


def replay(recording: Path, thresholds: Thresholds) -> Iterator[tuple[Observation, list[Finding]]]:
    raise NotImplementedError
    yield
