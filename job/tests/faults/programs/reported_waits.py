"""Ranks that wait, compute for ever or die by themselves, outside of collectives, after public reports."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import re
import signal
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .common import befallen_rank, befalls, folder, mark_fault
from .small_training import Training, die_with_parent

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

_EPOCH = 20  # steps
_POLL_SECONDS = 0.05
_BATCH_BYTES = 4096  # of a mapped dataset


def save_without_worker() -> None:
    """NVIDIA-NeMo/RL#2225: three ranks train in a group of their own, and one generates on request. A save gathers over
    all ranks, and the one that generates is not asked to take part.
    """
    befallen = befallen_rank()
    worker = befallen if befallen >= 0 else 3
    trainers = [rank for rank in range(dist.get_world_size()) if rank != worker]
    group = dist.new_group(trainers)

    def request(number: int) -> Path:
        return folder() / f"request-{number}"

    def save() -> None:
        shards: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(shards, {"rank": dist.get_rank()})

    for number in itertools.count():
        if dist.get_rank() == worker:
            while not request(number).exists():
                time.sleep(_POLL_SECONDS)
        else:
            for _ in range(_EPOCH):
                time.sleep(0.02)
                dist.all_reduce(torch.ones(4096), group=group)
            if number == 4 and befallen >= 0:
                if dist.get_rank() == trainers[0]:
                    mark_fault()
                save()
            if dist.get_rank() == trainers[0]:
                request(number).touch()
        dist.broadcast(torch.ones(4096), src=trainers[0])  # the weights to generate with
        if number == 4:
            save()


def leave_out_report() -> None:
    """ray-project/ray#58229: all ranks have to report their metrics, and wait in the barrier of the report, which is
    none of torch's. One rank leaves out a report, and waits for the others in its backward pass.
    """
    training = Training()

    def report(number: int) -> None:
        (folder() / f"report-{number}-{dist.get_rank()}").touch()
        while len(list(folder().glob(f"report-{number}-*"))) < dist.get_world_size():
            time.sleep(_POLL_SECONDS)

    for step in training.steps(1):
        if step % _EPOCH == 0 and not befalls(step, 4 * _EPOCH):
            report(step // _EPOCH)


def park() -> None:
    """ai2cm/ace#1438: a rank that is told to end parks between two steps, so that its exchanges are quiet when it is
    killed. The scheduler has told one rank only.
    """
    is_told = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        is_told.set()

    signal.signal(signal.SIGTERM, note)
    for step in Training().steps():
        if befalls(step):
            os.kill(os.getpid(), signal.SIGTERM)
        if is_told.is_set():
            threading.Event().wait()


def write_shard(path: Path) -> None:
    die_with_parent()
    with path.open("wb") as file:
        file.write(bytes(1 << 16))


def await_last_save() -> None:
    """NVIDIA/Megatron-LM#2422: a process of its own writes a checkpoint while training goes on, and the next save waits
    for its end. The storage of one rank does not answer.
    """
    training = Training()
    context = multiprocessing.get_context("fork")
    writer = None
    for step in training.steps(1):
        if step % _EPOCH == 0:
            if writer is not None:
                writer.join()
            shard = folder() / f"shard-{step}-{dist.get_rank()}"
            if befalls(step, 4 * _EPOCH):
                os.mkfifo(shard)  # it has no reader: to open it takes for ever
            writer = context.Process(target=write_shard, args=(shard,), daemon=True)
            writer.start()


def parse_answer() -> None:
    """huggingface/trl#5415: one rank parses an answer that was cut off, and the regular expression for it backtracks
    for ever, with Python's lock.
    """
    training = Training()
    calls = re.compile(r"^(?:(?:<call>)?\w+;?)+</call>$")
    for step in training.steps():
        answer = "<call>" + "sum;" * 40 if befalls(step) else "<call>sum;</call>"
        calls.search(answer)


def read_truncated_file() -> None:
    """hpcaitech/ColossalAI#3556: one rank dies of SIGBUS (exit code -7). Its mapped dataset has become shorter, since
    it is prepared again.
    """
    path = folder() / f"tokens-{dist.get_rank()}"
    path.write_bytes(bytes(_BATCH_BYTES << 10))
    training = Training()
    checksum = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as tokens:
        for step in training.steps():
            if befalls(step):
                os.truncate(path, 0)
            first = step * _BATCH_BYTES % len(tokens)
            checksum = zlib.crc32(tokens[first : first + _BATCH_BYTES], checksum)
