"""Pages of keys and values as frames in slots: what fits, what does not, and what is no page."""

from __future__ import annotations

import math
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
from tensorwire import DoesNotFit
from tensorwire.kv import KVCodec
from tests.support import forks, registry

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "C128": 16}
SHAPES = [(64, 384), (2, 16, 8, 64), (0, 384), (3, 0), (1, 1), (5, 7)]
TOKENS, CHANNELS = SHAPE = (64, 48)


def page_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Numbers as a model has them."""
    return registry.weights("BF16", math.prod(shape) * DTYPES[dtype] // 2 + 1).tobytes()[: _nbytes(dtype, shape)]


def noise(nbytes: int) -> bytes:
    return np.random.default_rng(5).bytes(nbytes)


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPES[dtype]


PAGE = page_of("BF16", SHAPE)


def encoded(codec: KVCodec, page: Any, dtype: str = "BF16", shape: tuple[int, ...] = SHAPE) -> bytes:
    """What is written, and nothing behind it."""
    out = bytearray(b"\xaa" * (codec.nbytes(dtype, shape) + 64))
    nbytes = codec.encode(page, memoryview(out)[:-64], dtype, shape)
    assert out[-64:] == b"\xaa" * 64
    return bytes(out[:nbytes])


def decoded(frame: Any, nbytes: int, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> bytes:
    out = bytearray(nbytes)
    KVCodec().decode(frame, out, dtype, shape)
    return bytes(out)


@pytest.fixture(params=[False, True], ids=["tokens", "transposed"])
def transposed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_pages_come_back_from_any_codec(dtype: str, profile: Any, transposed: bool) -> None:
    for shape in SHAPES:
        page = page_of(dtype, shape)
        frame = encoded(KVCodec(profile, transposed=transposed, threads=2), page, dtype, shape)
        assert decoded(frame, len(page)) == page
        assert decoded(frame, len(page), dtype, shape) == page


def test_a_plain_page_is_a_frame_and_a_transposed_one_is_none() -> None:
    frame = encoded(KVCodec(), PAGE)
    assert frame == tensorwire.compress(PAGE, dtype="BF16", shape=SHAPE)
    with pytest.raises(tensorwire.CorruptDataError, match="magic"):
        tensorwire.decompress(encoded(KVCodec(transposed=True), PAGE), out=bytearray(len(PAGE)))


def test_channels_together_are_smaller_where_they_differ() -> None:
    page = (np.random.default_rng(1).normal(size=(64, 64)) * 2.0 ** np.arange(-32, 32)).astype(np.float32)
    sizes = [len(encoded(KVCodec(transposed=each), page, "F32", (64, 64))) for each in (False, True)]
    assert sizes[1] < sizes[0]


def test_what_is_behind_a_page_in_its_slot_is_not_read(transposed: bool) -> None:
    frame = encoded(KVCodec(transposed=transposed), PAGE)
    assert decoded(frame + noise(100), len(PAGE)) == PAGE
    for cut in (1, 31, len(frame) // 2, len(frame) - 1, len(frame)):
        with pytest.raises(tensorwire.TruncatedDataError):
            decoded(frame[: len(frame) - cut], len(PAGE))


# Slots ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["fast", "compact", "resident"])
def test_every_page_fits_into_its_bound(profile: Any, transposed: bool) -> None:
    codec = KVCodec(profile, transposed=transposed)
    for shape in SHAPES:
        page = noise(_nbytes("BF16", shape))
        frame = encoded(codec, page, shape=shape)
        assert len(page) <= len(frame) <= codec.nbytes("BF16", shape) <= len(page) + 256
        assert decoded(frame, len(page)) == page


@pytest.mark.parametrize("max_ratio", [0.75, 0.9, 1.0])
def test_a_promised_size_is_kept_or_the_page_is_refused(max_ratio: float, transposed: bool) -> None:
    codec = KVCodec(max_ratio=max_ratio, transposed=transposed)
    slot = codec.nbytes("BF16", (256, 384))
    assert slot == int(max_ratio * 256 * 384 * 2)
    page = page_of("BF16", (256, 384))
    assert decoded(encoded(codec, page, shape=(256, 384)), len(page)) == page
    memory = bytearray(b"\xaa" * 2 * len(page))
    with pytest.raises(
        DoesNotFit, match=f"at most {slot - 32 * transposed} bytes, got a larger one; .*max_ratio, or none"
    ):
        codec.encode(noise(len(page)), memory, "BF16", (256, 384))
    assert not memory[slot:].strip(b"\xaa")


def test_a_slot_needs_what_the_page_takes_and_no_more(transposed: bool) -> None:
    codec = KVCodec(transposed=transposed)
    frame = encoded(codec, PAGE)
    assert codec.nbytes("BF16", SHAPE) > len(frame)
    out = bytearray(len(frame))
    assert codec.encode(PAGE, out, "BF16", SHAPE) == len(frame)
    assert out == frame
    for room in (0, 1, 31, 32, 200, len(frame) - 1):
        memory = bytearray(b"\xaa" * len(frame))
        with pytest.raises(DoesNotFit):
            codec.encode(PAGE, memoryview(memory)[:room], "BF16", SHAPE)
        assert not memory[room:].strip(b"\xaa")


def test_a_page_that_never_fits_takes_no_memory() -> None:
    codec, page, slot = KVCodec(max_ratio=0.5), noise(8 << 20), bytearray(4 << 20)
    tracemalloc.start()
    try:
        for _ in range(3):
            with pytest.raises(DoesNotFit):
                codec.encode(page, slot, "BF16", (4096, 1024))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_no_tokens_take_a_header_and_find_no_place_in_a_promised_size() -> None:
    assert decoded(encoded(KVCodec(), b"", shape=(0, 384)), 0, "BF16", (0, 384)) == b""
    assert KVCodec(max_ratio=0.7).nbytes("BF16", (0, 384)) == 0
    with pytest.raises(DoesNotFit):
        KVCodec(max_ratio=0.7).encode(b"", bytearray(1000), "BF16", (0, 384))


# What is no page, or another one --------------------------------------------------------------------------------------


def test_another_dtype_or_shape_than_asked_for_is_refused(transposed: bool) -> None:
    page = page_of("BF16", (48, 48))  # a square, whose transposed shape is its own
    frame = encoded(KVCodec(transposed=transposed), page, shape=(48, 48))
    wrong: list[dict[str, Any]] = [
        {"dtype": "F16"},
        {"shape": (24, 96)},
        {"shape": (48, 48, 1)},
        {"shape": (48 * 48,)},
        {"dtype": "F16", "shape": (48, 48)},
        {"dtype": "BF16", "shape": (96, 24)},
    ]
    for asked in wrong:
        out = bytearray(len(page))
        with pytest.raises(ValueError, match=r"expected a page of .*, got one of BF16 and \(48, 48\)"):
            KVCodec().decode(frame, out, **asked)
        assert not any(out)
    with pytest.raises(ValueError, match="expected an output of 4608 bytes, got 4606"):
        KVCodec().decode(frame, bytearray(len(page) - 2))
    oblong = encoded(KVCodec(transposed=transposed), PAGE)
    with pytest.raises(ValueError, match=r"got one of BF16 and \(64, 48\)"):
        KVCodec().decode(oblong, bytearray(len(PAGE)), "BF16", (48, 64))


def test_damage_anywhere_is_an_error_and_never_other_bits(transposed: bool) -> None:
    frame = bytearray(encoded(KVCodec(transposed=transposed), PAGE))
    for at in range(len(frame)):
        frame[at] ^= 1 << at % 8
        with pytest.raises(tensorwire.FormatError):
            decoded(frame, len(PAGE))
        frame[at] ^= 1 << at % 8


@pytest.mark.parametrize("frame", [b"", bytes(32), bytes(4096), b"\x93TW", noise(4096)], ids=range(5))
def test_what_is_no_frame(frame: bytes) -> None:
    with pytest.raises(tensorwire.FormatError):
        decoded(frame, 64)


def test_a_relative_frame_is_no_page() -> None:
    frame = tensorwire.compress(PAGE, dtype="BF16", shape=SHAPE, base=page_of("BF16", SHAPE)[::-1])
    with pytest.raises(tensorwire.BaseMismatchError):
        decoded(frame, len(PAGE))


def test_a_mark_before_what_cannot_be_transposed() -> None:
    mark = encoded(KVCodec(transposed=True), PAGE)[:32]
    for dtype, shape in (("U8", (64,)), ("F4", (8, 16))):
        frame = tensorwire.compress(bytes(64), dtype=dtype, shape=shape)
        with pytest.raises(tensorwire.CorruptDataError, match="transposed page"):
            decoded(mark + frame, 64)


def test_bad_buffers(transposed: bool) -> None:
    codec = KVCodec(transposed=transposed)
    frame, slot = encoded(codec, PAGE), bytearray(8192)
    every_second = np.zeros((2 * TOKENS, CHANNELS), np.uint16)[::2]
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: codec.encode(PAGE, bytes(8192), "BF16", SHAPE), ValueError, "read-only"),
        (lambda: codec.encode(every_second, slot, "BF16", SHAPE), ValueError, "contiguous"),
        (lambda: codec.encode(PAGE, every_second, "BF16", SHAPE), ValueError, "contiguous"),
        (lambda: codec.encode(PAGE[2:], slot, "BF16", SHAPE), ValueError, "expected a page of 6144 bytes"),
        (lambda: codec.encode([1, 2], slot, "BF16", SHAPE), tensorwire.UnsupportedTensorError, "list"),
        (lambda: codec.decode(frame, bytes(len(PAGE))), ValueError, "read-only"),
        (lambda: codec.decode(frame, every_second), ValueError, "contiguous"),
        (lambda: codec.decode(np.zeros((9, 9))[:, 0], bytearray(8)), ValueError, "contiguous"),
        (lambda: codec.decode(None, bytearray(8)), tensorwire.UnsupportedTensorError, "NoneType"),
    ]
    for call, error, reason in calls:
        with pytest.raises(error, match=reason):
            call()


def test_a_page_and_its_slot_in_the_same_memory() -> None:
    memory = bytearray(PAGE + bytes(8192))
    with pytest.raises(ValueError, match="overlaps"):
        KVCodec().encode(memoryview(memory)[: len(PAGE)], memoryview(memory)[100:], "BF16", SHAPE)
    slot = bytearray(encoded(KVCodec(), PAGE) + bytes(8192))
    with pytest.raises(ValueError, match="overlaps"):
        KVCodec().decode(slot, memoryview(slot)[300 : 300 + len(PAGE)])


@pytest.mark.parametrize("max_ratio", [0, -0.5, 1.01, 2, math.nan, math.inf])
def test_ratios_that_promise_nothing(max_ratio: float) -> None:
    with pytest.raises(ValueError, match="expected a max_ratio above 0 and at most 1"):
        KVCodec(max_ratio=max_ratio)


def test_settings_that_there_are_not() -> None:
    bad: Any = "fastest"
    with pytest.raises(ValueError, match="expected one of the profiles"):
        KVCodec(bad)
    with pytest.raises(ValueError, match="threads"):
        KVCodec(threads=0)
    with pytest.raises(ValueError, match='did you mean "BF16"'):
        KVCodec().nbytes("bfloat16", SHAPE)
    with pytest.raises(ValueError, match="expected a dtype of safetensors, got 'OWN'"):
        KVCodec().nbytes("OWN", SHAPE)
    for codec in (KVCodec(), KVCodec(max_ratio=0.7)):
        for shape in ((-1, 5), (2**64, 5), (1,) * 65):
            with pytest.raises(ValueError, match="expected a shape"):
                codec.nbytes("BF16", shape)
    for dtype, shape in (("BF16", (64,)), ("F4", (64, 64))):
        with pytest.raises(ValueError, match="to transpose"):
            KVCodec(transposed=True).nbytes(dtype, shape)


@pytest.mark.parametrize(
    "option", [{"transposed": "false"}, {"transposed": 0}, {"max_ratio": "0.7"}, {"max_ratio": True}, {"threads": "2"}]
)
def test_a_setting_of_another_type_is_named(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(TypeError, match=f"^expected (true or false|a number) as {name}, got "):
        KVCodec(**option)


def test_repr() -> None:
    assert repr(KVCodec()) == "<KVCodec fast>"
    assert (
        repr(KVCodec("compact", max_ratio=0.7, transposed=True))
        == "<KVCodec compact, at most 0.7 of a page, transposed>"
    )


# Threads and processes ------------------------------------------------------------------------------------------------


def _pages() -> Iterator[tuple[tuple[int, int], bytes]]:
    for tokens in range(16, 48, 4):
        yield (tokens, 96), page_of("BF16", (tokens, 96))


def test_eight_threads_with_one_codec_and_a_child_that_is_forked_meanwhile(transposed: bool) -> None:
    codec = KVCodec(transposed=transposed, threads=2)
    wrong: list[int] = []
    stop = threading.Event()

    def work(shape: tuple[int, int], page: bytes) -> None:
        expected, out = encoded(codec, page, shape=shape), bytearray(len(page))
        while not stop.is_set():
            frame = encoded(codec, page, shape=shape)
            codec.decode(frame, out, "BF16", shape)
            if frame != expected or out != page:
                wrong.append(shape[0])

    threads = [threading.Thread(target=work, args=each) for each in _pages()]
    for thread in threads:
        thread.start()
    try:
        child = forks.run(lambda: int(decoded(encoded(codec, PAGE), len(PAGE)) != PAGE), timeout=60)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert child.returncode == 0
    assert wrong == []


def test_tensors_of_torch_and_arrays_of_numpy() -> None:
    torch = pytest.importorskip("torch")
    page = torch.randn(SHAPE).to(torch.bfloat16)
    codec, slot = KVCodec(), np.zeros(8192, np.uint8)
    codec.encode(page, slot, "BF16", page.shape)
    out = torch.zeros_like(page)
    codec.decode(slot, out, "BF16", page.shape)
    assert torch.equal(out.view(torch.int16), page.view(torch.int16))
