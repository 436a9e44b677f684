"""Pages there and back: encoded from one pool, decoded into another one, each by one launch and no work of the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorwire
from tensorwire.torch.device.writing import pages as pages_module
from tensorwire.torch.device.writing.pages import DevicePages
from tensorwire.torch.device.writing.status import Status, raise_for
from tests.support import registry

from .stand_in import StandIn, missing, stand_in_for_a_gpu

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
DTYPES = tuple(NAMES)
UNTOUCHED = 0xA5


@pytest.fixture(params=["kernels", "core"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StandIn | None:
    """What runs the kernels of this test; None where the core encodes and decodes."""
    found = StandIn(checked=True, seed=1) if request.param == "kernels" else None
    stand_in_for_a_gpu(monkeypatch, pages_module, found)
    return found


def page_of(dtype: torch.dtype, n: int, number: int) -> torch.Tensor:
    """One of normal numbers, with some odd ones, of one value, of random bits, or of zeros."""
    words = registry.weights(NAMES[dtype], n, f"there {number}")
    generator = registry.rng(f"back {dtype} {n} {number}")
    part = (0, 0.003, 0, 1, 0)[number % 5]
    odd = generator.random(n) < part
    words[odd] = generator.integers(0, 1 << 8 * words.itemsize, int(odd.sum()))
    if number % 5 == 2:
        words[:] = words[0]
    if number % 5 == 4:
        words[:] = 0
    return torch.from_numpy(words.view(np.uint8)).view(dtype)


def pool_of(dtype: torch.dtype, n: int, count: int) -> torch.Tensor:
    return torch.stack([page_of(dtype, n, number) for number in range(count)])


def octets(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8).view(len(tensor), -1)


class Pools:
    """Pools of one kind of pages, with slots for a transfer of `count` of them."""

    def __init__(self, pages: DevicePages, pool: torch.Tensor, count: int) -> None:
        self.pages = pages
        self.here = pool
        self.there = torch.full_like(octets(pool), UNTOUCHED).view(-1).view(pool.dtype).view(pool.shape)
        self.slots = torch.zeros(count, pages.slot_nbytes, dtype=torch.uint8)
        self.sizes = torch.zeros(count, dtype=torch.int32)
        self.status = torch.full((count,), -1, dtype=torch.int32)

    def send(self, ids: torch.Tensor) -> None:
        self.pages.encode(self.here, ids, self.slots, self.sizes)

    def take(self, ids: torch.Tensor) -> None:
        self.pages.decode(self.slots, self.there, ids, self.status)
        raise_for(self.status)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pages_there_and_back(dtype: torch.dtype, driver: StandIn | None) -> None:
    """To other places of the other pool; pages that are not named stay as they are."""
    for n in (256, 1000, 2048):
        pools = Pools(DevicePages(n, dtype), pool_of(dtype, n, 8), 5)
        pools.send(torch.tensor([6, 0, 3, 2, 4]))
        pools.take(torch.tensor([1, 0, 7, 5, 3], dtype=torch.int32))
        for here, there in ((6, 1), (0, 0), (3, 7), (2, 5), (4, 3)):
            assert torch.equal(octets(pools.there)[there], octets(pools.here)[here])
        assert bool((octets(pools.there)[[2, 4, 6]] == UNTOUCHED).all())
    if driver is not None:
        assert [each.kernel.header for each in driver.launches] == ["page.cuh", "unpage.cuh"] * 3


def test_any_shape_of_a_pool(driver: StandIn | None) -> None:
    """A page has dimensions of its own, as tokens, heads and numbers of a head."""
    shape, dtype = (16, 2, 32), torch.bfloat16
    pool = pool_of(dtype, 1024, 4).view(4, *shape)
    pools = Pools(DevicePages(1024, dtype), pool, 2)
    pools.send(torch.tensor([2, 1]))
    pools.take(torch.tensor([2, 1]))
    assert torch.equal(octets(pools.there)[1:3], octets(pool)[1:3])


def test_a_replay_takes_what_there_is(driver: StandIn | None) -> None:
    """The same calls again, as a graph repeats them: with other words, other pages, and a frame that is damaged."""
    pools = Pools(DevicePages(512), pool_of(torch.bfloat16, 512, 4), 2)
    ids = torch.tensor([0, 1])
    for first in (0, 2):
        ids[:] = torch.tensor([first, first + 1])
        pools.send(ids)
        pools.take(ids)
    assert torch.equal(octets(pools.there), octets(pools.here))
    octets(pools.here)[2:] = octets(pools.here)[:2].clone()
    pools.send(ids)
    pools.slots[1, 300] ^= 4
    before = octets(pools.there).clone()
    with pytest.raises(tensorwire.CorruptDataError, match="expected frame 1 to be read, got status 1"):
        pools.take(ids)
    assert pools.status.tolist() == [Status.DONE, Status.CORRUPT]
    assert torch.equal(octets(pools.there)[2], octets(pools.here)[2])
    assert torch.equal(octets(pools.there)[3], before[3])


def test_frames_of_a_slot_as_long_as_promised(driver: StandIn | None) -> None:
    """A transfer of `frame_nbytes` a page: one that does not fit has size 0, and its slot holds no frame."""
    pages = DevicePages(512)
    pools = Pools(pages, pool_of(torch.bfloat16, 512, 4), 4)
    pools.slots = torch.zeros(4, pages.frame_nbytes, dtype=torch.uint8)
    ids = torch.arange(4)
    pools.send(ids)
    assert pools.sizes.tolist() == [*[pages.frame_nbytes] * 3, 0]
    pages.decode(pools.slots[:3], pools.there, ids[:3], pools.status[:3])
    raise_for(pools.status[:3])
    assert torch.equal(octets(pools.there)[:3], octets(pools.here)[:3])


def test_arguments() -> None:
    pages = DevicePages(256)
    pool, ids = torch.zeros(4, 256, dtype=torch.bfloat16), torch.arange(2)
    frames, status = torch.zeros(2, pages.slot_nbytes, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32)
    pages.encode(pool, ids, frames, status)
    pages.decode(frames, pool, ids, status)
    assert status.tolist() == [0, 0]
    pages.decode(frames[:0], pool, ids[:0], status[:0])
    wrong = {
        "a contiguous pool of pages of 256 elements of torch.bfloat16": (frames, pool.half(), ids, status),
        "page_ids of torch.int32 or torch.int64": (frames, pool, ids.float(), status),
        "status of torch.int32": (frames, pool, ids, status.long()),
        "frames of uint8 in rows": (frames.view(torch.int8), pool, ids, status),
        "slots that do not overlap": (frames[:1].expand(2, -1), pool, ids, status),
        "expected status on cpu, as the pool is": (frames, pool, ids, status.to("meta")),
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            pages.decode(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_thousands_of_pages_there_and_back(dtype: torch.dtype, driver: StandIn | None) -> None:
    """They have all sizes to 65,536 words; most are small."""
    generator = registry.rng(f"sizes {dtype}")
    for number in range(250):
        n = int(2 ** generator.uniform(0, 16))
        n = n if number % 2 else max(256, n // 256 * 256)
        pools = Pools(DevicePages(n, dtype), torch.stack([page_of(dtype, n, number + k) for k in range(2)]), 2)
        pools.send(torch.tensor([1, 0]))
        pools.take(torch.tensor([1, 0]))
        assert torch.equal(octets(pools.there), octets(pools.here)), n
