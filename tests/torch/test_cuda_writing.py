"""Frames made and applied where TENSORWIRE_TEST_DEVICE says, in streams and graphs. The CPU does all but the graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from tensorwire.sync import Follower, Publisher  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.device import DevicePages, apply_, encode_into, raise_for  # noqa: E402
from tests.support.devices import DEVICE, INTERPRETED, same_bits  # noqa: E402

WHERE = "cpu" if INTERPRETED else DEVICE
DTYPES = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
NAMES = dict(zip(DTYPES, ("BF16", "F16", "F8_E4M3", "F8_E5M2"), strict=True))
needs_a_device = pytest.mark.skipif(INTERPRETED, reason="needs a device")


def normal(*shape: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype).to(WHERE)


def stepped(tensor: Any) -> Any:
    new = tensor.clone()
    new.view(torch.uint8).view(-1)[:: 101 * tensor.element_size()] ^= 1
    return new


def slot_for(tensor: Any) -> Any:
    bound = tensorwire.compress_bound(dtype=NAMES[tensor.dtype], shape=tuple(tensor.shape), profile="fast")
    return torch.empty(bound + 8 * -(-tensor.numel() // 32768), dtype=torch.uint8, device=WHERE)


def numbers(count: int, dtype: Any) -> Any:
    return torch.full((count,), -1, dtype=dtype, device=WHERE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pages(dtype: Any) -> None:
    pages, pool = DevicePages(5000, dtype), normal(9, 5000, dtype=dtype)
    ids, sizes, status = torch.tensor([8, 0, 3], device=WHERE), numbers(3, torch.int32), numbers(3, torch.int32)
    slots, there = torch.empty(3, pages.slot_nbytes, dtype=torch.uint8, device=WHERE), torch.zeros_like(pool)
    pages.encode(pool, ids, slots, sizes)
    pages.decode(slots, there, ids, status)
    raise_for(status)
    assert sizes.tolist() == [pages.frame_nbytes] * 3
    assert same_bits(there.view(torch.uint8)[ids], pool.view(torch.uint8)[ids])
    for slot, page in zip(slots.cpu(), ids.tolist(), strict=True):
        assert same_bits(tensorwire.decompress(slot, framework="pt"), pool[page].cpu())


@pytest.mark.parametrize("profile", ["resident", "fast"])
def test_tensors(profile: Any) -> None:
    tensors = [normal(300, 1024, dtype=dtype) for dtype in DTYPES]
    slots, sizes = [slot_for(each) for each in tensors], numbers(4, torch.int64)
    encode_into(tensors, slots, sizes, profile=profile)
    for tensor, slot, size in zip(tensors, slots, sizes.tolist(), strict=True):
        assert 0 < size < tensor.nbytes
        assert same_bits(tensorwire.decompress(slot[:size].cpu(), framework="pt"), tensor.cpu())
        assert same_bits(CompressedTensor.from_dense(tensor, profile).decode(), tensor)


def test_changes() -> None:
    bases = [normal(300, 1024, dtype=dtype) for dtype in DTYPES]
    new = [stepped(each) for each in bases]
    slots, sizes, status = [slot_for(each) for each in new], numbers(4, torch.int64), numbers(4, torch.int32)
    encode_into(new, slots, sizes, profile="fast", base=bases)
    held = [each.clone() for each in bases]
    for _ in range(2):
        apply_(slots, held, status)
        raise_for(status)
        assert all(map(same_bits, held, new))
    held[2].view(torch.uint8)[0, 0] ^= 1
    apply_(slots, held, status)
    assert status.tolist() == [0, 0, 6, 0]


def test_published_and_followed(tmp_path: Any) -> None:
    trained, served = {"matrix": normal(300, 1024)}, {"matrix": normal(300, 1024, seed=1)}
    publisher = Publisher(tmp_path)
    follower = Follower(tmp_path, served, in_place=True)
    for _ in range(3):
        publisher.publish(trained)
        assert follower.stage() is not None
        follower.commit()
        assert same_bits(served["matrix"], trained["matrix"])
        trained = {"matrix": stepped(trained["matrix"])}


@needs_a_device
def test_a_graph_takes_what_there_is() -> None:
    base, held, pages = normal(300, 1024), normal(300, 1024), DevicePages(1024)
    new, slot, sizes, status = stepped(base), slot_for(base), numbers(1, torch.int64), numbers(1, torch.int32)
    slots, counts = torch.empty(300, pages.slot_nbytes, dtype=torch.uint8, device=WHERE), numbers(300, torch.int32)
    ids, there, read = torch.arange(300, device=WHERE), torch.zeros_like(new), numbers(300, torch.int32)

    def step() -> None:
        encode_into([new], [slot], sizes, profile="fast", base=[base])
        apply_([slot], [held], status)
        pages.encode(new, ids, slots, counts)
        pages.decode(slots, there, ids, read)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    new[7] = 1
    held.copy_(base)
    graph.replay()
    raise_for(torch.cat([status, read]))
    assert same_bits(held, new)
    assert same_bits(there, new)
