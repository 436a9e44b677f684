"""Frames on a device, decoded by kernels in CUDA C++: what the host makes of a frame, and its launches, counted. The
stand-in for a driver runs them on the CPU. Kernels have tests of their own."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tensorwire
from reference.tensorwire_reference import Cascade, Enec, Trimmed, Verbatim, encode
from tensorwire import CorruptDataError
from tensorwire.torch import CompressedTensor, ops
from tensorwire.torch.device import planned
from tensorwire.torch.device.cuda_kernels import CudaKernels
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.frames import open_frame
from tests.support import registry
from tests.support.cases import floats
from tests.support.frame_surgery import Surgery

from .opened import bytes_tensor
from .stand_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable

PROFILES = ("fast", "resident", "enec")
ROWS, COLUMNS = 300, 257  # the last of three blocks is short, and ends within a run


def weights(dtype: torch.dtype = torch.bfloat16, rows: int = ROWS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(rows, COLUMNS, generator=generator) * 0.02).to(dtype)
    weight[5, 7] = 40_000
    return weight


def opened(frame: bytes | memoryview, driver: StandIn | None = None) -> tuple[DeviceFrame, StandIn]:
    driver = driver or StandIn(checked=True)
    return DeviceFrame(bytes_tensor(frame), driver=driver), driver


def content(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def names(driver: StandIn, since: int = 0) -> list[str]:
    return [each.kernel.expression.partition("<")[0] for each in driver.launches[since:]]


@pytest.mark.parametrize(
    ("dtype", "profile"),
    [
        pytest.param(dtype, profile, marks=() if dtype is torch.bfloat16 or profile == "fast" else pytest.mark.slow)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        for profile in PROFILES
    ],
)
def test_profiles(dtype: torch.dtype, profile: Any) -> None:
    weight = weights(dtype)
    frame, _ = opened(tensorwire.compress(weight, profile=profile))
    assert not frame.held.plan.host_blocks
    decoded = frame.decode_all()
    assert (decoded.dtype, decoded.shape) == (dtype, weight.shape)
    assert content(decoded) == content(weight)


@pytest.mark.parametrize(("profile", "listed"), [("fast", 0), ("resident", 1), ("enec", 0)])
def test_launches_are_counted(profile: Any, listed: int) -> None:
    """To open a frame takes one for each launch of its plan, and one for a list of escapes; to decode it, one for each;
    to take rows, one."""
    frame, driver = opened(tensorwire.compress(weights(), profile=profile))
    number = len(frame.held.plan.rows)
    assert names(driver).count("list_escapes") == listed
    assert len(driver.launches) == number + listed
    before = len(driver.launches)
    frame.decode_all()
    assert len(driver.launches) == before + number
    assert frame.rows is not None
    frame.rows(torch.tensor([7, 299]), torch.empty(2, COLUMNS, dtype=torch.bfloat16))
    assert names(driver, before + number) == ["take_rows"]
    compiled = dict(driver.compiled)
    frame.decode_all()
    frame.rows(torch.tensor([1]), torch.empty(1, COLUMNS, dtype=torch.bfloat16))
    assert dict(driver.compiled) == compiled, "kernels are asked for once"


@pytest.mark.parametrize("value", [2.5, None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int16, torch.uint8])
def test_copies(dtype: torch.dtype, value: float | None) -> None:
    """Constant blocks and stored ones, of every size of words."""
    generator = torch.Generator().manual_seed(2)
    random = torch.randint(0, 256, (70_000 * dtype.itemsize,), generator=generator, dtype=torch.uint8).view(dtype)
    tensor = random if value is None else torch.full((70_000,), value).to(dtype)
    frame, driver = opened(tensorwire.compress(tensor))
    assert content(frame.decode_all()) == content(tensor)
    assert set(names(driver)) == {"copy_blocks" if value is None else "fill_blocks"}


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 2000), (300, 7), (700, 100), (767, 1000), (1999, 1), (40, 0), (768, 768), (0, 1536), (768, 1232)],
)
def test_ranges(first: int, count: int) -> None:
    """Only their blocks are decoded; the result is not written beyond its end."""
    words = registry.weights("BF16", 2000)
    frame, driver = opened(
        encode(words.tobytes(), "BF16", (2000,), kind=Cascade(variant=0), rest=Verbatim(), block_words=768)
    )
    before = len(driver.launches)
    around = torch.full((count + 16,), 7, dtype=torch.bfloat16)
    frame.decode(first, around[8 : 8 + count])
    assert content(around[8 : 8 + count]) == words[first : first + count].tobytes()
    assert (around[:8] == 7).all()
    assert (around[8 + count :] == 7).all()
    blocks = -(-(first + count) // 768) - first // 768 if count else 0
    assert sum(each.grid[0] for each in driver.launches[before:]) == blocks


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (1,), (3, 5, 7)])
def test_shapes(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(torch.bfloat16)
    frame, _ = opened(tensorwire.compress(tensor))
    assert torch.equal(frame.decode_all(), tensor)


def test_places_that_16_bits_do_not_name() -> None:
    """Blocks in tier shape (4) may be longer than those of profile resident."""
    weight = torch.cat([weights(rows=255), weights(rows=257)])
    words = weight.reshape(-1)[: 1 << 17]
    frame = encode(
        content(words), "BF16", tuple(words.shape), kind=Cascade(variant=0, table=2), rest=Verbatim(),
        block_words=1 << 17,
    )  # fmt: skip
    assert int(opened(frame, StandIn())[0].held.plan.listed) > 0
    assert torch.equal(opened(frame, StandIn())[0].decode_all(), words)


def test_blocks_that_shared_memory_does_not_hold() -> None:
    class Small(StandIn):
        shared_nbytes = 1024

    weight = weights()
    frame, driver = opened(tensorwire.compress(weight), Small(checked=True))
    assert torch.equal(frame.decode_all(), weight)
    assert any("InScratch" in each.kernel.expression for each in driver.launches)


def test_few_blocks_are_shared_out() -> None:
    """A part is some runs of a block, if there are fewer blocks than processors."""
    frame, driver = opened(tensorwire.compress(weights(rows=120), profile="resident"))  # one block
    assert torch.equal(frame.decode_all(), weights(rows=120))
    assert driver.launches[-1].grid == (1, driver.num_processors, 1)


@pytest.mark.parametrize("profile", PROFILES)
def test_rows(profile: Any) -> None:
    """Numbers below 0 count from the end, as in torch. Numbers of no row give NaN: nobody waits to tell."""
    weight = weights()
    frame, _ = opened(tensorwire.compress(weight, profile=profile))
    assert frame.rows is not None
    for ids in (torch.tensor([0, 5, 299, -1, 5, -300]), torch.tensor([[7, 8]], dtype=torch.int32), torch.tensor([[]])):
        ids = ids if ids.numel() else ids.long()
        out = torch.empty(*ids.shape, COLUMNS, dtype=torch.bfloat16)
        frame.rows(ids, out)
        assert torch.equal(out, weight[ids.long()])
    out = torch.empty(3, COLUMNS, dtype=torch.bfloat16)
    frame.rows(torch.tensor([300, 1, -301]), out)
    assert out[[0, 2]].isnan().all()
    assert torch.equal(out[1], weight[1])


def test_rows_of_other_shapes() -> None:
    tensor = torch.arange(5 * 3 * 7, dtype=torch.float32).reshape(5, 3, 7)
    frame, _ = opened(tensorwire.compress(tensor))
    out = torch.empty(2, 3, 7)
    assert frame.rows is not None
    frame.rows(torch.tensor([4, 1]), out)
    assert torch.equal(out, tensor[[4, 1]])
    for shape in [(), (0, 5), (5, 0)]:
        assert opened(tensorwire.compress(torch.zeros(shape)))[0].rows is None, "the host says what is out of range"


def test_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights()
    held = CompressedTensor.from_dense(weight)
    frame, driver = opened(bytes(held.frame.numpy()))
    monkeypatch.setitem(open_frame._open_frames, held.frame, frame)
    assert torch.equal(held.decode(), weight)
    before = len(driver.launches)
    ids = torch.tensor([[0, 5], [299, 5]])
    assert torch.equal(torch.nn.functional.embedding(ids, held), weight[ids])
    assert torch.equal(torch.nn.functional.embedding(ids.to(torch.int32), held), weight[ids])
    assert names(driver, before) == ["take_rows"] * 2
    assert torch.equal(held[40:42], weight[40:42])


@pytest.mark.parametrize("name", ["decode", "decode.out", "rows", "linear"])
def test_operators_of_devices(name: str) -> None:
    for key in ("CUDA", "PrivateUse1"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tensorwire::{name}", key)


@pytest.mark.parametrize("where", [("meta", "cpu"), ("cpu", "meta")])
def test_inputs_on_another_device_are_refused(where: tuple[str, str]) -> None:
    """A kernel would read and write there by addresses of another memory."""
    x, bias = torch.zeros(1, COLUMNS, device=where[0]), torch.zeros(ROWS, device=where[1])
    frame = bytes_tensor(tensorwire.compress(weights()))
    with pytest.raises(ValueError, match="expected all tensors on cpu, where the weight is, got one on meta"):
        ops.linear_on_device(x, frame, torch.bfloat16, (ROWS, COLUMNS), bias, "exact")


def test_threads_share_a_frame() -> None:
    """Arguments are packed once, so launches of two threads must not mix them."""
    weight = weights(rows=40)
    frame, _ = opened(tensorwire.compress(weight), StandIn())

    def decode(row: int) -> bool:
        out = torch.empty(COLUMNS, dtype=torch.bfloat16)
        frame.decode(row * COLUMNS, out)
        return torch.equal(out, weight[row])

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(decode, [*range(40)] * 3))


@pytest.mark.parametrize("kind", [Cascade(variant=0), Enec(group=4)], ids=str)
def test_trimmed_rests_and_the_host(kind: Cascade | Enec) -> None:
    data = floats("BF16", 1000, "trimmed", zero_bits=3)
    frame, _ = opened(encode(data, "BF16", (1000,), kind=kind, rest=Trimmed(), profile="fast", block_words=512))
    assert not frame.held.plan.host_blocks
    assert content(frame.decode_all()) == data


def test_what_no_kernel_knows_is_decoded_by_the_host_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    planned._say_once.cache_clear()
    weight = weights()
    with caplog.at_level(logging.INFO, "tensorwire.torch.device"):
        for _ in range(2):
            frame, driver = opened(tensorwire.compress(weight, profile="compact"))
    assert frame.held.plan.host_blocks
    assert torch.equal(frame.decode_all(), weight)
    assert names(driver) == ["copy_blocks"]
    assert [record.getMessage()[:24] for record in caplog.records] == ["the host decodes blocks "]


@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Cascade(variant=0), r"expected \d+ escapes in tier 1 by its descriptor, got \d+"),
        (Cascade(variant=0, table=2), r"expected \d+ escapes in tier 1 by its descriptor, got \d+"),
        (Enec(group=4), r"expected \d+ high parts by the mask, got \d+"),
    ],
    ids=["cascade", "tier shape (4)", "enec"],
)
def test_streams_that_contradict_their_counts(kind: Cascade | Enec, message: str, value: int) -> None:
    """Kernels read by these counts, so the frame is refused before they do. The first wrong block is named."""
    words = registry.weights("BF16", 3 * 512).tobytes()
    surgery = Surgery(encode(words, "BF16", (3 * 512,), kind=kind, rest=Verbatim(), profile="fast", block_words=512))
    for block in (1, 2):
        start, stop = surgery.block_span(block)
        surgery.bytes[start : stop - 16] = bytes([value]) * (stop - 16 - start)
    with pytest.raises(CorruptDataError, match=message) as caught:
        opened(surgery.close())
    assert caught.value.block == 1


@pytest.mark.parametrize(
    "change",
    [lambda x: x.view(torch.int8), lambda x: x.reshape(2, -1), lambda x: x[::2], lambda x: x.roll(1)[1:]],
    ids=["dtype", "dimensions", "strides", "address"],
)
def test_other_arguments(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="expected a contiguous tensor of uint8"):
        DeviceFrame(change(bytes_tensor(tensorwire.compress(weights()))), driver=StandIn())


@pytest.mark.parametrize("coded_blocks", [0, 1])
def test_constant_blocks_behind_the_last_coded_one_have_no_place_in_the_tables(coded_blocks: int) -> None:
    """A frame of them takes 40 bytes a block, and would take 2 KiB of tables for it."""
    rows, columns = 64, 1024
    weight = torch.full((rows, columns), 1.5, dtype=torch.bfloat16)
    block_rows = tensorwire.frame_info(tensorwire.compress(weight)).block_words // columns
    generator = torch.Generator().manual_seed(1)
    shape = coded_blocks * block_rows, columns
    weight[: shape[0]] = (torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16)
    frame, _ = opened(tensorwire.compress(weight))
    kinds = [type(launch).__name__ for launch in frame.held.plan.rows]
    assert sorted(kinds) == ["CascadeLaunch", "ConstantLaunch"][1 - coded_blocks :]
    assert isinstance(frame.kernels, CudaKernels)
    assert frame.kernels.before.numel() == coded_blocks * frame.held.runs_per_block
    assert torch.equal(frame.decode_all(), weight)
    assert frame.rows is not None
    out = torch.empty(2, columns, dtype=torch.bfloat16)
    frame.rows(torch.tensor([1, rows - 1]), out)
    assert torch.equal(out, weight[[1, rows - 1]])
