"""python -m benchmarks.diagnosis.simulate: simulated jobs through the agents' protocol and the analyzer.

Nothing here is a measurement of a real job; times are those of protocol and analyzer on this machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import environment
from benchmarks.diagnosis import scenarios
from benchmarks.diagnosis.layout import RANKS_PER_NODE, Layout
from benchmarks.diagnosis.simulated_job import SimulatedJob
from tensorwire.diagnosis.encoding import Encoder
from tensorwire.diagnosis.merge import Nodes
from tensorwire.diagnosis.model import Finding, Thresholds
from tensorwire.diagnosis.service import Desk
from tensorwire.diagnosis.wire import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).resolve().parent.parent / "results"
LAYOUTS = (Layout(4, 2, 8), Layout(4, 4, 4, "tree"), Layout(1, 1, 16), Layout(8, 1, 8, "tree"))
LARGE = (Layout(8, 8, 64), Layout(8, 8, 256))
FAULT = 150.0  # seconds from the start of a run: the analyzer knows the job's pace by then
STEP = 2.0  # seconds between observations; agents are silent after 5
GOALS = {4096: 0.050, 16384: 0.150}  # seconds of an update that locates a hang, on one core
INGEST_GOAL = 0.05  # of a core, for 4,096 ranks at 1 Hz


class Bench:
    """One simulated job, its agents' encoders, and the analyzer's end."""

    def __init__(self, layout: Layout, seed: int, thresholds: Thresholds | None = None) -> None:
        self.job = SimulatedJob(layout, seed)
        self.nodes = Nodes("simulated")
        self.desk = Desk(thresholds or Thresholds(), self)
        self._encoders: dict[str, Encoder] = {}

    def arm(self, first: dict[str, int], num_rounds: int) -> None:
        self.job.arm(first, num_rounds)

    def request_stack(self, rank: int) -> None:
        self.desk.add_stack(rank, "simulated")

    def look(self, now: float, silent: str = "") -> list[Finding]:
        """Let the job run until now, and analyze what its agents report."""
        self.job.advance(now)
        for name, observation in self.job.observe().items():
            if name == silent:
                continue
            if name not in self._encoders:
                self._encoders[name] = Encoder()
                self.nodes.join(name, now)
            text = json.dumps(self._encoders[name].report(observation))
            self.nodes.report(name, json.loads(text), now)
        return self.desk.look(self.nodes.observe(now))


def run(scenario: scenarios.Scenario, bench: Bench) -> Iterator[tuple[float, list[Finding]]]:
    """What is found, second by second."""
    events = sorted(scenario.events, key=lambda event: event[0])
    now = 0.0
    while now <= FAULT + scenario.seconds:
        while events and now >= FAULT + events[0][0]:
            events.pop(0)[1](bench.job)
        node, seconds = scenario.silent
        yield now, bench.look(now, node if FAULT <= now < FAULT + seconds else "")
        now += STEP


def accuracy(num_runs: int) -> tuple[list[dict[str, Any]], dict[str, Counter[str]]]:
    """Runs of every scenario on every layout: how often class and rank are right, and what was said instead."""
    rows: dict[str, dict[str, Any]] = {}
    confusion: dict[str, Counter[str]] = defaultdict(Counter)
    for layout in LAYOUTS:
        for seed in range(num_runs):
            rank = scenarios.random_rank(SimulatedJob(layout, 0), seed)
            example = SimulatedJob(layout, 0)
            names = [one.name for one in (*scenarios.faults(example, rank), *scenarios.harmless(example, rank))]
            for name in names:
                bench = Bench(layout, seed)
                every = (*scenarios.faults(bench.job, rank), *scenarios.harmless(bench.job, rank))
                _judge(next(one for one in every if one.name == name), bench, rows, confusion)
    return list(rows.values()), confusion


def _judge(
    scenario: scenarios.Scenario, bench: Bench, rows: dict[str, dict[str, Any]], confusion: dict[str, Counter[str]]
) -> None:
    row = rows.setdefault(
        scenario.name,
        {"scenario": scenario.name, "code": scenario.code, "runs": 0, "class": 0, "rank": 0, "early": 0, "seconds": []},
    )
    final: list[Finding] = []
    first = None
    false = False
    for now, findings in run(scenario, bench):
        final = [finding for finding in findings if finding.level == "finding"]
        if final and (now < FAULT or not scenario.code):
            false = True
        if final and first is None:
            first = now - FAULT
    codes, suspects = [finding.code for finding in final], [finding.suspects for finding in final]
    right, exact = scenarios.is_right(scenario, codes, suspects)
    row["runs"] += 1
    row["class"] += right and not false
    row["rank"] += exact and not false
    row["early"] += false
    if first is not None:
        row["seconds"].append(first)
    confusion[scenario.code or "none"][codes[0] if codes else ("none" if not false else "passing")] += 1


def false_findings(hours: float) -> dict[str, Any]:
    """Long healthy runs with now and then something harmless; how many findings a simulated day brings."""
    found = 0
    per_layout = hours * 3600 / len(LAYOUTS)
    for seed, layout in enumerate(LAYOUTS):
        bench, random = Bench(layout, seed), np.random.default_rng(seed)
        everyone = list(range(layout.world_size))
        known: set[tuple[str, float]] = set()
        for index in range(int(per_layout / STEP)):
            if random.random() < STEP / 600:
                ranks = [everyone, [0], [int(random.integers(layout.world_size))]][int(random.integers(3))]
                bench.job.pause(ranks, float(random.uniform(5, 120)))
            findings = bench.look(index * STEP)
            known |= {(finding.code, finding.time) for finding in findings if finding.level == "finding"}
        found += len(known)
    return {"hours": hours, "findings": found, "per_day": 24 * found / hours}


def cost(layout: Layout, *, with_edges: bool, seconds: int = 14) -> dict[str, Any]:
    """CPU time of the analyzer's end: reports over authenticated connections, observation, analysis."""
    job = SimulatedJob(layout, 0)
    nodes = Nodes("simulated")
    desk = Desk(Thresholds(hang_seconds=seconds - 4.0, slow_seconds=60.0), _Deaf())
    encoders, pairs = {}, {}
    for name in job.observe(with_edges=False):
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        pairs[name] = (Connection(theirs, bytes(32), is_server=False), Connection(ours, bytes(32), is_server=True))
        encoders[name] = Encoder()
        nodes.join(name, 0.0)
    healthy, analysis, locating = [], [], []
    rank = layout.world_size // 3
    gc.collect()
    gc.freeze()  # the simulated job is not the analyzer's to collect
    for now in range(2 * seconds):
        if now == seconds:
            job.conditions.absent.add(rank)
        job.advance(float(now))
        for name, observation in job.observe(with_edges=with_edges).items():
            pairs[name][0].send(encoders[name].report(observation))
        start = time.thread_time()
        for name, (theirs, ours) in pairs.items():
            ours.flush()
            for message in ours.receive():
                nodes.report(name, message, float(now))
            if now == 0:  # the greetings cross first
                theirs.receive()
                theirs.flush()
                for message in ours.receive():
                    nodes.report(name, message, float(now))
        observation = nodes.observe(float(now))
        middle = time.thread_time()
        findings = desk.look(observation)
        end = time.thread_time()
        if 2 <= now < seconds:
            healthy.append(end - start)
            analysis.append(end - middle)
        elif findings:
            locating.append(end - middle)
            assert findings[0].suspects == [rank], findings[0].summary
    gc.unfreeze()
    for ends in pairs.values():
        for connection in ends:
            connection.close()
    return {
        "ranks": layout.world_size,
        "layout": f"{layout.tp} x {layout.pp} x {layout.dp}",
        "edges": len(layout.edges) if with_edges else 0,
        "ingest_share": sum(healthy) / len(healthy),
        "healthy_update_seconds": median(analysis),
        "first_location_seconds": locating[0],
        "location_seconds": median(locating),
    }


