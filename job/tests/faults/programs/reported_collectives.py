"""Training in which the branches of one rank call other collectives, after reports in public issue trackers."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start


def befallen_rank() -> int:
    return int(os.environ["TW_FAULTS_RANK"])


def skip_step_of_sharded_optimizer() -> None:
    """facebookresearch/fairscale#754: the gradient scaler of one rank finds an overflow in what it holds, and skips the
    step, in which a sharded optimizer broadcasts the parameters.
    """
    training = Training()
    optimizer = ZeroRedundancyOptimizer(training.model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3)
    for step in itertools.count():
        time.sleep(0.02)
        optimizer.zero_grad()
        training.loss().backward()
        overflows = step == STEPS_BEFORE and is_befallen()
        if overflows:
            mark_fault()
        else:
            optimizer.step()


def retry_batch() -> None:
    """mosaicml/composer#1319: one rank runs out of memory in the middle of a backward pass, of which a part is reduced
    already, and tries the batch again in two halves.
    """
    blocks = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)
    lacks_memory, synchronises = False, True

    def reduce(block: int, gradient: torch.Tensor) -> None:
        nonlocal lacks_memory
        if lacks_memory and block == 1:
            lacks_memory = False
            raise MemoryError
        if synchronises:
            dist.all_reduce(gradient)

    for number, parameter in enumerate(blocks.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda each, number=number: reduce(number, each.grad))
    for step in itertools.count():
        time.sleep(0.02)
        batch = torch.randn(4, 64)
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            lacks_memory = True
        optimizer.zero_grad()
        try:
            blocks(batch).square().mean().backward()
        except MemoryError:
            optimizer.zero_grad()
            halves = batch.chunk(2)
            synchronises = False
            blocks(halves[0]).square().mean().backward()
            synchronises = True
            blocks(halves[1]).square().mean().backward()
        optimizer.step()
        dist.all_reduce(torch.ones(1))  # the loss, for the log


def log_other_keys() -> None:
    """Lightning-AI/pytorch-lightning#19106: one rank logs a key more than the others. Each key is reduced by itself,
    behind a barrier, as Lightning does.
    """
    training = Training()
    for step in itertools.count(1):
        training.step()
        metrics = {"loss": 1.0, "accuracy": 0.5}
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            metrics["skipped"] = 1.0
        if step % 10 == 0:
            for value in metrics.values():
                dist.barrier()
                dist.all_reduce(torch.tensor(value))


class Exchange(torch.autograd.Function):
    """all_to_all that exchanges the gradients as well."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor) -> torch.Tensor:
        return exchange(tokens)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return exchange(gradient)


def exchange(tokens: torch.Tensor) -> torch.Tensor:
    received = torch.empty_like(tokens)
    dist.all_to_all_single(received, tokens.contiguous())
    return received


class Experts(nn.Module):
    """An expert on each rank, to which all ranks send tokens."""

    has_tokens = True

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        received = Exchange.apply(self.router(tokens))  # type: ignore[no-untyped-call]
        computed = self.expert(received) if self.has_tokens else torch.zeros_like(received)
        output: torch.Tensor = self.head(Exchange.apply(computed))  # type: ignore[no-untyped-call]
        return output


def train_without_tokens() -> None:
    """PaddlePaddle/PaddleFormers#3010: the expert of one rank gets no tokens, and gives a new tensor back. That cuts
    the graph, and its backward pass leaves out the exchanges.
    """
    train_with_unused(Experts(), "has_tokens")


class SyncedNorm(nn.Module):
    """Batch normalization over all ranks, as detectron2's NaiveSyncBatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        moments = torch.cat([batch.mean(0), batch.square().mean(0)])
        mean, square = (torch.distributed.nn.functional.all_reduce(moments) / dist.get_world_size()).chunk(2)
        return (batch - mean) * torch.rsqrt(square - mean.square() + 1e-5) * self.weight


class Frames(nn.Module):
    """A video model, of which the second part does not see the first frame."""

    has_history = True

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 64), SyncedNorm())
        self.second = nn.Sequential(nn.Linear(64, 64), SyncedNorm())

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.first(frame)
        return features + self.second(features) if self.has_history else features


def leave_out_module() -> None:
    """pytorch/pytorch#44957: one rank is at the first frame of a video and does not call a module with synchronized
    batch normalization.
    """
    train_with_unused(Frames(), "has_history")


def train_with_unused(model: nn.Module, flag: str) -> None:
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)
    for step in itertools.count():
        time.sleep(0.02)
        optimizer.zero_grad()
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            setattr(model, flag, False)
        parallel(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()


def sharded_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def save_if_best() -> None:
    """pytorch/pytorch#77562: the loss of the validation is reduced to one rank only, which alone sees that it is the
    best yet, and saves the FSDP model.
    """
    model = sharded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    best, interval = float("inf"), STEPS_BEFORE // 4
    for step in itertools.count(1):
        time.sleep(0.02)
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        if step % interval == 0:
            loss = torch.ones(1)
            if step == 2 * interval and is_befallen():
                mark_fault()
                loss *= 0.1
            total = loss.clone()
            dist.reduce(total, dst=befallen_rank())
            seen = total if is_befallen() else loss
            if seen.item() < best:
                best = seen.item()
                get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def generate_until_end() -> None:
    """deepspeedai/DeepSpeed#8262: ranks generate with a sharded model, and one has its last token sooner: it goes on to
    gather the answers, while the others gather parameters for their next token.
    """
    model = sharded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in itertools.count():
        num_tokens = 12
        if step == STEPS_BEFORE // 4 and is_befallen():
            mark_fault()
            num_tokens = 3
        with torch.no_grad():
            for _ in range(num_tokens):
                time.sleep(0.005)
                model(torch.randn(4, 64))
        answers: list[list[int] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(answers, [step] * num_tokens)
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


CASES = {
    "overflow-of-one": skip_step_of_sharded_optimizer,
    "retried-batch": retry_batch,
    "other-keys": log_other_keys,
    "no-tokens": train_without_tokens,
    "uncalled-norm": leave_out_module,
    "best-for-one": save_if_best,
    "early-last-token": generate_until_end,
}


if __name__ == "__main__":
    start()
    CASES[case()]()
