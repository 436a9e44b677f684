"""Pipelines and meshes in which one rank goes its own way or is gone, after reports in public issue trackers."""

from __future__ import annotations

import itertools
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, start

_MICRO_BATCHES = 6
_PERIOD = 20  # steps, of which the last has one micro-batch


def warm_up_too_long() -> None:
    """pytorch/torchtitan#775: the schedule 1F1B of one stage does not limit its warm-up to the number of micro-batches.
    It waits for a micro-batch that the stage before it does not have.
    """
    stage, last = dist.get_rank(), dist.get_world_size() - 1
    sends: list[dist.Work | None] = []

    def forward() -> None:
        activation = torch.ones(1024)
        if stage > 0:
            dist.recv(activation, stage - 1)
        time.sleep(0.002)
        if stage < last:
            sends.append(dist.isend(activation, stage + 1))

    def backward() -> None:
        gradient = torch.ones(1024)
        if stage < last:
            dist.recv(gradient, stage + 1)
        time.sleep(0.002)
        if stage > 0:
            sends.append(dist.isend(gradient, stage - 1))

    for step in itertools.count(1):
        num_micro_batches = 1 if step % _PERIOD == 0 else _MICRO_BATCHES
        num_warm_up = min(num_micro_batches, last + 1 - stage)
        if step == 4 * _PERIOD and is_befallen():
            mark_fault()
            num_warm_up = last + 1 - stage
        for _ in range(num_warm_up):
            forward()
        for _ in range(num_micro_batches - num_warm_up):
            backward()
            forward()
        for _ in range(num_warm_up):
            backward()
        for send in sends:
            assert send is not None
            send.wait()
        sends.clear()


def leave_out_replica() -> None:
    """huggingface/picotron#5: pipelines of two stages, each twice. One replica of a stage has the flag for the
    synchronization of its gradients wrong, and from some step on leaves out their reduction.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    is_first = dist.get_rank(pp) == 0
    other = dist.get_global_rank(pp, 1 if is_first else 0)
    for step in itertools.count():
        time.sleep(0.02)
        activation, gradient = torch.ones(1024), torch.ones(1024)
        if is_first:
            dist.send(activation, other, group=pp)
            dist.recv(gradient, other, group=pp)
        else:
            dist.recv(activation, other, group=pp)
            dist.send(gradient, other, group=pp)
        synchronizes = step < STEPS_BEFORE or not is_befallen()
        if synchronizes:
            dist.all_reduce(torch.ones(4096), group=dp)
        elif step == STEPS_BEFORE:
            mark_fault()


def shuffle_otherwise() -> None:
    """verl-project/verl#1158, axolotl-ai-cloud/axolotl#3920: ranks that share a sequence must have the same batch. One
    rank is shuffled by another seed, and its batch is longer or shorter than that of its partner. Nobody but the two
    knows how long it should be.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    sp = mesh["sp"].get_group()
    lengths = [64, 96, 48, 112, 80, 128]
    position = mesh.get_local_rank("dp")
    for step in itertools.count():
        time.sleep(0.02)
        position += 1
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            position += 1
        heads = torch.ones(2, lengths[position % len(lengths)], 8)
        sequence = torch.empty_like(heads)
        dist.all_to_all_single(sequence, heads, group=sp)
        dist.all_reduce(torch.ones(4096))


def kill_in_mesh() -> None:
    """OpenRLHF/OpenRLHF#876: the kernel kills one rank of a mesh for want of memory. The others are in groups with it,
    or with somebody who is.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"].get_group(), mesh["tp"].get_group()
    for step in itertools.count():
        for _ in range(4):
            time.sleep(0.005)
            dist.all_reduce(torch.ones(256), group=tp)
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4096), group=dp)


CASES = {
    "long-warm-up": warm_up_too_long,
    "unsynced-replica": leave_out_replica,
    "other-seed": shuffle_otherwise,
    "killed-in-mesh": kill_in_mesh,
}


if __name__ == "__main__":
    start()
    CASES[case()]()
