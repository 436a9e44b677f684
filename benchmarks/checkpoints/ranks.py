"""What a rank does: it trains, saves in turns through two storages, and loads what other ranks have saved."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from benchmarks import gpt, job
from benchmarks.data import entropy
from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

TORCH, FAST, COMPACT = "FileSystemWriter", "TensorwireWriter", "TensorwireWriter, compact"
WRITERS: dict[str, Callable[[Path], Any]] = {
    TORCH: dcp.FileSystemWriter,
    FAST: TensorwireWriter,
    COMPACT: lambda path: TensorwireWriter(path, profile="compact"),
}
READERS: dict[str, Callable[[Path], Any]] = {TORCH: dcp.FileSystemReader, FAST: TensorwireReader}
RATE = 3e-4
_MANTISSAS = {torch.bfloat16: 7, torch.float32: 23}


class Training:
    """A small language model under FSDP2, all of it of one dtype, the states of AdamW too."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._rows = settings["rows"]
        self.model = gpt.GPT(settings["layers"], settings["width"]).to(getattr(torch, settings["dtype"]))
        for module in (*self.model.layers, self.model):
            fully_shard(module)
        self.optimizer = gpt.optimizer_of(self.model.parameters())

    def step(self, number: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = gpt.rate_at(number, RATE)
        self.model(gpt.batch(number, self._rows, rank=dist.get_rank())).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def rank(settings: dict[str, Any]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    training = Training(settings)
    return _trained(training, settings) if settings["do"] == "train" else _loaded(training, settings)


def _trained(training: Training, settings: dict[str, Any]) -> dict[str, Any]:
    """Bytes of the state by its entropy, and the seconds of each save."""
    for step in range(1, settings["steps"] + 1):
        training.step(step)
        if step % 20 == 0:
            job.say(f"step {step} of {settings['steps']}")
    bound = sum(job.of_all(sum(bound_bits(each) for each in _tensors(training.state()))))
    turns = [_saved(training, name, settings) for _ in range(settings["turns"]) for name in WRITERS]
    return {"bound_nbytes": bound / 8, "turns": turns}


def _saved(training: Training, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    place = _place(settings, name)
    state = training.state()
    dist.barrier()
    began, before = time.perf_counter(), time.process_time()
    dcp.save(state, storage_writer=WRITERS[name](place))
    cpu, seconds = time.process_time() - before, time.perf_counter() - began
    return {"writer": name, "cpu_seconds": sum(job.of_all(cpu)), "seconds": max(job.of_all(seconds))}


def _loaded(training: Training, settings: dict[str, Any]) -> dict[str, Any]:
    """The bytes and calls by which ranks have read with each reader, and whether all have the same bits then. What was
    loaded is saved by these ranks for others."""
    training.step(1)  # so that the optimizer has states
    found, digests = {}, []
    for name, make in READERS.items():
        state = training.state()
        for each in _tensors(state):
            each.zero_()
        reader = make(_place(settings, name, settings["from"]))
        dcp.load(state, storage_reader=reader)  # the first time modules are read, too
        dist.barrier()
        before = _reads()
        dcp.load(state, storage_reader=reader)
        nbytes, calls = (sum(job.of_all(after - start)) for after, start in zip(_reads(), before, strict=True))
        found[name] = {"nbytes": nbytes, "calls": calls}
        digests.append([each.view(torch.uint8).clone() for each in _tensors(state)])
        set_state_dict(
            training.model, training.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    same = all(torch.equal(a, b) for a, b in zip(*digests, strict=True)) and any(each.any() for each in digests[0])
    for name in READERS:
        dcp.save(training.state(), storage_writer=WRITERS[name](_place(settings, name)))
    return {"readers": found, "same": all(job.of_all(same))}


def _place(settings: dict[str, Any], name: str, ranks: int | None = None) -> Path:
    return Path(settings["folder"]) / f"{settings['dtype']} {ranks or dist.get_world_size()} {name}"


def _tensors(state: Any) -> Iterator[Tensor]:
    """The parts of this rank, of one dimension at least."""
    if isinstance(state, dict):
        for each in state.values():
            yield from _tensors(each)
    elif isinstance(state, (list, tuple)):
        for each in state:
            yield from _tensors(each)
    elif isinstance(state, torch.Tensor):
        local = state.to_local() if hasattr(state, "to_local") else state
        if local.dim():
            yield local


def bound_bits(tensor: Tensor) -> float:
    """Bits of a tensor whose exponents take their entropy, and the rest what it is."""
    mantissa = _MANTISSAS[tensor.dtype]
    words = tensor.reshape(-1).view(torch.int16 if mantissa == 7 else torch.int32).to(torch.int64)
    return entropy(torch.bincount(words >> mantissa & 0xFF).numpy()) + tensor.numel() * (mantissa + 1)


def _reads() -> tuple[int, int]:
    """Bytes and calls by which this process has read, from files and all else."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"]), int(facts["syscr"])
