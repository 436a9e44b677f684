"""python -m job.benchmarks.simulate: simulated jobs through the agents' protocol and the analyzer.

Nothing here is a measurement of a real job; times are those of protocol and analyzer on this machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import time
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest

from benchmarks import environment, pages
from benchmarks.results_page import Page, indented
from benchmarks.tables import of_columns
from job.benchmarks import RESULTS, scenarios
from job.benchmarks.layout import RANKS_PER_NODE, Layout
from job.benchmarks.simulated_job import SimulatedJob
from tensorwire_job import words
from tensorwire_job.model import Finding, Observation, Thresholds
from tensorwire_job.protocol.connection import Connection
from tensorwire_job.protocol.encoding import Encoder, from_json, to_json
from tensorwire_job.report import History, rank_status
from tensorwire_job.service.controller import Controller
from tensorwire_job.service.merge import Nodes
from tensorwire_job.service.metrics import JobCollector
from tensorwire_job.service.service import MAX_SHARE, View
from tensorwire_job.service.time_share import TimeShare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAYOUTS = (Layout(4, 2, 8), Layout(2, 4, 4, "tree"), Layout(1, 1, 16), Layout(2, 1, 8, "tree"))
MEDIUM = (Layout(8, 2, 16), Layout(4, 2, 32, "tree"))  # 256 ranks: a few scenarios, once each
FEW = ("process killed", "rank sleeps", "another operation", "link down", "slow compute", "slow link", "nothing")
LARGE = (Layout(8, 8, 64), Layout(8, 8, 256))
FAULT = 150.0  # seconds from the start of a run: the analyzer knows the job's throughput by then
PARTS = {"cost": "Cost", "days": "Days", "accuracy": "Accuracy"}  # in this order: cost wants a quiet machine
STEP = 2.0  # seconds between observations; agents are silent after 5
# By ranks, with TCP edges, on one core: the share of it for reports at 1 Hz, and the seconds that locate a hang.
GOALS = {4096: (0.04, 0.050), 16384: (0.15, 0.150)}


class Bench:
    """One simulated job, its agents' encoders, and the analyzer's end."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.job = SimulatedJob(layout, seed)
        self.nodes = Nodes("simulated")
        self.controller = Controller(Thresholds())
        self._encoders: dict[str, Encoder] = {}

    def poll(self, now: float, silent: str = "") -> list[Finding]:
        """Let the job run until now, and analyze what its agents report."""
        self.job.advance(now)
        for name, observation in self.job.observe().items():
            if name == silent:
                continue
            if name not in self._encoders:
                self._encoders[name] = Encoder()
                self.nodes.join(name, now)
            text = json.dumps(to_json(self._encoders[name].report(observation)))
            self.nodes.report(name, from_json(json.loads(text)), now)
        decision = self.controller.decide(self.nodes.observe(now))
        if decision.timing is not None:
            self.job.enable_timing(decision.timing.first, decision.timing.num_rounds)
        for rank in decision.stacks_of:
            self.controller.add_stack(rank, "simulated")
        return decision.findings


def run(scenario: scenarios.Scenario, bench: Bench) -> Iterator[tuple[float, list[Finding]]]:
    """What is found, second by second."""
    events = sorted(scenario.events, key=lambda event: event[0])
    now = 0.0
    while now <= FAULT + scenario.seconds:
        while events and now >= FAULT + events[0][0]:
            events.pop(0)[1](bench.job)
        node, seconds = scenario.silent
        yield now, bench.poll(now, node if FAULT <= now < FAULT + seconds else "")
        now += STEP


