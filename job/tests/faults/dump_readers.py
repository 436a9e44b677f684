"""python -m job.tests.faults.dump_readers: what two readers tell of the same dumps of Flight Recorders.

Twenty programs that hang run without the probe. Some seconds after the fault each rank dumps its Flight Recorder.
`tensorwire-job diagnose --flight-recorder` and torch's torchfrtrace read the dumps. torch 2.13 leaves out of gloo's
dumps which ranks a process group has, and torchfrtrace fails without. So both read them once more with these put in, as
each rank knows them and as NCCL's dumps have them.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.environment import ROOT, child, describe
from benchmarks.pages import table
from tensorwire_job.service.recorder_dumps import read_dumps
from tensorwire_job.service.recorder_findings import findings_of

from .cases import BY_NAME, GATES, Case
from .dumped import DUMPS, GROUPS, REQUEST
from .fork_server import ForkServer
from .program_job import ProgramJob
from .program_run import IMPORTS, await_fault
from .training_job import WORLD_SIZE

if TYPE_CHECKING:
    from collections.abc import Collection

RESULTS = ROOT / "job" / "benchmarks" / "results" / "diagnosis-dumps.json"
PROGRAMS = (  # chosen before any of their dumps was read
    "loader-worker", "two-groups-left-early", "mesh-leave-early", "mesh-first-operation", "mesh-new-dp",
    "recv-chain", "pipeline", "save-of-one-rank", "uneven-then-barrier", "store-key", "rejection-loop", "dead-thread",
    "some-gather", "skipped-sync", "cleanup-barrier", "lock-order", "frozen", "validation-of-one", "other-keys",
    "wrong-mesh-axis",
)  # fmt: skip
FORMS = {"gloo": "as gloo's recorder writes them", "ranks": "with the ranks of groups put in"}
READERS = {
    f"{reader}, {form}": f"{name}, {about}"
    for form, about in FORMS.items()
    for reader, name in (("tensorwire", "`diagnose --flight-recorder`"), ("torchfrtrace", "torchfrtrace"))
}
VERDICTS = ("right alone", "among others", "sides", "nothing", "fails", "wrong alone", "others only")
_LOOK_SECONDS = 8.0  # after the fault
_DUMP_SECONDS = 12.0
_MISSING = re.compile(r"missing ranks: (\{[^}]*\})|Culprit rank ([0-9]+)")
_WIDTH = 160


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m job.tests.faults.dump_readers", description=__doc__)
    parser.add_argument("--case", action="append", choices=PROGRAMS, help="only this one; may be repeated")
    parser.add_argument("--dumps", type=Path, metavar="DIR", help="read those of a former run, or leave them here")
    options = parser.parse_args()
    facts = describe("python -m job.tests.faults.dump_readers", None if options.case else RESULTS.parent)
    rows = []
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    with ExitStack() as stack:
        dumps = options.dumps or Path(stack.enter_context(TemporaryDirectory()))
        fork_server = stack.enter_context(closing(ForkServer(TW_FAULTS_IMPORTS=IMPORTS)))
        for name in options.case or PROGRAMS:
            case = BY_NAME[name]
            rank = case.ranks[PROGRAMS.index(name) % len(case.ranks)]
            if not (dumps / name).exists():
                run(fork_server, case, rank, dumps / name)
            rows.append(read(case, rank, dumps / name))
            print(json.dumps(rows[-1], indent=1), file=sys.stderr, flush=True)
    if not options.case:
        RESULTS.write_text(json.dumps(facts | {"counts": counts(rows), "runs": rows}, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(page(rows, facts))


def run(fork_server: ForkServer, case: Case, rank: int, keep: Path) -> None:
    """Leave the dumps of a run in two folders: as gloo's recorder writes them, and as NCCL's would."""
    with closing(ProgramJob(fork_server, case, rank, runner=(f"{__package__}.dumped",))) as job:
        start = await_fault(job)
        time.sleep(max(0.0, start + _LOOK_SECONDS - time.monotonic()))
        (job.folder / REQUEST).touch()
        folder, groups = job.folder / DUMPS, job.folder / GROUPS
        folder.mkdir(exist_ok=True)
        deadline = time.monotonic() + _DUMP_SECONDS
        while time.monotonic() < deadline and len(list(folder.iterdir())) < WORLD_SIZE:
            time.sleep(0.05)
        for each in FORMS:
            (keep / each).mkdir(parents=True)
        for path in folder.iterdir():
            shutil.copy2(path, keep / "gloo")
            dump = pickle.loads(path.read_bytes())
            dump["pg_config"] = json.loads((groups / path.name).read_text())
            (keep / "ranks" / path.name).write_bytes(pickle.dumps(dump, 2))
            shutil.copystat(path, keep / "ranks" / path.name)


def read(case: Case, rank: int, keep: Path) -> dict[str, Any]:
    """What the readers say of the dumps of a run."""
    row: dict[str, Any] = {"case": case.name, "about": case.about, "rank": rank, "class": " or ".join(case.codes)}
    row["dumps"] = len(list((keep / "gloo").iterdir()))
    for form in FORMS:
        for reader, ask in (("tensorwire", _tensorwire), ("torchfrtrace", _torchfrtrace)):
            text, named, has_sides = ask(keep / form)
            row[f"{reader}, {form}"] = {"verdict": _judged(case, rank, named, has_sides, text), "says": text[:_WIDTH]}
    return row


def _judged(case: Case, rank: int, named: Collection[int], has_sides: bool, text: str) -> str:
    right = case.suspects(rank)
    if sorted(named) == right:
        return "right alone"
    if not named:
        return "fails" if text.startswith("fails") else "sides" if has_sides else "nothing"
    if set(right) & set(named):
        return "among others"
    return "wrong alone" if len(named) == 1 else "others only"


def _tensorwire(folder: Path) -> tuple[str, list[int], bool]:
    """What it says, the ranks that its first finding names, and whether that has sides."""
    dumps, _ = read_dumps(folder)
    found = findings_of(dumps, GATES) if dumps else []
    text = "; ".join(f"{finding.code} {finding.confidence}: {finding.summary}" for finding in found)
    return (text, found[0].suspects, bool(found[0].sides)) if found else ("no finding", [], False)


def _torchfrtrace(folder: Path) -> tuple[str, list[int], bool]:
    """What it says, and the ranks that its first complaint names."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "rank_"]
    command.append("--allow-incomplete-ranks")
    done = subprocess.run(command, capture_output=True, text=True, env=child(), check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode:
        return f"fails: {lines[-1] if lines else 'without a word'}", [], False
    for line in lines:
        found = [(ranks, culprit) for ranks, culprit in _MISSING.findall(line)]
        if found:
            numbers = re.findall("[0-9]+", " ".join(ranks + " " + culprit for ranks, culprit in found))
            return line.partition(": ")[2].strip() or line, sorted(set(map(int, numbers))), False
    return "no complaint that names a rank", [], False


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How often each verdict, by the name of the reader."""
    told = {name: Counter(row[reader]["verdict"] for row in rows) for reader, name in READERS.items()}
    return {name: {verdict: found[verdict] for verdict in VERDICTS} for name, found in told.items()}


def page(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    said = (
        [row["case"], row["about"], str(row["rank"]), row["class"]]
        + [f"{row[each]['verdict']}: {row[each]['says']}".replace("|", "\\|") for each in READERS]
        for row in rows
    )
    lines = [
        "# What two readers tell of the same dumps",
        "",
        f"Dumps of gloo's Flight Recorder {_LOOK_SECONDS:g} s after the fault, of {WORLD_SIZE} ranks without the "
        f"probe; hangs of {GATES.hang_seconds:g} s. torch {facts['versions']['torch']}; `{facts['command']}`, "
        f"{facts['date']}.",
        "",
        table(("reader", *VERDICTS), ([name, *map(str, found.values())] for name, found in counts(rows).items())),
        "",
        table(("program", "fault", "rank", "class", *READERS.values()), said),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
