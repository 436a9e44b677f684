"""Compiled models whose weights are compressed: the bits of the dense model compiled, frozen as they are."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._functorch import config as functorch  # noqa: E402
from torch._inductor import config as inductor  # noqa: E402
from torch.nn import functional  # noqa: E402

from tensorwire.torch import CompressedTensor, compress_module  # noqa: E402
from tensorwire.torch.products import linear  # noqa: E402
from tensorwire.torch.tensors import compressed_tensor  # noqa: E402
from tests.support.linear_models import same  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
"""What inductor imports uses it."""

WIDTH, VOCABULARY = 256, 400
DTYPES = (torch.bfloat16, torch.float32)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
# The compiler of C++ takes long.
INDUCTOR = [
    slow("inductor", torch.float32),
    pytest.param("inductor", torch.float16, marks=[torch_since(2, 13), pytest.mark.slow]),
]
EACH = [
    ("aot_eager", torch.bfloat16), slow("eager", torch.bfloat16), slow("aot_eager", torch.float16),
    slow("eager", torch.float32), *INDUCTOR,
]  # fmt: skip
OF_BF16 = pytest.param("inductor", torch.bfloat16, marks=[torch_since(2, 13), pytest.mark.slow])


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    """And not taken from the disk, where an older state of this package may have left it. That the compiler knows of
    the CPU's vectors is taken for granted: inductor would compile all of torch's headers to find out."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with (
        inductor.patch({"fx_graph_cache": False, "cpp.vec_isa_ok": True}),
        functorch.patch(enable_autograd_cache=False),
    ):
        yield
    torch._dynamo.reset()


class Language(nn.Module):
    """Two embeddings, layers of a norm and a gated product whose results are added up, and a head."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(64, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH, bias=False) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        hidden = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[-1]))
        for norm, gate, down in zip(self.norms, self.gates, self.downs, strict=True):
            hidden = hidden + down(functional.silu(gate(norm(hidden))))
        return self.head(hidden)


def pair(model: Any, dtype: Any) -> tuple[Any, Any]:
    dense = model.to(dtype).eval().requires_grad_(False)
    return dense, compress_module(copy.deepcopy(dense), min_numel=1000)


def tokens(*shape: int) -> Any:
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [*EACH, ("eager", torch.float16), ("aot_eager", torch.float32), OF_BF16],
)
def test_compiled_models_have_the_dense_ones_bits(backend: str, dtype: Any) -> None:
    """Where torch rounds to BF16 depends on how many tensors a sum is fused of. The table of an embedding is one, and
    its index is one, unless torch computes it; a compressed embedding has to count the same."""
    dense, compressed = pair(Language(3 if backend == "inductor" else 2), dtype)
    ids = tokens(1, 12)
    result = torch.compile(compressed, backend=backend, fullgraph=True)(ids)
    assert same(result, torch.compile(dense, backend=backend, fullgraph=True)(ids))
    if backend != "inductor":
        assert same(result, dense(ids))


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *EACH,
        slow("eager", torch.float16),
        slow("aot_eager", torch.float32),
        OF_BF16,
    ],
)
def test_graphs_for_any_length(backend: str, dtype: Any) -> None:
    dense, compressed = pair(Language(1), dtype)
    ours = torch.compile(compressed, backend=backend, dynamic=True, fullgraph=True)
    theirs = torch.compile(dense, backend=backend, dynamic=True, fullgraph=True)
    for ids in (tokens(2, 12), tokens(3, 7)):
        assert same(ours(ids), theirs(ids))


@pytest.mark.slow
def test_one_token_through_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_SLAB_NBYTES", 64 << 10)
    dense, compressed = pair(Language(1), torch.bfloat16)
    ours = torch.compile(compressed, fullgraph=True)
    assert same(ours(tokens(1, 1)), torch.compile(dense, fullgraph=True)(tokens(1, 1)))


class Broken(Language):
    def forward(self, tokens: Any) -> Any:
        hidden = self.embedding(tokens)
        torch._dynamo.graph_break()
        return self.head(hidden + self.downs[0](self.gates[0](hidden)))


@pytest.mark.parametrize("backend", ["aot_eager", slow("eager"), slow("inductor")])
def test_graphs_that_break(backend: str) -> None:
    dense, compressed = pair(Broken(1), torch.bfloat16)
    ids = tokens(2, 5)
    assert same(torch.compile(compressed, backend=backend)(ids), torch.compile(dense, backend=backend)(ids))


@pytest.mark.parametrize(
    ("backend", "dtype"), [("aot_eager", torch.bfloat16), *(slow("inductor", dtype) for dtype in DTYPES)]
)
def test_gradients_of_an_adapter(backend: str, dtype: Any) -> None:
    class Adapted(Language):
        def __init__(self) -> None:
            super().__init__(1 if backend == "aot_eager" else 2)
            self.low, self.high = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

        def forward(self, tokens: Any) -> Any:
            hidden = self.embedding(tokens)
            for norm, gate, down in zip(self.norms, self.gates, self.downs, strict=True):
                hidden = hidden + down(functional.silu(gate(norm(hidden)))) + self.high(self.low(hidden))
            return self.head(hidden)

    results = []
    for model in pair(Adapted(), dtype):
        trained = [model.low.weight, model.high.weight, *(norm.weight for norm in model.norms)]
        for parameter in trained:
            parameter.requires_grad_()
        output = torch.compile(model, backend=backend, fullgraph=True)(tokens(2, 6))
        results.append([output, *torch.autograd.grad(output.float().square().mean(), trained)])
    assert all(same(ours, theirs) for ours, theirs in zip(*results, strict=True))


ROWS = {
    "embedding": lambda w, i: functional.embedding(i, w),
    "embedding of int32": lambda w, i: functional.embedding(i.int(), w),
    "index": lambda w, i: w[i],
    "index_select": lambda w, i: w.index_select(0, i.flatten()),
    "slice": lambda w, i: w[3:9],
    "row": lambda w, i: w[7],
    "split": lambda w, i: w.split(100)[1],
}
COMPUTED = {"index from the end": lambda w, i: w[i - w.shape[0]]}


def sums_of_rows(takes: dict[str, Any], ids: Any, terms: list[Any], weights: list[Any]) -> list[Any]:
    """Several sums for each way to take rows, of which torch rounds some terms in between."""
    sums = []
    for take, weight in zip(takes.values(), weights, strict=True):
        total = take(weight, ids)
        for term in terms:
            total = total + term
            sums.append(total.sum(-1))
    return sums


@pytest.mark.slow
@torch_since(2, 13)
def test_rows_in_a_graph() -> None:
    dense = [torch.randn(VOCABULARY, WIDTH).bfloat16() for _ in ROWS]
    compressed = [CompressedTensor.from_dense(weight) for weight in dense]
    terms = list(torch.randn(6, WIDTH).bfloat16())
    ours = torch.compile(sums_of_rows, fullgraph=True)(ROWS, tokens(2, 3), terms, compressed)
    torch._dynamo.reset()
    theirs = torch.compile(sums_of_rows, fullgraph=True)(ROWS, tokens(2, 3), terms, dense)
    assert all(same(one, other) for one, other in zip(ours, theirs, strict=True))


@torch_since(2, 13)
@pytest.mark.parametrize(("rows", "num_terms"), [(["embedding"], 4), slow([*ROWS], 6)], ids=["embedding", "all"])
def test_what_is_rounded_as_in_eager_does_not_depend_on_what_is_fused(rows: list[str], num_terms: int) -> None:
    """One table that is read several times, and a computed index: both change what torch fuses."""
    takes = {name: ROWS[name] for name in rows} | COMPUTED
    dense = torch.randn(VOCABULARY, WIDTH).bfloat16()
    terms = list(torch.randn(num_terms, WIDTH).bfloat16())
    results = []
    for weight in (CompressedTensor.from_dense(dense), dense):
        torch._dynamo.reset()
        compiled = torch.compile(sums_of_rows, fullgraph=True, options={"emulate_precision_casts": True})
        results.append(compiled(takes, tokens(2, 3), terms, [weight] * len(takes)))
    assert all(same(ours, theirs) for ours, theirs in zip(*results, strict=True))


class Added(nn.Module):
    """A product of a matrix, without a bias, to which something is added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return self.first(x) + self.second(x)


