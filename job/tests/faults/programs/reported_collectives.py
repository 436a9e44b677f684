"""Training in which one rank calls other collectives, one more or one less, after reports in public issue trackers."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .common import STEPS_BEFORE, befallen_rank, befalls, is_befallen, mark_fault
from .small_training import Training, sharded, steps

_EPOCH = 20  # steps


def skip_step_of_sharded_optimizer() -> None:
    """facebookresearch/fairscale#754: the gradient scaler of one rank finds an overflow in what it holds, and skips the
    step, in which a sharded optimizer broadcasts the parameters.
    """
    training = Training()
    optimizer = ZeroRedundancyOptimizer(training.model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3)
    for step in steps():
        optimizer.zero_grad()
        training.loss().backward()
        if not befalls(step):
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
    for step in steps():
        batch = torch.randn(4, 64)
        if befalls(step):
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
    for step in Training().steps(1):
        metrics = {"loss": 1.0, "accuracy": 0.5}
        if befalls(step):
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
    training = Training(model, partial(DistributedDataParallel, find_unused_parameters=True))
    training.train(partial(setattr, model, flag, False))


def sharded_training() -> Training:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    return Training(model, lambda whole: sharded(whole, model[0], model[2]))


def save_if_best() -> None:
    """pytorch/pytorch#77562: the loss of the validation is reduced to one rank only, which alone sees that it is the
    best yet, and saves the FSDP model.
    """
    training = sharded_training()
    best, interval = float("inf"), STEPS_BEFORE // 4
    for step in training.steps(1):
        if step % interval == 0:
            loss = torch.ones(1)
            if befalls(step, 2 * interval):
                loss *= 0.1
            total = loss.clone()
            dist.reduce(total, dst=befallen_rank())
            seen = total if is_befallen() else loss
            if seen.item() < best:
                best = seen.item()
                get_model_state_dict(training.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def generate_until_end() -> None:
    """deepspeedai/DeepSpeed#8262: ranks generate with a sharded model, and one has its last token sooner: it goes on to
    gather the answers, while the others gather parameters for their next token.
    """
    training = sharded_training()
    for step in training.steps():
        num_tokens = 3 if befalls(step, STEPS_BEFORE // 4) else 12
        with torch.no_grad():
            for _ in range(num_tokens):
                time.sleep(0.005)
                training.model(torch.randn(4, 64))
        answers: list[list[int] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(answers, [step] * num_tokens)


def save_behind_guard() -> None:
    """alan-turing-institute/autocast#386: one rank saves a checkpoint at the end of an epoch, behind a guard that lets
    it alone in. The save ends in a barrier, which pairs with the barrier that all ranks come to after it.
    """
    for step in Training().steps(1):
        if step % _EPOCH == 0:
            if befalls(step, 4 * _EPOCH):
                dist.barrier()  # of the save
            dist.barrier()


def compute_own_capacity() -> None:
    """deepspeedai/DeepSpeed#6809: without dropped tokens, each rank computes the capacity of the experts from its own
    batch, and one rank sends more to each expert than the others do.
    """
    router, expert = nn.Linear(64, 64), nn.Linear(64, 64)
    for step in steps():
        capacity = 5 if befalls(step) else 4  # tokens for each expert; an expert on each rank
        with torch.no_grad():
            tokens = router(torch.randn(dist.get_world_size() * capacity, 64))
            dispatched = torch.empty_like(tokens)
            dist.all_to_all_single(dispatched, tokens)
            combined = torch.empty_like(tokens)
            dist.all_to_all_single(combined, expert(dispatched))
        dist.all_reduce(combined.square().mean())


def save_without_state() -> None:
    """NVIDIA/Megatron-LM#4910: before a save, the ranks gather what each holds of an entry of the optimizer's state,
    entry by entry. One rank has no state for one of the entries, and leaves out its gather.
    """
    for step in Training().steps(1):
        if step % _EPOCH == 0:
            entries = ["exp_avg", "exp_avg_sq", "master"]
            if befalls(step, 4 * _EPOCH):
                entries.remove("exp_avg_sq")
            for entry in entries:
                pieces: list[Any] = [None] * dist.get_world_size()
                dist.all_gather_object(pieces, {"entry": entry, "offset": 64 * dist.get_rank()})
            dist.all_reduce(torch.ones(1))  # the number of bytes, for the log


def go_on_after_error() -> None:
    """EvolvingLMMs-Lab/lmms-eval#1304: the evaluation of a task fails on one rank, which logs the error and goes on to
    the next task. The others gather their answers.
    """
    for number in itertools.count():
        task: list[Any] = [{"number": number}] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(task, src=0)
        try:
            answers = []
            for batch in range(10):
                time.sleep(0.02)
                if number == 8 and batch == 5 and is_befallen():
                    mark_fault()
                    raise KeyError("image")
                answers.append(batch)
            gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
            dist.gather_object(answers, gathered, dst=0)
        except KeyError as error:
            print(f"task {number} failed: {error!r}", flush=True)


class Tagger(nn.Module):
    """A trunk, and a head that is called for each entity that the trunk finds."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, batch: torch.Tensor, num_entities: int) -> torch.Tensor:
        features = self.trunk(batch)
        return torch.stack([self.head(features) for _ in range(num_entities)]).square().mean()


def call_head_thrice() -> None:
    """deepspeedai/DeepSpeed#7998: parameters are sharded, and each call of the head gathers its own. The batch of one
    rank has three entities, those of the others have one.
    """
    model = Tagger()
    sharded(model, model.trunk, model.head)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in steps():
        num_entities = 3 if befalls(step) else 1
        optimizer.zero_grad()
        model(torch.randn(4, 64), num_entities).backward()
        optimizer.step()
