"""One of two ranks: makes every operation while they are timed, and looks at its own page and the other's."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tensorwire_job import phase
from tensorwire_job.page import native, worker_server
from tensorwire_job.page.control import request_servers, write_control
from tensorwire_job.page.directory import page_path

from ..quick_times import OPEN_SECONDS
from .own_page import directory, page, rank, wait_until

if TYPE_CHECKING:
    from tensorwire_job.model import Operation, ProcessGroup, Timing

met: list[str] = []
tensor = torch.arange(4.0)
halves = [tensor[:2].clone(), tensor[2:].clone()]


def group(name: str = "default_pg", of: int = rank, pair: bool = False) -> ProcessGroup:
    """What a page says of a process group, or of the messages between the two ranks."""
    found = page(of)
    groups = found.process_groups(time.monotonic())
    (which,) = (
        number
        for number, slot in enumerate(found.slots)
        if groups[number].name == name and bool(slot.flags & native.PAIR) == pair
    )
    return groups[which]


def operation(of: int = rank, pair: bool = False) -> Operation:
    found = group(of=of, pair=pair).operation
    assert found is not None
    return found


def timing(of: int = rank) -> Timing:
    """What is known of the waits for messages."""
    found = group(of=of, pair=True).timing
    assert found is not None
    return found


def is_open(of: int = rank, pair: bool = False) -> bool:
    return group(of=of, pair=pair).open_seconds is not None


def has_open_message(of: int) -> bool:
    return any(slot.flags & native.PAIR and slot.flags & native.OPEN for slot in page(of).slots)


def slot() -> native.Slot:
    """What only the page itself tells."""
    identity = int(group().id, 16)
    (found,) = (slot for slot in page().slots if slot.id == identity)
    return found


def meet() -> None:
    """Wait for the other rank without an operation."""
    met.append(f"{directory}-{len(met)}-")
    Path(f"{met[-1]}{rank}").touch()
    wait_until(Path(f"{met[-1]}{1 - rank}").exists)


def passive() -> None:
    wait_until(lambda: page().slots)
    time.sleep(0.2)  # messages pass the probe from now on
    meet()
    other = dist.new_group([0, 1], group_desc="other")
    dist.all_reduce(tensor.clone())
    dist.all_reduce(tensor.clone(), group=other)
    dist.broadcast(tensor.clone(), 0, group=other)
    # Ranks of a group may differ in sends and receives; its counts are of collectives.
    for _ in range(3):
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    wait_until(lambda: len(page().slots) == len(page(1 - rank).slots) == 3)
    wait_until(lambda: group(pair=True).completed == group(of=1 - rank, pair=True).completed == 3)
    wait_until(lambda: group("other").completed == group("other").enqueued == 2)
    assert group("other").id == group("other", 1 - rank).id != group().id
    assert not page().timed

    # Rank 1 comes late: rank 0 shows what it waits in, and for how long.
    if rank == 1:
        wait_until(lambda: is_open(of=0) and operation(of=0).name != "")
        waiting, call = group(of=0), operation(of=0)
        assert (call.name, call.dtype, call.numel) == ("all_gather", "float32", 4), waiting
        assert call.sequence == waiting.enqueued == 2
        assert waiting.completed == 1
        assert waiting.open_seconds is not None
        assert 0.9 * OPEN_SECONDS < waiting.open_seconds < 30
        assert not page(0).has_socket
        request_servers(directory)
        wait_until(lambda: page(0).has_socket)
        assert "all_gather" in worker_server.flight_recorder(page_path(directory, 0, 0)).decode()
        assert "operations.py" in worker_server.dump_traceback(page_path(directory, 0, 0))
        with phase("evaluation"), phase("checkpoint"):
            assert page().phase == "checkpoint"
        assert page().phase == ""
    dist.all_gather([torch.empty(4), torch.empty(4)], tensor)
    wait_until(lambda: group().completed == 2)
    late_messages()


def late_messages() -> None:
    """No collective is open, and one end of a message waits for the other, which looks on."""
    received = torch.empty(4)
    for count, (late, name) in enumerate(((0, "recv"), (1, "send")), 4):
        waited = timing().sum_seconds
        if rank == late:
            wait_until(lambda: has_open_message(1 - rank))
            waiting, call = group(of=1 - rank, pair=True), operation(of=1 - rank, pair=True)
            assert (call.name, call.dtype, call.numel, call.root) == (name, "float32", 4, late)
            assert (waiting.completed, waiting.enqueued) == (count - 1, count)
            assert waiting.open_seconds is not None
            assert 0.9 * OPEN_SECONDS < waiting.open_seconds < 30
            assert timing(of=1 - rank).sum_seconds > 0.9 * OPEN_SECONDS, "a wait counts while it lasts"
        dist.send(tensor, 1) if rank == 0 else dist.recv(received, 0)
        wait_until(lambda count=count: group(pair=True).completed == count)
        assert not is_open(pair=True)
        assert (timing().sum_seconds - waited > 0.9 * OPEN_SECONDS) == (rank != late)
        meet()
    assert group(pair=True).id == group(of=1 - rank, pair=True).id


def check(name: str, call: Any) -> None:
    """Make an operation, and see it entered and completed by that name."""
    call()
    wait_until(lambda: operation().name == name and not is_open())
    seen = slot()
    assert seen.flags & native.ACTIVE
    assert seen.completed == seen.enqueued
    assert seen.completed_ns >= seen.enter_ns > 0
    meet()
    assert operation().sequence == operation(of=1 - rank).sequence, "sends and receives must not count"
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
    """They are counted while operations are timed, and count for nothing in the group."""
    received = torch.empty(4)
    before = group(pair=True).completed
    dist.send(tensor, 1) if rank == 0 else dist.recv(received, 0)
    assert rank == 0 or torch.equal(received, tensor)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, 1) if rank == 0 else dist.P2POp(dist.irecv, received, 0)]
    )
    for work in works:
        work.wait()
    wait_until(lambda: group(pair=True).completed == before + 2)
    meet()
    assert group(pair=True).id == group(of=1 - rank, pair=True).id
    assert (operation(pair=True).name, operation(pair=True).root) == ("send" if rank == 0 else "recv", 1 - rank)
    if rank == 1:  # from any source: not seen, and not disturbed
        assert dist.recv(received) == 0
    else:
        dist.send(tensor * 2, 1)
    assert rank == 0 or torch.equal(received, tensor * 2)
    check("all_reduce", lambda: dist.all_reduce(tensor.clone()))


def window() -> None:
    """All ranks time the same rounds until they are asked to stop; the kernels go."""
    dist.barrier()
    first = group().enqueued + 4
    if rank == 0:
        number = write_control(directory, {int(group().id, 16): first}, 5)
        wait_until(lambda: page(1).header.control == number)
    wait_until(lambda: page().header.control == 2)
    dist.barrier()
    for i in range(20):
        if rank == 1:
            time.sleep(0.02)
        dist.all_reduce(torch.ones(100 + i))
    mine = group().timing
    assert mine is not None
    assert mine.first_sequence == first + 15, "the last whole window"
    assert mine.num_rounds == 5
    meet()
    other = group(of=1 - rank).timing
    assert other is not None
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
    before = group().enqueued
    dist.all_reduce(tensor.clone())
    wait_until(lambda: group().enqueued > before)
    assert not slot().flags & native.ACTIVE


def stands_still() -> bool:
    """Whether rank 0 makes no heartbeat in the time of several."""
    heartbeats = page(0).header.heartbeats
    time.sleep(0.3)
    return page(0).header.heartbeats == heartbeats


def no_lock() -> None:
    """A rank that keeps the GIL is still to be asked."""
    dist.barrier()
    kept = Path(f"{directory}-kept")
    if rank == 0:
        os.mkfifo(kept)
        ctypes.PyDLL(None).open(bytes(kept), os.O_RDONLY)  # until there is a writer
    else:
        wait_until(kept.exists)
        wait_until(stands_still)
        heartbeats = page(0).header.heartbeats
        try:
            assert b"entries" in worker_server.flight_recorder(page_path(directory, 0, 0))
            assert page(0).header.heartbeats == heartbeats
        finally:
            kept.open("wb").close()
    dist.barrier()


dist.init_process_group("gloo")
passive()
active()
window()
no_lock()
dist.destroy_process_group()
print("done")
