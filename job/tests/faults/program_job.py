"""The job of a case with a program of its own: that program on each rank, started one by one or by a launcher."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support.ports import free_port

from .programs.common import FAULT
from .training_job import WORLD_SIZE, TrainingJob

if TYPE_CHECKING:
    import signal

    from .cases import Case
    from .fork_server import ForkServer

_END_SECONDS = 10.0  # to end after a signal; a launcher kills then
_LAUNCHERS = {
    "torchrun": [  # an agent for each of two nodes
        "torch.distributed.run --nnodes=2 --nproc-per-node=2 --rdzv-id={run_id} --rdzv-backend=static "
        f"--master-addr=127.0.0.1 --master-port={{port}} --node-rank={number}"
        for number in range(2)
    ],
    # As `accelerate launch`. Its ranks know no run id. With --cpu it starts one process alone: the program says that it
    # wants the CPU.
    "accelerate": [
        "accelerate.commands.launch --num_machines=1 --mixed_precision=no --dynamo_backend=no --multi_gpu "
        f"--num_processes={WORLD_SIZE} --main_process_port={{port}}"
    ],
}


class ProgramJob(TrainingJob):
    """A run of a case's program. A fork server has one at a time.

    Args:
        runner: the module that runs the program, with its arguments: by default that of the probe.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        case: Case,
        rank: int,
        runner: tuple[str, ...] = ("tensorwire_job", "-m", f"{__package__}.programs"),
    ) -> None:
        self._launcher = case.launcher
        modules = (*runner, case.program, *case.function.split())
        super().__init__(fork_server, {}, modules=modules, TW_FAULTS_RANK=str(rank), **case.environment)

    def restart(self) -> None:
        if not self._launcher:
            super().restart()
            return
        own = {"TENSORWIRE_PROBE_DIR": str(self.nodes[0])}
        values = {"port": free_port(), "run_id": self.folder.name}
        commands = [command.format(**values).split() for command in _LAUNCHERS[self._launcher]]
        environment = {
            name: value
            for name, value in (self._environment | own).items()
            if name not in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
        }
        for number, command in enumerate(commands):
            arguments = [*command, "-m", *self._modules]
            self.pids.append(self._fork_server.start(arguments, environment, self.output(number)))

    def fault_time(self) -> float | None:
        """When the program said that the fault is now; None before."""
        with suppress(FileNotFoundError):
            return float((self.folder / FAULT).read_text())
        return None

    @property
    def is_over(self) -> bool:
        return all(self._fork_server.status(pid) is not None for pid in self.pids)

    def end_by(self, number: signal.Signals, gap: float = 0.0) -> None:
        """Signal all of the job, and kill what has not ended after a while, as a launcher does.

        Args:
            gap: seconds between two signals: none as a terminal has it, more as launchers of several nodes have.
        """
        for pid in self.pids:
            if self._fork_server.status(pid) is None:
                os.kill(pid, number)
            time.sleep(gap)
        deadline = time.monotonic() + _END_SECONDS
        while not self.is_over and time.monotonic() < deadline:
            time.sleep(0.02)
        self.end()

    def end(self) -> None:
        super().end()
        self._fork_server.kill_all()
