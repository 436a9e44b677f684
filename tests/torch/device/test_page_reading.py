"""Frames of pages, decoded on a device without any work of the host: by the kernel, as the core decodes them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import tensorwire
from reference.tensorwire_reference import Cascade, Constant, Stored, Verbatim, encode
from tensorwire.codec import FrameEncoder
from tensorwire.torch.device.writing.page_reading import decode_pages
from tensorwire.torch.device.writing.page_writing import MOST_WORDS
from tensorwire.torch.device.writing.status import Status
from tests.support import golden, registry
from tests.support.cases import floats
from tests.support.frame_surgery import Surgery, padded_hash

from .stand_in import StandIn, missing

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

NAMES = {"BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
UNTOUCHED = 0xA5


class Read:
    """Slots that were read: how, and the pages.

    Attributes:
        status: of each slot.
        pages: bytes, a row for each page of the pool.
    """

    def __init__(
        self,
        frames: Sequence[bytes],
        dtype: str,
        page_words: int,
        *,
        driver: StandIn | None = None,
        ids: Sequence[int] | None = None,
        num_pages: int | None = None,
    ) -> None:
        """By default page k is that of slot k, and a slot has exactly the bytes of the longest frame."""
        width = max(map(len, frames))
        memory = torch.full((len(frames), -(-width // 16) * 16), UNTOUCHED, dtype=torch.uint8)
        slots = memory[:, :width]
        for slot, frame in zip(slots.numpy(), frames, strict=True):
            slot[: len(frame)] = np.frombuffer(frame, np.uint8)
        numbers = torch.tensor(list(range(len(frames)) if ids is None else ids))
        pool = torch.full((num_pages or len(frames), page_words * NAMES[dtype].itemsize), UNTOUCHED, dtype=torch.uint8)
        words = pool.view(-1).view(NAMES[dtype]).view(len(pool), page_words)
        status = torch.full((len(frames),), -1, dtype=torch.int32)
        if driver is not None:
            driver.forget()
            driver.watch(memory, numbers, pool, status)
        decode_pages(slots, words, numbers, status, page_words, NAMES[dtype], driver)
        if driver is not None:
            driver.forget()
        self.status = [Status(number) for number in status.tolist()]
        self.pages = pool.numpy()

    def untouched(self, page: int) -> bool:
        return bool((self.pages[page] == UNTOUCHED).all())


def words_of(dtype: str, count: int, odd: float, name: str = "") -> bytes:
    """Words, of which that part has any exponent."""
    words = registry.weights(dtype, count, f"page {name}")
    generator = registry.rng(f"odd {dtype} {count} {odd} {name}")
    chosen = generator.random(count) < odd
    words[chosen] = generator.integers(0, 1 << 8 * words.itemsize, int(chosen.sum()))
    return words.tobytes()


def host_frame(data: bytes, dtype: str, **options: int) -> bytes:
    """As the host's encoder makes it, of any form."""
    encoder = FrameEncoder(dtype, (len(data) // NAMES[dtype].itemsize,), profile="resident", threads=1, **options)
    out = bytearray(encoder.data_bound(len(data)))
    blocks = bytes(out[: encoder.encode(data, out)]) if data else b""
    return encoder.finish() + blocks + bytes(encoder.info.padding_nbytes)


def same_as_core(frames: Sequence[bytes], dtype: str, page_words: int, driver: StandIn) -> Read:
    """Read both ways. Statuses and pages are the same, but where the kernel leaves a frame to the host."""
    found, expected = Read(frames, dtype, page_words, driver=driver), Read(frames, dtype, page_words)
    for slot, (own, other) in enumerate(zip(found.status, expected.status, strict=True)):
        if own is Status.HOST_ONLY:
            assert found.untouched(slot), slot
        else:
            assert own is other, (slot, own, other)
            assert (found.pages[slot] == expected.pages[slot]).all(), (slot, own)
        assert own is Status.DONE or found.untouched(slot)
    return found


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("page_words", [256, 1000, 2304, pytest.param(65_536, marks=pytest.mark.slow)])
def test_frames_of_the_host(dtype: str, page_words: int) -> None:
    """Few and many odd words, all equal, random bits; padding, alignments, bytes behind the frame."""
    contents = [words_of(dtype, page_words, odd) for odd in (0, 0.002, 0.1, 1)]
    contents += [contents[0][: NAMES[dtype].itemsize] * page_words, bytes(page_words * NAMES[dtype].itemsize)]
    frames = [host_frame(content, dtype) for content in contents]
    frames += [
        host_frame(contents[1], dtype, padding_nbytes=1000),
        host_frame(contents[1], dtype, block_alignment=1024),
        host_frame(contents[3], dtype, block_alignment=256, frame_alignment=2048, padding_nbytes=5000),
    ]
    contents += [contents[1], contents[1], contents[3]]
    driver = StandIn(checked=True)
    found = same_as_core(frames, dtype, page_words, driver)
    assert found.status == [Status.DONE] * len(frames)
    assert [page.tobytes() for page in found.pages] == contents
    assert len(driver.launches) == 1


@pytest.mark.parametrize("dtype", NAMES)
def test_every_size(dtype: str) -> None:
    """Pages that are short, and runs that are."""
    driver = StandIn(checked=True)
    for page_words in (*range(1, 9), 31, 33, 100, 255, 257, 511, 767):
        contents = [words_of(dtype, page_words, odd) for odd in (0, 0.05)]
        reference = [
            encode(each, dtype, (page_words,), kind=kind, rest=Verbatim(), profile="resident")
            for each in contents
            for kind in (Stored(), Cascade(table=2, variant=0 if dtype == "BF16" else 1))
            if not isinstance(kind, Cascade) or page_words > 100
        ]
        frames = [host_frame(each, dtype) for each in contents] + reference
        found = same_as_core(frames, dtype, page_words, driver)
        assert set(found.status) == {Status.DONE}


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_several_blocks(dtype: str) -> None:
    """They have all codings; the last one is short or not."""
    tier = Cascade(table=2, variant=0 if dtype == "BF16" else 1)
    driver = StandIn(checked=True)
    for page_words in (2048, 1900):
        data = bytearray(words_of(dtype, page_words, 0.01))
        data[1024:2048] = data[1024:1026] * 512
        frame = encode(
            bytes(data), dtype, (page_words,), kind=[tier, Stored(), Constant(), tier], rest=Verbatim(),
            profile="resident", block_words=512,
        )  # fmt: skip
        found = same_as_core([frame], dtype, page_words, driver)
        assert found.status == [Status.DONE]
        assert found.pages[0].tobytes() == bytes(data)


@pytest.mark.parametrize("lo", [240, 241])
def test_an_escape_that_carries(lo: int) -> None:
    """The exponents of the tier are the highest that there are."""
    words = np.frombuffer(floats("BF16", 1024, "carry", exponents=np.arange(1024) % 256), np.uint16)
    exponents = np.where(np.arange(1024) % 50 == 0, 3, lo + np.arange(1024) % 15)
    words = (words & 0x807F) | (exponents << 7).astype(np.uint16)
    frame = encode(
        words.tobytes(), "BF16", (1024,), kind=Cascade(table=2, variant=0, lo=lo), rest=Verbatim(), profile="resident"
    )
    found = same_as_core([frame], "BF16", 1024, StandIn(checked=True))
    assert found.status == [Status.DONE]
    assert found.pages[0].tobytes() == words.tobytes()


def test_goldens() -> None:
    """Valid frames and invalid ones are read as the core reads them, or left to the host."""
    frames: dict[tuple[str, int], list[bytes]] = {}
    for part in ("frames", "invalid"):
        for entry in golden.manifest(part):
            dtype = entry["dtype"] if entry.get("dtype") in NAMES else "BF16"
            page_words = max(1, min(entry.get("nbytes", 600), MOST_WORDS) // NAMES[dtype].itemsize)
            frames.setdefault((dtype, page_words), []).append(golden.frame_of(entry))
    driver, found = StandIn(checked=True), Counter[Status]()
    for (dtype, page_words), each in frames.items():
        found.update(same_as_core(each, dtype, page_words, driver).status)
    assert set(found) >= set(Status)
    assert found[Status.DONE] > 20


def test_slots_that_are_too_short() -> None:
    data = words_of("BF16", 512, 0.01)
    frame = host_frame(data, "BF16", padding_nbytes=64)
    driver = StandIn(checked=True)
    for nbytes in (1, 7, 9, 100, 127, 128, 135, 136, 150, len(frame) - 64, len(frame) - 1):
        found = same_as_core([frame[:nbytes]], "BF16", 512, driver)
        assert found.status == [Status.TRUNCATED], nbytes


def test_numbers_of_pages() -> None:
    """Pages go where their numbers say; a number that is none is no page."""
    contents = [words_of("BF16", 512, 0.01, str(k)) for k in range(4)]
    frames = [host_frame(each, "BF16") for each in contents]
    for driver in (None, StandIn(checked=True)):
        for ids in ([5, -1, 0, 6], [5, 1 << 32, 0, 1 << 40]):
            found = Read(frames, "BF16", 512, driver=driver, ids=ids, num_pages=6)
            assert found.status == [Status.DONE, Status.ANOTHER_TENSOR, Status.DONE, Status.ANOTHER_TENSOR]
            assert found.pages[5].tobytes() == contents[0]
            assert found.pages[0].tobytes() == contents[2]
            assert all(found.untouched(page) for page in range(1, 5))


def test_32_bit_numbers() -> None:
    data = words_of("BF16", 256, 0)
    frame = torch.frombuffer(bytearray(host_frame(data, "BF16")), dtype=torch.uint8)
    slots = torch.zeros(2, len(frame), dtype=torch.uint8)
    slots[:] = frame
    pool, status = torch.zeros(3, 256, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32)
    driver = StandIn(checked=True)
    decode_pages(slots, pool, torch.tensor([2, -1], dtype=torch.int32), status, 256, torch.bfloat16, driver)
    assert status.tolist() == [Status.DONE, Status.ANOTHER_TENSOR]
    assert pool[2].view(torch.uint8).numpy().tobytes() == data
    assert not pool[:2].any()


def test_other_tensors() -> None:
    """One has another dtype, or another size, is relative, or has a profile that the host decodes."""
    data = words_of("BF16", 512, 0.01)
    frames = [
        host_frame(data, "F16"),
        host_frame(data[:-2], "BF16"),
        bytes(tensorwire.compress(data, dtype="I16", profile="fast")),
        bytes(tensorwire.compress(data, dtype="BF16", base=data, profile="fast")),
        bytes(tensorwire.compress(data, dtype="BF16", profile="fast")),
    ]
    found = same_as_core(frames, "BF16", 512, StandIn(checked=True))
    assert found.status == [*[Status.ANOTHER_TENSOR] * 3, Status.BASE_MISMATCH, Status.HOST_ONLY]
    assert Read(frames[4:], "BF16", 512).status == [Status.DONE]


# Damage -------------------------------------------------------------------------------------------------------------


def damaged(frame: bytes, trial: int, generator: np.random.Generator) -> bytes:
    """With one to three bytes changed: in the header, the index, the block or its end; checksums are right for most."""
    surgery = Surgery(frame)
    start, stop = surgery.block_span(0)
    low, high = [(0, 128), (8, surgery.header_nbytes), (start, stop), (stop - 16, stop), (start, len(frame))][trial % 5]
    for position in generator.integers(low, high, generator.integers(1, 4)):
        surgery.bytes[position] = (
            generator.integers(0, 256) if trial % 2 else surgery.bytes[position] ^ 1 << generator.integers(0, 8)
        )
    if trial % 7 == 0:
        return bytes(surgery.bytes)
    surgery.header_nbytes = Surgery(frame).header_nbytes
    content = bytes(surgery.bytes[start:stop])
    surgery.set_entry(0, surgery.entry(0)[0], int.from_bytes(padded_hash(content)[:4], "little"))
    return surgery.close()


@pytest.mark.parametrize("trials", [80, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dtype", "page_words"), [("BF16", 512), ("BF16", 700), ("F16", 512), ("F8_E5M2", 1000)])
def test_damage_behind_right_checksums(dtype: str, page_words: int, trials: int) -> None:
    """Nothing is read outside a slot or written outside its page, whatever the bytes say; the core says the same."""
    generator = registry.rng(f"damaged pages {dtype} {page_words}")
    data = words_of(dtype, page_words, 0.02)
    frame = host_frame(data, dtype, padding_nbytes=64)
    frames = [damaged(frame, trial, generator) for trial in range(trials)]
    found = same_as_core(frames, dtype, page_words, StandIn(checked=True))
    assert {Status.DONE, Status.CORRUPT} < set(found.status)
