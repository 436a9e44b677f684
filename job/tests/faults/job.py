"""The training job that faults are injected into: rounds of compute and collectives, until it is killed.

Nothing in it knows of the probe. A datagram socket `rank-N.sock` in the folder `TW_FAULTS_DIR` takes commands, JSON
objects: `do` names an action below, `at` the round before which it is done (so that ranks can act in the same round;
0: the next one), the rest are its arguments. The number of rounds begun stands in the file `rank-N.round`, 8 bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import os
import signal
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .dumped import dump_when_asked


class Job:
    def __init__(self) -> None:
        folder = Path(os.environ["TW_FAULTS_DIR"])
        self.rank = int(os.environ["RANK"])
        self.settings: dict[str, Any] = {
            "compile": 0.0,  # seconds of a first step that takes long, as compilation makes it
            "compute": 0.02,  # seconds of a step without collectives, asleep
            "spin": 0.0,  # of its CPU time
            "late": 0.0,  # seconds that this rank computes for longer than the others
            "load": 0.0,  # that its data loader takes for a batch
            "collect": 0.0,  # that it collects garbage in each step
            "numel": [256],  # float32 elements of the gradients, in turn
            "pairs": False,  # ranks 0 and 1, 2 and 3 reduce among themselves as well
        } | json.loads(os.environ.get("TW_FAULTS_SETTINGS", "{}"))
        self.pending: list[dict[str, Any]] = []
        self.round = 0
        self.commands = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.commands.setblocking(False)
        self.commands.bind(str(folder / f"rank-{self.rank}.sock"))
        self.progress = os.open(folder / f"rank-{self.rank}.round", os.O_WRONLY | os.O_CREAT)
        dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("TW_FAULTS_TIMEOUT", "1800"))))
        if "TW_FAULTS_DUMPS" in os.environ:
            dump_when_asked(folder, self.rank, with_stacks=False)  # they take seconds
        world = range(dist.get_world_size())
        self.other_world = dist.new_group(list(world), group_desc="other_world")
        self.pairs = {
            rank: group
            for first in world[::2]
            for group in [dist.new_group([first, first + 1], group_desc=f"pair_{first}")]
            for rank in (first, first + 1)
        }

    def train(self) -> None:
        end = time.monotonic() + self.settings["compile"]
        while time.monotonic() < end:
            pass
        while True:
            self.round += 1
            os.pwrite(self.progress, self.round.to_bytes(8, "little"), 0)
            self.obey()
            self.load_batch()
            self.compute()
            self.reduce_gradients()

    def obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.pending.append(json.loads(self.commands.recv(65536)))
        due = [command for command in self.pending if command.get("at", 0) <= self.round]
        due.sort(key=lambda command: command["do"] != "sleep")
        self.pending = [command for command in self.pending if command not in due]
        for command in due:
            arguments = {name: value for name, value in command.items() if name not in ("do", "at")}
            getattr(self, command["do"])(**arguments)

    # The parts of a step.

    def load_batch(self) -> None:
        if self.settings["load"]:
            next(iter(torch.utils.data.DataLoader(SlowDataset(self.settings["load"]))))

    def compute(self) -> None:
        time.sleep(self.settings["compute"] + self.settings["late"])
        end = time.process_time() + self.settings["spin"]
        while time.process_time() < end:
            pass
        end = time.monotonic() + self.settings["collect"]
        while time.monotonic() < end:
            gc.collect()

    def reduce_gradients(self) -> None:
        if self.settings["pairs"]:
            dist.all_reduce(torch.ones(256), group=self.pairs[self.rank])
        sizes = self.settings["numel"]
        dist.all_reduce(torch.ones(sizes[self.round % len(sizes)]))

    # Actions.

    def set(self, **settings: Any) -> None:
        self.settings.update(settings)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hold_gil(self) -> None:
        sum(itertools.repeat(1))  # one call into C that never ends and never looks at signals

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def exit(self) -> None:
        sys.exit(1)

    def fail(self) -> None:
        raise ValueError("loss is NaN")

    def other_operation(self) -> None:
        dist.broadcast(torch.ones(256), src=0)

    def other_size(self) -> None:
        dist.all_reduce(torch.ones(512))

    def smaller_size(self) -> None:
        dist.all_reduce(torch.ones(128))

    def other_dtype(self) -> None:
        dist.all_reduce(torch.ones(256, dtype=torch.float64))

    def broadcast(self, src: int) -> None:
        dist.broadcast(torch.ones(256), src=src)

    def two_groups(self, swapped: bool) -> None:
        first, second = (self.other_world, dist.group.WORLD) if swapped else (dist.group.WORLD, self.other_world)
        dist.all_reduce(torch.ones(256), group=first)
        dist.all_reduce(torch.ones(256), group=second)

    def receive(self, src: int) -> None:
        dist.recv(torch.empty(256), src)

    def send_late(self, dst: int, seconds: float) -> None:
        self.sleep(seconds)
        dist.send(torch.ones(256), dst)

    def transfer(self, numel: int) -> None:
        dist.all_reduce(torch.ones(numel))

    def stop_inside(self, numel: int) -> None:
        work = dist.all_reduce(torch.ones(numel), async_op=True)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSTOP)
        work.wait()

    def checkpoint(self, seconds: float, declared: bool = False) -> None:
        """To storage that takes ten writes a second."""
        end = time.monotonic() + seconds
        with phase("checkpoint", declared), tempfile.TemporaryFile() as file:
            while time.monotonic() < end:
                os.pwrite(file.fileno(), bytes(1 << 16), 0)
                time.sleep(0.1)

    def evaluate(self, seconds: float, declared: bool = False) -> None:
        with phase("evaluation", declared):
            time.sleep(seconds)

    def step_clock(self, seconds: float) -> None:
        ctypes.c_int64.in_dll(ctypes.CDLL(None), "tw_faults_clock_offset").value = int(seconds)


def phase(name: str, declared: bool) -> contextlib.AbstractContextManager[None]:
    if not declared:
        return contextlib.nullcontext()
    import tensorwire_job

    return tensorwire_job.phase(name)


class SlowDataset(torch.utils.data.Dataset):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.zeros(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Job().train()
