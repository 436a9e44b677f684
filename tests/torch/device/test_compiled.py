"""Compiled graphs on a device: products of one input are one launch, with the bits that they have in eager torch.

A graph is made on the CPU, and run with the same model's weights on the device.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", minversion="2.8")

from functorch.compile import make_boxed_func  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch import config as functorch  # noqa: E402
from torch.nn.functional import silu  # noqa: E402

from tensorwire.torch import compress_module, inductor, ops, prepare  # noqa: E402
from tensorwire.torch.frames import open_frame  # noqa: E402
from tensorwire.torch.integrations import inductor as module  # noqa: E402
from tensorwire.torch.products import slabs  # noqa: E402
from tests.support import disguised  # noqa: E402
from tests.support.disguised import DEVICE, DisguisedDevice, plain  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

from .stand_in import StandIn  # noqa: E402

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are compiled with g++ here"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

WIDTH, SLABS = 256, 16


class Block(nn.Module):
    """What a layer of a language model multiplies: q, k and v, an output, a gate and up, and down."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.k_proj = nn.Linear(WIDTH, 64, bias=bias)
        self.v_proj = nn.Linear(WIDTH, 64, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_proj = nn.Linear(WIDTH, 512, bias=False)
        self.up_proj = nn.Linear(WIDTH, 512, bias=False)
        self.down_proj = nn.Linear(512, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.o_proj(self.q_proj(x) + torch.cat([self.k_proj(x), self.v_proj(x)] * 2, -1))
        return x + self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


def model_of(profile: str = "resident", mode: str = "fused", bias: bool = False) -> nn.Module:
    torch.manual_seed(0)
    block = Block(bias).to(torch.bfloat16).requires_grad_(False)
    return compress_module(block, profile=profile, min_numel=1024, linear_mode=mode)


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)


class Compiled:
    """A model, compiled on the CPU as one graph, with the same model on the device.

    Attributes:
        graph: that `join_products` has changed, if it is to.
        there: the model on the device.
    """

    def __init__(self, model: nn.Module, x: torch.Tensor, *, join: bool = True) -> None:
        arguments: list[torch.Tensor] = []

        def keep(graph: torch.fx.GraphModule, examples: Any) -> Any:
            self.graph = graph

            def run(*values: torch.Tensor) -> Any:
                arguments[:] = values
                return graph.forward(*values)

            return make_boxed_func(run)

        torch._dynamo.reset()
        torch.compile(model, backend=aot_autograd(fw_compiler=keep), fullgraph=True)(x)
        torch._dynamo.reset()
        if join:
            module.join_products(self.graph.graph)
            self.graph.recompile()
            self.graph.graph.lint()
        self._here, self._arguments = model, arguments

    def move(self) -> None:
        """To the device, with all but the input."""
        self.there = copy.deepcopy(self._here).to(DEVICE)
        prepare(self.there)
        moved = {}
        for here, there in zip(self._here.parameters(), self.there.parameters(), strict=True):
            pair = (here.frame, there.frame) if hasattr(here, "frame") else (here, there)
            moved[pair[0].data_ptr()] = pair[1]
        self._arguments = [moved.get(each.data_ptr()) for each in self._arguments]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with patch.dict(disguised._KERNELS, {"tensorwire::linear": ops.linear_on_device}):  # nothing by turns
            (found,) = self.graph.forward(*(x if each is None else each for each in self._arguments))
        return plain(found)

    def targets(self) -> list[str]:
        """The operators of ours in the graph."""
        return [str(node.target) for node in self.graph.graph.nodes if "tensorwire" in str(node.target)]


@contextmanager
def on_device(*models: Compiled) -> Iterator[tuple[DisguisedDevice, StandIn]]:
    """Within it models are there. Nothing can be compiled meanwhile."""
    driver = StandIn()
    with DisguisedDevice(driver) as device, torch.no_grad():
        for each in models:
            each.move()
        yield device, driver


def headers(driver: StandIn, run: Callable[[], Any]) -> tuple[Any, list[str]]:
    driver.launches.clear()
    result = run()
    return result, [each.kernel.header for each in driver.launches]


@pytest.mark.parametrize(
    ("profile", "header", "bias"), [("resident", "thin.cuh", True), ("fast", "thin_cascade.cuh", False)]
)
def test_products_of_one_input_are_one_launch(profile: str, header: str, bias: bool) -> None:
    """And have the bits of eager torch."""
    x = inputs(1, 3)
    joined = Compiled(model_of(profile, bias=bias), x)
    assert joined.targets() == ["tensorwire.linears.default", "tensorwire.linear.default"] * 2
    with on_device(joined) as (device, driver):
        there = x.to(DEVICE)
        joined(there)  # makes tables
        with device.no_waits():
            found, launched = headers(driver, lambda: joined(there))
        assert launched == [header] * 4
        eager, launched = headers(driver, lambda: plain(joined.there(there)))
        assert launched == [header] * 4
        assert torch.equal(found, eager)
        if bias:  # one that is written to after `prepare`
            joined.there.q_proj.bias.add_(1)
            found, launched = headers(driver, lambda: joined(there))
            assert launched == [header] * 4
            assert torch.equal(found, plain(joined.there(there)))


@pytest.mark.slow
def test_products_that_are_not_joined_are_a_launch_each_and_have_the_same_bits() -> None:
    model, x = model_of(), inputs(1, 3)
    joined, apart = (Compiled(model, x, join=join) for join in (True, False))
    with on_device(joined, apart) as (_, driver):
        there = x.to(DEVICE)
        found, launched = headers(driver, lambda: apart(there))
        assert launched == ["thin.cuh"] * 7
        assert torch.equal(found, joined(there))


def test_exact_products_stay_alone() -> None:
    compiled = Compiled(model_of(mode="exact"), inputs(2))
    assert compiled.targets() == ["tensorwire.linear.default"] * 7


def test_weights_that_are_not_all_of_a_group() -> None:
    compiled = Compiled(model_of(), inputs(2))
    with on_device(compiled) as (_, driver):
        x = inputs(2).to(DEVICE)
        expected = compiled(x)
        open_frame.opened_there(compiled.there.k_proj.weight.frame).member = None
        found, launched = headers(driver, lambda: compiled(x))
        assert launched == ["thin.cuh"] * 6
        assert torch.equal(found, expected)


@pytest.mark.parametrize("count", [65, pytest.param(255, marks=pytest.mark.slow)])
def test_slabs(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are too many for products with compressed weights, and so few that memory bounds their product."""
    monkeypatch.setattr(slabs, "_LEAST_NBYTES", 200 * 2 * WIDTH)
    monkeypatch.setattr(slabs, "_ALIGNMENT", 32)
    x = inputs(count)
    compiled = Compiled(model_of(), x)
    with on_device(compiled) as (device, driver):
        there = x.to(DEVICE)
        device.calls.clear()
        with device.no_waits():
            found, launched = headers(driver, lambda: compiled(there))
        assert set(launched) == {"words.cuh"}
        assert device.calls["aten::mm.out"] == SLABS
        assert torch.equal(found, plain(compiled.there(there)))


@pytest.mark.slow
@torch_since(2, 13)
def test_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It joins products. On the CPU each is what it is alone, so where inductor rounds as eager torch does, the results
    are those of eager torch."""
    graphs = []
    join = module.join_products

    def joined(graph: torch.fx.Graph) -> None:
        join(graph)
        graphs.append([str(node.target) for node in graph.nodes].count("tensorwire.linears.default"))

    monkeypatch.setattr(module, "join_products", joined)
    model, x = model_of(), inputs(1, 3)
    options = {"emulate_precision_casts": True, "fx_graph_cache": False}
    torch._dynamo.reset()
    with torch.no_grad(), functorch.patch(enable_autograd_cache=False):
        found = torch.compile(model, backend=inductor, fullgraph=True, options=options)(x)
        assert torch.equal(found, model(x))
    torch._dynamo.reset()
    assert graphs == [2]


def test_a_pass_of_the_caller() -> None:
    options = {"post_grad_custom_pre_pass": module.join_products}
    with pytest.raises(ValueError, match="expected options without post_grad_custom_pre_pass"):
        inductor(torch.fx.symbolic_trace(nn.Identity()), [inputs(1)], options=options)
