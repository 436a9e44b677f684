"""Makes 55 process groups and destroys each, then 55 at once, of which 45 go. A page has room for 50."""

import time

import torch
import torch.distributed as dist

from .own_page import groups, page, wait_until


def await_group(name: str, *, overflow: bool) -> None:
    """The ring of torch's recorder is read now and then."""
    wait_until(
        lambda: page().overflow == overflow and name in [each.name for each in groups() if each.members], seconds=120.0
    )


def make(number: int) -> dist.ProcessGroup:
    group = dist.new_group([0, 1], group_desc=f"stage {number}")
    dist.all_reduce(torch.ones(1), group=group)
    return group


dist.init_process_group("gloo")
for number in range(55):
    if number % 10 == 0:
        time.sleep(0.1)  # some are in the page before they go
    group = make(number)
    dist.barrier()  # gloo: a peer may still be in it
    dist.destroy_process_group(group)
make(1000)
await_group("stage 1000", overflow=False)
made = [make(2000 + number) for number in range(55)]
await_group("stage 2000", overflow=True)
dist.barrier()
for group in made[:45]:
    dist.destroy_process_group(group)
await_group("stage 2054", overflow=False)
dist.barrier()
dist.destroy_process_group()
