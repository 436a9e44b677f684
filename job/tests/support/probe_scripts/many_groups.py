"""Makes 200 process groups and destroys each, then 60 at once, of which 50 go; prints what its page shows."""

import time

import torch
import torch.distributed as dist

from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import probe


def shows(name: str, *, overflow: bool) -> bool:
    """Within 120 seconds: the ring of torch's recorder is read now and then."""
    for _ in range(1200):
        time.sleep(0.1)
        page = read_page(probe._probe._path)  # type: ignore[union-attr, arg-type]
        names = [group.name for group in page.process_groups(time.monotonic()) if group.members]
        if name in names and page.overflow == overflow:
            return True
    return False


def make(number: int) -> dist.ProcessGroup:
    group = dist.new_group([0, 1], group_desc=f"stage {number}")
    dist.all_reduce(torch.ones(1), group=group)
    return group


dist.init_process_group("gloo")
for number in range(200):
    if number % 10 == 0:
        time.sleep(0.45)  # some are in the page before they go
    group = make(number)
    dist.barrier()  # gloo: a peer may still be in it
    dist.destroy_process_group(group)
make(1000)
print(shows("stage 1000", overflow=False))
groups = [make(2000 + number) for number in range(60)]
print(shows("stage 2000", overflow=True))
dist.barrier()
for group in groups[:50]:
    dist.destroy_process_group(group)
print(shows("stage 2059", overflow=False))
dist.barrier()
dist.destroy_process_group()
