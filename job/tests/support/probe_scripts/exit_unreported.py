"""The only rank ends right behind its last operation, which torch's own number of completed ones may lack by then:
gloo's threads report out of order. The argument says by how much that number is too low."""

import json
import sys

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from tensorwire_job.rank import calls

from .own_page import groups, wait_until

calls.STILL_SECONDS = 60.0  # type: ignore[misc]  # the file of calls is written at the end if at all
dump = c10d._dump_fr_trace_json


def unreported(*arguments: bool) -> bytes:
    found = json.loads(dump(*arguments))
    for numbers in found.get("pg_status", {}).values():
        numbers["last_completed_collective"] = int(numbers["last_completed_collective"]) - int(sys.argv[1])
    return json.dumps(found).encode()


c10d._dump_fr_trace_json = unreported
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
wait_until(groups)  # the probe has read the ring to know the group
dist.all_reduce(torch.ones(1))
