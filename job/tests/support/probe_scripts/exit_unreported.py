"""The only rank ends right behind its last operation, which torch's own number of completed ones may lack by then:
gloo's threads report out of order. The argument says by how much that number is too low."""

import json
import sys
import time

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from tensorwire_job.rank import probe

dump = c10d._dump_fr_trace_json


def unreported(*arguments: bool) -> bytes:
    found = json.loads(dump(*arguments))
    for numbers in found.get("pg_status", {}).values():
        numbers["last_completed_collective"] = int(numbers["last_completed_collective"]) - int(sys.argv[1])
    return json.dumps(found).encode()


c10d._dump_fr_trace_json = unreported
dist.init_process_group("gloo")
assert probe._probe is not None
while probe._probe._sampler is None:
    time.sleep(0.01)
dist.all_reduce(torch.ones(1))
time.sleep(1.0)  # the probe knows the group, and has read its ring for that
dist.all_reduce(torch.ones(1))
