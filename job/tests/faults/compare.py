"""python -m job.tests.faults.compare: what other tools tell of the same faults.

Each fault is injected into a job without the probe. A few seconds later a person looks at the stacks of all ranks
(py-spy dump), and at the dumps of the Flight Recorder (torchfrtrace). Then the time-out of the process group comes (in
seconds here, 30 minutes by default; gloo has it in place of NCCL's watchdog), and the errors of the ranks are read.
The last column is the verdict of the analyzer of now on the recording of the case in job/tests/recordings.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from benchmarks.environment import child, describe
from benchmarks.results_page import Page, indented
from benchmarks.tables import of_columns
from job.benchmarks import RESULTS
from tests.support.links import Network

from .cases import BY_NAME, CASES, Case
from .fork_server import ForkServer
from .injections import FaultContext
from .matrix_page import RECORDINGS
from .needs import missing
from .recorded import polls_of
from .training_job import WORLD_SIZE, TrainingJob
from .watch import is_finding

if TYPE_CHECKING:
    from pathlib import Path

    from .results import Row

_AWAY_SECONDS = 600.0  # a rank that is away does not come back
_LOOK_SECONDS = 4.0  # after the fault
_TIMEOUT_SECONDS = 14.0  # of the process groups
_AFTER_SECONDS = 3.0
_DUMP_SECONDS = 8.0
_WIDTH = 90
_LIMITS = (
    "Cases in which nothing is wrong are left out, and gloo's time-out stands for the watchdog that NCCL has. The "
    "column tensorwire is the verdict on the recording of the case in `job/tests/recordings`, not on the job "
    "that the others looked at."
)
_MESSAGE = re.compile(r"^(?:\[rank\d\]: )?(\w*(?:Error|Exception|Interrupt): .*|  what\(\):.*)$", re.M)
_CALL = re.compile(r"^    (\S+) \((.*)\)$", re.M)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m job.tests.faults.compare", description=__doc__)
    parser.add_argument(
        "--case", action="append", choices=[case.name for case in CASES], help="only this one; may be repeated"
    )
    parser.add_argument("--page", action="store_true", help="run nothing: write the page of the results anew")
    options = parser.parse_args()
    if options.page:
        PAGE.write(RESULTS)
        return
    cases = [BY_NAME[name] for name in options.case] if options.case else CASES
    facts = describe("python -m job.tests.faults.compare", None if options.case else RESULTS)
    rows, skipped = [], {}
    with closing(ForkServer()) as fork_server:
        for case in cases:
            if case.kind == "none":
                continue
            reason = "it is about our own services" if case.needs == "services" else missing(case.needs)
            if reason:
                skipped[case.name] = reason
                continue
            rows.append(compare(case, fork_server))
            print(json.dumps(rows[-1], indent=1), file=sys.stderr, flush=True)
    PAGE.keep({"environment": facts, "skipped": skipped, "rows": rows}, RESULTS, write=not options.case)


def compare(case: Case, fork_server: ForkServer) -> Row:
    """A row of the table, but for our verdict."""
    rank = recorded_rank(case)
    environment = {"TW_FAULTS_TIMEOUT": str(_TIMEOUT_SECONDS), "TW_FAULTS_DUMPS": "1"}
    with ExitStack() as stack:
        network = stack.enter_context(closing(Network(WORLD_SIZE))) if case.uses_network else None
        module = ("job.tests.faults.job",)
        job = TrainingJob(fork_server, case.settings, network=network, modules=module, **environment)
        stack.enter_context(closing(job))
        job.wait_for_round(20)
        context = FaultContext(job, rank, away_seconds=_AWAY_SECONDS)
        before, injected = job.rounds(), time.monotonic()
        stack.callback(context.mend)
        case.inject(context)
        time.sleep(_LOOK_SECONDS)
        stacks, recorder = _stacks(job), _flight_recorder(job)
        time.sleep(max(0.0, injected + _TIMEOUT_SECONDS + _AFTER_SECONDS - time.monotonic()))
        errors = _errors(job, before)
    told = {"errors": errors, "recorder": recorder, "stacks": stacks}
    return {"case": case.name, "rank": rank, **{key: cell.replace("|", "\\|") for key, cell in told.items()}}


def recorded_rank(case: Case) -> int:
    """The faulty rank of the case's recording."""
    paths = sorted(RECORDINGS.glob(f"{case.name}-?.jsonl.gz"))
    return int(paths[0].name.removesuffix(".jsonl.gz")[-1]) if paths else case.ranks[0]