class _Deaf:
    def arm(self, first: dict[str, int], num_rounds: int) -> None:
        pass

    def request_stack(self, rank: int) -> None:
        pass


def report(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    machine = results["environment"]
    lines = [
        "# Simulated diagnosis",
        "",
        "Simulated jobs, real protocol, real analyzer: no GPU, no network and no training took part. Layouts are TP x PP x DP "
        f"with {RANKS_PER_NODE} ranks a node, rings and trees; thresholds are the defaults.",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores; Python {machine['python']}",
        f"- {machine['date']}, commit {machine['commit']}, `{machine['command']}`",
        "",
        "## Simulated accuracy",
        "",
        "A run is right if the first finding at its end is, and none came before the fault. `seconds` is the median from the "
        "fault to the first finding; the hang gate is 300, the window of slowness 60.",
        "",
        "| scenario | due | runs | class right | class and rank right | false before | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["accuracy"]:
        seconds = f"{median(row['seconds']):.0f}" if row["seconds"] and row["code"] else ""
        lines.append(
            f"| {row['scenario']} | {row['code'] or 'none'} | {row['runs']} | {row['class']} | {row['rank']} | "
            f"{row['early']} | {seconds} |"
        )
    codes = sorted({code for found in results["confusion"].values() for code in found})
    lines += [
        "",
        "## Simulated confusion matrix",
        "",
        f"| due | {' | '.join(codes)} |",
        "|---" * (len(codes) + 1) + "|",
    ]
    lines += [
        f"| {due} | {' | '.join(str(found.get(code, 0)) for code in codes)} |"
        for due, found in sorted(results["confusion"].items())
    ]
    false = results["false_findings"]
    lines += [
        "",
        "## Simulated days",
        "",
        f"{false['findings']} false findings in {false['hours']:g} simulated hours of healthy jobs with checkpoints, evaluations and "
        f"slow steps of up to two minutes: {false['per_day']:.2f} a day.",
        "",
        "## Cost on one core",
        "",
        "Ingest is everything from the socket to the findings of a healthy job at 1 Hz, as a share of a core. Location is the "
        "analyzer's update that names the rank of a hang: the first one, and the median of those after it.",
        "",
        "| ranks | layout | TCP edges | ingest | goal | healthy update | first location | location | goal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["cost"]:
        ranks = row["ranks"]
        lines.append(
            f"| {ranks} | {row['layout']} | {row['edges']} | {100 * row['ingest_share']:.1f} % | "
            f"{f'{100 * INGEST_GOAL:.0f} %' if ranks == 4096 else ''} | {1e3 * row['healthy_update_seconds']:.1f} ms | "
            f"{1e3 * row['first_location_seconds']:.0f} ms | {1e3 * row['location_seconds']:.0f} ms | "
            f"{1e3 * GOALS[ranks]:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diagnosis.simulate", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=5, help="of each scenario on each layout (default: 5)")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated, of healthy jobs (default: 24)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--no-write", action="store_true", help=f"leave {RESULTS.name}/ as it is")
    options = parser.parse_args()
    rows, confusion = accuracy(options.runs)
    results = {
        "environment": environment.describe("python -m benchmarks.diagnosis.simulate"),
        "accuracy": rows,
        "confusion": confusion,
        "false_findings": false_findings(options.hours),
        "cost": [cost(layout, with_edges=with_edges) for layout in LARGE for with_edges in (False, True)],
    }
    text = report(results)
    if not options.no_write:
        (RESULTS / "diagnosis-simulated.json").write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "diagnosis-simulated.md").write_text(text)
    print(json.dumps(results, indent=1) if options.json else text, end="")


if __name__ == "__main__":
    main()
