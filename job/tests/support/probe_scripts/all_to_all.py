"""One of four ranks: times all-to-alls to which one rank comes late; prints, for each way to share, what all ranks saw.

A line of JSON each: the way, T of each rank summed over the rounds, and how many rounds P means nothing for.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tensorwire_job.page.control import write_control

from .own_page import directory, page, rank, size, wait_until

if TYPE_CHECKING:
    from tensorwire_job.model import ProcessGroup

LATE, DELAY, ROUNDS = 2, 0.2, 3
WAITED_FOR = "even", "uneven"  # by all
WAYS = {
    "even": [[64] * size for _ in range(size)],
    "uneven": [[1 + (7 * source + 13 * target) % 50 for target in range(size)] for source in range(size)],
    "halves": [[64 * (source // 2 == target // 2) for target in range(size)] for source in range(size)],
    "ring": [[64 * (target == (source + 1) % size) for target in range(size)] for source in range(size)],
}


def group() -> ProcessGroup:
    (found,) = page().process_groups(time.monotonic())
    return found


def exchange(shares: list[list[int]], listed: bool) -> None:
    given, taken = shares[rank], [row[rank] for row in shares]
    if listed:
        dist.all_to_all([torch.empty(n) for n in taken], [torch.ones(n) for n in given])
    else:
        dist.all_to_all_single(torch.empty(sum(taken)), torch.ones(sum(given)), taken, given)


def enable_timing(number: int) -> int:
    """All ranks time the same rounds; gives the first."""
    dist.barrier()
    first = dist.group.WORLD._get_sequence_number_for_group() + 2  # there is one more barrier
    wait_until(lambda: page().slots)
    if rank == 0:
        write_control(directory, {int(group().id, 16): first}, ROUNDS)
    wait_until(lambda: page().header.control == number)
    dist.barrier()
    return first


def main() -> None:
    number = 0
    for name, shares in WAYS.items():
        for listed in (False, True) if name == "even" else (False,):  # gloo wants lists to be of one size
            number += 1
            first = enable_timing(number)
            for _ in range(ROUNDS):
                if rank == LATE and name in WAITED_FOR:
                    time.sleep(DELAY)
                exchange(shares, listed)
            wait_until(lambda first=first: (timing := group().timing) and timing.first_sequence == first)
            timing = group().timing
            seen: list[Any] = [None] * size
            dist.all_gather_object(seen, (timing.sum_seconds, timing.rooted_or_pairwise))
            if rank == 0:
                seconds, pairwise = zip(*seen, strict=True)
                print(json.dumps({"name": name, "listed": listed, "seconds": seconds, "pairwise": pairwise}))


dist.init_process_group("gloo")
main()
dist.destroy_process_group()
