"""Pages encoded by the kernel and by the core: frames of one size that every reader takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorwire
from reference.tensorwire_reference import decode
from tensorwire.codec import FROM_TORCH, content_hash
from tensorwire.torch.device.writing import pages as pages_module
from tensorwire.torch.device.writing.pages import DevicePages

from .stand_in import StandIn, missing, stand_in_for_a_gpu

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
SIZES = (1, 2, 7, 40, 255, 256, 257, 511, 768, 1000, 1024, 2049, 4096, 5000)
KINDS = ("normal", "random bits", "one value", "NaN", "some odd", "half zeros", "far apart")
GUARD = 32


def content(dtype: torch.dtype, n: int, kind: str, seed: int) -> torch.Tensor:
    """A page of that kind of content."""
    generator = np.random.default_rng((seed, n, KINDS.index(kind)))
    values = generator.standard_normal(n) * 10.0 ** generator.integers(-3, 3)
    if kind == "NaN":
        values[generator.random(n) < 0.5] = np.nan
    if kind == "half zeros":
        values[: n // 2] = 0
    if kind == "far apart":
        values *= np.where(np.arange(n) % 2, 1e-5, 1)
    words = torch.from_numpy(values.astype(np.float32)).to(dtype).view(torch.uint8)
    if kind == "one value":
        words.view(n, -1)[:] = words.view(n, -1)[0].clone()
    bits = torch.from_numpy(generator.integers(0, 256, len(words), dtype=np.uint8))
    odd = torch.from_numpy(generator.random(len(words)) < {"random bits": 1, "some odd": 0.01}.get(kind, 0))
    return torch.where(odd, bits, words).view(dtype)


def slots(count: int, nbytes: int) -> torch.Tensor:
    """Slots with a guard behind each."""
    memory = torch.full((count, -(-nbytes // 16) * 16 + GUARD), 0xA5, dtype=torch.uint8)
    return memory[:, :nbytes]


def encoded(
    pages: DevicePages, pool: torch.Tensor, ids: torch.Tensor, slot: int, driver: StandIn | None
) -> list[bytes | None]:
    """The frames of these pages, by a driver or on the CPU; None for size 0. Nothing is written behind a slot."""
    out, sizes = slots(len(ids), slot), torch.full((len(ids),), -1, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        stand_in_for_a_gpu(patch, pages_module, driver)
        pages.encode(pool, ids, out, sizes)
    stride = out.stride(0)
    guards = out.as_strided((len(ids), stride - slot), (stride, 1), out.storage_offset() + slot)
    assert bool((guards == 0xA5).all())
    return [bytes(row[:size].numpy()) if size else None for row, size in zip(out, sizes.tolist(), strict=True)]


def check(frame: bytes, page: torch.Tensor, pages: DevicePages, *, by_kernel: bool) -> None:
    """Whether host and reference make the page of a frame, and whether it is one block under a right header."""
    data, info = page.view(torch.uint8).numpy().tobytes(), tensorwire.frame_info(frame)
    name = FROM_TORCH[str(pages.dtype).removeprefix("torch.")]
    assert (info.dtype, info.shape, info.profile, info.num_blocks) == (name, (pages.page_words,), "resident", 1)
    assert info.frame_nbytes == len(frame)
    assert info.content_hash == content_hash(data)
    assert tensorwire.FrameReader(frame).extensions == ({1: (2).to_bytes(4, "little")} if by_kernel else {})
    assert tensorwire.decompress(frame, framework="bytes") == data
    assert decode(frame).data == data


def check_pages(dtype: torch.dtype, n: int, kind: str, seed: int, driver: StandIn) -> None:
    """Two pages in two slots of the longest frame, by the kernel and by the core."""
    pages = DevicePages(n, dtype)
    pool = torch.stack([content(dtype, n, kind, seed), content(dtype, n, "normal", seed + 1)])
    ids = torch.tensor([1, 0], dtype=torch.int64 if seed % 2 else torch.int32)
    frames = encoded(pages, pool, ids, pages.slot_nbytes, driver)
    on_host = encoded(pages, pool, ids, pages.slot_nbytes, None)
    for frame, same, page in zip(frames, on_host, ids.tolist(), strict=True):
        assert frame is not None
        assert same is not None
        check(frame, pool[page], pages, by_kernel=True)
        check(same, pool[page], pages, by_kernel=False)
        assert pages.frame_nbytes <= len(frame) <= pages.slot_nbytes
    assert len(frames[0] or b"") == pages.frame_nbytes, "normal numbers fit"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pages_of_every_size_and_content(dtype: torch.dtype) -> None:
    for number, n in enumerate(SIZES):
        for seed, kind in enumerate(KINDS):
            if (seed + number) % 4 == 0:
                check_pages(dtype, n, kind, seed, StandIn(seed=1))


@pytest.mark.parametrize(("dtype", "n"), [(torch.bfloat16, 768), (torch.float16, 1000), (torch.float8_e5m2, 513)])
def test_the_kernel_touches_its_buffers_alone(dtype: torch.dtype, n: int) -> None:
    for seed, kind in enumerate(KINDS):
        check_pages(dtype, n, kind, seed, StandIn(checked=True, seed=seed + 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_size_is_that_of_the_host_within_a_percent(dtype: torch.dtype) -> None:
    n, driver = 16384, StandIn()
    pages = DevicePages(n, dtype, room=0)
    pool = torch.stack([content(dtype, n, "normal", seed) for seed in range(3)])
    frames = encoded(pages, pool, torch.arange(3), pages.slot_nbytes, driver)
    for frame, page in zip(frames, pool, strict=True):
        host = tensorwire.compress(page, profile="resident")
        assert frame is not None
        assert len(frame) <= max(1.01 * len(host), pages.frame_nbytes)


def test_every_page_of_a_kind_has_one_size() -> None:
    """Also a constant one, and one without escapes, and on the CPU."""
    pages = DevicePages(2048)
    pool = torch.stack([content(torch.bfloat16, 2048, kind, 3) for kind in ("normal", "one value", "some odd")])
    for driver in (StandIn(), None):
        frames = encoded(pages, pool, torch.arange(3), pages.frame_nbytes, driver)
        assert {len(frame or b"") for frame in frames} == {pages.frame_nbytes}
        assert driver is None or [launch.grid for launch in driver.launches] == [(3, 1, 1)]


@pytest.mark.parametrize("driver", [StandIn(checked=True), None], ids=["kernel", "core"])
@pytest.mark.parametrize("n", [1000, 1024])
def test_a_page_over_the_size_takes_what_its_slot_has(driver: StandIn | None, n: int) -> None:
    """Random bits, that are stored, and zeros in one half, that all escape: many, for the list of a warp."""
    pages = DevicePages(n)
    kinds = ("random bits", "half zeros", "normal")
    pool = torch.stack([content(torch.bfloat16, n, kind, 1) for kind in kinds])
    ids = torch.tensor([0, 1, 2])
    longest = [len(frame or b"") for frame in encoded(pages, pool, ids, pages.slot_nbytes, driver)]
    assert longest[0] == pages.slot_nbytes
    assert pages.frame_nbytes < longest[1] <= pages.slot_nbytes
    assert longest[2] == pages.frame_nbytes
    for slot in (pages.frame_nbytes, longest[1] - 1, longest[1], pages.slot_nbytes - 1):
        frames = encoded(pages, pool, ids, slot, driver)
        assert [frame and len(frame) for frame in frames] == [size if size <= slot else None for size in longest]


def test_long_lists_of_escapes() -> None:
    """In one warp's runs alone, and in all, of a page of 64 Ki words."""
    n, pages = 65536, DevicePages(65536)
    page = content(torch.bfloat16, n, "normal", 5).view(torch.int16).clone()
    for begin, end in ((8192, 16384), (0, n)):
        page[begin:end:3] = 0
    pool = page.view(torch.bfloat16).view(1, 64, 1024)
    (frame,) = encoded(pages, pool, torch.tensor([0]), pages.slot_nbytes, StandIn(seed=3))
    assert frame is not None
    assert pages.frame_nbytes < len(frame) < pages.slot_nbytes
    check(frame, pool[0], pages, by_kernel=True)


