"""The job of a variant: its program on each rank, started one by one or by a launcher."""

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

    from .fork_server import ForkServer
    from .variants import Variant

_END_SECONDS = 10.0  # to end after a signal; a launcher kills then
_NUM_AGENTS = 2  # of torchrun, as on two nodes


class VariantJob(TrainingJob):
    """A run of a variant's program. A fork server has one at a time."""

    def __init__(self, fork_server: ForkServer, variant: Variant, rank: int) -> None:
        self._launcher = variant.launcher
        program = ("-m", f"{__package__}.programs.{variant.program}")
        modules = ("tensorwire_job", *program)
        own = {"RANK": str(rank), "CASE": variant.name, "FUNCTION": variant.function}
        super().__init__(
            fork_server,
            {},
            modules=modules,
            **{f"TW_FAULTS_{name}": value for name, value in own.items()},
            **variant.environment,
        )

    def restart(self) -> None:
        if not self._launcher:
            super().restart()
            return
        own = {"TENSORWIRE_PROBE_DIR": str(self.nodes[0])}
        commands = {"torchrun": _torchrun, "accelerate": _accelerate}[self._launcher](free_port(), self.folder.name)
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


def _torchrun(port: int, run_id: str) -> list[list[str]]:
    """An agent for each of two nodes."""
    per_node = WORLD_SIZE // _NUM_AGENTS
    common = ["torch.distributed.run", f"--nnodes={_NUM_AGENTS}", f"--nproc-per-node={per_node}"]
    common += [f"--rdzv-id={run_id}", "--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={port}"]
    return [[*common, f"--node-rank={number}"] for number in range(_NUM_AGENTS)]


def _accelerate(port: int, run_id: str) -> list[list[str]]:
    """As `accelerate launch`. Its ranks know no run id."""
    common = ["accelerate.commands.launch", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    # With --cpu it starts one process alone. The program says that it wants the CPU.
    return [[*common, "--multi_gpu", f"--num_processes={WORLD_SIZE}", f"--main_process_port={port}"]]
