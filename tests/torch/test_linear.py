"""Linear layers with a compressed weight: when slabs are allowed, whose threads work, what damage does."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from tensorwire.codec import FrameReader  # noqa: E402
from tensorwire.codec.products import Order, linear_orders  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.frames import team  # noqa: E402
from tensorwire.torch.frames.open_frame import OpenFrame  # noqa: E402
from tensorwire.torch.products import linear, trial, ways, zeros  # noqa: E402
from tensorwire.torch.products.kind import kind_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorwire.torch.products.kind import ProductKind

ROWS, COLUMNS = 320, 256
SLAB = 64


def weights(rows: int = ROWS, columns: int = COLUMNS, dtype: Any = torch.bfloat16) -> Any:
    generator = torch.Generator().manual_seed(rows * columns)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(dtype)


class Kernel:
    """A product that adds its terms one by one, in the order that `order` gives for a number of rows."""

    def __init__(self, order: Callable[[int], list[int]]) -> None:
        self.order = order
        self.rows: list[int] = []

    def __call__(self, x: Any, weight: Any, bias: Any = None) -> Any:
        self.rows.append(weight.shape[0])
        total = torch.zeros(*x.shape[:-1], weight.shape[0])
        for column in self.order(weight.shape[0]):
            total = total + x[..., column, None].float() * weight[:, column].float()
        return (total if bias is None else total + bias.float()).to(x.dtype)


FORWARD = list(range(COLUMNS))
ORDERS: dict[str, Callable[[int], list[int]]] = {
    "backward": lambda rows: FORWARD[::-1] if rows == SLAB else FORWARD,
    "two terms swapped": lambda rows: [*FORWARD[:-2], FORWARD[-1], FORWARD[-2]] if rows == SLAB else FORWARD,
    "in the whole alone": lambda rows: FORWARD[::-1] if rows == ROWS else FORWARD,
}


@pytest.fixture
def multiply(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Products with a kernel in the place of torch's, with small slabs."""
    monkeypatch.setattr(linear, "_SLAB_NBYTES", SLAB * COLUMNS * 2)
    linear._choose.cache_clear()

    def run(kernel: Kernel, x: Any, weight: Any, bias: Any = None) -> Any:
        for module in (linear, ways, trial):
            monkeypatch.setattr(module, "linear", kernel)
        torch.nn.functional.linear(x, weight, bias)
        kernel.rows.clear()  # those of the trial
        return torch.nn.functional.linear(x, weight, bias)

    yield run
    linear._choose.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_kernel_that_depends_on_slabs_gets_the_whole_weight(
    multiply: Callable[..., Any], order: Callable[[int], list[int]], bias: bool, dtype: Any
) -> None:
    dense = weights(dtype=dtype)
    kernel = Kernel(order)
    x, b = torch.randn(2, COLUMNS).to(dtype), torch.randn(ROWS).to(dtype) if bias else None
    result = multiply(kernel, x, CompressedTensor.from_dense(dense), b)
    assert kernel.rows == [ROWS]
    assert torch.equal(result, kernel(x, dense, b))


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_a_kernel_that_does_not_gets_slabs(multiply: Callable[..., Any], bias: bool) -> None:
    dense = weights()
    kernel = Kernel(lambda rows: FORWARD)
    x, b = torch.randn(2, COLUMNS).bfloat16(), torch.randn(ROWS).bfloat16() if bias else None
    result = multiply(kernel, x, CompressedTensor.from_dense(dense), b)
    assert kernel.rows == [SLAB] * (ROWS // SLAB)
    assert torch.equal(result, kernel(x, dense, b))


FEW, MANY = SLAB + 1, 20 * SLAB + 1
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("rows", "dtype", "bias", "count"),
    [
        (FEW, torch.float32, False, 1), (FEW, torch.float32, True, 3), (FEW, torch.bfloat16, True, 1),
        (FEW, torch.float16, False, 2), (MANY, torch.float32, True, 3), (MANY, torch.float16, False, 2),
        slow(MANY, torch.float32, False, 1), slow(MANY, torch.bfloat16, True, 1),
    ],
)  # fmt: skip
def test_a_trial_sees_another_order_in_a_last_slab_of_one_row(
    rows: int, count: int, bias: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single row has few results, which may be equal by chance."""
    few = FORWARD[:64]
    like = torch.empty(count, len(few), dtype=dtype)
    kind = kind_of(like, rows, torch.empty(rows, dtype=dtype) if bias else None)
    for seen in (False, True):
        kernel = Kernel(lambda rows, seen=seen: few[::-1] if rows == 1 and seen else few)
        for module in (ways, trial):
            monkeypatch.setattr(module, "linear", kernel)
        assert trial.Trial(kind, SLAB).allows_slabs() == (not seen)


@pytest.fixture
def by_slabs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A weight of five slabs, of which each is decoded in one of two threads. Whether torch's own kernel allows slabs
    would depend on the CPU."""
    monkeypatch.setattr(linear, "_SLAB_NBYTES", SLAB * COLUMNS * 4)
    for module in (linear, ways, trial):
        monkeypatch.setattr(module, "linear", Kernel(lambda rows: FORWARD))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    linear._choose.cache_clear()
    yield weights(dtype=torch.float32)
    linear._choose.cache_clear()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_slabs_whatever_a_thread_knows_of_gradients(by_slabs: Any, context: Any) -> None:
    compressed = CompressedTensor.from_dense(by_slabs)
    x = torch.randn(2, COLUMNS, requires_grad=True)
    with context():
        result = torch.nn.functional.linear(x, compressed)
        assert linear._choose(kind_of(x, ROWS, None)).slab == SLAB
        assert torch.equal(result, Kernel(lambda rows: FORWARD)(x, by_slabs))
        assert result.requires_grad == (context is torch.enable_grad)
        if context is torch.enable_grad:
            result.sum().backward()
            assert torch.allclose(x.grad, by_slabs.sum(0).expand(2, -1), atol=1e-5)


def test_slabs_of_a_team_are_not_made_without_it(by_slabs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was forked has no team. A slab on all threads may have other bits, and nothing can be tried there:
    a dense product would wait for the threads of the parent."""
    if team.team() is None:
        pytest.skip("torch has no team on this machine")
    compressed, x = CompressedTensor.from_dense(by_slabs), torch.randn(2, COLUMNS)
    slabs, made = [], linear._decoded_by_slabs
    monkeypatch.setattr(linear, "_decoded_by_slabs", lambda *args: slabs.append(1) or made(*args))
    for process in (team._PROCESS, -1):
        monkeypatch.setattr(team, "_PROCESS", process)
        torch.nn.functional.linear(x, compressed)
        assert len(slabs) == linear._choose.cache_info().misses == 1


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_in_a_slab_reaches_the_caller(by_slabs: Any, error: type[BaseException], monkeypatch: Any) -> None:
    compressed, x = CompressedTensor.from_dense(by_slabs), torch.randn(2, COLUMNS)
    expected = torch.nn.functional.linear(x, compressed)
    decode = OpenFrame.decode

    def fail(frame: Any, first: int, *rest: Any, **threads: Any) -> None:
        if first == 3 * SLAB * COLUMNS:
            raise error("in the fourth slab")
        decode(frame, first, *rest, **threads)

    monkeypatch.setattr(OpenFrame, "decode", fail)
    with pytest.raises(error, match="in the fourth slab"):
        torch.nn.functional.linear(x, compressed)
    monkeypatch.setattr(OpenFrame, "decode", decode)
    assert torch.equal(torch.nn.functional.linear(x, compressed), expected)


INPUTS = {
    "expanded": lambda: torch.randn(1, 1024).expand(3, 1024),
    "strided": lambda: torch.randn(3, 2048)[:, ::2],
    "three-dimensional, every other": lambda: torch.randn(2, 3, 1024)[:, 1:2],
    "transposed": lambda: torch.randn(1024, 4).t(),
    "one": lambda: torch.randn(1024),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_exact_has_the_bits_of_torch_for_inputs_of_any_layout(inputs: Callable[[], Any], dtype: Any) -> None:
    dense = weights(6000, 1024, dtype)  # of several slabs
    x = inputs().to(dtype)
    expected = torch.nn.functional.linear(x, dense)
    assert torch.equal(torch.nn.functional.linear(x, CompressedTensor.from_dense(dense)), expected)


def test_the_default_device_does_not_matter() -> None:
    dense = weights()
    compressed = CompressedTensor.from_dense(dense)
    x = torch.randn(2, COLUMNS).bfloat16()
    expected = torch.nn.functional.linear(x, dense)
    with torch.device("meta"):
        linear._choose.cache_clear()
        assert torch.equal(torch.nn.functional.linear(x, compressed), expected)
        assert torch.equal(compressed[3:9], dense[3:9])
        compressed.set_linear_mode("fused")
        assert torch.nn.functional.linear(x, compressed).device.type == "cpu"


def test_decoding_works_on_the_threads_of_the_caller() -> None:
    calls: list[int] = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def parallel(work: int, argument: int, threads: int, flags: int) -> None:
        calls.append(threads)
        body(work)(argument)  # on one thread, as nested OpenMP does

    dense = weights(1024, 1024)
    frame = tensorwire.compress(dense)
    reader = FrameReader(frame)
    out = bytearray(dense.numel() * 2)
    address = ctypes.cast(parallel, ctypes.c_void_p).value
    reader.decode(memoryview(frame)[reader.info.header_nbytes :], out, threads=3, parallel=address)
    assert calls == [3]
    assert out == dense.view(torch.uint8).numpy().tobytes()


def test_a_cut_frame_is_an_error() -> None:
    frame = torch.frombuffer(bytearray(tensorwire.compress(weights())), dtype=torch.uint8)
    with pytest.raises(tensorwire.TruncatedDataError):
        CompressedTensor(frame[:-32])


def test_no_columns_and_no_rows() -> None:
    for rows, columns in ((0, 16), (16, 0)):
        dense = torch.zeros(rows, columns, dtype=torch.bfloat16)
        for mode in ("exact", "fused"):
            compressed = CompressedTensor.from_dense(dense, linear_mode=mode)
            x = torch.ones(2, columns, dtype=torch.bfloat16)
            expected = torch.nn.functional.linear(x, dense)
            assert torch.equal(torch.nn.functional.linear(x, compressed), expected)


def test_parts_among_zeros() -> None:
    part = torch.arange(1, 256).to(torch.uint8)
    nbytes = 5 << 20
    memory = zeros.zeros_around([(7, part), (nbytes - 255, part)], nbytes)
    expected = torch.zeros(nbytes, dtype=torch.uint8)
    expected[7:262] = expected[-255:] = part
    assert torch.equal(memory, expected)
    assert zeros.zeros(0).numel() == 0
    assert not zeros.zeros(nbytes).any()


@pytest.mark.parametrize("columns", [64, 2048, 1023])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sums_of_the_trial_cancel(columns: int, dtype: Any) -> None:
    """What is left of them is nothing in exact arithmetic but for the odd column, which is tiny."""
    generator = torch.Generator().manual_seed(1)
    rows, places = trial._cancelling_rows(9, columns, dtype, generator)
    x = trial._cancelling_inputs((3, columns), places, dtype, generator)
    pairs = places[: columns // 2 * 2].view(2, -1)
    assert (rows.dtype, rows.shape) == (dtype, (9, columns))
    sizes = rows[:, pairs].abs()
    assert sizes.max() / sizes.median() > 32
    terms = x[:, None, pairs].double() * rows[:, pairs].double()
    assert not terms.sum(2).any()
    odd = x.double() @ rows.double().t() - terms.sum((2, 3))
    assert odd.abs().max() < (1e-6 if columns % 2 else 1e-9)


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A trial takes a kernel to have the order exactly if what is wrong with it is not there to be seen."""

    def check(kernel: Callable[..., Any], kind: ProductKind) -> None:
        if Order.SUMS_64 not in linear_orders(ways.DTYPE_NAMES[kind.dtype]):
            pytest.skip("this machine has no kernels for an order")
        for seen in (False, True):
            monkeypatch.setattr(trial, "linear", functools.partial(kernel, seen))
            assert (trial.Trial(kind).orders([Order.SUMS_64]) == []) == seen

    return check


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("columns", [64, 4096])
@pytest.mark.parametrize("count", [1, 16])
def test_a_trial_sees_a_bias_that_is_added_to_rounded_sums(
    dtype: Any, columns: int, count: int, sees: Callable[..., None]
) -> None:
    def another_rounding(seen: bool, x: Any, weight: Any, bias: Any = None) -> Any:
        found = ways.sums(x, weight, Order.SUMS_64, 1)
        found = found.to(x.dtype) if seen else found
        return (found if bias is None else found + bias).to(x.dtype)

    sees(another_rounding, kind_of(torch.empty(count, columns, dtype=dtype), 300, torch.empty(300, dtype=dtype)))


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("count", [1, 2, 16])
def test_a_trial_sees_products_that_are_rounded_before_they_are_added(
    count: int, bias: bool, sees: Callable[..., None]
) -> None:
    """A product of two BF16 has all its bits in float32, unless it is denormal, zero or infinite."""
    columns = 24  # of which 16 go to sums by fused multiply-add

    def another_rounding(seen: bool, x: Any, weight: Any, bias: Any = None) -> Any:
        found = ways.sums(x[..., :16].contiguous(), weight[:, :16].contiguous(), Order.SUMS_64, 1)
        for column in range(16, columns):
            term = x[..., column : column + 1].double() * weight[:, column].double()
            found = (found.double() + term).float() if seen else found + term.float()
        return (found if bias is None else found + bias).to(x.dtype)

    like = torch.empty(count, columns, dtype=torch.bfloat16)
    sees(another_rounding, kind_of(like, 300, torch.empty(300, dtype=torch.bfloat16) if bias else None))


@pytest.mark.parametrize("rows", [1, 64, 300, 5000])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_trial_sees_another_order_in_some_rows(rows: int, place: float, sees: Callable[..., None]) -> None:
    """At the beginning, in the middle and at the end of a weight, as where threads part it."""
    start = int(place * (rows - 1))

    def another_order(seen: bool, x: Any, weight: Any, bias: Any = None) -> Any:
        found = ways.sums(x, weight, Order.SUMS_64, 1)
        if len(weight) == rows and seen:
            part = slice(start, start + 600)
            found[:, part] = ways.sums(x, weight[part].flip(1), Order.SUMS_64, 1)
        return found.to(x.dtype)

    sees(another_order, kind_of(torch.empty(1, 512, dtype=torch.float16), rows, None))
