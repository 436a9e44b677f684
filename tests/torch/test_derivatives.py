"""Derivatives through compressed weights, in every way that torch has: the bits of the dense frozen model's."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.functional import embedding, linear  # noqa: E402

from tensorwire.torch import CompressedTensor, compress_module, decode_ahead  # noqa: E402
from tensorwire.torch.tensors.lazy import LazyTensor  # noqa: E402
from tests.support.linear_models import same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

# Torch's own, of the dense model too: some of its rules for forward mode are scripts, and linearize traces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]

ROWS, COLUMNS = 48, 32


class Residual(nn.Module):
    """Two linear layers beside the input: what is lost of a derivative is not all of it."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(COLUMNS, ROWS, bias=bias)
        self.down = nn.Linear(ROWS, COLUMNS, bias=bias)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(x)))


class Transformer(nn.Module):
    """A block as language models have it, without torch's own attention module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(COLUMNS), nn.Linear(COLUMNS, 3 * COLUMNS), nn.Linear(COLUMNS, 32)
        self.rest = Residual(bias=False)
        self.head = nn.Linear(COLUMNS, 11, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, COLUMNS // 4)).transpose(-4, -2).unbind(-3)
        scores = (q @ k.transpose(-1, -2) / 3).softmax(-1)
        return self.head(self.rest(x + self.out((scores @ v).transpose(-3, -2).flatten(-2))))


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(COLUMNS, ROWS, bias=False),
    "linear with bias": lambda: nn.Linear(COLUMNS, ROWS),
    "residual": lambda: Residual(bias=True),
    "transformer": Transformer,
}
SHAPES = {"linear": (COLUMNS,), "linear with bias": (3, COLUMNS), "residual": (2, 3, COLUMNS)}


def pair(name: str, dtype: Any = torch.float32, mode: str = "exact") -> tuple[Any, Any, Any]:
    """The dense frozen model, the compressed one, and an input."""
    torch.manual_seed(0)
    dense = MODELS[name]().to(dtype).requires_grad_(False)
    compressed = compress_module(copy.deepcopy(dense), min_numel=1, linear_mode=mode)
    assert all(isinstance(p, CompressedTensor) for p in compressed.parameters() if p.dim() == 2)
    return dense, compressed, torch.randn(SHAPES.get(name, (3, COLUMNS))).to(dtype)


def value(y: Any) -> Any:
    return y.tanh().pow(3).sum()


def forward_mode(model: Any, x: Any) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(model(forward_ad.make_dual(x, x.cos()))))


def double_backward(model: Any, x: Any) -> Any:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(model(x)), x, create_graph=True)
    return gradient, *torch.autograd.grad(gradient.pow(2).sum(), x)


def forward_over_backward(model: Any, x: Any) -> Any:
    return torch.func.jvp(torch.func.grad(lambda x: value(model(x))), (x,), (x.cos(),))


def vjp(model: Any, x: Any) -> Any:
    y, pull = torch.func.vjp(model, x)
    return y, *pull(y.cos())


DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "backward": lambda model, x: torch.autograd.grad(value(model(x.requires_grad_())), x)[0],
    "forward_ad": forward_mode,
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (x.cos(),)),
    "linearize": lambda model, x: torch.func.linearize(model, x)[1](x.cos()),
    "vjp": vjp,
    "grad": lambda model, x: torch.func.grad(lambda x: value(model(x)))(x),
    "jacrev": lambda model, x: torch.func.jacrev(model)(x),
    "jacrev in chunks": lambda model, x: torch.func.jacrev(model, chunk_size=5)(x),
    "jacfwd": lambda model, x: torch.func.jacfwd(model)(x),
    "hessian": lambda model, x: torch.func.hessian(lambda x: value(model(x)))(x),
    "jacobian": lambda model, x: torch.autograd.functional.jacobian(model, x),
    "jacobian, create_graph": lambda model, x: torch.autograd.functional.jacobian(model, x, create_graph=True),
    "jacobian, vectorized": lambda model, x: torch.autograd.functional.jacobian(model, x, vectorize=True),
    "jacobian, forward": lambda model, x: torch.autograd.functional.jacobian(
        model, x, vectorize=True, strategy="forward-mode"
    ),
    "functional.hessian": lambda model, x: torch.autograd.functional.hessian(lambda x: value(model(x)), x),
    "double backward": double_backward,
    "forward over backward": forward_over_backward,
    "vmap": lambda model, x: torch.vmap(model)(torch.stack([x, x.cos(), -x])),
    "vmap of the last but one": lambda model, x: torch.vmap(model, in_dims=-2, out_dims=-1)(torch.stack([x, -x], -2)),
    "vmap in chunks": lambda model, x: torch.vmap(model, chunk_size=2)(torch.stack([x, x.cos(), -x])),
    "vmap of vmap": lambda model, x: torch.vmap(torch.vmap(model))(torch.stack([x, -x]).expand(3, 2, *x.shape)),
    "vmap of grad": lambda model, x: torch.vmap(torch.func.grad(lambda x: value(model(x))))(torch.stack([x, -x])),
    "grad of vmap": lambda model, x: torch.func.grad(lambda x: value(torch.vmap(model)(x)))(torch.stack([x, -x])),
}


def tensors(result: Any) -> list[Any]:
    return [result] if isinstance(result, torch.Tensor) else [t for part in result for t in tensors(part)]


def all_same(ours: Any, theirs: Any) -> bool:
    return len(tensors(ours)) == len(tensors(theirs)) > 0 and all(
        same(*both) for both in zip(tensors(ours), tensors(theirs), strict=True)
    )


OF_ALL = {
    "linear": torch.float32,
    "linear with bias": torch.bfloat16,
    "residual": torch.bfloat16,
    "transformer": torch.float32,
}
LONG = ("linearize", "functional.hessian")
"""They trace each operation, or take a derivative for each element; quick tests have them of the smaller models."""
CASES = [
    *(
        pytest.param(way, name, dtype, marks=pytest.mark.slow if way in LONG and name == "transformer" else ())
        for way in DERIVATIVES
        for name, dtype in OF_ALL.items()
    ),
    *(pytest.param(way, "transformer", torch.bfloat16, marks=pytest.mark.slow) for way in DERIVATIVES),
]


@pytest.mark.parametrize(("way", "name", "dtype"), CASES)
def test_derivatives_by_inputs_have_the_bits_of_the_dense_model(way: str, name: str, dtype: Any) -> None:
    derive = DERIVATIVES[way]
    dense, compressed, x = pair(name, dtype)
    expected = derive(dense, x.clone())
    assert any(t.any() for t in tensors(expected))
    assert all_same(derive(compressed, x.clone()), expected)


@pytest.mark.parametrize("name", ["backward", "jvp", "jacrev in chunks", "double backward", "vmap of vmap", "hessian"])
def test_decoding_ahead_changes_no_derivative(name: str) -> None:
    dense, compressed, x = pair("transformer")
    derive = DERIVATIVES[name]
    expected = derive(dense, x.clone())
    with decode_ahead(compressed):
        for _ in range(3):  # the order of layers is learned from the first
            assert all_same(derive(compressed, x.clone()), expected)


def test_a_weight_stays_compressed_between_forward_and_backward() -> None:
    _, compressed, x = pair("transformer")
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        compressed(x.requires_grad_()).sum().backward()
    sizes = {p.numel() for p in compressed.parameters() if p.dim() == 2}
    weights = [t for t in kept if t.numel() in sizes]
    assert len(weights) >= len(sizes)
    assert all(isinstance(t, LazyTensor) for t in weights)


@pytest.mark.parametrize("shape", [(1, COLUMNS), (8, COLUMNS), (2, 4, COLUMNS), (COLUMNS,)], ids=str)
def test_fused_products_have_the_derivatives_of_the_exact_product(shape: Any) -> None:
    """The value is rounded otherwise; the tangent is a product like it, and the gradient is torch's own."""
    dense, compressed, _ = pair("linear with bias", mode="fused")
    x, direction = torch.randn(shape), torch.randn(shape)
    y, tangent = torch.func.jvp(compressed, (x,), (direction,))
    assert same(y, compressed(x))
    assert same(tangent, linear(direction, compressed.weight))
    torch.testing.assert_close(y, dense(x))
    gradients = [torch.func.vjp(model, x)[1](torch.ones_like(y))[0] for model in (compressed, dense)]
    assert same(*gradients)