def _errors(job: TrainingJob, before: list[int]) -> str:
    """What the ranks have printed since, as a person finds it in their logs."""
    raised: dict[str, list[int]] = {}
    for rank in range(WORLD_SIZE):
        found = _MESSAGE.findall(job.output(rank).read_text())
        if found:
            raised.setdefault(_shortened(found[-1]), []).append(rank)
    lines = [f"{_ranks(ranks)}: {text}" for text, ranks in raised.items()]
    told = {rank for ranks in raised.values() for rank in ranks}
    gone = [rank for rank in range(WORLD_SIZE) if rank not in told and job.status(rank) is not None]
    lines += [f"{_ranks([rank])}: gone, status {job.status(rank)}" for rank in gone]
    if lines:
        return "<br>".join(lines)
    moved = min(after - begun for after, begun in zip(job.rounds(), before, strict=True))
    return "nothing: the job goes on" if moved > 2 else "nothing: it waits"


def _shortened(text: str) -> str:
    """Without what differs from rank to rank and says nothing: places in the source, addresses."""
    text = re.sub(r"\[(?:enforce fail at )?/\S+\.cc:\d+\]\s*", "", text.replace("what():", "").strip())
    text = re.sub(r"\[?[\d.]+\]?:\d+|\[10\.77\.\S+", "ADDRESS", text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _flight_recorder(job: TrainingJob) -> str:
    """What torchfrtrace makes of the ranks' dumps."""
    folder = job.folder / "dumps"
    (job.folder / "dump").touch()
    deadline = time.monotonic() + _DUMP_SECONDS
    while time.monotonic() < deadline and len(_dumps(folder)) < WORLD_SIZE:
        time.sleep(0.05)
    given = _dumps(folder)
    lacking = [rank for rank in range(WORLD_SIZE) if rank not in given]
    if not given:
        return "no dumps"
    text = f"no dump of {_ranks(lacking)}; " if lacking else ""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "rank_", "-j"]
    done = subprocess.run(command, capture_output=True, text=True, env=child(), check=False)
    last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    return text + (f"torchfrtrace fails: {last}" if done.returncode else f"torchfrtrace: {last}")[:_WIDTH]


def _dumps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("rank_")) for path in folder.glob("rank_?"))


def _stacks(job: TrainingJob) -> str:
    """Where py-spy finds the main thread of each rank: the innermost functions of the script and of torch."""
    program = shutil.which("py-spy")
    if program is None:
        return "py-spy is not installed"
    places: dict[str, list[int]] = {}
    for rank, pid in enumerate(job.pids):
        if job.status(rank) is not None:
            places.setdefault("no process", []).append(rank)
            continue
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = _CALL.findall(done.stdout.partition('"MainThread"')[2].partition("Thread ")[0])
        place = next((name for name, file in found if "faults/job.py" in file), "") if found else "no stack"
        inner = next((name for name, file in found if "distributed_c10d.py" in file), "")
        places.setdefault(f"{place} > {inner}" if inner else place, []).append(rank)
    return "<br>".join(f"{_ranks(ranks)}: {place}" for place, ranks in places.items())


def _verdict(row: Row) -> str:
    path = RECORDINGS / f"{row['case']}-{row['rank']}.jsonl.gz"
    if not path.exists():
        return "not recorded"
    found = [finding for poll in polls_of(path) for finding in poll.findings if is_finding(finding)]
    return f"{found[0].code}: {found[0].summary}" if found else "nothing"


def _ranks(numbers: list[int]) -> str:
    if len(numbers) == WORLD_SIZE:
        return "all ranks"
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def _parts(results: dict[str, Any]) -> list[str]:
    facts = results["environment"]
    parts = [
        "# What other tools tell of the same faults",
        f"Process groups with a time-out of {_TIMEOUT_SECONDS:g} s; stacks and dumps {_LOOK_SECONDS:g} s after the "
        f"fault. torch {facts['versions']['torch']}, gloo, {WORLD_SIZE} ranks; `{facts['command']}`, {facts['date']}.",
        _LIMITS,
        of_columns(_COLUMNS, results["rows"]),
    ]
    if results["skipped"]:
        parts.append(f"Left out: {', '.join(f'{name} ({why})' for name, why in results['skipped'].items())}.")
    return parts


_COLUMNS = (
    ("fault", lambda row: f"{row['case']}, rank {row['rank']}"), ("errors after the time-out", "errors", ""),
    ("Flight Recorder", "recorder", ""), ("py-spy dump", "stacks", ""), ("tensorwire", _verdict),
)  # fmt: skip
PAGE = Page("diagnosis-comparison", _parts, dumps=indented)


if __name__ == "__main__":
    main()
