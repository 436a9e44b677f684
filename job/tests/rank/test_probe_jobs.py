"""The probe in real jobs of gloo ranks, which scripts of job/tests/support/probe_scripts are."""

from __future__ import annotations

import ast
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import SCRIPTS
from tensorwire_job.node import stacks
from tensorwire_job.node.observer import Observer
from tensorwire_job.page import call_file
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import RankPage, read_page

if TYPE_CHECKING:
    from pathlib import Path

    from job.tests.faults.fork_server import ForkServer
    from job.tests.support.probe_jobs import RunJob
    from tensorwire_job.model import Rank

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("probe")  # one job at a time


def left(tmp_path: Path, rank: int = 0) -> RankPage:
    """The page of a rank that has ended."""
    page = read_page(page_path(tmp_path / "pages", rank, 0))
    assert page is not None
    assert not page.is_alive
    return page


def test_every_operation_is_seen(run_job: RunJob, tmp_path: Path) -> None:
    assert run_job("operations") == ["done\n"] * 2
    for rank in range(2):
        page = left(tmp_path, rank)
        assert page.exit_reason == "exit 0"
        assert page.has_socket


def test_slots_of_groups_that_are_no_more_are_used_again(run_job: RunJob) -> None:
    run_job("many_groups")


def test_training_is_bit_identical(run_job: RunJob) -> None:
    """DDP and FSDP2, without the probe, with it, and with every operation timed; every step has another loss."""
    assert run_job("training", probe=False) == ["6 6\n"] * 2


def test_training_goes_on_when_the_pages_are_removed(run_job: RunJob) -> None:
    """With the same losses; every step has another one."""
    assert run_job("pages_removed", probe=False) == ["20\n"] * 2


def test_every_operation_of_torch_is_covered() -> None:
    import torch.distributed  # noqa: F401
    from torch._C import _dispatch_get_all_op_names, _get_schema

    from tensorwire_job.rank.operation_timing import _KINDS

    def is_operation(name: str) -> bool:
        return any(argument.name == "process_group" for argument in _get_schema(name, "").arguments)

    names = {name for name in _dispatch_get_all_op_names() if name.startswith("c10d::") and is_operation(name)}
    assert {name.removeprefix("c10d::") for name in names} == set(_KINDS)


def test_all_to_all_waits_for_the_last_rank_where_all_exchange_something(run_job: RunJob) -> None:
    """So that P holds there: T of the late rank is none, that of all others what it is late by."""
    ways = [json.loads(line) for line in run_job("all_to_all", world_size=4)[0].splitlines()]
    assert [way["name"] for way in ways] == ["even", "even", "uneven", "halves", "ring"]
    for way in ways:
        if way["name"] in ("even", "uneven"):
            late, late_by = 2, 3 * 0.2
            waits = [seconds - way["seconds"][late] for rank, seconds in enumerate(way["seconds"]) if rank != late]
            assert min(waits) > 0.5 * late_by, way
            assert way["pairwise"] == [0] * 4
        else:
            assert way["pairwise"] == [3] * 4


def test_messages_of_all_kinds_are_seen_while_a_rank_waits(run_job: RunJob) -> None:
    """irecv, a batch, recv, and a pipeline whose first stage waits until the second takes two more of its four rows."""
    assert run_job("messages")[1] == f"{[('recv', 1, 6)] * 3 + [('send', 1, 8)]}\n"