def test_fused_products_are_fused_wherever_the_inputs_lie() -> None:
    """Torch takes other operations where inputs do not lie one behind the other, as those of the last token of each
    sequence, and under vmap."""
    dense, compressed, _ = pair("linear", torch.bfloat16, mode="fused")
    x = torch.randn(4, 9, COLUMNS).bfloat16()[:, -1:]
    expected = compressed(x.contiguous())
    assert same(compressed(x), expected)
    assert same(torch.vmap(compressed)(x), expected)
    assert same(torch.vmap(compressed, in_dims=1, out_dims=1)(x), expected)
    with torch.inference_mode():
        assert same(compressed(x), expected)
    many = torch.randn(4, 9, COLUMNS).bfloat16()[:, -3:]  # torch's own, as in mode "exact"
    assert same(compressed(many), dense(many))
    assert same(torch.vmap(compressed)(many), torch.vmap(dense)(many))


@pytest.mark.parametrize("way", ["jvp", "vmap", "hessian"])
def test_the_operator_has_the_same_derivatives(way: str) -> None:
    """`torch.ops.tensorwire.linear`, which integrations call."""
    weight, bias, x = torch.randn(ROWS, COLUMNS), torch.randn(ROWS), torch.randn(3, COLUMNS)
    frame = CompressedTensor.from_dense(weight).frame

    def product(x: Any) -> Any:
        return torch.ops.tensorwire.linear(x, frame, weight.dtype, weight.shape, bias, "exact")

    derive = DERIVATIVES[way]
    assert all_same(derive(product, x), derive(lambda x: linear(x, weight, bias), x))


