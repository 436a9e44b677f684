"""One of two ranks: makes every operation while they are timed, and looks at its own page and the other's."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tensorwire.diagnosis import phase
from tensorwire.diagnosis.page import worker_server
from tensorwire.diagnosis.page.rank_page import Page, Slot, page_path, read_page, write_control

directory = Path(os.environ["TENSORWIRE_PROBE_DIR"])
rank = int(os.environ["RANK"])
met: list[str] = []
tensor = torch.arange(4.0)
halves = [tensor[:2].clone(), tensor[2:].clone()]


def page(of: int = rank) -> Page:
    found = read_page(page_path(directory, of, 0))
    assert found is not None
    return found


def slot(name: str = "default_pg", of: int = rank, pair: bool = False) -> Slot:
    (found,) = (slot for slot in page(of).slots if slot.name == name and slot.pair == pair)
    return found


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, page()
        time.sleep(0.02)


def meet() -> None:
    """Wait for the other rank without an operation."""
    met.append(f"{directory}-{len(met)}-")
    Path(f"{met[-1]}{rank}").touch()
    wait_until(Path(f"{met[-1]}{1 - rank}").exists)


def passive() -> None:
    other = dist.new_group([0, 1], group_desc="other")
    dist.all_reduce(tensor.clone())
    dist.all_reduce(tensor.clone(), group=other)
    dist.broadcast(tensor.clone(), 0, group=other)
    # Ranks of a group may differ in sends and receives; the counts are of collectives.
    for _ in range(3):
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    wait_until(lambda: len(page().slots) == len(page(1 - rank).slots) == 2)
    wait_until(lambda: slot("other").completed == slot("other").enqueued == 2)
    assert slot("other").id == slot("other", 1 - rank).id != slot().id
    assert not page().timed

    # Rank 1 comes late: rank 0 shows what it waits in, and for how long.
    if rank == 1:
        wait_until(lambda: slot(of=0).is_open and slot(of=0).operation != "")
        waiting = slot(of=0)
        assert (waiting.operation, waiting.dtype, waiting.numel) == ("all_gather", "float32", 4), waiting
        assert waiting.sequence == waiting.enqueued == 2
        assert waiting.completed == 1
        assert waiting.enter_ns is not None
        assert 0.9 < (time.monotonic_ns() - waiting.enter_ns) / 1e9 < 30
        assert "all_gather" in worker_server.flight_recorder(page_path(directory, 0, 0)).decode()
        assert "operations.py" in worker_server.dump_traceback(page_path(directory, 0, 0))
        with phase("evaluation"), phase("checkpoint"):
            assert page().phase == "checkpoint"
        assert page().phase == ""
    dist.all_gather([torch.empty(4), torch.empty(4)], tensor)
    wait_until(lambda: slot().completed == 2)
    late_messages()


def late_messages() -> None:
    """No collective is open, and one end of a message waits for the other, which looks on."""
    received = torch.empty(4)
    for late, call in ((0, "recv"), (1, "send")):
        if rank == late:
            wait_until(lambda: any(slot.pair and slot.is_open for slot in page(1 - rank).slots))
            waiting = slot(of=1 - rank, pair=True)
            assert (waiting.operation, waiting.dtype, waiting.numel, waiting.root) == (call, "float32", 4, late)
            assert waiting.enter_ns is not None
            assert 0.9 < (time.monotonic_ns() - waiting.enter_ns) / 1e9 < 30
            assert waiting.name == "default_pg"
        dist.send(tensor, 1) if rank == 0 else dist.recv(received, 0)
        if rank != late:
            wait_until(lambda: not slot(pair=True).is_open)
            assert slot(pair=True).completed == 0, "messages that nobody waits for are not counted either"
        meet()
    assert slot(pair=True).id == slot(of=1 - rank, pair=True).id


def check(name: str, operation: Any, pair: bool = False) -> None:
    """Make an operation, and see it entered and completed by that name."""
    operation()
    wait_until(lambda: slot(pair=pair).operation == name and not slot(pair=pair).is_open)
    seen = slot(pair=pair)
    assert seen.active
    assert seen.completed == seen.enqueued
    assert seen.completed_ns >= seen.enter_ns > 0, seen
    if not pair:
        meet()
        assert slot().sequence == slot(of=1 - rank).sequence, "sends and receives must not count"
    meet()


def active() -> None:
    dist.barrier()
    if rank == 0:
        write_control(directory, {}, 1)
    wait_until(lambda: page().timed)
    world = dist.group.WORLD
    check("all_reduce", lambda: dist.all_reduce(tensor.clone()))
    check("broadcast", lambda: dist.broadcast(tensor.clone(), 1))
    check("reduce", lambda: dist.reduce(tensor.clone(), 1))
    check("all_gather", lambda: dist.all_gather([torch.empty(4), torch.empty(4)], tensor))
    check("all_gather_into_tensor", lambda: dist._all_gather_base(torch.empty(8), tensor))
    check("gather", lambda: dist.gather(tensor, [torch.empty(4), torch.empty(4)] if rank == 0 else None, 0))
    check("scatter", lambda: dist.scatter(torch.empty(4), [tensor, tensor] if rank == 0 else None, 0))
    check("reduce_scatter", lambda: dist.reduce_scatter(torch.empty(2), halves))
    check("reduce_scatter_tensor", lambda: dist._reduce_scatter_base(torch.empty(2), tensor))
    check("all_to_all", lambda: dist.all_to_all([torch.empty(2), torch.empty(2)], halves))
    check("all_to_all_single", lambda: dist.all_to_all_single(torch.empty(4), tensor))
    check("barrier", dist.barrier)
    check("monitored_barrier", dist.monitored_barrier)
    check("all_reduce_coalesced", lambda: dist.all_reduce_coalesced([tensor.clone(), tensor.clone()]))
    check("all_gather_coalesced", lambda: dist.all_gather_coalesced([[torch.empty(4)], [torch.empty(4)]], [tensor]))
    many = functional.all_gather_into_tensor_coalesced
    check("all_gather_into_tensor_coalesced", lambda: [t + 1 for t in many([tensor, tensor], world)])
    some = functional.reduce_scatter_tensor_coalesced
    check("reduce_scatter_tensor_coalesced", lambda: [t + 1 for t in some([tensor, tensor], "sum", [0, 0], world)])
    check("all_reduce", lambda: functional.all_reduce(tensor, "sum", world) + 1)
    with torch.inference_mode():
        check("reduce", lambda: dist.reduce(torch.ones(4), 0))
    messages()


def messages() -> None:
    received = torch.empty(4)
    check("send" if rank == 0 else "recv", lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(received, 0), True)
    assert rank == 0 or torch.equal(received, tensor)
    assert slot(pair=True).id == slot(of=1 - rank, pair=True).id
    assert slot(pair=True).signature == slot(of=1 - rank, pair=True).signature
    assert slot(pair=True).root == 1 - rank
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, 1) if rank == 0 else dist.P2POp(dist.irecv, received, 0)]
    )
    assert slot(pair=True).is_open
    for work in works:
        work.wait()
    wait_until(lambda: not slot(pair=True).is_open)
    if rank == 1:  # from any source: not seen, and not disturbed
        assert dist.recv(received) == 0
    else:
        dist.send(tensor * 2, 1)
    assert rank == 0 or torch.equal(received, tensor * 2)


def window() -> None:
    """All ranks time the same rounds until they are asked to stop; the kernels go."""
    dist.barrier()
    first = slot().enqueued + 4
    if rank == 0:
        number = write_control(directory, {slot().id: first}, 5)
        wait_until(lambda: page(1).control == number)
    wait_until(lambda: page().control == 2)
    dist.barrier()
    received = torch.empty(4)
    pending = dist.irecv(received, 0) if rank == 1 else None
    for i in range(20):
        if rank == 1:
            time.sleep(0.02)
        dist.all_reduce(torch.ones(100 + i))
    mine = slot()
    assert mine.first_sequence == first + 15, "the last whole window"
    assert mine.num_rounds == 5
    meet()
    other = slot(of=1 - rank)
    assert other.first_sequence == mine.first_sequence
    assert other.num_bytes == mine.num_bytes > 0
    late, waiting = (mine, other) if rank == 1 else (other, mine)
    assert waiting.sum_seconds > 0.08, (mine, other)
    assert late.sum_seconds < waiting.sum_seconds / 2
    assert waiting.min_seconds <= waiting.sum_seconds / 5 <= waiting.max_seconds
    meet()
    if rank == 0:
        write_control(directory, {}, 0)
    wait_until(lambda: not page().timed)
    dist.all_reduce(tensor.clone())  # the first operation after the end takes the kernels away
    key = torch._C.DispatchKey.BackendSelect
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", key)
    before = slot().enqueued
    dist.all_reduce(tensor.clone())
    wait_until(lambda: slot().enqueued > before)
    assert not slot().active
    # A message that was on its way when timing ended is over when it is.
    meet()
    assert slot(of=1, pair=True).is_open
    meet()
    if pending is None:
        dist.send(tensor, 1)
    else:
        pending.wait()
    wait_until(lambda: not slot(of=1, pair=True).is_open)


def no_lock() -> None:
    """A rank that keeps the GIL is still to be asked."""
    dist.barrier()
    if rank == 0:
        ctypes.PyDLL(None).usleep(2_000_000)
    else:
        time.sleep(0.5)
        heartbeats = page(0).heartbeats
        assert b"entries" in worker_server.flight_recorder(page_path(directory, 0, 0))
        assert page(0).heartbeats == heartbeats
    dist.barrier()


dist.init_process_group("gloo")
passive()
active()
window()
no_lock()
dist.destroy_process_group()
print("done")
