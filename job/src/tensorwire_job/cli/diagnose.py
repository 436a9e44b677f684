"""tensorwire-job diagnose"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire._ground.text import escape
from tensorwire.cli import options, output

from .. import words
from ..model import ASKED, ASKED_SECONDS
from . import arguments, verdict

if TYPE_CHECKING:
    from ..model import Finding, Thresholds
    from ..report import History

_MAX_SKIPPED = 20  # files that are told by name


@dataclass
class _Judged:
    """A job, and what was found of it."""

    path: Path
    history: History
    findings: list[Finding]
    limits: Thresholds
    whose: str

    def print(self) -> None:
        verdict.print_end(self.history)
        verdict.print_findings(self.findings, self.history)
        verdict.print_rank_status(self.history, self.findings)
        print()
        verdict.print_summary(self.history, self.findings, self.limits, self.path, self.whose)


@click.command()
@arguments.dir_option("those of all your jobs on this machine")
@arguments.analyzer_dir_option
@arguments.seconds_option(
    "Poll for this many seconds, or until a finding is certain; while ranks time operations, up to 40 s longer.",
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
@arguments.threshold_options(ASKED)
@options.json_option
def command(
    directory: Path | None,
    analyzer_directory: Path | None,
    seconds: float,
    ras: str | None,
    stacks: Path | None,
    as_json: bool,
    **thresholds: float,
) -> int:
    """Name the rank that hangs or slows a job.

    Reads what the probes of a running job write, or what a dead job left behind. Prints each finding with its
    confidence, its evidence, the stacks of the suspects and what to do; then the status of all ranks. Start the job
    with the probe: torchrun ARGS -m tensorwire_job train.py. Without --dir every job of yours on this machine is
    judged that runs, that ended within the last hour, or that is the newest; older ones are told in a line. Exit code
    0: no finding on any of them; 1: nothing to read; 3: a finding.

    \b
    Example:
      tensorwire-job diagnose
      tensorwire-job diagnose --for 180 --json
    """
    if stacks is not None:
        arguments.check_alone("stacks")
        return _read_stacks(stacks, as_json=as_json)
    if ras is not None:
        return _ask_ras(ras or None, seconds, as_json=as_json)
    from ..report import History
    from ..service.follow import ask, check_in_view

    limits = arguments.thresholds_of(thresholds)
    with arguments.open_jobs(directory, analyzer_directory, limits) as (opened, ended):
        histories = [History() for _ in opened]
        asked = [(source, history) for (source, _), history in zip(opened, histories, strict=True)]
        found = ask(asked, limits, seconds=seconds)
        judged = [
            _Judged(path, history, findings, *arguments.used(source, limits))
            for (source, path), history, findings in zip(opened, histories, found, strict=True)
        ]
    seen = [job for job in judged if job.history.last is not None and job.history.last.ranks]
    for job in judged:
        if not seen:
            check_in_view(job.history, job.path)
        elif job not in seen:
            arguments.warn(f"{escape(str(job.path))} is skipped: no rank is in view")
    seen.sort(key=lambda job: (-verdict.exit_code(job.findings), not job.findings))
    if as_json:
        jobs = [{"directory": str(job.path), **verdict.as_object(job.history, job.findings)} for job in seen]
        old = [{"directory": str(path), "ended_seconds": age} for path, age in ended.items()]
        output.print_json({"jobs": jobs, "ended": old})
    else:
        for number, job in enumerate(seen, 1):
            if number > 1:
                print()
            if len(seen) > 1:
                output.print_line(f"job {number} of {len(seen)}: {job.path}")
            job.print()
        for path, age in ended.items():
            output.print_wrapped(
                f"{path}: the job ended {words.seconds(age)} ago, and is judged only if --dir names it"
            )
    return max(verdict.exit_code(job.findings) for job in seen)


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
    for name, why in list(skipped.items())[:_MAX_SKIPPED]:
        arguments.warn(f"{escape(name)} is skipped: {escape(why)}")
    if len(skipped) > _MAX_SKIPPED:
        arguments.warn(f"{len(skipped) - _MAX_SKIPPED} more files are skipped")
    if not places:
        raise click.UsageError(
            f"{escape(str(directory))} has no stack of a rank; take one of each: py-spy dump --pid PID > DIR/rank0.txt"
        )
    lacking = set(range(max(places))) - places.keys()
    if lacking:
        hint = ": is the last number in each name the rank?" if len(lacking) > len(places) else ""
        arguments.warn(f"{escape(str(directory))} has no stack of {words.ranks(lacking)}{hint}")
    findings = findings_of(places)
    if as_json:
        output.print_json({"findings": findings, "places": {rank: place.text for rank, place in places.items()}})
        return verdict.exit_code(findings)
    verdict.print_findings(findings)
    by_place: dict[str, list[int]] = {}
    for rank, place in places.items():
        by_place.setdefault(place.text, []).append(rank)
    for line in output.first([f"{words.ranks(ranks)}: {text}" for text, ranks in by_place.items()], "place"):
        output.print_line(line)
    if not findings:
        output.print_wrapped("no finding: no rank waits for another one that has a stack here, and is not importing")
    return verdict.exit_code(findings)
