"""The bits of a budget: right against brute force, never more error or bytes than one codec for all."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tensorwire.torch.traffic import Budget, Exact, Grid, attach_ddp
from tensorwire.torch.traffic.budget import fewest_bytes

if TYPE_CHECKING:
    from tests.support.ranks import Ranks

BUCKETS = 10_000


def tables(count: int) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Errors, bytes and a default, for 1 to 4 tensors and 2 to 5 candidates; some errors are 0."""
    generator = np.random.default_rng(11)
    found = []
    for _ in range(count):
        shape = (generator.integers(1, 5), generator.integers(2, 6))
        errors = np.sort(generator.gamma(0.3, 1, shape), axis=1)[:, ::-1] * (generator.random(shape) > 0.03)
        sizes = np.sort(generator.integers(1, 1000, shape), axis=1)
        found.append((errors, sizes, int(generator.integers(shape[1]))))
    return found


def least_bytes(errors: np.ndarray, sizes: np.ndarray, default: int) -> int:
    """The least bytes of all choices whose errors, rounded up to buckets, fit into the budget; or the default's."""
    rows = range(len(errors))
    budget = errors[:, default].sum()
    least = sizes[:, default].sum()
    if budget > 0:
        buckets = np.ceil(errors / budget * BUCKETS)
        for chosen in product(range(errors.shape[1]), repeat=len(errors)):
            if buckets[rows, chosen].sum() <= BUCKETS:
                least = min(least, sizes[rows, chosen].sum())
    return int(least)


def test_the_programme_equals_brute_force() -> None:
    fewer = rounded = 0
    for errors, sizes, default in tables(400):
        rows = range(len(errors))
        chosen = fewest_bytes(errors, sizes, default)
        total = sizes[rows, chosen].sum()
        assert total == least_bytes(errors, sizes, default) <= sizes[:, default].sum()
        budget = errors[:, default].sum()
        assert errors[rows, chosen].sum() <= budget * (1 + 1e-12)
        fewer += total < sizes[:, default].sum()
        rounded += bool(budget) and np.ceil(errors[:, default] / budget * BUCKETS).sum() > BUCKETS
    assert fewer > 50
    assert rounded > 50  # tables in which the default itself seems too dear


def test_the_default_stays_where_rounding_makes_it_infeasible() -> None:
    errors = np.array([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0]])
    sizes = np.array([[1, 2], [1, 2], [1, 2]])
    assert fewest_bytes(errors, sizes, 1) == [1, 1, 1]  # each needs 3,334 of 10,000 buckets
    assert fewest_bytes(np.zeros((3, 2)), sizes, 1) == [1, 1, 1]


