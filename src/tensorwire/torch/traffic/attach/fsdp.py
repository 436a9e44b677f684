"""FSDP2: the all-gather of parameters, and the reduce-scatter of gradients, through codecs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from ..arguments import expect_integer
from ..codecs.codec import Raw
from ..codecs.exact import Exact
from ..collectives import Collective, Replica, scales, summed
from ..exchange import ExchangeError
from .attachment import Attachment, CodedWork, check_choice, described

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ..choice import Choice
    from ..exchange import Exchange

_EXACT = Exact()


def attach_fsdp(
    model: torch.nn.Module,
    *,
    weights: Choice | None = _EXACT,
    gradients: Choice | tuple[Choice, Choice] | None = None,
    ranks_per_node: int | None = None,
) -> Attachment:
    """Put codecs into the collectives of a model that `fully_shard` has sharded (FSDP2).

    By default the all-gather of parameters sends exact differences from what the ranks have gathered before. Parameters
    keep the bits that they have without it. Each rank keeps one copy of the gathered parameters and of its own shard.

    Args:
        model: the root, or a part of it, with at least one module of FSDP2.
        weights: codec of the all-gather; None for torch's own. A lossy codec quantizes differences, and all ranks,
            the owner of a shard too, compute with what was decoded.
        gradients: codec of the reduce-scatter; None for torch's own. Sums are in FP32 or FP64, in the order of
            ranks, which has other bits than torch's ring. A pair of codecs is for the exchange within nodes and
            between them.
        ranks_per_node: with a pair of codecs: ranks i * ranks_per_node to (i + 1) * ranks_per_node - 1 are one node.

    A codec may also be a function (name of the module, step) -> codec, which has to give the same on all ranks, or
    "auto": `Exact` as long as the link is slower than the codec, which the ranks find out together.

    Returns:
        The attachment: `detach()` gives torch its own collectives back.

    Raises:
        ValueError: the model has no module of FSDP2, something is attached to it, a module has several groups of
            parameters, there is a pair of codecs or `ranks_per_node` without the other, the ranks have called this with
            unlike arguments, or another rank has raised one of these errors. A rank whose model has no module of FSDP2
            is in no group, and tells no other.
        TypeError: a codec is none, or is a `Budget`; or `ranks_per_node` is no integer.
        BaseMismatchError: from a later all-gather: the memory of a rank has changed. It names module and ranks.
        ExchangeError: a rank has not attached within the time-out of the default process group; from a later
            collective, on all ranks: one of them could not encode.
    """
    units = _units_of(model)
    for _, module, _ in units:
        module.reshard()  # the parameters that the optimizer has are those of the shards
    attachment = Attachment(model)

    def prepare() -> None:
        _check(units, weights, gradients, ranks_per_node)
        for unit in units:
            _replace(attachment, unit, weights, gradients, ranks_per_node)

    groups = [each for unit in units for each in _groups(unit)]
    facts = {
        "weights": described(weights),
        "gradients": described(gradients),
        "ranks_per_node": ranks_per_node,
        "modules": [unit.name for unit in units],
    }
    attachment.begin(groups, facts, prepare)
    if isinstance(gradients, tuple):
        for unit in units:
            attachment.levels(_groups(unit)[1], ranks_per_node or 1)
    return attachment


class _Unit(NamedTuple):
    """A module that is gathered as one, and FSDP2's object for its parameters."""

    name: str
    module: FSDPModule
    parameters: Any


def _units_of(model: torch.nn.Module) -> list[_Unit]:
    modules = [(name or "root", each) for name, each in model.named_modules() if isinstance(each, FSDPModule)]
    if not modules:
        raise ValueError("expected a model that fully_shard has sharded (FSDP2), got one without such a module")
    return [
        _Unit(name, module, each) for name, module in modules for each in module._get_fsdp_state()._fsdp_param_groups
    ]


def _groups(unit: _Unit) -> list[list[int]]:
    """The ranks that hold the module, replicas of shards (HSDP) too, those that share one replica, and the fewer ones
    that share it after forward."""
    meshes = unit.parameters.mesh_info, unit.parameters.post_forward_mesh_info or unit.parameters.mesh_info
    shards = [dist.get_process_group_ranks(each.shard_process_group) for each in meshes]
    return [sorted(meshes[0].mesh.mesh.flatten().tolist()), *shards]


def _check(
    units: list[_Unit],
    weights: Choice | None,
    gradients: Choice | tuple[Choice, Choice] | None,
    ranks_per_node: int | None,
) -> None:
    for what, choice in (("weights", weights), ("gradients", gradients)):
        if choice is not None:
            check_choice(choice, what, several=what == "gradients")
    for name, count in Counter(unit.name for unit in units).items():
        if count > 1:
            raise ValueError(f"expected one group of parameters in module {name}, got {count}: FSDP2 has no hook")
    for unit in units:
        if isinstance(unit.parameters._all_gather_comm, _AllGather) or isinstance(
            unit.parameters._reduce_scatter_comm, _ReduceScatter
        ):
            raise ValueError(f"expected modules that nothing is attached to, got {unit.name}; detach() what is first")
    if isinstance(gradients, tuple) or ranks_per_node is not None:
        _check_levels(units, gradients, ranks_per_node)


