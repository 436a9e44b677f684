"""tensorwire-job diagnose"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire._ground.text import escape
from tensorwire.cli import options, output

from .. import words
from ..model import ASKED, ASKED_SECONDS
from . import arguments, verdict

if TYPE_CHECKING:
    from ..model import Finding, Thresholds
    from ..report import History
    from ..service.job_directory import JobHere
    from ..service.without_probe import UnseenJob

_MAX_SKIPPED = 20  # files that are told by name
_A_DAY = 24 * 3600.0


@dataclass
class _Judged:
    """A job, and what was found of it."""

    job: JobHere
    history: History
    findings: list[Finding]
    limits: Thresholds
    whose: str
    counts: bool = True  # for the exit code

    @property
    def path(self) -> Path:
        return self.job.path

    @property
    def exit_code(self) -> int:
        return verdict.exit_code(self.findings)

    @property
    def title(self) -> str:
        """ "train.py, started 13:14, running, 4 ranks"."""
        last = self.history.last
        assert last is not None, "nothing was observed"
        parts = [self.job.script or str(self.path)]
        if self.job.started is not None:
            day = "" if time.time() - self.job.started < _A_DAY else "%d %b "
            parts.append("started " + time.strftime(f"{day}%H:%M", time.localtime(self.job.started)))
        ranks = output.count(last.world_size, "rank")
        if self.history.is_over:
            return ", ".join([*parts, f"ended {self.history.ago(self.history.ended_seconds)}", ranks])
        alive = int(self.history.ranks.places.are_alive.sum())
        return ", ".join([*parts, "running", ranks if alive == last.world_size else f"{alive} of {ranks}"])

    def is_followed_by(self, newer: _Judged) -> bool:
        """Whether a newer job of the same script and user has no finding."""
        is_same = bool(self.job.script) and newer.job.script == self.job.script
        return is_same and newer.path.stat().st_uid == self.path.stat().st_uid and not newer.exit_code

    def print(self, number: str, *, in_short: bool) -> None:
        """Print all about the job, or a line with its first finding and the command that prints all."""
        if in_short:
            from ..report.codes import finding_line

            found = finding_line(self.findings[0], self.history) if self.findings else "no finding"
            leaves = (
                ""
                if self.counts or not self.exit_code
                else "; the exit code is not of it: a newer job of this script has no finding"
            )
            whole = f"; all of it: tensorwire-job diagnose --dir {shlex.quote(str(self.path))}"
            output.print_wrapped(f"{number}{self.title}: {found}{leaves}{whole}")
            return
        unseen = "; a job that started seconds ago cannot be seen yet" if self.history.is_over else ""
        output.print_wrapped(f"{number}{self.title}{unseen}")
        print()
        verdict.print_findings(self.findings, self.history, self.path)
        verdict.print_rank_status(self.history, self.findings)
        print()
        verdict.print_summary(self.history, self.findings, self.limits, self.path, self.whose)

    def as_object(self) -> dict[str, Any]:
        facts = {"directory": str(self.path), "script": self.job.script, "started": self.job.started}
        return {**facts, "counts": self.counts, **verdict.as_object(self.history, self.findings)}


@click.command()
@arguments.dir_option("those of all your jobs on this machine")
@arguments.analyzer_dir_option
@click.option(
    "with_all", "--all", is_flag=True, help="Judge jobs that ended more than an hour ago too, and print each job whole."
)
@arguments.seconds_option(
    "Poll for this many seconds, or until a finding is certain; while an answer is due, up to 40 s longer.",
    default=ASKED_SECONDS,
)
@click.option(
    "ras",
    "--ras",
    is_flag=False,
    flag_value="",
    metavar="[HOST:PORT]",
    help="Ask the RAS service of NCCL about a job without the probe; by default at NCCL_RAS_ADDR or localhost:28028.",
)
@click.option(
    "stacks",
    "--stacks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Read outputs of py-spy dump of a job without the probe: one file a rank, the last number in its name.",
)
@click.option(
    "flight_recorder",
    "--flight-recorder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Read dumps of torch's Flight Recorder of a job without the probe: one file a rank, the last number in its "
    "name.",
)
@arguments.threshold_options(ASKED)
@options.json_option
def command(
    directory: Path | None,
    analyzer_directory: Path | None,
    with_all: bool,
    seconds: float,
    ras: str | None,
    stacks: Path | None,
    flight_recorder: Path | None,
    as_json: bool,
    **thresholds: float,
) -> int:
    """Name the rank that hangs or slows a job.

    Reads what the probes of a running job write, or what a dead job left behind. Prints each finding: since when, how
    sure, its evidence, the stacks of the suspects, what to do and the command to type next; then the status of all
    ranks. Start the job with the probe: torchrun ARGS -m tensorwire_job train.py. Without --dir every job of yours on
    this machine is judged that runs, that ended within the last hour, or that is the newest. Jobs that ended
    get a line each. Exit code 0: no finding on any of them; 1: nothing to read; 3: a finding. A job that ended leaves
    it alone if a newer one of its script has no finding.

    \b
    Example:
      tensorwire-job diagnose
      tensorwire-job diagnose --for 180 --json
    """
    if stacks is not None:
        arguments.check_alone("stacks")
        return _read_stacks(stacks, as_json=as_json)
    if flight_recorder is not None:
        arguments.check_alone("flight_recorder", "hang_seconds")
        return _read_dumps(flight_recorder, arguments.thresholds_of(thresholds), as_json=as_json)
    if ras is not None:
        return _ask_ras(ras or None, seconds, as_json=as_json)
    from ..service.without_probe import unseen_jobs

    named = directory or analyzer_directory
    if named and with_all:
        raise click.UsageError("--all has no effect with a directory of one job")
    unseen = [] if named else unseen_jobs()
    try:
        seen, old = _judge(directory, analyzer_directory, thresholds, seconds, with_old=with_all)
    except FileNotFoundError:
        for each in unseen:
            arguments.warn(f"{_without_probe(each)}\n  next: {_take_stacks(each)}")
        raise
    for number, job in enumerate(seen):
        job.counts = not job.history.is_over or not any(job.is_followed_by(newer) for newer in seen[:number])
    whole = [job for number, job in enumerate(seen) if with_all or number == 0 or not job.history.is_over]
    seen.sort(key=lambda job: (-job.exit_code, not job.findings))
    if as_json:
        ended = [{"directory": str(job.path), "ended_seconds": job.ended_seconds} for job in old]
        output.print_json({"jobs": [job.as_object() for job in seen], "ended": ended, "without_probe": unseen})
    else:
        for number, job in enumerate(sorted(seen, key=lambda job: job not in whole), 1):
            if number > 1 and (job in whole or number == len(whole) + 1):
                print()
            job.print(f"job {number} of {len(seen)}: " if len(seen) > 1 else "", in_short=job not in whole)
        if old:
            many = output.count(len(old), "job")
            output.print_wrapped(
                f"and {many} that ended more than an hour ago; of them too: tensorwire-job diagnose --all"
            )
        for each in unseen:
            output.print_wrapped(f"note: {_without_probe(each)}")
            output.print_line(f"  next: {_take_stacks(each)}")
    return max(job.exit_code for job in seen if job.counts)


def _judge(
    directory: Path | None,
    analyzer_directory: Path | None,
    thresholds: dict[str, float],
    seconds: float,
    *,
    with_old: bool,
) -> tuple[list[_Judged], list[JobHere]]:
    """The jobs that are to be judged and have a rank in view, the newest first; and those that ended too long ago."""
    from ..report import History
    from ..service.follow import ask, check_in_view

    limits = arguments.thresholds_of(thresholds)
    with arguments.open_jobs(directory, analyzer_directory, limits, with_old=with_old) as (opened, old):
        histories = [History() for _ in opened]
        asked = [(source, history) for (source, _), history in zip(opened, histories, strict=True)]
        found = ask(asked, limits, seconds=seconds)
        judged = [
            _Judged(job, history, findings, *arguments.used(source, limits))
            for (source, job), history, findings in zip(opened, histories, found, strict=True)
        ]
    seen = [job for job in judged if job.history.last is not None and job.history.last.ranks]
    for job in judged:
        if not seen:
            check_in_view(job.history, job.path)
        elif job not in seen:
            arguments.warn(f"{escape(str(job.path))} is skipped: no rank is in view")
    return seen, old


def _without_probe(job: UnseenJob) -> str:
    ranks = output.count(job.num_ranks, "rank")
    return (
        f"{escape(job.script)} runs here without the probe ({ranks}, started by pid {job.pid}); "
        "if it hangs, the stacks of its ranks tell something"
    )


def _take_stacks(job: UnseenJob) -> str:
    """What a shell runs to take the stacks of the ranks on this machine, and to ask about them."""
    rank = "$(tr '\\0' '\\n' < /proc/$pid/environ | sed -n 's/^RANK=//p')"
    return (
        f"mkdir -p stacks; for pid in $(pgrep -P {job.pid}); do py-spy dump --full-filenames --pid $pid "
        f"> stacks/pid$pid-rank{rank}.txt; done; tensorwire-job diagnose --stacks stacks    (pip install py-spy)"
    )


def _ask_ras(address: str | None, seconds: float, *, as_json: bool) -> int:
    """Two answers of the service, `seconds` apart, show which ranks make no progress."""
    from ..nccl.ras import query_ras
    from ..nccl.ras_findings import findings_of

    before = query_ras(address)
    time.sleep(seconds)
    after = query_ras(address)
    findings = findings_of(before, after, seconds)
    if as_json:
        output.print_json({"nccl_version": after.nccl_version, "findings": findings})
    else:
        verdict.print_findings(findings)
        if not findings:
            output.print_line(
                f"{len(after.communicators)} communicators of NCCL {after.nccl_version}: no rank is behind"
            )
    return verdict.exit_code(findings)


def _read_stacks(directory: Path, *, as_json: bool) -> int:
    """What stacks of all ranks tell, taken by other means."""
    from ..service.dumped_stacks import findings_of, read_places

    places, skipped = read_places(directory)
    how = "take one of each: py-spy dump --pid PID > DIR/rank0.txt"
    _warn_of_files(directory, places, skipped, "stack", how)
    findings = findings_of(places)
    texts = {rank: place.text for rank, place in places.items()}
    return _print_found(findings, texts, "no rank waits for another one that has a stack here", as_json=as_json)


def _read_dumps(directory: Path, limits: Thresholds, *, as_json: bool) -> int:
    """What the Flight Recorders of all ranks tell."""
    from ..service.recorder_dumps import read_dumps
    from ..service.recorder_findings import findings_of, place_of

    dumps, skipped = read_dumps(directory)
    how = "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 before the job starts"
    _warn_of_files(directory, dumps, skipped, "dump", how)
    findings = findings_of(dumps, limits)
    places = {rank: place_of(dump) for rank, dump in dumps.items()}
    none = (
        f"no rank waits for more than {limits.hang_seconds:g} s (--hang-seconds) for another one that has a dump here"
    )
    return _print_found(findings, places, none, as_json=as_json)


def _warn_of_files(directory: Path, found: Collection[int], skipped: Mapping[str, str], noun: str, how: str) -> None:
    """Tell which files are left out, and which ranks have none; UsageError where no file is of a rank."""
    for name, why in list(skipped.items())[:_MAX_SKIPPED]:
        arguments.warn(f"{escape(name)} is skipped: {escape(why)}")
    if len(skipped) > _MAX_SKIPPED:
        arguments.warn(f"{len(skipped) - _MAX_SKIPPED} more files are skipped")
    if not found:
        raise click.UsageError(f"{escape(str(directory))} has no {noun} of a rank; {how}")
    lacking = set(range(max(found))) - set(found)
    if lacking:
        hint = ": is the last number in each name the rank?" if len(lacking) > len(found) else ""
        arguments.warn(f"{escape(str(directory))} has no {noun} of {words.ranks(lacking)}{hint}")


def _print_found(findings: list[Finding], places: Mapping[int, str], none: str, *, as_json: bool) -> int:
    """Print what was found of a job without the probe, or `none`, and where its ranks stand."""
    if as_json:
        output.print_json({"findings": findings, "places": places})
        return verdict.exit_code(findings)
    verdict.print_findings(findings)
    by_place: dict[str, list[int]] = {}
    for rank, place in places.items():
        by_place.setdefault(place, []).append(rank)
    for line in output.first([f"{words.ranks(ranks)}: {text}" for text, ranks in by_place.items()], "place"):
        output.print_line(line)
    if not findings:
        output.print_wrapped(f"no finding: {none}")
    return verdict.exit_code(findings)
