"""Products in torch's own order of summation, against dense torch, bit for bit, whatever way they take."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensorwire.codec.products import Order, linear_orders  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.products import linear, trial  # noqa: E402
from tensorwire.torch.products.kind import Strides, kind_of  # noqa: E402
from tests.support.programs import Programs  # noqa: E402

multiply = torch.nn.functional.linear
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


def bits(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.int16)


def cancelling(count: int, columns: int, generator: Any) -> tuple[Any, Any]:
    """Weights and inputs of which every sum is what rounding leaves."""
    rows, places = trial._cancelling_rows(64, columns, torch.float32, generator)
    return rows, trial._cancelling_inputs((count, columns), places, torch.float32, generator)


def normal(count: int, columns: int, generator: Any) -> tuple[Any, Any]:
    return torch.randn(64, columns, generator=generator) * 0.02, torch.randn(count, columns, generator=generator)


def check(x: Any, dense: Any, bias: Any) -> None:
    got = multiply(x, CompressedTensor.from_dense(dense), bias)
    assert torch.equal(bits(got), bits(multiply(x, dense, bias)))


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e4, 3e38], ids=str)
@pytest.mark.parametrize("where", ["input", "weight", "both"])
def test_nan_infinity_and_overflow(dtype: Any, value: float, where: str) -> None:
    generator = torch.Generator().manual_seed(1)
    dense, x = (part.to(dtype) for part in normal(3, 1024, generator))
    one = torch.tensor(value).to(dtype)  # infinity where it is too large
    if where != "weight":
        x[1, 5] = one
    if where != "input":
        dense[7, 5] = one
        dense[8, 9] = -one
    check(x, dense, None)
    check(x[:1], dense, torch.randn(64, generator=generator).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("flush", [False, True], ids=["", "flush to zero"])
@pytest.mark.parametrize("scale", [2.0**-70, 2.0**-64, 2.0**-12])
@pytest.mark.parametrize("columns", [512, 2048])
def test_denormals(dtype: Any, flush: bool, scale: float, columns: int) -> None:
    """Inputs, weights, sums and results are denormal, or some of them."""
    dense, x = (part.mul(scale).to(dtype) for part in cancelling(2, columns, torch.Generator().manual_seed(2)))
    try:
        assert torch.set_flush_denormal(flush)
        check(x, dense, None)
        check(x[:1], dense, dense[:, 0].contiguous())
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_threads_and_settings_that_change_between_calls(dtype: Any, threads: Any) -> None:
    dense, x = (part.to(dtype) for part in cancelling(1, 2048, torch.Generator().manual_seed(3)))
    compressed = CompressedTensor.from_dense(dense)
    enabled = torch.backends.mkldnn.enabled
    try:
        for count, on in ((1, True), (2, True), (2, False), (1, False), (1, True)):
            threads(count)
            torch.backends.mkldnn.enabled = on
            assert torch.equal(bits(multiply(x, compressed)), bits(multiply(x, dense)))
    finally:
        torch.backends.mkldnn.enabled = enabled


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("value", [2.0**-130, -(2.0**-130), float("nan"), -float("inf")])
def test_a_bias_that_is_denormal_or_no_number(dtype: Any, value: float) -> None:
    dense, x = (part.to(dtype) for part in normal(2, 512, torch.Generator().manual_seed(8)))
    dense[3] = 0
    bias = torch.zeros(64, dtype=dtype)
    bias[3] = value
    check(x, dense, bias)
    check(x[:1], dense, bias)


HELD_BACK = """
import torch
from tensorwire.codec.products import Order
from tensorwire.torch import CompressedTensor
from tensorwire.torch.products import linear, trial
from tensorwire.torch.products.kind import kind_of
generator = torch.Generator().manual_seed(7)
torch.set_num_threads(1)
for columns in (77, 256, 2048):
    rows, places = trial._cancelling_rows(64, columns, torch.bfloat16, generator)
    for profile in ("fast", "resident"):
        compressed = CompressedTensor.from_dense(rows, profile)
        for count in (1, 2, 33, 64):
            x = trial._cancelling_inputs((count, columns), places, torch.bfloat16, generator)
            order = linear._choose(kind_of(x, len(rows), None)).order
            of_many = None if columns % 2 else Order.GEMM_768  # pairs have to be whole
            assert order is (Order.GEMV_16 if count == 1 else of_many), (columns, count, order)
            multiply = torch.nn.functional.linear
            assert torch.equal(multiply(x, compressed).view(torch.int16), multiply(x, rows).view(torch.int16))
"""


# It has fewer rows than a trial, and must see what becomes of denormals all the same.
FEW_ROWS = """
import torch
from tensorwire.torch import CompressedTensor
multiply = torch.nn.functional.linear
torch.set_num_threads(1)
for columns in (256, 384):
    for rows in (1, 3, 5):
        dense = torch.full((rows, columns), 2.0**-130).bfloat16()
        compressed = CompressedTensor.from_dense(dense)
        for count in (1, 16, 64):
            x = torch.ones(count, columns).bfloat16()
            assert torch.equal(multiply(x, compressed), multiply(x, dense)), (columns, rows, count)
