"""A job of four ranks in which one hangs, and the command that names it.

Starts this file under ``torchrun -m tensorwire_job`` as a training job on the CPU (gloo): the script knows nothing of
tensorwire. After a few steps one rank gets stuck in its data loader; the others wait in an all_reduce. Then runs
``tensorwire-job diagnose`` as a person would, and ends the job. The exit code is 0 if the right rank was named, as
TW-H1 and with the function that it is stuck in. Takes less than a minute where the CPUs are not busy; needs torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NUM_RANKS = 4
CULPRIT = 2
STEPS_BEFORE = 20
PATIENCE_SECONDS = 120.0

# The training script


def load_batch(step: int, rank: int) -> object:
    """A data loader that one rank waits in for ever: a lock that nobody gives back."""
    import torch

    if step == STEPS_BEFORE and rank == CULPRIT:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    return torch.randn(8, 64)


def train() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1000):
        batch = load_batch(step, rank)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


# What a person does


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TENSORWIRE_PROBE_DIR": folder, "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-m"]
        launch = ["torch.distributed.run", "--nproc-per-node", str(NUM_RANKS), "-m", "tensorwire_job", __file__]
        print(f"$ torchrun --nproc-per-node {NUM_RANKS} -m tensorwire_job {Path(__file__).name} &", flush=True)
        with (Path(folder) / "log").open("w+") as log:
            job = subprocess.Popen([*program, *launch], env=environment, stdout=log, stderr=log)
            try:
                code = diagnose(environment)
            finally:
                job.terminate()  # it ends its ranks
                job.wait()
            if code:
                log.seek(0)
                print(log.read(), file=sys.stderr)
            return code


def diagnose(environment: dict[str, str]) -> int:
    """Ask until the hang is old enough to be one; a person would ask once, later."""
    program = [sys.executable, "-c", "import sys, tensorwire_job.cli; sys.exit(tensorwire_job.cli.main())"]
    options = ["diagnose", "--hang-seconds", "5"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        asked = subprocess.run([*program, *options], env=environment, capture_output=True, text=True, check=False)
        if asked.returncode == 3 or time.monotonic() > deadline:
            break
        time.sleep(1.0)
    print(f"$ tensorwire-job {' '.join(options)}\n{asked.stdout}{asked.stderr}", end="")
    print(f"$ echo $?\n{asked.returncode}")
    is_right = asked.returncode == 3 and names_culprit(asked.stdout)
    if not is_right:
        print(f"expected TW-H1, rank {CULPRIT} and its stack in load_batch", file=sys.stderr)
    return 0 if is_right else 1


def names_culprit(answer: str) -> bool:
    """Whether the first finding is TW-H1 on the rank that hangs, with the function that it is stuck in."""
    _, _, finding = answer.partition("\n\n")  # the job stands before it
    return (
        finding.startswith(f"rank {CULPRIT} has not entered ")
        and "(TW-H1, " in finding
        and " in load_batch\n" in finding
    )


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(main())
