"""Jobs that hang before they train, or soon after, after reports in public issue trackers."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils import cpp_extension

from .common import STEPS_BEFORE, chosen, folder, is_befallen, mark_fault
from .small_training import Training, die_with_parent, start


def train() -> None:
    for _ in Training().steps():
        pass


def count_one_too_many() -> None:
    """pytorch/pytorch#52848: the world size is one more than the ranks that were started."""
    mark_fault()
    start()
    train()


def join_by_local_rank() -> None:
    """pytorch/pytorch#23074: one rank joins by its number on its node, which another rank has as well."""
    rank = int(os.environ["RANK"])
    if is_befallen():
        mark_fault()
        rank = 2 if rank == 3 else 3
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    train()


def build_behind_stale_lock() -> None:
    """pytorch/pytorch#189245: an earlier job was killed while it built an extension, and its lock file is still there.
    All ranks wait for it.
    """
    (folder() / "lock").touch()
    mark_fault()
    cpp_extension.load("fused", [str(Path(__file__))], build_directory=str(folder()))
    start()
    train()


def resume_by_some() -> None:
    """huggingface/transformers#28270: one rank finds no checkpoint and begins anew; the others load one, and wait for
    rank 0 to broadcast it.
    """
    start()
    if is_befallen():
        mark_fault()
    else:
        state: list[Any] = [{"step": 1000, "best": 0.1}]
        dist.broadcast_object_list(state, src=0)
    train()


def start_logger() -> None:
    """EleutherAI/bergson#249: the logger of one rank waits for an answer of its service, which cannot reach its server.
    The others wait for that rank in new_group.
    """
    start()
    training = Training()
    for _ in range(STEPS_BEFORE):
        training.step()
    if is_befallen():
        mark_fault()
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], preexec_fn=die_with_parent)
        answer = threading.Event()
        while not answer.wait(timeout=1.0):
            print("waiting for the logger to start ...", flush=True)
    dist.new_group(group_desc="checkpoint")
    train()


def tokenize(shard: int) -> None:
    die_with_parent()
    while True:
        sum(math.sqrt(text) for text in range(shard, 200_000))


def tokenize_first() -> None:
    """hiyouga/LlamaFactory#360: one rank tokenizes the dataset first, in processes of its own, and the others wait in a
    barrier until it has written its cache.
    """
    start()
    if is_befallen():
        mark_fault()
        context = multiprocessing.get_context("fork")
        shards = [context.Process(target=tokenize, args=(number,), daemon=True) for number in range(2)]
        for shard in shards:
            shard.start()
        for shard in shards:
            shard.join()
    dist.barrier()
    train()


if __name__ == "__main__":
    chosen(globals())()