BY_A_WEIGHT: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, w: torch.func.grad(f)(w),
    "jvp": lambda f, w: torch.func.jvp(f, (w,), (torch.ones(6, 8),)),
    "hessian": lambda f, w: torch.func.hessian(f)(w),
    "jacobian": lambda f, w: torch.autograd.functional.jacobian(f, w),
    "backward": lambda f, w: torch.autograd.grad(f(w := w.detach().requires_grad_()), w),
}
USES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda w: linear(torch.ones(2, 8), w),
    "embedding": lambda w: embedding(torch.tensor([1, 5, 1]), w),
    "rows": lambda w: w[2:4],
    "another product": lambda w: torch.ones(2, 6) @ w,
    "another dtype": lambda w: linear(torch.ones(2, 8).double(), w.double()),
}


@pytest.mark.parametrize("parameter", [False, True], ids=["tensor", "parameter"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("derive", BY_A_WEIGHT.values(), ids=BY_A_WEIGHT)
def test_derivatives_by_a_compressed_weight_are_dense(derive: Any, use: Any, parameter: bool) -> None:
    """Where somebody asks for one by name. A parameter of a model is frozen all the same."""
    dense = torch.randn(6, 8)
    weight: Any = CompressedTensor.from_dense(dense)
    weight = nn.Parameter(weight) if parameter else weight
    assert all_same(derive(lambda w: value(use(w)), weight), derive(lambda w: value(use(w)), dense))


def test_a_parameter_is_frozen_until_it_is_asked_to_train() -> None:
    dense, compressed, x = pair("linear")
    weight = compressed.weight
    with pytest.raises(RuntimeError, match="does not require grad"):
        compressed(x).sum().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(compressed(x.requires_grad_()).sum(), weight)
    weight.mark = "kept"
    with torch.inference_mode():
        compressed.requires_grad_()
    assert (type(weight), weight.mark, weight.is_inference()) == (nn.Parameter, "kept", False)
    assert compressed.weight is weight
    for model in (dense.requires_grad_(), compressed):
        model(x).sum().backward()
    assert same(weight.grad, dense.weight.grad)


def test_a_parameter_stays_compressed_while_a_backward_pass_needs_it() -> None:
    dense, compressed, x = pair("linear")
    loss = compressed(x.requires_grad_()).sum()
    compressed.requires_grad_()
    assert isinstance(compressed.weight, CompressedTensor)
    (found,) = torch.autograd.grad(loss, x)
    assert same(found, torch.autograd.grad(dense(x).sum(), x)[0])
    del loss
    compressed.requires_grad_()
    assert type(compressed.weight) is nn.Parameter


def test_a_weight_that_is_written_to_before_the_backward_pass_is_told_as_for_a_dense_one() -> None:
    dense, compressed, x = pair("linear")
    for model in (dense, compressed):
        loss = model(x.requires_grad_()).sum()
        with torch.no_grad():
            model.weight.copy_(torch.ones(ROWS, COLUMNS))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