def test_init_process_group_and_unused_groups_are_seen(run_job: RunJob) -> None:
    for rank, text in enumerate(run_job("setup", world_size=4)):
        groups = {name: (members, enqueued) for name, members, enqueued in ast.literal_eval(text)}
        assert groups["mesh_dp"] == ([rank % 2, rank % 2 + 2], 0)
        assert groups["mesh_tp"] == ([rank // 2 * 2, rank // 2 * 2 + 1], 0)
        assert groups["default_pg"][0] == [0, 1, 2, 3]


def test_a_rank_is_seen_to_wait_for_a_key(run_job: RunJob) -> None:
    """In each method that waits, and in no other; what the store does stays as it was."""
    waits = ["wait: Store.wait", "nothing", "get: Store.wait b'1'", "nothing"]
    assert run_job("store_waits", world_size=1)[0].splitlines() == ["nothing", *waits, "DistStoreError"]


def test_worker_that_is_blocked_is_part_of_its_rank(quick_fork_server: ForkServer, tmp_path: Path) -> None:
    """Its state, what it waits in, and its stack; the rank is in its data loader."""
    pages, fifo = tmp_path / "pages", tmp_path / "fifo"
    environment = {"TENSORWIRE_PROBE_DIR": str(pages), "RANK": "0", "WORLD_SIZE": "1"}
    arguments = ["tensorwire_job", str(SCRIPTS / "data_loader.py"), str(fifo)]
    quick_fork_server.start(arguments, environment, tmp_path / "output")
    try:
        with closing(Observer(pages, "node")) as observer:
            rank = blocked_rank(observer)
            (worker,) = [each for each in rank.process.workers if each.name == "pt_data_worker"]
            assert worker.state == "S"
            assert rank.activity == "DataLoader"
            target = observer.target(0)
            assert target is not None
            text = stacks.fetch(target)
            assert f"process {worker.pid} (pt_data_worker), state S" in text
            assert "__getitem__" in text.partition(f"process {worker.pid}")[2]
    finally:
        quick_fork_server.kill_all()


def blocked_rank(observer: Observer) -> Rank:
    """Once it is in its loader and a worker has gone to sleep."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rank = observer.observe().ranks.get(0)
        if rank is not None and rank.activity and [w.state for w in rank.process.workers if "data" in w.name] == ["S"]:
            time.sleep(0.2)  # it is in the call that it does not come back from
            return observer.observe().ranks[0]
        time.sleep(0.02)
    raise AssertionError(rank)


# The last calls of a rank, which it reads once it stands still.


def test_calls_of_all_kinds_in_their_order_with_lines(run_job: RunJob) -> None:
    first, second = run_job("calls")
    common = "all_reduce 1 4 -1 True", "broadcast 3 2 1 True"
    assert first.splitlines() == [
        common[0], "all_to_all 2 3 -1 True 2 1 2 1", "send 1 5 1 True", common[1], "all_reduce 4 4 -1 True",
    ]  # fmt: skip
    assert second.splitlines() == [common[0], "all_to_all 2 3 -1 True 1 2 1 2", "recv 1 5 0 True", common[1]]


def test_an_exchange_that_the_recorder_does_not_have_yet_shifts_no_other(run_job: RunJob) -> None:
    """Its thread may lose the processor, or wait for the interpreter's lock to have its stack noted."""
    both, held = run_job("held_exchange")
    assert both.splitlines() == ["all_to_all 1 2 1 2 1", "all_to_all 2 1 2 1 2"]
    assert held.splitlines() == ["all_to_all 1 1 2 1 2"]


TOLD = {
    "reduce": [["reduce 2 4 0", "reduce 1 4 0", "reduce 2 4 0"], ["reduce 2 4 1", "reduce 1 4 0", "reduce 2 4 1"]],
    "reduce_scatter": [
        ["reduce_scatter_tensor 3 4 -1", "reduce_scatter 1 2 -1", "reduce_scatter 2 2 -1",
         "reduce_scatter_tensor 3 4 -1"],
        ["all_reduce 2 2 -1", "reduce_scatter 1 2 -1", "reduce_scatter 2 2 -1"],
    ],
}  # fmt: skip


@pytest.mark.parametrize("which", TOLD)
def test_torchs_function_tells_what_the_recorder_lacks(run_job: RunJob, which: str) -> None:
    """The root of a reduce, and that gloo makes a reduce_scatter of all_reduces. Rank 1 waits for none in the end."""
    assert [each.splitlines() for each in run_job("true_calls", which)] == TOLD[which]


def test_calls_that_torch_checks_are_told_by_the_names_of_their_groups(run_job: RunJob) -> None:
    """gloo's recorder has no names then, and as many entries of the check as of calls."""
    for rank, text in enumerate(run_job("checked_calls")):
        assert text.splitlines() == [
            "default_pg 2 1 1", "pair 2 2 1", "all_reduce 1 4 -1", "all_reduce 1 4 -1", f"broadcast 2 2 {1 - rank}",
        ]  # fmt: skip


# The end of a rank. The interpreter ends threads that come back for its lock when it goes; where such a thread is in
# C++ that may not throw, the process aborts ("terminate called without an active exception").


def test_the_probes_thread_is_not_in_torch_at_the_end(run_job: RunJob) -> None:
    run_job("exit_in_torch", world_size=1, ends="as usual")


@pytest.mark.parametrize("attempt", [0, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 2, 3, 4))])
def test_no_completion_is_told_after_the_end(run_job: RunJob, attempt: int) -> None:
    run_job("exit_before_completion", ends="as usual")


def test_process_groups_end_when_the_script_says_so(run_job: RunJob) -> None:
    """With their threads, which may hold tensors that take the interpreter's lock to be freed."""
    assert run_job("groups_end", ends="as usual") == ["True\n"] * 2


@pytest.mark.parametrize("unreported", [0, 1])
def test_a_rank_that_has_come_to_its_end_shows_no_operation_as_open(
    run_job: RunJob, tmp_path: Path, unreported: int
) -> None:
    """The recorder's ring knows better than torch's numbers, and is read where they leave an operation open."""
    run_job("exit_unreported", str(unreported), world_size=1)
    page = left(tmp_path)
    (group,) = page.process_groups(0.0)
    assert (page.exit_kind, group.enqueued, group.completed) == ("end", 2, 2)
    assert (call_file.read(page_path(tmp_path / "pages", 0, 0)) is not None) == bool(unreported)
