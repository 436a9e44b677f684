"""tensorwire-job report"""

from __future__ import annotations

from pathlib import Path

import click

from tensorwire._ground.new_file import NewFile
from tensorwire.cli import options, output

from ..model import ASKED, ASKED_SECONDS
from . import arguments, verdict


@click.command()
@arguments.dir_option()
@click.option(
    "--recording",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read a job that an analyzer recorded; thresholds are then those of that analyzer unless given.",
)
@click.option(
    "path",
    "-o",
    "--output",
    type=options.NEW_PATH,
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
    help="File to write the page to.",
)
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@arguments.seconds_option(
    "Poll a live job for this many seconds; while an answer is due, up to 40 s longer.",
    default=ASKED_SECONDS,
)
@arguments.threshold_options(ASKED)
@options.json_option
def command(
    directory: Path | None,
    recording: Path | None,
    path: Path,
    force: bool,
    seconds: float,
    as_json: bool,
    **thresholds: float,
) -> int:
    """Write one HTML page about a job.

    The page shows findings with their evidence and stacks, the status of all ranks, timelines and heat maps. It needs
    no other file and no network. Exit code 0: no finding; 1: nothing to read; 3: a finding.

    \b
    Example:
      tensorwire-job report -o hang.html
      tensorwire-job report --recording job/recording.jsonl.gz -o monday.html
    """
    from ..report import History, render
    from ..report.codes import finding_line
    from ..service.follow import check_in_view, follow_to_answer

    if not path.parent.is_dir():
        raise click.UsageError(f"no directory {str(path.parent)!r}: make it first, or name another file with -o")
    if recording is not None and directory is not None:
        raise click.UsageError("expected --dir or --recording, got both")
    if recording is not None:
        limits, whose = arguments.recorded_thresholds(recording, thresholds)
    else:
        limits, whose = arguments.thresholds_of(thresholds), ""
    file = NewFile(path, force=force, example="report.html")
    history = History(with_past=True, recorded=recording is not None)
    if recording is not None:
        from ..service.recording import replay

        origin = recording
        for observation, findings in replay(recording, limits):
            history.add(observation, findings)
    else:
        with arguments.open_job(directory, None, limits) as (source, origin):
            for _ in follow_to_answer(source, history, limits, seconds=seconds):
                pass
    check_in_view(history, origin)
    page = render(history, limits, source=str(origin), whose=whose)
    file.write(page.encode(errors="replace"))  # half a surrogate pair is text to JSON
    found = [episode.finding for episode in history.episodes.values()]
    if as_json:
        output.print_json({"path": str(path), "thresholds": limits, **verdict.as_object(history, found)})
    else:
        verdict.print_end(history)
        for finding in found:
            output.print_wrapped(finding_line(finding, history))
        output.print_wrapped(verdict.thresholds_line(limits, whose))
        output.print_line(f"wrote {path}")
    return verdict.exit_code(found)
