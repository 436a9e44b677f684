"""A small model under FSDP2, and its training on one rank. Ranks are the workers of tests.support.ranks."""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorwire.torch.traffic.attach.attachment import Attachment

VOCABULARY, WIDTH = 61, 23


class Block(nn.Module):
    """Odd sizes; `scale` has one row, so that the other ranks hold nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 37), nn.Linear(37, WIDTH)
        self.scale = nn.Parameter(torch.ones(1, 1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.down(torch.nn.functional.gelu(self.up(values))) * self.scale.mean()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embedding(tokens).to(self.head.weight.dtype)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


@dataclass(frozen=True)
class Case:
    """How a model is sharded and trained. Torch's fused AdamW takes the least time."""

    reshard: bool | int = True
    unshard_async: bool = False
    mixed_precision: bool = True
    frozen: bool = False
    frozen_dtype: torch.dtype = torch.float32
    tied: bool = False
    replicated: bool = False
    offload: bool = False
    accumulate: int = 1
    clip: float | None = None
    rate: float = 1e-3
    gradients: torch.dtype | None = None
    adamw: str = "fused"


class Refuses(Raw):
    """Cannot encode on rank 2."""

    def encode(self, tensor: torch.Tensor, base: torch.Tensor | None = None, key: int = 0) -> torch.Tensor | None:
        if dist.get_rank() == 2:
            raise OSError("no ink")
        return None


def sharded(case: Case, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = Model()
    if case.frozen:
        model.embedding.weight.requires_grad_(False)
        model.embedding.weight.data = model.embedding.weight.data.to(case.frozen_dtype)
    if case.tied:
        model.head.weight = model.embedding.weight
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if case.mixed_precision else None, reduce_dtype=case.gradients
    )
    options: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": case.reshard}
    if case.replicated:
        options["mesh"] = _copies_of_shards()
    if case.offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module._set_unshard_async_op(case.unshard_async)
    return model


@functools.cache
def _copies_of_shards() -> DeviceMesh:
    """One for all models: the groups of a mesh, and their threads, stay."""
    return init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards"))


def optimizer_of(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    trained = [each for each in model.parameters() if each.requires_grad]
    return torch.optim.AdamW(trained, lr=case.rate, **{way: way == case.adamw for way in ("fused", "foreach")})


def loss_of(model: nn.Module, step: int, part: int = 0) -> torch.Tensor:
    """Each rank and step has tokens of its own."""
    generator = torch.Generator().manual_seed(1000 * step + 100 * part + dist.get_rank())
    tokens = torch.randint(VOCABULARY, (2, 9), generator=generator)
    found = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(found.float().flatten(0, 1), tokens[:, 1:].flatten())


def train_step(model: Any, optimizer: torch.optim.Optimizer, case: Case, step: int) -> None:
    for part in range(case.accumulate):
        model.set_requires_gradient_sync(part == case.accumulate - 1)
        loss_of(model, step, part).backward()
    if case.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), case.clip)
    optimizer.step()
    optimizer.zero_grad()


@contextmanager
def attached(case: Case, **options: Any) -> Iterator[tuple[Any, Attachment, Callable[[int], None]]]:
    """A sharded model, what is attached to it until the block ends, and what trains it by the step of a number."""
    model = sharded(case)
    attachment = traffic.attach_fsdp(model, **options)
    try:
        yield model, attachment, functools.partial(train_step, model, optimizer_of(model, case), case)
    finally:
        attachment.detach()


@contextmanager
def log_of_traffic() -> Iterator[list[str]]:
    """The lines that are logged in the block."""
    logger, handler, lines = logging.getLogger("tensorwire.torch.traffic"), logging.Handler(), []
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def recover(model: Any) -> None:
    """After an exception in a step."""
    model.reset_iter_state()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for each in module._get_fsdp_state()._fsdp_param_groups[0].fsdp_params:
                if hasattr(each, "_unsharded_param"):
                    each._unsharded_param.grad = None  # torch 2.13 would add it to the next one


def digest(model: nn.Module) -> str:
    """A hash of the shards of this rank."""
    model.reshard()  # type: ignore[operator]
    found = hashlib.sha256()
    for each in model.parameters():
        found.update(each.to_local().detach().contiguous().view(torch.uint8).numpy().tobytes())  # type: ignore[attr-defined]
    return found.hexdigest()


def replicas(model: nn.Module) -> dict[str, list[Any]]:
    """What is kept between all-gathers, by the name of the module."""
    return {
        name or "root": list(module._get_fsdp_state()._fsdp_param_groups[0]._all_gather_comm._replicas.values())
        for name, module in model.named_modules()
        if isinstance(module, FSDPModule)
    }


def train(case: Case, attach: Callable[[Any], Any], steps: int) -> list[str]:
    """The hash after each step. What is attached is detached at the end."""
    model = sharded(case)
    attachment = attach(model)
    found = list(itertools.islice(_hashes(model, case), steps))
    attachment.detach()
    return found


def train_alone(case: Case, steps: int) -> list[str]:
    """The same under FSDP2 alone. Tests that compare with a case make its steps once."""
    known, more = _alone(case)
    known.extend(itertools.islice(more, max(0, steps - len(known))))
    return known[:steps]


@functools.cache
def _alone(case: Case) -> tuple[list[str], Iterator[str]]:
    return [], _hashes(sharded(case), case)


def _hashes(model: nn.Module, case: Case) -> Iterator[str]:
    optimizer = optimizer_of(model, case)
    for step in itertools.count():
        train_step(model, optimizer, case, step)
        yield digest(model)
