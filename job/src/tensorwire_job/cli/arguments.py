"""Options that name a job, and the thresholds of trouble."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from tensorwire.cli import options

from ..model import Thresholds

if TYPE_CHECKING:
    from ..model import Finding
    from ..service.follow import PolledJob
    from ..service.job_directory import JobHere

    Take = Callable[[str, Sequence[Finding]], None]

key_option = click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Key of the job: a file of at least 16 random bytes that only you can read, the same on all nodes.",
)

analyzer_dir_option = click.option(
    "analyzer_directory",
    "--analyzer-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Read what an analyzer writes to this directory, instead of polling the ranks on this machine.",
)

on_finding_option = click.option(
    "on_finding",
    "--on-finding",
    metavar="COMMAND",
    callback=lambda context, parameter, value: options.program(value),
    help="Run this command for each new finding, which it gets as JSON on standard input and in the environment "
    "(TENSORWIRE_FINDING_CODE, _SUSPECTS, _CONFIDENCE, _HEADLINE, _JOB). No shell reads it.",
)

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

_SILENT_SECONDS: Final = 30.0  # an analyzer writes every second

_NAMES = {"directory": "dir", "analyzer_directory": "analyzer-dir", "seconds": "for"}

_HELP = {
    "hang_seconds": "Report a hang when an operation has made no progress for this many seconds.",
    "slow_seconds": "Report a slowdown only after it has lasted this many seconds.",
    "slow_factor": "Slowdown factor: an operation rate this many times below its baseline counts as slow.",
    "compute_share": "Name slow computation if late arrival makes up at least this share of the lost time.",
    "transfer_share": "Name slow communication if late arrival makes up at most this share of the lost time.",
    "lost_seconds": "Report a process as lost when it has given no sign of life for this many seconds.",
}


def dir_option(default: str = "that of your newest job on this machine") -> Callable[[_F], _F]:
    return click.option(
        "directory",
        "--dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help=f"Directory that the probes of the job write to; by default {default}.",
    )


@contextmanager
def until_ended() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block. Schedulers end a service by SIGTERM, and scripts a command that they run in the
    background, where Ctrl-C is ignored."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def finding_command(arguments: list[str] | None, say: Callable[[str], None], place: Path | None) -> Iterator[Take]:
    """The function to call after each poll with the run and the findings that stand, for `on_finding_option`."""
    if arguments is None:
        yield lambda run_id, findings: None
        return
    from ..service.on_finding import FindingCommand

    with closing(FindingCommand(arguments, say, str(place or ""))) as command:
        yield command.take


def warn(text: str) -> None:
    """One line on standard error, from any thread."""
    with suppress(OSError):  # no reader is left
        print(f"tensorwire-job: {text}", file=sys.stderr, flush=True)


def seconds_option(text: str, *, default: float | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "seconds",
        "--for",
        type=click.FloatRange(min=0),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=text,
    )


def threshold_options(defaults: Thresholds) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, text in reversed(_HELP.items()):
            function = click.option(
                f"--{name.replace('_', '-')}",
                type=click.FloatRange(min=0, min_open=True),
                default=getattr(defaults, name),
                show_default=True,
                metavar="SECONDS" if name.endswith("_seconds") else "X",
                help=text,
            )(function)
        return function

    return add


def thresholds_of(options: dict[str, float]) -> Thresholds:
    """The thresholds from the values of `threshold_options`; an analyzer that is asked has its own."""
    if click.get_current_context().params.get("analyzer_directory") is not None:
        for option in _given(options):
            name = f"--{option.replace('_', '-')}"
            raise click.UsageError(f"{name} has no effect with --analyzer-dir; give it to tensorwire-job analyzer")
    return _thresholds(options)


def recorded_thresholds(recording: Path, options: dict[str, float]) -> tuple[Thresholds, str]:
    """The thresholds of the options, else of the analyzer that made the recording, else an analyzer's defaults; and
    whose they are."""
    from ..service import recording as recordings

    recorded = recordings.recorded_thresholds(recording)
    whose = "the recording has none: an analyzer's defaults" if recorded is None else "of the recording"
    given = _given(options)
    return _thresholds(given, recorded), f"{whose}, where no option says otherwise" if given else whose


@contextmanager
def open_job(
    directory: Path | None, analyzer_directory: Path | None, thresholds: Thresholds
) -> Iterator[tuple[PolledJob, Path]]:
    """The job that an analyzer sees, or else one whose probes write to a directory of this machine; and the directory.
    FileNotFoundError if there is no page of a rank, or no state of an analyzer."""
    from .. import words
    from ..service.job_directory import job_directory
    from ..service.journal import AnalyzerState
    from ..service.service import LocalJob

    if analyzer_directory is None:
        found = job_directory(directory)
        with closing(LocalJob(found, thresholds)) as job:
            yield job, found
        return
    if directory is not None:
        raise click.UsageError("expected --dir or --analyzer-dir, got both")
    state = AnalyzerState(analyzer_directory)
    if state.silent_seconds > _SILENT_SECONDS:
        warn(f"the analyzer wrote this {words.seconds(state.silent_seconds)} ago and nothing since")
    yield state, analyzer_directory


@contextmanager
def open_jobs(
    directory: Path | None, analyzer_directory: Path | None, thresholds: Thresholds, *, with_old: bool
) -> Iterator[tuple[list[tuple[PolledJob, JobHere]], list[JobHere]]]:
    """The job that was named, or else all of this user on this machine that are to be judged, the newest first; and
    those that ended too long ago. FileNotFoundError as of `open_job`."""
    from ..service.job_directory import JobHere, jobs_here

    if analyzer_directory is not None:
        with open_job(directory, analyzer_directory, thresholds) as (source, path):
            yield [(source, JobHere(path))], []
        return
    judged, old = jobs_here(directory, with_old=with_old)
    with ExitStack() as stack:
        yield [(stack.enter_context(open_job(job.path, None, thresholds))[0], job) for job in judged], old


def used(source: PolledJob, thresholds: Thresholds) -> tuple[Thresholds, str]:
    """The thresholds that findings are made with, and whose they are if not the options': an analyzer has its own."""
    from ..service.journal import AnalyzerState

    if isinstance(source, AnalyzerState) and source.thresholds:
        return source.thresholds, "of the analyzer"
    return thresholds, ""


def check_alone(option: str, *others: str) -> None:
    """Refuse options that have no effect beside this one; --json has, and these others."""
    for other in _given(dict.fromkeys(click.get_current_context().params)):
        if other not in (option, "as_json", *others):
            raise click.UsageError(f"{_written(other)} has no effect with {_written(option)}")


def _written(option: str) -> str:
    return f"--{_NAMES.get(option, option).replace('_', '-')}"


def _thresholds(options: dict[str, float], others: Thresholds | None = None) -> Thresholds:
    try:
        return dataclasses.replace(others or Thresholds(), **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _given(options: dict[str, _T]) -> dict[str, _T]:
    """The options of the present command that were written down, and are not its defaults."""
    source = click.get_current_context().get_parameter_source
    return {name: value for name, value in options.items() if source(name) is not ParameterSource.DEFAULT}
