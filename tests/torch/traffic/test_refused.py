"""On all ranks, and before anything changes, an attachment that cannot work is an error."""

from __future__ import annotations

import importlib
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult
from torch.nn.parallel import DistributedDataParallel

from tensorwire.torch import traffic
from tests.support.sharded_models import Case, Model, attached, sharded, train, train_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.ranks import Ranks


def _error(call: Callable[[], Any]) -> str:
    """What the call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _refusals() -> dict[str, str]:
    model, plain = sharded(Case()), Model()
    attachment = traffic.attach_fsdp(model)
    grid = traffic.Grid(4, 128)
    found = {
        "twice": _error(lambda: traffic.attach_fsdp(model)),
        "dense": _error(lambda: traffic.attach_fsdp(plain)),
        "no codec": _error(lambda: traffic.attach_fsdp(sharded(Case()), weights=7)),  # type: ignore[arg-type]
        "levels": _error(lambda: traffic.attach_fsdp(sharded(Case()), gradients=(grid, grid))),
        "nodes": _error(lambda: traffic.attach_fsdp(sharded(Case()), gradients=(grid, grid), ranks_per_node=3)),
        "no pair": _error(lambda: traffic.attach_fsdp(sharded(Case()), gradients=grid, ranks_per_node=2)),
        "no rank": _error(lambda: traffic.attach_fsdp(sharded(Case()), gradients=(grid, grid), ranks_per_node=-2)),
        "no number": _error(
            lambda: traffic.attach_fsdp(sharded(Case()), gradients=(grid, grid), ranks_per_node="2")  # type: ignore[arg-type]
        ),
        "class": _error(lambda: traffic.attach_fsdp(sharded(Case()), weights=traffic.Exact)),  # type: ignore[arg-type]
        "budget": _error(lambda: traffic.attach_fsdp(sharded(Case()), gradients=traffic.Budget())),
        "no DDP": _error(lambda: traffic.attach_ddp(plain)),  # type: ignore[arg-type]
    }
    attachment.detach()
    found["counters"] = _error(lambda: traffic.counters(model))
    return found


def test_bad_arguments(ranks: Ranks) -> None:
    expected = {
        "twice": "ValueError: expected a model that nothing is attached to",
        "dense": "ValueError: expected a model that fully_shard has sharded (FSDP2)",
        "no codec": "TypeError: expected a codec for weights",
        "levels": "ValueError: expected two codecs for gradients and ranks_per_node",
        "nodes": "ValueError: expected groups of a multiple of 3 ranks, got 4",
        "no pair": "ValueError: expected two codecs for gradients and ranks_per_node",
        "no rank": "ValueError: expected at least one rank per node, got -2",
        "no number": "TypeError: expected ranks_per_node to be an integer, got '2'",
        "class": "TypeError: expected a codec for weights, got the class Exact; write Exact()",
        "budget": "TypeError: expected a codec for gradients, got Budget(Grid(bits=4, group=128",
        "no DDP": "TypeError: expected a DistributedDataParallel, got Model",
        "counters": "ValueError: expected a model or group with an attachment",
    }
    for found in ranks.run(_refusals):
        assert found.keys() == expected.keys()
        for what, beginning in expected.items():
            assert found[what].startswith(beginning)


@pytest.mark.parametrize("of", ["x", None, 3])
def test_what_nothing_can_be_attached_to_has_no_counters(of: Any) -> None:
    with pytest.raises(TypeError, match=f"expected a model or a process group, got {of!r}"):
        traffic.counters(of)


def _several_groups() -> str:
    """FSDP2 makes a group of parameters for each mesh that they are sharded over."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("one", "other"))
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    meshes = {model[0].weight: mesh["one"], model[1].weight: mesh["other"]}

    def place(parameter: nn.Parameter) -> ShardPlacementResult:
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
        from torch.distributed.tensor import Shard

        return ShardPlacementResult(Shard(0), FSDPMeshInfo(meshes[parameter], shard_mesh_dim=0))

    fully_shard(model, mesh=mesh["one"], shard_placement_fn=place)
    return _error(lambda: traffic.attach_fsdp(model))


def _unlike_arguments() -> tuple[str, str, bool]:
    mine = dist.get_rank() == 3
    first = _error(lambda: traffic.attach_fsdp(sharded(Case()), weights=traffic.Exact("compact" if mine else "fast")))
    ddp = DistributedDataParallel(Model())
    second = _error(lambda: traffic.attach_ddp(ddp, gradients=traffic.Exact("compact" if mine else "fast")))
    return first, second, train(Case(), traffic.attach_fsdp, 2) == train_alone(Case(), 2)


def test_unlike_arguments_are_an_error_on_all_ranks(ranks: Ranks) -> None:
    codecs = "Exact(profile='fast') on rank 0, Exact(profile='compact') on rank 3"
    for first, second, fine in ranks.run(_unlike_arguments):
        assert first == f"ValueError: expected the same on all ranks, got weights: {codecs}"
        assert second == f"ValueError: expected the same on all ranks, got gradients: {codecs}"
        assert fine


def _unlike_versions() -> tuple[str, bool]:
    from tensorwire.torch.traffic.attach import attachment

    version = "0.0.1" if dist.get_rank() == 1 else attachment.__version__
    with patch.object(attachment, "__version__", version):
        text = _error(lambda: traffic.attach_fsdp(sharded(Case())))
    return text, _error(lambda: traffic.attach_fsdp(sharded(Case())).detach()) == ""


def test_unlike_versions_are_an_error_on_all_ranks(ranks: Ranks) -> None:
    for text, fine in ranks.run(_unlike_versions):
        assert text.startswith("ValueError: expected the same on all ranks, got tensorwire: ")
        assert text.endswith(", 0.0.1 on rank 1")
        assert fine