@pytest.mark.parametrize("driver", [StandIn(), None], ids=["kernel", "core"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_there_is_no_such_page(dtype: torch.dtype, driver: StandIn | None) -> None:
    pages = DevicePages(256)
    pool = content(torch.bfloat16, 512, "normal", 0).view(2, 256)
    frames = encoded(pages, pool, torch.tensor([-1, 1, 2, 1 << 30], dtype=dtype), pages.frame_nbytes, driver)
    assert [frame is None for frame in frames] == [True, False, True, True]
    assert encoded(pages, pool, torch.zeros(0, dtype=dtype), pages.frame_nbytes, driver) == []


def test_a_pool_may_begin_anywhere() -> None:
    """At a multiple of an element's bytes, with whole runs."""
    pages, memory = DevicePages(512), content(torch.bfloat16, 1025, "normal", 0)
    pool = memory[1:].view(2, 512)
    frames = encoded(pages, pool, torch.arange(2), pages.frame_nbytes, StandIn(checked=True))
    for frame, page in zip(frames, pool, strict=True):
        check(frame or b"", page, pages, by_kernel=True)


def test_arguments() -> None:
    pages = DevicePages(256)
    pool, ids = torch.zeros(4, 256, dtype=torch.bfloat16), torch.arange(2)
    out, sizes = torch.zeros(2, pages.slot_nbytes, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32)
    pages.encode(pool, ids, out, sizes)
    wrong = {
        "a contiguous pool of pages of 256 elements of torch.bfloat16": (pool.half(), ids, out, sizes),
        "contiguous pool of pages": (pool[:, :128], ids, out, sizes),
        "page_ids of torch.int32 or torch.int64": (pool, ids.float(), out, sizes),
        "one for each of 2 slots": (pool, ids[:1], out, sizes),
        "sizes of torch.int32": (pool, ids, out, sizes.long()),
        f"a slot of {pages.frame_nbytes} bytes or more": (pool, ids, out[:, : pages.frame_nbytes - 1], sizes),
        "out of uint8 in rows": (pool, ids, out.view(torch.int8), sizes),
        "slots that do not overlap": (pool, ids, out[:1].expand(2, -1), sizes),
        "expected page_ids on cpu, as the pool is": (pool, ids.to("meta"), out, sizes),
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            pages.encode(*arguments)
    for message, words, room in (
        ("1 to 65536 elements, got 0", 0, None),
        ("got 65537", 65537, None),
        ("from 0 to 1", 1, -0.1),
    ):
        with pytest.raises(ValueError, match=message):
            DevicePages(words, room=room)
    with pytest.raises(TypeError, match="a tensor of torch as page_ids, got list"):
        pages.encode(pool, [0, 1], out, sizes)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a tensor of torch as pool, got ndarray"):
        pages.encode(pool.float().numpy(), ids, out, sizes)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected the number of elements as page_words, got \(16, 8, 128\)"):
        DevicePages((16, 8, 128))  # type: ignore[arg-type]
    with pytest.raises(tensorwire.UnsupportedTensorError, match=r"expected pages of .*, got torch.float32"):
        DevicePages(256, torch.float32)
    assert repr(pages) == f"DevicePages(256, torch.bfloat16: frames of {pages.frame_nbytes} bytes)"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ten_thousand_random_pages(dtype: torch.dtype) -> None:
    """Pages of 1 to 65,536 words, most of them small; ten thousand are those of all four dtypes."""
    generator = np.random.default_rng(DTYPES.index(dtype))
    for seed in range(1250):
        n = int(2 ** generator.uniform(0, 16))
        n = n if seed % 2 else max(256, n // 256 * 256)
        check_pages(dtype, n, KINDS[seed % len(KINDS)], seed, StandIn(seed=seed))
