"""python -m benchmarks.diagnosis.probe: what the probe costs an operation, a message and a training step.

Jobs of one rank on gloo all-reduce one number; the CPU time of all their threads counts. They wait for nothing, so
nothing hides the cost. Four jobs run side by side and take turns: without the probe, with it, with every operation
timed, and with what torch itself needs to send an operation through Python and back. The probe's thread works by the
clock and not by the operation, so its share of a core is measured as well, in a job that does nothing else.
messages.py and training_step.py say how messages and steps are measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, pages
from benchmarks.diagnosis import messages, training_step
from benchmarks.timing import interleave, spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

MODES = ("off", "passive", "detour", "active")
ROUNDS = 30
OPERATIONS = 1000
IDLE_SECONDS = 5.0
GOALS = {"passive": 5.0, "active": 60.0}  # microseconds


def measure() -> dict[str, Any]:
    """Costs in CPU microseconds for each operation, what they add, and the probe's share of a core when all is idle."""
    with tempfile.TemporaryDirectory(prefix="tensorwire-") as folder:
        jobs = {mode: _Job(mode, Path(folder) / mode) for mode in MODES}
        try:
            operations: dict[str, Callable[[], float]] = {mode: job.run for mode, job in jobs.items()}
            warm_up = {mode: run() for mode, run in operations.items()}
            times = interleave(operations, warm_up, ROUNDS, float("inf"))
            idle = {mode: jobs[mode].idle() for mode in ("off", "passive")}
        finally:
            for job in jobs.values():
                job.stop()
        steps = Path(folder) / "steps"
        steps.mkdir()
        step = training_step.measure(steps)
        message = messages.measure(Path(folder) / "messages")
    seconds = {mode: [value or 0.0 for value in values] for mode, values in times.items()}
    added = {
        mode: statistics.median(b - a for a, b in zip(seconds["off"], seconds[mode], strict=True)) * 1e6
        for mode in MODES[1:]
    }
    return {
        "microseconds": {mode: spread([value * 1e6 for value in values]) for mode, values in seconds.items()},
        "added_microseconds": added,
        "goal_microseconds": GOALS,
        "idle_share_of_a_core": idle["passive"] - idle["off"],
        "message": message,
        "step": step,
    }


class _Job:
    """A process that makes operations when asked."""

    def __init__(self, mode: str, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(mode, directory, theirs))
        self._process.start()

    def run(self) -> float:
        """CPU seconds of an operation."""
        return self._ask("run")

    def idle(self) -> float:
        """Share of a core while nothing happens."""
        return self._ask("idle")

    def stop(self) -> None:
        self._connection.send("stop")
        self._process.join()

    def _ask(self, what: str) -> float:
        self._connection.send(what)
        answer: float = self._connection.recv()
        return answer