"""

# It is set for one thread alone. Slabs would give that one other rows than a whole weight does.
FLUSHING = """
import torch
from tensorwire.torch import CompressedTensor
from tensorwire.torch.products import linear
multiply, linear.linear_orders = torch.nn.functional.linear, lambda dtype: []
torch.set_num_threads(2)
dense = torch.full((8192, 2048), 2.0**-130).bfloat16()
compressed, x = CompressedTensor.from_dense(dense), torch.ones(2, 2048).bfloat16()
for flush in (False, True, False):
    assert torch.set_flush_denormal(flush)
    assert torch.equal(multiply(x, compressed), multiply(x, dense)), flush
"""

# What lies behind an input is the partner of its last column, times zero: the sign of a zero depends on it.
ODD = """
import torch
from tests.support.random_products import differences
torch.set_num_threads(2)
for columns in (9, 139):
    for rows in (79, 131):
        for count in (8, 30):
            weight = torch.full((rows, columns), 2.0**-133).bfloat16()
            weight[:, -1] = 0
            x = torch.full((count, columns), -(2.0**-76)).bfloat16()
            for bias in (None, -torch.zeros(rows, dtype=torch.bfloat16)):
                assert differences(x, weight, bias) == 0, (columns, rows, count, bias is None)
"""

HELD = {
    "AVX-512 without the instruction for pairs": ((HELD_BACK, ODD, FEW_ROWS), {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    "AVX2, flushing that begins between calls": (
        (FLUSHING,), {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("scripts", "held"),
    [pytest.param(*each, id=name, marks=pytest.mark.slow if n else ()) for n, (name, each) in enumerate(HELD.items())],
)
def test_torch_as_on_other_cpus(scripts: tuple[str, ...], held: dict[str, str]) -> None:
    """oneDNN reads the variable once, so this takes a process. A child for each script knows of no trial yet."""
    if Order.GEMM_768 not in linear_orders("BF16"):
        pytest.skip("this CPU has no AVX-512, or none that the kernels want")
    with Programs("tensorwire.torch", "tests.support.random_products", **held) as programs:
        for script in scripts:
            ended = programs.run(script)
            assert ended.returncode == 0, ended.stderr


def use_in_child(x: Any, compressed: Any, dense: bytes, expected: Any, is_in_known_order: bool) -> None:
    assert bits(compressed.decode()).numpy().tobytes() == dense
    if is_in_known_order:
        assert torch.equal(bits(multiply(x, compressed)), expected)


def test_a_forked_process_decodes_and_multiplies_in_a_known_order(threads: Any) -> None:
    """Without torch's threads, which stay in the parent: who asks for them, as a dense product does, waits for ever."""
    dense, x = (part.bfloat16() for part in normal(1, 2048, torch.Generator().manual_seed(6)))
    threads(2)
    dense = dense.repeat(16, 1)
    compressed = CompressedTensor.from_dense(dense)
    compressed.decode()
    expected = bits(multiply(x, compressed))
    is_in_known_order = linear._choose(kind_of(x, len(compressed), None)).order is not None
    arguments = x, compressed, bits(dense).numpy().tobytes(), expected, is_in_known_order
    child = multiprocessing.get_context("fork").Process(target=use_in_child, args=arguments)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


def test_a_known_order_needs_no_decoded_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """On x86, with those of torch's kernels that have one."""
    if Order.SUMS_64 not in linear_orders("BF16"):
        pytest.skip("this machine has no kernels for an order that torch has on x86")
    dense, x = (part.bfloat16() for part in normal(8, 2048, torch.Generator().manual_seed(4)))
    dense = dense.repeat(64, 1)
    if any(linear._choose(kind_of(x[:count], len(dense), None)).order is None for count in (1, 8)):
        pytest.skip("torch has an order here that we have no kernels for")
    monkeypatch.setattr(linear, "_scratch", None)
    for count in (1, 8):
        check(x[:count], dense, None)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("make", [normal, cancelling])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_last_positions_of_prompts(
    dtype: Any, make: Any, bias: bool, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As slices, for which torch takes a path of its own. Where its order is known, no weight is decoded."""
    kinds = []
    choose = linear._choose
    monkeypatch.setattr(linear, "_choose", lambda product: kinds.append(product) or choose(product))
    with context():
        for count, length in ((1, 2), (1, 7), (2, 3), (5, 4), (5, 9)):
            dense, x = make(count, 512, torch.Generator().manual_seed(count))
            prompts = torch.zeros(count, length, 512, dtype=dtype)
            prompts[:, -1] = x.to(dtype)
            check(prompts[:, -1:], dense.to(dtype), torch.randn(64).to(dtype) if bias else None)
    if not bias:
        assert [kind.strides for kind in kinds] == [Strides.APART] * 5
        assert len(set(kinds)) == 3, "lengths of prompts do not count"


def test_another_order_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As with another torch."""
    monkeypatch.setattr(linear, "linear_orders", lambda dtype: [])
    linear._choose.cache_clear()
    linear._say_slower.cache_clear()
    caplog.set_level("INFO", "tensorwire")
    dense, x = (part.bfloat16() for part in normal(2, 2048, torch.Generator().manual_seed(5)))
    dense = dense.repeat(64, 1)
    for count in (1, 2):
        check(x[:count], dense, None)
    linear._choose.cache_clear()
    assert [record.getMessage()[:32] for record in caplog.records] == ["torch sums products in BF16 in a"]