def restored_by(codec: Grid, gradient: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(gradient)
    codec.decode(codec.encode(gradient), out)
    return out


def gradients(seed: int) -> dict[str, torch.Tensor]:
    """Their scales and tails are unlike."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(4096 + 512 * i, generator=generator) for i in range(8)]
    return {f"w{i}": each.sinh() * 0.5**i if i % 2 else each for i, each in enumerate(made)}


def squared(codecs: dict[str, Grid], found: dict[str, torch.Tensor]) -> float:
    return sum(float((restored_by(codecs[name], each) - each).double().square().sum()) for name, each in found.items())


def test_never_more_error_and_fewer_bytes_than_one_codec_for_all() -> None:
    for seed in range(5):
        budget, found = Budget(Grid(4, 128), every=10), gradients(seed)
        for name, gradient in found.items():
            assert budget(name, 0) == Grid(4, 128)
            budget.observe(name, gradient.view(2, -1))
        budget.take(budget.decide())
        chosen = {name: budget(name, 1) for name in found}
        uniform = dict.fromkeys(found, Grid(4, 128))
        nbytes = [sum(each[name].nbytes(found[name].numel()) for name in found) for each in (chosen, uniform)]
        assert squared(chosen, found) <= squared(uniform, found)
        assert nbytes[0] < nbytes[1]


@pytest.mark.parametrize("power", [1, 2])
def test_a_budget_of_norms_lets_the_whole_error_grow(power: int) -> None:
    """The contrast: norms of tensors do not add up to the norm of all of them, squares (power 2) do."""
    found = [torch.randn(1 << 15), *(torch.randn(128) * 16 for _ in range(20))]
    codecs = [Grid(bits, 128) for bits in range(2, 9)]
    norms = np.array([[float((restored_by(codec, each) - each).norm()) for codec in codecs] for each in found])
    sizes = np.array([[codec.nbytes(each.numel()) for codec in codecs] for each in found])
    chosen = fewest_bytes(norms**power, sizes, 2)
    growth = np.square(norms[range(len(found)), chosen]).sum() / np.square(norms[:, 2]).sum()
    assert growth > 1.5 if power == 1 else growth <= 1


def test_gradients_with_nan_are_no_decision() -> None:
    budget = Budget(Grid(4, 64))
    for name, gradient in gradients(0).items():
        budget.observe(name, gradient)
    first = budget.decide()
    assert first
    assert budget.decide() == {}
    budget.take(first)
    for bad in (float("nan"), float("inf")):
        for name, gradient in gradients(1).items():
            budget.observe(name, gradient if name != "w3" else gradient.clone().fill_(bad))
        budget.take(budget.decide())
        assert [budget.bits.index(budget(name, 5).bits) for name in first] == list(first.values())
    assert set(first.values()) != {budget.bits.index(4)}


def choices_under_ddp(spoilt: int) -> list[list[int]]:
    """The bits of each parameter at the end of each step; gradients of one step are NaN."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 512), nn.Linear(512, 8)))
    budget = Budget(Grid(4, 64), every=3)
    attachment = attach_ddp(model, gradients=budget)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    names = [name for name, _ in model.named_parameters()]
    found = []
    for step in range(9):
        rows = torch.randn(32, 64, generator=torch.Generator().manual_seed(17 * step + dist.get_rank()))
        loss = model(rows).square().mean() * (float("nan") if step == spoilt else 1.0)
        loss.backward()
        if step != spoilt:
            optimizer.step()
        else:
            attachment.step += 1  # as an optimizer that skips what is not finite
        optimizer.zero_grad()
        found.append([budget(name, step).bits for name in names])
    attachment.detach()
    return found


@pytest.mark.parametrize("spoilt", [-1, 5])
def test_all_ranks_choose_the_same_bits_in_the_same_steps(two: Ranks, spoilt: int) -> None:
    found = two.run(choices_under_ddp, spoilt)
    assert found == [found[0]] * 2
    steps = [tuple(bits) for bits in found[0]]
    assert set(steps[:3]) == {(4,) * 6}
    assert steps[3] != steps[2]  # decided by the gradients of step 2, in step 3
    assert steps[3] == steps[4] == steps[5]
    assert steps[6] == steps[7] == steps[8]
    assert (steps[6] == steps[5]) == (spoilt == 5)


def test_due_in_the_last_step_of_each_so_many() -> None:
    assert [step for step in range(12) if Budget(every=5).due(step)] == [4, 9]
    assert all(Budget(every=1).due(step) for step in range(3))


def test_arguments() -> None:
    budget = Budget(Grid(5, 64, hadamard=32), bits=[8, 3, 3])
    assert budget.bits == (3, 5, 8)
    assert budget("any", 0) == Grid(5, 64, hadamard=32)
    assert repr(budget) == repr(Budget(Grid(5, 64, hadamard=32), bits=[3, 8]))
    with pytest.raises(ValueError, match="at least one step"):
        Budget(every=0)
    with pytest.raises(ValueError, match="2 to 8 bits"):
        Budget(bits=range(1, 5))
    for wrong in (4, Exact(), Grid):
        with pytest.raises(TypeError, match="expected a Grid, whose error is the budget"):
            Budget(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected every to be an integer, got 1\.5"):
        Budget(every=1.5)  # type: ignore[arg-type]
