"""Jobs that hang or fail before they train or soon after, or that a launcher has started."""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from .common import STEPS_BEFORE, folder, is_befallen, mark_fault, stay_away, wait_for_server
from .small_training import TIMEOUT, Training, die_with_parent, start, steps

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCK_STEP = 120


def run(program: Callable[[], None]) -> None:
    """These programs join the others by themselves."""
    program()


def lack_module() -> None:
    """The environment of a rank lacks a module."""
    if is_befallen():
        time.sleep(1.5)  # the others are waiting for it by then
        mark_fault()
        importlib.import_module("fused_kernels")
    start()
    Training().train()


def wait_for_lock() -> None:
    """A rank is stuck before init_process_group, which the others wait in."""
    if is_befallen():
        stay_away()
    dist.init_process_group("gloo")
    dist.barrier()


def run_out_of_time() -> None:
    """One rank waits for a server; the others give up after 4 s, before the hang gate."""
    start(timedelta(seconds=4))
    Training().train(wait_for_server)


def start_with_hosted_store() -> int:
    """As `start`, but a child of the befallen rank hosts the store. Gives that process; 0 in other ranks."""
    torch.set_num_threads(1)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    host = os.fork() if is_befallen() else 0
    if is_befallen() and host == 0:
        die_with_parent()
        _store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
        while True:
            signal.pause()
    store = dist.TCPStore(address, port, is_master=False, timeout=TIMEOUT)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return host


def make_group() -> None:
    dist.barrier()
    dist.new_group()


def freeze_store() -> None:
    """The process that hosts the store stops; all ranks wait for it when they create the next group."""
    host = start_with_hosted_store()
    Training().train(lambda: os.kill(host, signal.SIGSTOP), make_group)


def lose_store() -> None:
    """The process that hosts the store is killed, and then all make the next group, which asks the store."""
    host = start_with_hosted_store()

    def end_store() -> None:
        os.kill(host, signal.SIGKILL)
        os.waitpid(host, 0)

    Training().train(end_store, make_group)


def count_one_too_many() -> None:
    """pytorch/pytorch#52848: the world size is one more than the ranks that were started."""
    mark_fault()
    start()
    Training().train()


def join_by_local_rank() -> None:
    """pytorch/pytorch#23074: one rank joins by its number on its node, which another rank has as well."""
    rank = int(os.environ["RANK"])
    if is_befallen():
        mark_fault()
        rank = 2 if rank == 3 else 3
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    Training().train()


def build_behind_stale_lock() -> None:
    """pytorch/pytorch#189245: an earlier job was killed while it built an extension, and its lock file is still there.
    All ranks wait for it.
    """
    from torch.utils import cpp_extension

    (folder() / "lock").touch()
    mark_fault()
    cpp_extension.load("fused", [str(Path(__file__))], build_directory=str(folder()))
    start()
    Training().train()


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
    Training().train()


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
    Training().train()


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
    Training().train()


def train_to_lock() -> None:
    """A rank waits for a lock. The ranks are started by torchrun."""
    start()
    Training().train(stay_away)


def train_with_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3))
    for step in steps():
        if step == _LOCK_STEP and is_befallen():
            stay_away()
        accelerator.backward(model(torch.randn(8, 64)).sum())
        optimizer.step()
        optimizer.zero_grad()


def train_with_trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.linear(inputs).pow(2).mean()}

    class Hang(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            time.sleep(0.015)
            if state.global_step == _LOCK_STEP and is_befallen():
                stay_away()

    arguments = TrainingArguments(
        output_dir=str(folder() / "trainer"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=100_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = [{"inputs": torch.ones(64)}] * 1000
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Hang()]).train()
