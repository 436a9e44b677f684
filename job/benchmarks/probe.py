"""python -m job.benchmarks.probe: what the probe costs an operation, an exchange, a message and a training step.

Jobs of one rank on gloo all-reduce one number; the CPU time of all their threads counts. They wait for nothing, so
nothing hides the cost. Four jobs run side by side and take turns: without the probe, with it, with every operation
timed, and with what torch itself needs to send an operation through Python and back. An all_to_all always passes a
kernel of the probe, and is measured likewise. The probe's thread works by the clock and not by the operation, so its
share of a core is measured as well, in a job that does nothing else, and so is how long it reads the last calls.
messages.py and training_step.py say how messages and steps are measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment
from benchmarks.pages import table
from benchmarks.results_page import Page, indented
from benchmarks.timing import spread
from job.benchmarks import RESULTS, messages, training_step
from job.benchmarks.asked_job import STOP, AskedJob, costs, join
from tensorwire_job.rank.calls import SHARE, STILL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

MODES = ("off", "passive", "detour", "active")
ROUNDS = 30
OPERATIONS = 1000
IDLE_SECONDS = 5.0
READINGS = 20  # of the last calls
GOALS = {"passive": 5.0, "active": 60.0}  # microseconds; an exchange passes a kernel, as all do while they are timed


def measure(rounds: int | None = None) -> dict[str, Any]:
    """Costs in CPU microseconds for each operation, what they add, and the probe's share of a core when all is idle.

    Args:
        rounds: of each part; None for those of the figures that are published.
    """
    with tempfile.TemporaryDirectory(prefix="tensorwire-") as folder:
        jobs = {mode: AskedJob(_work, mode, Path(folder) / mode) for mode in MODES}
        try:
            reduce = costs(jobs, "reduce", rounds or ROUNDS)
            exchange = costs({mode: jobs[mode] for mode in ("off", "passive")}, "exchange", rounds or ROUNDS)
            idle = {mode: jobs[mode].ask("idle") for mode in ("off", "passive")}
            readings = [jobs["passive"].ask("read") for _ in range(rounds or READINGS)]
        finally:
            for job in jobs.values():
                job.stop()
        steps = Path(folder) / "steps"
        steps.mkdir()
        step = training_step.measure(steps, rounds or training_step.ROUNDS)
        message = messages.measure(Path(folder) / "messages", rounds or messages.ROUNDS)
    return {
        **reduce,
        "goal_microseconds": GOALS,
        "exchange": exchange,
        "idle_share_of_a_core": idle["passive"] - idle["off"],
        "reading_milliseconds": spread([1e3 * seconds for seconds in readings]),
        "message": message,
        "step": step,
    }


def _work(mode: str, directory: Path, rank: int, connection: Connection) -> None:
    """Answers with the CPU seconds of what it is asked for, and for "idle" with the share of a core."""
    import torch
    import torch._inductor  # as it is where a model is trained: without it the recorder gives no stacks
    import torch.distributed as dist

    from tensorwire_job import attach
    from tensorwire_job.page.control import write_control
    from tensorwire_job.page.directory import page_path
    from tensorwire_job.page.rank_page import read_page
    from tensorwire_job.rank import probe

    join(directory, rank, 1)
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
    received = torch.zeros(1)
    makes: dict[str, Callable[[], object]] = {
        "reduce": lambda: dist.all_reduce(tensor),
        "exchange": lambda: dist.all_to_all_single(received, tensor, [1], [1]),
        "read": lambda: probe._probe._sampler._calls.write(),
    }
    while (what := connection.recv()) != STOP:
        if what == "idle":
            time.sleep(2 * STILL_SECONDS)  # the last calls are read by then, which is measured by itself
        start = time.process_time()
        if what == "idle":
            time.sleep(IDLE_SECONDS)
            connection.send((time.process_time() - start) / IDLE_SECONDS)
            continue
        number = 1 if what == "read" else OPERATIONS
        for _ in range(number):
            makes[what]()
        connection.send((time.process_time() - start) / number)
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


def _parts(results: dict[str, Any]) -> list[str]:
    facts = results["environment"]
    idle = f"{100 * results['idle_share_of_a_core']:.2f} %"
    reading, message, step = results["reading_milliseconds"], results["message"], results["step"]
    exchange = results["exchange"]
    goal, identical = step["goal"], "bit-identical" if step["losses_are_identical"] else "NOT identical"
    return [
        "# What the probe costs",
        "CPU time of a process of one rank for each all_reduce of one number on gloo, all threads included: the median "
        f"of {results['rounds']} rounds of {OPERATIONS} operations, and the quartiles. Added is the median of the "
        "differences to a job without the probe, round by round. Detour is torch's share in active: a kernel in Python "
        "that only passes the operation on.",
        f"- Machine: {facts['cpu']}, {facts['cores']} cores; {facts['system']}\n"
        f"- Python {facts['python']}, torch {facts['versions']['torch']}; load average at the start "
        f"{results['load']:.2f}\n"
        f"- {facts['date']}, commit {facts['commit']}, `{facts['command']}`",
        table(
            ("probe", "CPU microseconds", "quartiles", "added", "goal"),
            ([mode, *_quartiles(results["microseconds"][mode], ".1f"), *_added(mode, results)] for mode in MODES),
        ),
        f"While the job is idle, the threads of the probe take {idle} of a core.",
        "## An exchange",
        f"An all_to_all of one number takes {_each(exchange, exchange['microseconds'])}: the probe adds "
        f"{exchange['added_microseconds']['passive']:.1f} us, of at most {GOALS['active']:.0f}. It always passes a "
        "kernel of the probe, which notes how many elements go to each rank.",
        "## The last calls",
        f"A rank that has stood still for {STILL_SECONDS:g} s reads its last calls, once for each standstill, and at "
        f"most {100 * SHARE:g} % of the time. That takes {reading['median']:.1f} ms of CPU time "
        f"({reading['low']:.1f}-{reading['high']:.1f}) where torch's recorder is full.",
        "## A message",
        f"A send and its recv take {_each(message, messages.MODES)}, in CPU time of the two threads that make them: "
        f"the probe adds {message['added_microseconds']:.1f} us to either. They always pass a kernel of the probe.",
        "## A training step",
        f"DDP, {step['ranks']} ranks, each bound to a core; a step takes {step['milliseconds']['median']:.1f} ms "
        "without the probe. Ratios are those of turns with the probe's threads at work to turns without, in one job: "
        f"medians of {step['ratios']['wall']['runs']} rounds, and quartiles. Losses are {identical}.",
        table(
            ("time of a step", "with the probe / without", "quartiles", "goal"),
            (
                [name, *_quartiles(step["ratios"][what], ".3f"), f"{1 + goal:.2f}"]
                for name, what in (("wall", "wall"), ("CPU, all threads", "cpu"))
            ),
        ),
        f"Meanwhile the threads of the probe take {100 * step['share_of_a_core']['median']:.2f} % of a core in each "
        "rank.",
    ]


def _quartiles(cost: dict[str, float], form: str) -> list[str]:
    return [f"{cost['median']:{form}}", f"{cost['low']:{form}}-{cost['high']:{form}}"]


def _added(mode: str, results: dict[str, Any]) -> list[str]:
    """What the probe adds, and what it may."""
    added = f"{results['added_microseconds'][mode]:.1f}" if mode != "off" else "-"
    return [added, f"at most {GOALS[mode]:.0f}" if mode in GOALS else "-"]


def _each(found: dict[str, Any], modes: Iterable[str]) -> str:
    return " and ".join(f"{found['microseconds'][mode]['median']:.1f} us {mode}" for mode in modes)


PAGE = Page("probe", _parts, dumps=indented)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m job.benchmarks.probe", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="of each part, for a short run that writes no results")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    options = parser.parse_args()
    write = not (options.no_write or options.rounds)
    facts = environment.describe("python -m job.benchmarks.probe", RESULTS if write else None)
    results = {"environment": facts, "load": environment.load()} | measure(options.rounds)
    PAGE.keep(results, RESULTS, write=write)


if __name__ == "__main__":
    main()