def accuracy(num_runs: int) -> tuple[list[dict[str, Any]], dict[str, Counter[str]]]:
    """Runs of every scenario on every layout: how often class and rank are right, and what was said instead.

    The runs of the medium layouts have rows of their own.
    """
    rows: dict[str, dict[str, Any]] = {}
    confusion: dict[str, Counter[str]] = defaultdict(Counter)
    runs = [(layout, seed, False) for layout in LAYOUTS for seed in range(num_runs)]
    for layout, seed, is_medium in [*runs, *((layout, 0, True) for layout in MEDIUM)]:
        example = SimulatedJob(layout, 0)
        rank = scenarios.random_rank(example, seed)
        for name in FEW if is_medium else scenarios.all_at(example, rank):
            bench = Bench(layout, seed)
            title = f"{name} ({layout.world_size} ranks)" if is_medium else name
            _judge(scenarios.all_at(bench.job, rank)[name], bench, rows, confusion, title)
    return list(rows.values()), confusion


def _judge(
    scenario: scenarios.Scenario,
    bench: Bench,
    rows: dict[str, dict[str, Any]],
    confusion: dict[str, Counter[str]],
    title: str,
) -> None:
    row = rows.setdefault(
        title, {"scenario": title, "code": scenario.code, "runs": 0, "class": 0, "rank": 0, "early": 0, "seconds": []}
    )
    looks = [(now, [each for each in findings if each.level == "finding"]) for now, findings in run(scenario, bench)]
    false = any(found and (now < FAULT or not scenario.code) for now, found in looks)
    first = next((now - FAULT for now, found in looks if found), None)
    final = looks[-1][1]
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
            findings = bench.poll(index * STEP)
            known |= {(finding.code, finding.time) for finding in findings if finding.level == "finding"}
        found += len(known)
    return {"hours": hours, "findings": found, "per_day": 24 * found / hours}


def cost(layout: Layout, *, with_edges: bool, seconds: int = 15) -> dict[str, Any]:
    """CPU time of the analyzer's end: reports over authenticated connections, observation, analysis.

    It is measured besides what an analyzer does where it is asked to: metrics, and the history of `watch` and reports.
    """
    job = SimulatedJob(layout, 0)
    nodes = Nodes("simulated")
    controller = Controller(Thresholds())
    besides = _besides()
    spent: dict[str, list[float]] = {name: [] for name in besides}
    ends = {name: _Ends() for name in job.observe(with_edges=False)}
    for name in ends:
        nodes.join(name, 0.0)
    rank = layout.world_size // 3
    reading, analysis, locating = [], [], []
    hang = float(seconds + 2)
    due, share = 0.0, TimeShare(MAX_SHARE)
    for now in [*map(float, range(seconds + 2)), *(hang + Thresholds().hang_seconds + step for step in range(1, 6))]:
        if now > hang:
            job.conditions.absent.add(rank)
        job.advance(now)
        for name, observation in job.observe(with_edges=with_edges).items():
            ends[name].send(observation)
        gc.collect()
        gc.freeze()  # the simulated job and its agents are not the analyzer's to collect
        start = time.thread_time()
        for name, end in ends.items():
            for message in end.server.receive():
                nodes.report(name, message, now)
        middle = time.thread_time()
        if 2 <= now < hang:  # the first reports are whole
            reading.append(middle - start)
        if now < min(due, hang):
            gc.unfreeze()
            continue  # as in the service, which polls less often than once a second where the analysis takes long
        seen = nodes.observe(now)
        built = time.thread_time()
        findings = controller.decide(seen).findings
        stop = time.thread_time()
        for name, take in besides.items():
            view = View(nodes.observe(now), findings)  # no object that another one made
            begin = time.thread_time()
            take(view)
            if 2 <= now < hang:
                spent[name].append(time.thread_time() - begin)
        gc.unfreeze()
        rest = share.rest_after(stop - middle)
        if now >= 2:
            due = now + max(1.0, stop - middle + rest)
        if findings:
            locating.append(stop - built)
            if findings[0].suspects != [rank]:
                raise AssertionError(f"expected rank {rank}, found: {findings[0].summary}")
        elif 2 <= now < hang:
            analysis.append((stop - middle, due - now))
    for end in ends.values():
        end.close()
    reading_share = sum(reading) / len(reading)
    analysis_share = sum(took for took, _ in analysis) / sum(pause for _, pause in analysis)
    return {
        "ranks": layout.world_size,
        "layout": f"{layout.tp} x {layout.pp} x {layout.dp}",
        "edges": len(layout.edges) if with_edges else 0,
        "ingest_share": reading_share + analysis_share,
        "analysis_share": analysis_share,
        "analysis_seconds": median(pause for _, pause in analysis),
        "location_seconds": median(locating),
        "worst_location_seconds": max(locating),
        **{name: median(seconds) for name, seconds in spent.items()},
    }


