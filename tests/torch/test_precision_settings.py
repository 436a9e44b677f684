"""Exact layers under every setting of torch's precision, old and new: the dense model's bits under the same setting."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import linear  # noqa: E402

from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.products import linear as _linear  # noqa: E402
from tensorwire.torch.products.kind import _settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS, COLUMNS = 1088, 512
SLAB_NBYTES = 256 << 10  # so that the weight has several
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INPUTS = [(1, COLUMNS), (8, COLUMNS), (64, COLUMNS), (1, 24, COLUMNS)]  # the last one is a prompt

ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    "backends.fp32_precision": ("ieee", "tf32", "bf16", "none"),
    "backends.mkldnn.fp32_precision": ("ieee", "tf32", "bf16", "none"),
    "backends.mkldnn.matmul.fp32_precision": ("ieee", "tf32", "bf16", "none"),
    "backends.mkldnn.conv.fp32_precision": ("ieee", "tf32", "bf16", "none"),
    "backends.mkldnn.rnn.fp32_precision": ("ieee", "tf32", "bf16", "none"),
    "backends.cuda.matmul.fp32_precision": ("ieee", "tf32", "none"),
    "backends.cudnn.fp32_precision": ("ieee", "tf32", "none"),
    "backends.cudnn.conv.fp32_precision": ("ieee", "none", "tf32"),
    "backends.cudnn.rnn.fp32_precision": ("ieee", "none", "tf32"),
    "backends.mkldnn.enabled": (False, True),
    "backends.mkldnn.deterministic": (True, False),
    "backends.cuda.matmul.allow_tf32": (True, False),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (False, True),
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (False, True),
    "backends.cuda.matmul.allow_fp16_accumulation": (True, False),
    "backends.cudnn.allow_tf32": (False, True),
}
CALLS: dict[str, tuple[Any, ...]] = {
    "set_float32_matmul_precision": ("medium", "high", "highest"),
    "use_deterministic_algorithms": (True, False),
}


def place_of(path: str) -> tuple[Any, str]:
    """What has the attribute, and the attribute's name."""
    *parts, name = path.split(".")
    return functools.reduce(lambda place, part: getattr(place, part, None), parts, torch), name


def choose(path: str, value: Any) -> None:
    if path in CALLS:
        getattr(torch, path)(value)
    else:
        setattr(*place_of(path), value)


ATTRIBUTES = {path: values for path, values in ATTRIBUTES.items() if hasattr(*place_of(path))}
"""The settings that this torch has."""
SETTINGS = ATTRIBUTES | CALLS
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
OTHERS = [path for path in SETTINGS if any(part in path for part in (".cuda.", ".cudnn.", ".conv.", ".rnn."))]
OF_F32 = [path for path in SETTINGS if "fp32" in path or "float32" in path]
WHOLES = ["backends.fp32_precision", "backends.mkldnn.fp32_precision"]
"""Another way to choose the precision of oneDNN's products."""


def of_products(*more: str) -> list[Any]:
    """What torch may ask for a product on the CPU; those of other devices and operations are slow tests."""
    return [slow(path) if path in (*OTHERS, *more) else path for path in SETTINGS]


IN_A_GRAPH = ["backends.mkldnn.enabled", "set_float32_matmul_precision"]
"""Settings of both kinds. What is compiled asks for all of them where eager layers do."""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets back what a test has set. The older calls set what the newer attributes show, so these come after."""
    monkeypatch.setattr(_linear, "_SLAB_NBYTES", SLAB_NBYTES)
    before = {path: getattr(*place_of(path)) for path in ATTRIBUTES}
    torch._dynamo.reset()  # it counts what is compiled for one function, by tests of other files too
    yield
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    for path in sorted(before, key=lambda path: "fp32_precision" in path):
        choose(path, before[path])
    assert {path: getattr(*place_of(path)) for path in before} == before
    assert torch.get_float32_matmul_precision() == "highest"


@functools.lru_cache
def weight(dtype: Any) -> Any:
    return (torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)) * 0.02).to(dtype)


@functools.lru_cache
def loaded(dtype: Any) -> CompressedTensor:
    return CompressedTensor.from_dense(weight(dtype))


def check(compressed: CompressedTensor) -> list[bytes]:
    """The bits of all products, which are the dense weight's."""
    bits = []
    for shape in INPUTS:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(compressed.dtype)
        for bias in (None, torch.ones(ROWS, dtype=compressed.dtype)):
            expected = linear(x, weight(compressed.dtype), bias)
            assert torch.equal(linear(x, compressed, bias), expected)
            bits.append(expected.view(torch.uint8).numpy().tobytes())
    return bits


@pytest.mark.parametrize(
    ("path", "dtype"),
    [
        (slow if path in (*OTHERS, *OF_F32) and dtype is not torch.float32 else pytest.param)(path, dtype)
        for path in SETTINGS
        for dtype in DTYPES
    ],
)
def test_exact_layers_follow_what_is_set_while_they_are_loaded(path: str, dtype: Any) -> None:
    """And where torch gives other bits under another value, slabs are tried again: they are kept apart by it."""
    found = {_settings(): check(loaded(dtype))}
    for value in SETTINGS[path]:
        choose(path, value)
        bits = check(loaded(dtype))
        assert found.setdefault(_settings(), bits) == bits


@pytest.mark.parametrize("path", of_products(*WHOLES))
def test_exact_layers_follow_what_was_set_before(path: str) -> None:
    for value in SETTINGS[path]:
        choose(path, value)
        _linear._choose.cache_clear()
        check(CompressedTensor.from_dense(weight(torch.float32)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # by inductor
@pytest.mark.parametrize("path", of_products(*(path for path in SETTINGS if path not in IN_A_GRAPH)))
@pytest.mark.parametrize("backend", ["aot_eager", slow("eager"), slow("inductor")])
def test_compiled_layers_follow_what_is_set(path: str, backend: str) -> None:
    """Also what is set once they are compiled."""
    compiled = torch.compile(linear, fullgraph=True, backend=backend)
    compressed, dense = loaded(torch.float32), weight(torch.float32)
    for value in (None, *SETTINGS[path]):
        if value is not None:
            choose(path, value)
        for shape in (INPUTS[0], INPUTS[2]):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
            assert torch.equal(compiled(x, compressed), compiled(x, dense))


def test_the_first_token_after_a_prompt() -> None:
    """Torch's older question for the precision has no answer any more once the newer attributes were used."""
    if "backends.cuda.matmul.fp32_precision" not in ATTRIBUTES:
        pytest.skip("this torch has the older calls alone")
    choose("backends.cuda.matmul.fp32_precision", "tf32")
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    check(loaded(torch.float32))
