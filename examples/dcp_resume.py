"""A training that is killed on four ranks and goes on with two, from a compressed distributed checkpoint.

It does the same with torch's own FileSystemWriter, killed and resumed alike, and prints the bytes of both checkpoints
and whether the losses after resuming have the same bits:

    python examples/dcp_resume.py

It starts its ranks under torchrun on the CPU, takes about a minute, and needs torch. The exit code is 1 if a loss
differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter

STEPS, SAVED_EVERY, KILLED_AT, WIDTH = 10, 3, 8, 256
STORAGE: dict[str, tuple[Any, Any]] = {
    "tensorwire": (TensorwireWriter, TensorwireReader),
    "torch": (dcp.FileSystemWriter, dcp.FileSystemReader),
}


def run_rank(name: str, folder: Path) -> None:
    """Train from the last checkpoint on; the first time the last rank is killed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    make_writer, make_reader = STORAGE[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).bfloat16()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    saved = sorted(folder.glob("step*"), key=lambda path: int(path.name[4:]))
    resumed = bool(saved)
    if resumed:
        state = state_of(model, optimizer, 0)
        dcp.load(state, storage_reader=make_reader(saved[-1]))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        first = state["step"]
    for step in range(first, STEPS):
        if step == KILLED_AT and not resumed and dist.get_rank() == dist.get_world_size() - 1:
            os._exit(1)
        same = torch.Generator().manual_seed(step)  # on all ranks, however many they are
        inputs = torch.randn(16, WIDTH, generator=same).bfloat16()
        loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if resumed and dist.get_rank() == 0:
            with (folder / "losses.jsonl").open("a") as file:
                file.write(json.dumps([step, loss.item().hex()]) + "\n")
        if (step + 1) % SAVED_EVERY == 0:
            place = folder / f"step{step + 1}"
            dcp.save(state_of(model, optimizer, step + 1), storage_writer=make_writer(place))
    dist.destroy_process_group()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step}


def run(ranks: int, name: str, folder: Path) -> int:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), __file__]
    return subprocess.run([*line, name, str(folder)], stderr=subprocess.DEVNULL, check=False).returncode


def main() -> int:
    losses = {}
    with tempfile.TemporaryDirectory() as parent:
        for name in STORAGE:
            folder = Path(parent) / name
            folder.mkdir()
            killed, resumed = run(4, name, folder), run(2, name, folder)
            assert killed != 0, "the first run is to be killed"
            assert resumed == 0, "the second run is to end"
            losses[name] = (folder / "losses.jsonl").read_text()
            nbytes = sum(path.stat().st_size for path in (folder / "step6").rglob("*") if path.is_file())
            print(f"{name}: {nbytes:,} bytes for the checkpoint of four ranks; killed, and resumed on two from step 6")
    same = losses["tensorwire"] == losses["torch"]
    print(f"losses after resuming: {len(losses['torch'].splitlines())} with each storage")
    print("bit-identical:", "yes" if same else "NO")
    return 0 if same else 1


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        run_rank(sys.argv[1], Path(sys.argv[2]))
        os._exit(0)  # while Python ends, a thread of gloo that still frees a tensor aborts the process (torch 2.13)
    else:
        sys.exit(main())
