"""Writes to a compressed tensor: they are followed or refused, and never lost."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import embedding, linear  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tests.support.linear_models import same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, COLUMNS = 320, 256


@pytest.fixture
def dense() -> Any:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(ROWS, COLUMNS, generator=generator) * 0.02).bfloat16()


@pytest.fixture
def compressed(dense: Any) -> CompressedTensor:
    return CompressedTensor.from_dense(dense)


WRITES: dict[str, Callable[[Any], Any]] = {
    "add_": lambda w: w.add_(1),
    "itself": lambda w: w.mul_(w),
    "operator": lambda w: operator.iadd(w, 1),
    "zero_": lambda w: w.zero_(),
    "init": lambda w: nn.init.normal_(w, generator=torch.Generator().manual_seed(0)),
    "out": lambda w: torch.add(torch.ones(ROWS, COLUMNS), 1, out=w),
    "foreach": lambda w: torch._foreach_add_([w, w.clone()], 1),
    "data": lambda w: setattr(w, "data", torch.ones(ROWS, COLUMNS, dtype=w.dtype)),
    "data of another shape": lambda w: setattr(w, "data", torch.ones(3)),
    "compressed data": lambda w: setattr(w, "data", type(w)(w.clone())),
    "through data": lambda w: w.data.zero_(),
    "through a view of its shape": lambda w: w.view_as(w).zero_(),
    "a number": lambda w: w.copy_(2.0),
    "data and back": lambda w: setattr(w, "data", operator.iadd(w.data, 1)),
    "renormalizing embedding": lambda w: embedding(torch.tensor([1]), w, max_norm=0.001),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_to_the_whole_tensor_compress_it_anew(
    dense: Any, compressed: CompressedTensor, write: Callable[[Any], Any]
) -> None:
    expected = dense.clone()
    write(expected)
    assert (write(compressed) is compressed) == (write(dense) is dense)
    assert isinstance(compressed, CompressedTensor)
    assert same(compressed.decode(), expected)
    assert tensorwire.frame_info(compressed.frame.numpy()).shape == tuple(expected.shape)


def test_an_init_that_writes_through_a_view_reaches_the_weight() -> None:
    dense = torch.ones(64, 128)
    compressed = CompressedTensor.from_dense(dense)
    for weight in (dense, compressed):
        nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(0))
    assert same(compressed.decode(), dense)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "item assignment": lambda w: w.__setitem__(0, 1),
    "resize_": lambda w: w.resize_(3, 3),
    "t_": lambda w: w.t_(),
    "unsqueeze_": lambda w: w.unsqueeze_(0),
    "through the transpose": lambda w: w.t().zero_(),
    "through mT": lambda w: w.mT.zero_(),
    "through another shape": lambda w: w.view(-1).zero_(),
    "through a permutation": lambda w: w.permute(1, 0).zero_(),
    "through one more dimension": lambda w: w.unsqueeze(0).zero_(),
    "its diagonal": lambda w: w.fill_diagonal_(2),
    "item of the transpose": lambda w: w.t().__setitem__(0, 1),
    "data of the transpose": lambda w: setattr(w.t(), "data", torch.ones(3)),
}


@pytest.mark.parametrize("write", REFUSED.values(), ids=REFUSED)
def test_other_writes_are_refused(dense: Any, compressed: CompressedTensor, write: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"tensor\.decode\(\).*decompress_module"):
        write(compressed)
    assert same(compressed.decode(), dense)


def test_writes_in_a_compiled_graph_are_refused(dense: Any, compressed: CompressedTensor) -> None:
    with pytest.raises(RuntimeError, match="expected a tensor with memory of its own"):
        torch.compile(lambda weight: weight.mul_(2).sum(), backend="aot_eager")(compressed)
    assert same(compressed.decode(), dense)


def test_gradients_reach_what_was_written_to_it(dense: Any) -> None:
    gradients = []
    for weight in (dense.float(), CompressedTensor.from_dense(dense.float())):
        delta = torch.ones(ROWS, COLUMNS, requires_grad=True)
        parameter = nn.Parameter(weight, requires_grad=False)
        parameter.add_(delta)
        result = linear(torch.ones(3, COLUMNS), parameter).square().sum()
        result += embedding(torch.tensor([1, 5]), parameter).square().sum()
        gradients.append(torch.autograd.grad(result, delta)[0])
    assert same(*gradients)


@pytest.mark.parametrize("view", ["data", "detach", "state_dict", "all rows", "parameter"])
def test_a_copy_into_what_passes_for_a_view_is_seen_by_all(dense: Any, view: str) -> None:
    """As loaders write: `parameter.data.copy_(tensor)`."""
    module = nn.Linear(COLUMNS, ROWS, bias=False)
    module.weight = nn.Parameter(CompressedTensor.from_dense(dense), requires_grad=False)
    views = {
        "data": module.weight.data,
        "detach": module.weight.detach(),
        "state_dict": module.state_dict()["weight"],
        "all rows": module.weight[:],
        "parameter": nn.Parameter(module.weight, requires_grad=False),
    }
    with torch.no_grad():
        views[view].copy_(dense * 2)
    for seen in (module.weight, *views.values()):
        assert same(seen.decode(), dense * 2)
    with torch.no_grad():
        module.weight.clone().copy_(dense)
    assert same(module.weight.decode(), dense * 2)
