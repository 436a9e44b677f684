"""The findings on a job, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..model import ASKED, ASKED_SECONDS, Thresholds
from ..report import History
from .follow import ask, check_in_view
from .job_directory import job_directory
from .recording import recorded_thresholds, replay
from .service import LocalJob

if TYPE_CHECKING:
    import os

    from ..model import Finding


def changed(thresholds: Thresholds, given: Mapping[str, float | None]) -> Thresholds:
    """The thresholds with the given values, where they are not None, in place of their own."""
    return replace(thresholds, **{name: value for name, value in given.items() if value is not None})


def diagnose(
    directory: str | os.PathLike[str] | None = None,
    *,
    recording: str | os.PathLike[str] | None = None,
    seconds: float = ASKED_SECONDS,
    hang_seconds: float | None = None,
    slow_seconds: float | None = None,
    slow_factor: float | None = None,
    compute_share: float | None = None,
    transfer_share: float | None = None,
    lost_seconds: float | None = None,
) -> list[Finding]:
    """Name the ranks that hang or slow one job, as ``tensorwire-job diagnose --dir`` does.

    Reads what the probes of a running job write, or what a dead job left behind. Blocks while it polls, like the
    command: until findings are certain, or for `seconds`, or up to 40 s longer while an answer is due. It may ask the
    ranks to time their operations, and asks suspects for their stacks; the training script does not notice.

    Safe to call from any thread. Calls share no state in this process. A job has one set of requests, so let one call
    on a job end before the next one begins.

    Args:
        directory: where the probes of the job write; by default that of your newest job on this machine.
        recording: read this recording of an analyzer instead of a job, from its beginning to its end. The result is
            all findings on the way, in their order. Thresholds that are not given are then that analyzer's.
        seconds: poll for this long.
        hang_seconds: report a hang when an operation has made no progress for this long.
        slow_seconds: report a slowdown only after it has lasted this long.
        slow_factor: an operation rate this many times below its baseline counts as slow.
        compute_share: name slow computation if late arrival makes up at least this share of the lost time.
        transfer_share: name slow communication if late arrival makes up at most this share of the lost time.
        lost_seconds: report a process as lost when it has given no sign of life for this long.

    Thresholds that are not given are those of the command.

    Returns:
        The findings, the most important first, with evidence, confidence and the stacks of suspects. Findings of level
        "notice" are no trouble. Empty if nothing was found.

    Raises:
        FileNotFoundError: there is no job with the probe, or none of its ranks can be seen.
        CorruptDataError: the recording is damaged, or not of this version.
        ValueError: both `directory` and `recording` are given, or a threshold is out of its range.
        OSError: the directory or the recording cannot be read.
    """
    if directory is not None and recording is not None:
        raise ValueError("expected directory or recording, got both")
    if not seconds >= 0:  # of NaN no comparison is true
        raise ValueError(f"expected seconds of at least 0, got {seconds}")
    given = {
        "hang_seconds": hang_seconds,
        "slow_seconds": slow_seconds,
        "slow_factor": slow_factor,
        "compute_share": compute_share,
        "transfer_share": transfer_share,
        "lost_seconds": lost_seconds,
    }
    thresholds = changed(ASKED, given)
    history = History()
    if recording is not None:
        path = Path(recording)
        thresholds = changed(recorded_thresholds(path) or Thresholds(), given)
        for observation, findings in replay(path, thresholds):
            history.add(observation, findings)
        check_in_view(history, path)
        return [episode.finding for episode in history.episodes.values()]
    found = job_directory(None if directory is None else Path(directory))
    with closing(LocalJob(found, thresholds)) as job:
        (findings,) = ask([(job, history)], thresholds, seconds=seconds)
    check_in_view(history, found)
    return findings
