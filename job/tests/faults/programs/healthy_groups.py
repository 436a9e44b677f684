"""Jobs on many groups in which nothing is wrong: a mesh, experts, rollouts of one rank, a short job that ends."""

from __future__ import annotations

import random
import time
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from job.tests.faults.programs.common import case, is_befallen, mark_fault


def train_on_mesh() -> None:
    """tp in each layer, dp once a step; a group that is first used after a while."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    late = dist.new_group()
    for step in count():
        for _ in range(6):
            time.sleep(0.004)
            dist.all_reduce(torch.ones(512), group=mesh["tp"].get_group())
        dist.all_reduce(torch.ones(4096), group=mesh["dp"].get_group())
        if step > 200 and step % 100 == 0:
            dist.barrier(late)


def route_to_experts() -> None:
    """all_to_all of uneven sizes, which the ranks tell each other first."""
    world = dist.get_world_size()
    while True:
        sent = torch.randint(1, 500, (world,))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        output = torch.empty(int(received.sum()))
        dist.all_to_all_single(output, torch.ones(int(sent.sum())), received.tolist(), sent.tolist())
        time.sleep(0.02)


def roll_out() -> None:
    """One rank makes samples for a second or two, and the others wait for them."""
    while True:
        samples = torch.ones(1000)
        if is_befallen():
            time.sleep(random.uniform(0.5, 2.0))
        source = torch.tensor(dist.get_rank() if is_befallen() else -1)
        dist.all_reduce(source, dist.ReduceOp.MAX)
        dist.broadcast(samples, int(source))
        for _ in range(20):
            time.sleep(0.01)
            dist.all_reduce(torch.ones(64))


def end_early() -> None:
    """The job is done, and its ranks end one after another, the one that saves the model last."""
    for _ in range(300):
        time.sleep(0.01)
        dist.all_reduce(torch.ones(64))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(8.0 if is_befallen() else random.uniform(0.0, 1.0))


def main() -> None:
    dist.init_process_group("gloo")
    mark_fault()
    jobs = {
        "healthy-mesh": train_on_mesh,
        "healthy-experts": route_to_experts,
        "healthy-rollouts": roll_out,
        "healthy-end": end_early,
    }
    jobs[case()]()


if __name__ == "__main__":
    main()