def _besides() -> dict[str, Callable[[View], object]]:
    """What an analyzer may do with each view: the exporter, which Prometheus asks once; and the history, and what is
    said of all ranks, where they stand and which are the slowest.
    """
    collector, registry, history = JobCollector(), CollectorRegistry(), History()
    registry.register(collector)

    def metrics(view: View) -> None:
        collector.show(view)
        generate_latest(registry)

    def keep(view: View) -> None:
        history.add(view.observation, view.findings)
        rank_status.status_groups(history.statuses)
        rank_status.slowest(history.statuses)

    return {"metrics_seconds": metrics, "history_seconds": keep}


class _Ends:
    """An agent's connection and the analyzer's, which have greeted."""

    def __init__(self) -> None:
        sockets = socket.socketpair()
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._client = Connection(sockets[0], bytes(32), is_server=False)
        self.server = Connection(sockets[1], bytes(32), is_server=True)
        self._encoder = Encoder()
        for end in (self._client, self.server):
            end.flush()
        for end in (self._client, self.server):
            end.receive()

    def send(self, observation: Observation) -> None:
        self._client.send(self._encoder.report(observation))

    def close(self) -> None:
        self._client.close()
        self.server.close()


def goals(costs: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Each goal, what was measured, and whether that meets it."""
    outcome = {True: "met", False: "missed"}
    for row in (each for each in costs if each["edges"]):
        ranks, ingest, location = row["ranks"], row["ingest_share"], row["location_seconds"]
        most, slowest = GOALS[ranks]
        yield f"ingest of {ranks} ranks: {100 * most:.0f} %", f"{100 * ingest:.1f} %", outcome[ingest <= most]
        goal = f"location at {ranks} ranks: {1e3 * slowest:.0f} ms"
        yield goal, f"{1e3 * location:.0f} ms", outcome[location <= slowest]


def _share_with_all(row: dict[str, Any]) -> float:
    """The share of a core that ingest, metrics and history take together."""
    return float(row["ingest_share"] + (row["metrics_seconds"] + row["history_seconds"]) / row["analysis_seconds"])


def _parts(results: dict[str, Any]) -> list[str]:
    accuracy, false, costs = results["accuracy"], results["days"], results["cost"]["rows"]
    codes = sorted({code for found in accuracy["confusion"].values() for code in found})
    confusion = sorted(accuracy["confusion"].items())
    return [
        "# Simulated diagnosis",
        f"""\
Simulated jobs, the real protocol and the real analyzer: no training, no GPU and no network took part.
Layouts are TP x PP x DP, {RANKS_PER_NODE} ranks a node, rings and trees; thresholds are the defaults.
Stages of pipelines are seen to wait for what they receive at all times. job/docs/method.md says how the
probe sees that, job/docs/nccl.md how the NCCL plugin does.""",
        of_columns(_MADE, [results[part]["environment"] | {"part": PARTS[part], **results[part]} for part in PARTS]),
        "## Simulated accuracy",
        """\
A run is right if the most important finding at its end is, and if there was none before the fault. Ranks are
right if the first suspect is the faulty one, or both are named where two are. Seconds are the median from
the fault to the first finding; the hang gate is 300, the window of slowness 60.""",
        of_columns(_ACCURACY, accuracy["rows"]),
        "## Simulated confusion matrix",
        pages.table(["due", *codes], ([due, *(str(found.get(code, 0)) for code in codes)] for due, found in confusion)),
        "## Simulated days",
        f"""\
{words.count(false["findings"], "false finding")} in {false["hours"]:g} simulated hours of healthy jobs with
checkpoints, evaluations and slow steps of up to two minutes: {false["per_day"]:.2f} a day.""",
        "## Cost on one core",
        """\
CPU time at the analyzer's end of simulated jobs. Ingest is everything from the sockets to the findings of a
healthy job whose agents report at 1 Hz, as a share of a core. Analysis is its share in that: putting an
observation together and analyzing it, which the service does as often as is given here. Location is the
analysis of the observation in which the rank of a hang is named: the median, and the longest.""",
        of_columns(_COST, costs),
        """\
An analyzer does more where it is asked to. Metrics are the exporter, which is shown what was found and asked
once. History is what `watch` and a report keep of a poll, and the groups of ranks that they show. Both are
CPU time for each poll of a healthy job, the median. The last column is the share of a core that all takes.""",
        of_columns(_BESIDES, costs),
        "## Goals",
        "With TCP edges, on one core. Location is the median.",
        pages.table(("goal", "measured", "outcome"), goals(costs)),
    ]


def _share(key: str) -> Any:
    return lambda row: f"{100 * row[key]:.1f} %"


def _milliseconds(key: str, form: str) -> Any:
    return lambda row: f"{1e3 * row[key]:{form}} ms"


_MADE = (
    ("part", "part", ""), ("machine", lambda row: f"{row['cpu']}, {row['cores']} cores; Python {row['python']}"),
    ("load average at the start", "load", ".2f"), ("when", "date", ""), ("commit", "commit", ""),
    ("command", lambda row: f"`{row['command']}`"),
)  # fmt: skip
_ACCURACY = (
    ("scenario", "scenario", ""), ("due", lambda row: row["code"] or "none"), ("runs", "runs", ""),
    ("class right", "class", ""), ("class and rank right", "rank", ""), ("false before", "early", ""),
    ("seconds", lambda row: f"{median(row['seconds']):.0f}" if row["seconds"] and row["code"] else ""),
)  # fmt: skip
_COST = (
    ("ranks", "ranks", ""), ("layout", "layout", ""), ("TCP edges", "edges", ""), ("ingest", _share("ingest_share")),
    ("analysis", _share("analysis_share")), ("polls every", lambda row: f"{row['analysis_seconds']:.1f} s"),
    ("location", _milliseconds("location_seconds", ".0f")), ("longest", _milliseconds("worst_location_seconds", ".0f")),
)  # fmt: skip
_BESIDES = (
    ("ranks", "ranks", ""), ("TCP edges", "edges", ""), ("metrics", _milliseconds("metrics_seconds", ".1f")),
    ("history", _milliseconds("history_seconds", ".1f")),
    ("ingest with both", lambda row: f"{100 * _share_with_all(row):.1f} %"),
)  # fmt: skip
PAGE = Page("diagnosis-simulated", _parts, dumps=indented)


def _measure(part: str, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "environment": environment.describe(
            f"python -m job.benchmarks.simulate --parts {part}", None if options.no_write else RESULTS
        ),
        "load": environment.load(),
    }
    if part == "cost":
        found["rows"] = [cost(layout, with_edges=with_edges) for layout in LARGE for with_edges in (False, True)]
    elif part == "days":
        found |= false_findings(options.hours)
    else:
        found["rows"], found["confusion"] = accuracy(options.runs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m job.benchmarks.simulate", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each scenario on each layout (default: 3)")
    parser.add_argument("--hours", type=float, default=8.0, help="simulated, of healthy jobs (default: 8)")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="to be measured; the others stay (default: all)"
    )
    parser.add_argument("--no-write", action="store_true", help="leave job/benchmarks/results as it is")
    options = parser.parse_args()
    file = RESULTS / "diagnosis-simulated.json"
    kept = json.loads(file.read_text()) if set(options.parts) < set(PARTS) else {}
    results: dict[str, Any] = kept | {part: _measure(part, options) for part in options.parts}
    PAGE.keep(results, RESULTS, write=not options.no_write)


if __name__ == "__main__":
    main()