def _check_levels(units: list[_Unit], gradients: Any, ranks_per_node: int | None) -> None:
    if not isinstance(gradients, tuple) or len(gradients) != 2 or ranks_per_node is None:
        raise ValueError("expected two codecs for gradients and ranks_per_node, for within nodes and between them")
    expect_integer("ranks_per_node", ranks_per_node)
    if ranks_per_node < 1:
        raise ValueError(f"expected at least one rank per node, got {ranks_per_node}")
    for unit in units:
        size = unit.parameters._reduce_scatter_process_group.size()
        if size % ranks_per_node:
            raise ValueError(f"expected groups of a multiple of {ranks_per_node} ranks, got {size} in {unit.name}")


def _replace(
    attachment: Attachment,
    unit: _Unit,
    weights: Choice | None,
    gradients: Choice | tuple[Choice, Choice] | None,
    ranks_per_node: int | None,
) -> None:
    name, module, parameters = unit
    if weights is not None:
        gather = parameters._all_gather_comm
        module.set_custom_all_gather(_AllGather(attachment, parameters, name, weights, alone=gradients is None))
        attachment.on_detach(_if_there(module, lambda each: each.set_custom_all_gather(gather)))
    if gradients is not None:
        scatter = parameters._reduce_scatter_comm
        module.set_custom_reduce_scatter(_ReduceScatter(attachment, name, gradients, ranks_per_node))
        attachment.on_detach(_if_there(module, lambda each: each.set_custom_reduce_scatter(scatter)))


def _if_there(module: FSDPModule, undo: Callable[[FSDPModule], None]) -> Callable[[], None]:
    """Undo something for a module, which this does not keep alive."""
    found = ref(module)

    def undo_it() -> None:
        if (each := found()) is not None:
            undo(each)

    return undo_it


class _AllGather:
    """What FSDP2 calls in place of its all-gather, for one module.

    FSDP2 asks for memory, puts this rank's shard at its place there, has the rest filled, and copies all of it away
    before the next call: so the memory is ours to keep, and the base of the next call.
    """

    def __init__(self, attachment: Attachment, parameters: Any, name: str, choice: Choice, *, alone: bool) -> None:
        """`alone`: nothing else of ours travels between these ranks, so that none fails unheard."""
        self._attachment, self._parameters, self._name, self._choice = attachment, parameters, name, choice
        self._alone = alone
        self._replicas: dict[tuple[int, int, torch.dtype], Replica] = {}

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        # With `reshard_after_forward=n`, a smaller group gathers larger shards in backward.
        key = (self._parameters._all_gather_process_group.size(), int(size[0]), dtype)
        if key not in self._replicas:
            self._replicas[key] = Replica(key[1], dtype, device)
        return self._replicas[key].buffer

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        exchange = self._attachment.exchange(dist.get_process_group_ranks(group))
        replica = self._replicas[group.size(), output_tensor.numel(), output_tensor.dtype]
        codec = self._attachment.codec(self._choice, exchange, self._name, "all_gather")
        if self._parameters.is_sharded_post_forward and not codec.lossless:
            codec = _EXACT  # these are weights that it has quantized already
        call = self._attachment.call(exchange, codec, self._name, "all_gather")
        if isinstance(codec, Raw) and codec.direct and self._alone and self._attachment.has_one_exchange():
            replica.skip(call, input_tensor)
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)
        with torch.inference_mode(False):  # what the replica keeps is written to in other modes, too
            done = exchange.submit(lambda: self._gather(replica, call, input_tensor))
        if async_op:
            return CodedWork(done)
        done.result()
        return None

    def _gather(self, replica: Replica, call: Collective, shard: Tensor) -> None:
        replica.gather(call, shard)
        call.row.kept_nbytes = sum(each.kept_nbytes for each in self._replicas.values())


class _ReduceScatter:
    """What FSDP2 calls in place of its reduce-scatter, for one module. It does not wait for what is returned."""

    def __init__(
        self, attachment: Attachment, name: str, choice: Choice | tuple[Choice, Choice], ranks_per_node: int | None
    ) -> None:
        self._attachment, self._name, self._choice = attachment, name, choice
        self._ranks_per_node = ranks_per_node

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        size = group.size()
        before, behind = scales(op, size)
        rows = input_tensor.view(size, -1) * before if before != 1 else input_tensor.view(size, -1)
        ranks = dist.get_process_group_ranks(group)
        if isinstance(self._choice, tuple):
            total = self._two_levels(rows, ranks, self._choice)
        else:
            total = self._sum(rows, self._attachment.exchange(ranks), self._choice, "reduce_scatter")
        output_tensor.copy_(total * behind)

    def _sum(self, rows: Tensor, exchange: Exchange, choice: Choice, direction: str) -> Tensor:
        codec = self._attachment.codec(choice, exchange, self._name, direction)
        call = self._attachment.call(exchange, codec, self._name, direction)
        return exchange.submit(lambda: summed(call, list(rows))).result()

    def _two_levels(self, rows: Tensor, ranks: list[int], choices: tuple[Choice, Choice]) -> Tensor:
        """First the sum over a node of what its ranks are to pass on, then over the nodes (SDP4Bit, TLq)."""
        inner, outer = self._attachment.levels(ranks, self._ranks_per_node or 1)
        nodes = rows.view(outer.size, inner.size, -1)  # by node and place in it
        try:
            mine = self._sum(
                nodes.transpose(0, 1).reshape(inner.size, -1), inner, choices[0], "reduce_scatter in nodes"
            )
        except ExchangeError as error:
            with suppress(ExchangeError):  # the other nodes know nothing of it
                outer.submit(partial(outer.refuse, error)).result()
            raise
        return self._sum(mine.view(outer.size, -1), outer, choices[1], "reduce_scatter of nodes")