def _absent(absent: list[int]) -> tuple[str, bool]:
    """What a rank is told that waits for others a second; and whether all of them can attach afterwards."""
    from tensorwire.torch.traffic.attach import attachment

    text, model = "", sharded(Case())
    dist.barrier()
    with patch.object(attachment, "timeout_of", lambda _: timedelta(seconds=1)):
        if dist.get_rank() not in absent:
            text = _error(lambda: traffic.attach_fsdp(model))
    dist.barrier()
    return text, train(Case(), traffic.attach_fsdp, 2) == train_alone(Case(), 2)


@pytest.mark.parametrize(("absent", "who"), [([1], "rank 1 has"), ([0, 3], "ranks 0, 3 have")])
def test_a_rank_that_does_not_attach_is_named(ranks: Ranks, absent: list[int], who: str) -> None:
    for rank, (text, fine) in enumerate(ranks.run(_absent, absent)):
        expected = f"ExchangeError: {who} not attached within 1 s, and all ranks have to"
        assert text == ("" if rank in absent else expected)
        assert fine


def _absent_from_all_to_all() -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    found = "" if dist.get_rank() else _error(lambda: traffic.all_to_all(torch.ones(2), [1, 1], group=group))
    dist.barrier()
    return found


def test_a_rank_that_does_not_call_all_to_all_is_named(two: Ranks) -> None:
    text = "ExchangeError: rank 1 has not called all_to_all within 1 s, and all ranks have to"
    assert two.run(_absent_from_all_to_all) == [text, ""]


def _wrong_on_one() -> dict[str, str]:
    """What rank 2 alone gets wrong; and whether all of them can attach afterwards."""
    wrong, grid = dist.get_rank() == 2, traffic.Grid(4, 128)
    levels = {"gradients": (grid, grid), "ranks_per_node": 3 if wrong else 2}
    ddp = DistributedDataParallel(Model())
    found = {
        "codec": _error(lambda: traffic.attach_fsdp(sharded(Case()), weights=7 if wrong else grid)),  # type: ignore[arg-type]
        "nodes": _error(lambda: traffic.attach_fsdp(sharded(Case()), **levels)),
        "DDP": _error(lambda: traffic.attach_ddp(ddp, gradients="fast" if wrong else grid)),  # type: ignore[arg-type]
    }
    traffic.attach_ddp(ddp).detach()
    same = train(Case(), traffic.attach_fsdp, 2) == train_alone(Case(), 2)
    return found | {"afterwards": "" if same else "other bits"}


def test_wrong_arguments_on_one_rank_are_an_error_on_all(ranks: Ranks) -> None:
    answers = ranks.run(_wrong_on_one)
    assert answers[2]["codec"].startswith("TypeError: expected a codec for weights")
    assert answers[2]["nodes"].startswith("ValueError: expected groups of a multiple of 3 ranks, got 4")
    assert answers[2]["DDP"].startswith("TypeError: expected a codec for gradients")
    for rank, found in enumerate(answers):
        assert not found.pop("afterwards")
        for what, text in found.items():
            assert rank == 2 or text == f"ValueError: rank 2 could not do its part: {answers[2][what]}"


def _unlike_replicas() -> str:
    codec = traffic.Exact() if dist.get_rank() < 2 else traffic.Grid(4, 2048)
    return _error(lambda: traffic.attach_fsdp(sharded(Case(replicated=True)), weights=codec))


def _groups_in_the_first_step() -> list[bool]:
    """Whether the first step makes groups: while one is made, nobody can be told of an error."""
    grid, found = traffic.Grid(4, 128), []
    for case, options in (
        (Case(reshard=2), {}),
        (Case(replicated=True), {}),
        (Case(), {"gradients": (grid, grid), "ranks_per_node": 2}),
    ):
        with attached(case, **options) as (_, attachment, train_by):
            before = set(attachment._exchanges)
            train_by(0)
            found.append(set(attachment._exchanges) != before)
    return found


def test_all_groups_are_made_when_a_model_is_attached_to(ranks: Ranks) -> None:
    assert ranks.run(_groups_in_the_first_step) == [[False] * 3] * 4


class _Choice:
    """A function of name and step; Python prints the place in memory of one like it."""

    def __call__(self, name: str, step: int) -> traffic.Exact:
        return traffic.Exact()


def _functions() -> bool:
    _keep = [object() for _ in range(dist.get_rank())]  # other places in memory on each rank
    return train(Case(), lambda model: traffic.attach_fsdp(model, weights=_Choice()), 2) == train_alone(Case(), 2)


def test_objects_that_choose_are_like_on_all_ranks(two: Ranks) -> None:
    assert two.run(_functions) == [True] * 2


def test_an_old_torch_is_an_error_that_names_the_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorwire.torch.traffic import torch_version

    monkeypatch.setattr(torch, "__version__", "2.11.0+cpu")
    with pytest.raises(ImportError, match=r"FSDPModule.set_custom_all_gather.* PyTorch 2.12 or later, got 2.11.0"):
        importlib.reload(torch_version)


def _part_of_what_has_codecs() -> str:
    with attached(Case()) as (model, _, _):
        part = next(each for name, each in model.named_modules() if name and isinstance(each, FSDPModule))
        return _error(lambda: traffic.attach_fsdp(part))


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (_several_groups, "^ValueError: expected one group of parameters in module root, got 2"),
        (_unlike_replicas, r"(?s)^ValueError: expected the same on all ranks, got.* on rank 2"),
        (_part_of_what_has_codecs, "expected modules that nothing is attached to"),
    ],
)
def test_what_is_an_error_on_all_ranks(ranks: Ranks, job: Callable[[], str], text: str) -> None:
    assert all(re.search(text, found) for found in ranks.run(job))