FUSED_BY_TORCH = {"added": (Added, (24, WIDTH)), "one row": (lambda: nn.Linear(8192, 1, bias=False), (1, 8192))}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("added", torch.float32),
        ("one row", torch.bfloat16),
        slow("added", torch.bfloat16),
        slow("one row", torch.float32),
    ],
)
def test_what_torch_makes_no_product_of_is_one_with_the_bits_of_eager(name: str, dtype: Any) -> None:
    """With a dense weight torch adds while it multiplies, or multiplies and sums element by element: other bits."""
    model, shape = FUSED_BY_TORCH[name]
    dense, compressed = pair(model(), dtype)
    x = torch.randn(shape).to(dtype)
    assert same(torch.compile(compressed, fullgraph=True)(x), dense(x))


@pytest.mark.parametrize("dtype", [slow(torch.bfloat16), torch.float32], ids=str)
def test_sums_with_products_have_the_dense_ones_bits_where_torch_does_not_fuse_them(dtype: Any) -> None:
    dense, compressed = pair(Added(), dtype)
    x = torch.randn(24, WIDTH).to(dtype)
    options = {"pattern_matcher": False}
    ours = torch.compile(compressed, fullgraph=True, options=options)(x)
    assert same(ours, torch.compile(dense, fullgraph=True, options=options)(x))


def test_code_that_another_version_of_this_package_compiled_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps it in files, under what the weights say that it depends on."""
    weight = CompressedTensor.from_dense(torch.randn(64, 64))
    before = weight._stable_hash_for_caching()
    monkeypatch.setattr(compressed_tensor, "__version__", "0.0.1")
    assert weight._stable_hash_for_caching() != before


LLAMAS = [(2, torch.bfloat16), *((layers, dtype) for layers in (1, 3, 4, 6) for dtype in DTYPES)]


@pytest.mark.slow
@torch_since(2, 13)
@pytest.mark.parametrize(("layers", "dtype"), LLAMAS, ids=lambda value: str(value).removeprefix("torch."))
def test_compiled_llamas(layers: int, dtype: Any) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1000,
    )
    dense, compressed = pair(transformers.LlamaForCausalLM(config), dtype)
    ids = tokens(1, 24)
    with torch.no_grad():
        ours = torch.compile(compressed, fullgraph=True)(ids, use_cache=False).logits
        assert same(ours, torch.compile(dense, fullgraph=True)(ids, use_cache=False).logits)
