"""Four ranks as a mesh of two dimensions, or as stages, in which one rank goes its own way or is gone."""

from __future__ import annotations

import os
import signal
import time
from itertools import count

import torch
import torch.distributed as dist

from .common import STEPS_BEFORE, befalls, is_befallen, mark_fault, stay_away
from .small_training import mesh_groups, steps

_LAYERS = 4
_MICRO_BATCHES = 6
_PERIOD = 20  # steps, of which the last has one micro-batch


def reduce(group: dist.ProcessGroup | None = None) -> None:
    time.sleep(0.01)
    dist.all_reduce(torch.ones(64), group=group)


def leave_early(used: str = "") -> None:
    """The rank goes on to dp while the others are still in the loop over tp."""
    dp, tp = mesh_groups("dp", "tp")
    if used:
        reduce(dp)
    for step in count():
        if befalls(step, 150):
            break
        reduce(tp)
    while True:
        reduce(dp)


def leave_each_step_early() -> None:
    """The rank has fewer layers in each step: its partner waits for it a step later, and so on, in a circle."""
    dp, tp = mesh_groups("dp", "tp")
    for step in count():
        skips = step >= 40 and is_befallen()
        if skips:
            mark_fault()
        for _ in range(_LAYERS // 2 if skips else _LAYERS):
            reduce(tp)
        reduce(dp)


def stick_before_first() -> None:
    """The rank is stuck before the first operation of its tp group."""
    dp, tp = mesh_groups("dp", "tp")
    for _ in range(150):
        reduce()
    if is_befallen():
        stay_away()
    while True:
        reduce(tp)
        reduce(dp)


def stick_before_new_dp() -> None:
    """The rank is stuck before the first operation of its dp group, in which its peer waits."""
    dp, tp = mesh_groups("dp", "tp")
    for _ in range(150):
        reduce(tp)
    if is_befallen():
        stay_away()
    while True:
        reduce(dp)
        reduce(tp)


# After reports in public issue trackers.


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

    for step in count(1):
        num_micro_batches = 1 if step % _PERIOD == 0 else _MICRO_BATCHES
        num_warm_up = last + 1 - stage if befalls(step, 4 * _PERIOD) else min(num_micro_batches, last + 1 - stage)
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
    pp, dp = mesh_groups("pp", "dp")
    is_first = dist.get_rank(pp) == 0
    other = dist.get_global_rank(pp, 1 if is_first else 0)
    for step in steps():
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
    rank is shuffled by another seed, and its batch is longer or shorter than that of its partner. No other rank
    knows how long it should be.
    """
    dp, sp = mesh_groups("dp", "sp")
    lengths = [64, 96, 48, 112, 80, 128]
    position = dist.get_rank(dp)
    for step in steps():
        position += 2 if befalls(step) else 1
        heads = torch.ones(2, lengths[position % len(lengths)], 8)
        sequence = torch.empty_like(heads)
        dist.all_to_all_single(sequence, heads, group=sp)
        dist.all_reduce(torch.ones(4096))


def kill_in_mesh() -> None:
    """OpenRLHF/OpenRLHF#876: the kernel kills one rank of a mesh for want of memory. The others are in groups with it,
    or with a rank that is.
    """
    dp, tp = mesh_groups("dp", "tp")
    for step in count():
        for _ in range(4):
            time.sleep(0.005)
            dist.all_reduce(torch.ones(256), group=tp)
        if befalls(step):
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4096), group=dp)