def _work(mode: str, directory: Path, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    from tensorwire.diagnosis import attach
    from tensorwire.diagnosis.page.control import write_control
    from tensorwire.diagnosis.page.directory import page_path
    from tensorwire.diagnosis.page.rank_page import read_page

    os.environ.update(TENSORWIRE_PROBE_DIR=str(directory / "pages"), RANK="0", WORLD_SIZE="1")
    directory.mkdir()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
    tensor = torch.zeros(1)
    libraries = [_detour()] if mode == "detour" else []
    if mode in GOALS:
        attach()
        if mode == "active":
            write_control(directory / "pages", {}, 100)
        time.sleep(1.0)
        page = read_page(page_path(directory / "pages", 0, 0))
        assert page is not None
        assert page.timed == (mode == "active")
    while (what := connection.recv()) != "stop":
        start = time.process_time()
        if what == "run":
            for _ in range(OPERATIONS):
                dist.all_reduce(tensor)
            connection.send((time.process_time() - start) / OPERATIONS)
        else:
            time.sleep(IDLE_SECONDS)
            connection.send((time.process_time() - start) / IDLE_SECONDS)
    libraries.clear()
    dist.destroy_process_group()


def _detour() -> Any:
    """A kernel for all_reduce that only passes it on; it goes with what is returned."""
    import torch

    key = torch._C.DispatchKey.BackendSelect
    below = torch._C._dispatch_keyset_full_after(key)
    redispatch = torch.ops.c10d.allreduce_.default.redispatch

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        return redispatch(keyset & below, *args, **kwargs)

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    return library


def page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    facts, costs = results["environment"], results["microseconds"]
    lines = [
        "# What the probe costs",
        "",
        "CPU time of a process of one rank for each all_reduce of one number on gloo, all threads included: the median "
        f"of {ROUNDS} rounds of {OPERATIONS} operations, and the quartiles. Added is the median of the differences to "
        "a job without the probe, round by round. Detour is torch's share in active: a kernel in Python that only "
        "passes the operation on.",
        "",
        f"- Machine: {facts['cpu']}, {facts['cores']} cores; {facts['system']}",
        f"- Python {facts['python']}, torch {facts['versions']['torch']}; load average at the start "
        f"{results['load']:.2f}",
        f"- {facts['date']}, commit {facts['commit']}, `{facts['command']}`",
        "",
        "| probe | CPU microseconds | quartiles | added | goal |",
        "|---|---|---|---|---|",
    ]
    for mode in MODES:
        added = f"{results['added_microseconds'][mode]:.1f}" if mode != "off" else "-"
        goal = f"at most {GOALS[mode]:.0f}" if mode in GOALS else "-"
        cost = costs[mode]
        lines.append(f"| {mode} | {cost['median']:.1f} | {cost['low']:.1f}-{cost['high']:.1f} | {added} | {goal} |")
    idle = f"{100 * results['idle_share_of_a_core']:.2f} %"
    lines += ["", f"While the job is idle, the threads of the probe take {idle} of a core."]
    return "\n".join(lines + _message(results["message"]) + _step(results["step"])) + "\n"


def _message(message: dict[str, Any]) -> list[str]:
    costs = [f"{message['microseconds'][mode]['median']:.1f} us {mode}" for mode in messages.MODES]
    return [
        "",
        "## A message",
        "",
        f"A send and its recv take {' and '.join(costs)}, in CPU time of the two threads that make them: the "
        f"probe adds {message['added_microseconds']:.1f} us to either. They always pass a kernel of the probe.",
    ]


def _step(step: dict[str, Any]) -> list[str]:
    goal, identical = step["goal"], "bit-identical" if step["losses_are_identical"] else "NOT identical"
    lines = [
        "",
        "## A training step",
        "",
        f"DDP, {step['ranks']} ranks, each bound to a core; a step takes {step['milliseconds']['median']:.1f} ms "
        "without the probe. Ratios are those of turns with the probe's threads at work to turns without, in one job: "
        f"medians of {step['ratios']['wall']['runs']} rounds, and quartiles. Losses are {identical}.",
        "",
        "| time of a step | with the probe / without | quartiles | goal |",
        "|---|---|---|---|",
    ]
    for name, what in (("wall", "wall"), ("CPU, all threads", "cpu")):
        ratio = step["ratios"][what]
        lines.append(f"| {name} | {ratio['median']:.3f} | {ratio['low']:.3f}-{ratio['high']:.3f} | {1 + goal:.2f} |")
    share = step["share_of_a_core"]
    lines += ["", f"Meanwhile the threads of the probe take {100 * share['median']:.2f} % of a core in each rank."]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis.probe", description=__doc__.splitlines()[0])
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    options = parser.parse_args()
    facts = environment.describe("python -m benchmarks.diagnosis.probe")
    results = {"environment": facts, "load": environment.load()} | measure()
    pages.publish("probe", json.dumps(results, indent=1) + "\n", page(results), write=not options.no_write)


if __name__ == "__main__":
    main()
