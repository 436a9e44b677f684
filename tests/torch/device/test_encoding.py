"""Tensors to frames in slots: kernels on the CPU's memory, and the core. A frame is right if the host and the reference
decode it to the tensor, and its content hash is that of the host's frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from reference.tensorwire_reference import decode  # noqa: E402
from tensorwire import UnsupportedTensorError, compress_bound, frame_info  # noqa: E402
from tensorwire.codec import FrameReader, content_hash  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.device import encode_into  # noqa: E402
from tensorwire.torch.device.writing import encoding, kept  # noqa: E402
from tests.support.sent_tensors import bits  # noqa: E402

from .stand_in import StandIn, stand_in_for_a_gpu  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KERNELS = ["write_blocks", "write_others", "finish_frames"]
BEHIND = 64
"""Bytes behind each slot that no kernel may touch."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What stands for the GPU: CPU tensors are its tensors."""
    driver = StandIn(seed=1)
    stand_in_for_a_gpu(monkeypatch, encoding, driver)
    return driver


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype)


def random_bits(numel: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    octets = np.random.default_rng(numel).integers(0, 256, numel * dtype.itemsize, np.uint8)
    return torch.from_numpy(octets).view(dtype)


def with_escapes(numel: int, share: float) -> torch.Tensor:
    """Some words with random bits, more of them in the second half."""
    words, numbers = normal(numel), np.random.default_rng(2)
    odd = torch.from_numpy(numbers.random(numel) < np.linspace(0, 2 * share, numel))
    return torch.where(odd.reshape(words.shape), random_bits(numel).reshape(words.shape), words)


def slots_for(tensors: Sequence[torch.Tensor], profile: Any = "resident") -> list[torch.Tensor]:
    names = {dtype: coding.name for dtype, coding in encoding.CODINGS.items()}
    bounds = [compress_bound(dtype=names[each.dtype], shape=each.shape, profile=profile) for each in tensors]
    return [torch.full((bound + BEHIND,), 77, dtype=torch.uint8)[:bound] for bound in bounds]


def frames_of(
    driver: StandIn, tensors: Sequence[torch.Tensor], slots: Sequence[torch.Tensor] | None = None, **options: Any
) -> list[bytes]:
    """Frames of tensors, which are right; an empty one for what does not fit."""
    slots = slots or slots_for(tensors, options.get("profile", "resident"))
    sizes = torch.full((len(tensors),), -1, dtype=torch.int64)
    driver.forget()
    driver.watch(*tensors)
    driver.watch(*slots, writable=True)
    encode_into(tensors, list(slots), sizes, **options)
    frames = [bytes(slot[:size].numpy()) for slot, size in zip(slots, sizes.tolist(), strict=True)]
    for tensor, slot, frame in zip(tensors, slots, frames, strict=True):
        behind = slot.as_strided((BEHIND,), (1,), slot.storage_offset() + slot.numel())
        assert (behind == 77).all(), "nothing is written behind a slot"
        if not frame:
            continue
        info = frame_info(frame)
        assert info.shape == tuple(tensor.shape)
        assert info.frame_nbytes == len(frame)
        assert tensorwire.decompress(frame, framework="bytes") == bits(tensor)
        assert decode(frame).data == bits(tensor)
        assert info.content_hash == content_hash(bits(tensor))
    return frames


CASES = {
    "nothing": lambda: torch.empty(0, 3, dtype=torch.bfloat16),
    "a number": lambda: normal(),
    "one element": lambda: normal(1),
    "a short run": lambda: normal(300),
    "blocks of whole rows": lambda: normal(300, 257),
    "a word behind a block": lambda: normal(32769),
    "one value": lambda: torch.full((40000,), 1.5, dtype=torch.bfloat16),
    "NaN": lambda: torch.full((3, 700), float("nan"), dtype=torch.bfloat16),
    "random bits": lambda: random_bits(40001),
    "few escapes": lambda: with_escapes(70000, 0.01),
    "more escapes than shared memory holds": lambda: with_escapes(70000, 0.2),
    "F16": lambda: normal(257, 256, dtype=torch.float16),
    "F8_E4M3": lambda: normal(70001, dtype=torch.float8_e4m3fn),
    "F8_E5M2": lambda: normal(3, 11, 13, dtype=torch.float8_e5m2),
}
FAR_FROM_WEIGHTS = ("few escapes", "more escapes than shared memory holds", "F8_E4M3", "F8_E5M2")


def check_fast(driver: StandIn, names: Iterable[str]) -> None:
    """One tier shape is nearly as good as all for weights, if not for numbers most of which are near zero."""
    tensors = [CASES[name]() for name in names]
    frames = frames_of(driver, tensors, profile="fast")
    for name, tensor, frame in zip(names, tensors, frames, strict=True):
        assert frame_info(frame).profile == "fast"
        host = len(tensorwire.compress(tensor, profile="fast"))
        assert len(frame) <= host * (1.1 if name in FAR_FROM_WEIGHTS else 1.01) + 64, name


def test_frames_of_profile_fast(driver: StandIn) -> None:
    check_fast(driver, ["a short run", "blocks of whole rows", "one value", "more escapes than shared memory holds"])


@pytest.mark.slow
def test_all_frames_of_profile_fast(driver: StandIn) -> None:
    check_fast(driver, CASES)


def test_frames_of_a_batch(driver: StandIn) -> None:
    """All together in two launches for each dtype, and one."""
    tensors = [make() for make in CASES.values()]
    frames = frames_of(driver, tensors)
    assert len(driver.launches) == 2 * len({each.dtype for each in tensors}) + 1
    for name, tensor, frame in zip(CASES, tensors, frames, strict=True):
        host = len(tensorwire.compress(tensor, profile="resident"))
        assert len(frame) <= host + max(64, host // 100), name
        number = FrameReader(frame).extensions.get(1)
        assert number == (None if name == "random bits" else b"\2\0\0\0"), name


def test_no_access_is_wrong(driver: StandIn) -> None:
    """With short blocks, a block that outgrows shared memory, and one whose place another one has told."""
    driver.checked = True
    tensors = [normal(77), normal(2, 256), normal(3, 20480), random_bits(40000), with_escapes(33000, 0.3)]
    frames_of(driver, [*tensors, normal(1001, dtype=torch.float8_e4m3fn)])


def test_frames_depend_on_the_tensors_alone(driver: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the order in which blocks of threads run, on what else is encoded, nor on how much shared memory there is:
    with less, more blocks are encoded to their places, also such as it does not hold without any escape."""
    tensors = [with_escapes(70000, 0.05), normal(40, 1000), random_bits(3000)]
    expected = frames_of(driver, tensors)
    for driver.seed, nbytes in ((2, 55_000), (4, 45_000)):
        monkeypatch.setattr(driver, "shared_nbytes", nbytes)
        assert [*frames_of(driver, tensors[:1]), *frames_of(driver, tensors[1:])] == expected


def test_a_slot_may_be_too_small(driver: StandIn) -> None:
    tensors = [normal(300, 257), random_bits(40000), normal(9), torch.empty(0, dtype=torch.bfloat16)]
    whole = [len(frame) for frame in frames_of(driver, tensors)]
    for less in (1, 40, 200, 50_000):
        slots = [torch.full((n + BEHIND,), 77, dtype=torch.uint8)[:n] for n in (max(0, n - less) for n in whole)]
        assert not any(frames_of(driver, tensors, slots))
    slots = [torch.full((n + BEHIND,), 77, dtype=torch.uint8)[:n] for n in whole]
    assert [len(frame) for frame in frames_of(driver, tensors, slots)] == whole


def test_known_hashes_are_taken(driver: StandIn) -> None:
    tensors = [normal(40000), normal(77), torch.empty(0, dtype=torch.bfloat16)]
    hashes = b"".join(bytes.fromhex(content_hash(bits(each))) for each in tensors)
    known = torch.frombuffer(bytearray(hashes), dtype=torch.uint8).reshape(-1, 16)
    assert frames_of(driver, tensors, hashes=known) == frames_of(driver, tensors)
    leaves, blocks = 2, 3
    assert [each.grid[0] for each in driver.launches[::3]] == [blocks, blocks + leaves]


def test_tensors_are_taken_as_they_lie(driver: StandIn) -> None:
    """Views, with gaps, or at odd places."""
    base = normal(70, 33)
    frames_of(driver, [base[1:], base.t(), base[:, 3:9], base[5]])


def test_launch_data_are_made_once(driver: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 tensors take three launches. A later call with the same tensors and slots finds what they hold by then, and
    may be captured; another one may not."""
    tensors, other = [normal(20 + number, seed=number) for number in range(300)], [normal(5)]
    slots, sizes = slots_for(tensors), torch.zeros(300, dtype=torch.int64)
    encode_into(tensors, slots, sizes)
    assert [each.kernel.expression.partition("<")[0] for each in driver.launches] == KERNELS
    made: list[object] = []
    monkeypatch.setattr(encoding, "NewFrames", lambda *arguments: made.append(arguments))
    for tensor in tensors:
        tensor.neg_()
    with monkeypatch.context() as graph:
        graph.setattr(kept, "is_capturing", lambda device: True)
        encode_into(tensors, slots, sizes)
        with pytest.raises(RuntimeError, match="make it once outside of the graph"):
            encode_into(other, slots_for(other), torch.zeros(1, dtype=torch.int64))
    assert not made
    for tensor, slot, size in zip(tensors, slots, sizes.tolist(), strict=True):
        assert tensorwire.decompress(slot[:size], framework="bytes") == bits(tensor)


def test_little_memory_is_taken_besides(driver: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 64 bytes for 1 KiB of tensors: launch data, which stay, and what one call needs."""
    made: list[torch.Tensor] = []
    for name in ("from_numpy", "zeros", "empty"):
        function = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, f=function, **k: made.append(f(*a, **k)) or made[-1])
    tensors = [normal(1000, 300), normal(70000, dtype=torch.float8_e4m3fn)]
    kibibytes = sum(each.nbytes for each in tensors) / 1024
    slots, sizes = slots_for(tensors), torch.full((2,), 0)
    made.clear()
    encode_into(tensors, slots, sizes)
    assert len(made) == 2
    assert sum(each.nbytes for each in made) < 2 * kibibytes
    encode_into(tensors, slots, sizes)
    assert len(made) == 3, "launch data are made once"


def test_the_host_does_the_same() -> None:
    """And refuses the same."""
    tensors = [normal(300, 257), normal(3), torch.empty(0, dtype=torch.float16), normal(50).reshape(5, 10).t()]
    slots, sizes = slots_for(tensors), torch.zeros(4, dtype=torch.int64)
    slots[1] = slots[1][:100]
    encode_into(tensors, slots, sizes)
    frames = [tensorwire.compress(each, profile="resident") for each in tensors]
    assert sizes.tolist() == [len(frames[0]), 0, len(frames[2]), len(frames[3])]
    for frame, slot, size in zip(frames, slots, sizes.tolist(), strict=True):
        assert bytes(slot[:size].numpy()) in (frame, b"")
    with pytest.raises(UnsupportedTensorError, match=r"expected tensors of BF16, F16, F8_E4M3, F8_E5M2, got one of"):
        encode_into([torch.zeros(5)], slots[:1], sizes[:1])


def byte_slots(*sizes: int) -> list[torch.Tensor]:
    return [torch.zeros(size, dtype=torch.uint8) for size in sizes]


WRONG: list[tuple[str, type[Exception], str, Any]] = [
    ("float32", UnsupportedTensorError, r"got one of torch\.float32 .*: number 1; compress it on the host",
     lambda x: {"tensors": [x, torch.zeros(5)]}),
    ("sparse", UnsupportedTensorError, "layout torch.sparse_coo", lambda x: {"tensors": [x, x.to_sparse()]}),
    ("compressed", UnsupportedTensorError, "expected a tensor with memory of its own, got CompressedTensor",
     lambda x: {"tensors": [x, CompressedTensor.from_dense(x)]}),
    ("a compressed base", UnsupportedTensorError, "expected a tensor with memory of its own, got CompressedTensor",
     lambda x: {"base": [x, CompressedTensor.from_dense(x)], "profile": "fast"}),
    ("another device", ValueError, "expected tensor 0 on cpu, as sizes are, got one on meta",
     lambda x: {"tensors": [x.to("meta"), x]}),
    ("fewer slots", ValueError, "expected 2 slots, one for each tensor, got 1", lambda x: {"out": byte_slots(999)}),
    ("slots of another dtype", ValueError, "expected slot 1 as a contiguous tensor of torch.uint8",
     lambda x: {"out": [*byte_slots(999), torch.zeros(999)]}),
    ("slots with gaps", ValueError, "expected slot 0 as a contiguous tensor",
     lambda x: {"out": [byte_slots(999)[0][::2], *byte_slots(999)]}),
    ("sizes of another dtype", ValueError, "expected sizes as a contiguous tensor of torch.int64",
     lambda x: {"sizes": torch.zeros(2, dtype=torch.int32)}),
    ("fewer sizes", ValueError, "expected sizes as", lambda x: {"sizes": torch.zeros(1, dtype=torch.int64)}),
    ("fewer hashes", ValueError, "expected hashes as", lambda x: {"hashes": torch.zeros(1, 16, dtype=torch.uint8)}),
    ("another profile", ValueError, "expected profile 'resident' or 'fast'.*, got 'compact'",
     lambda x: {"profile": "compact"}),
    ("a tensor for a list", TypeError, r"a list of tensors as out, got a tensor; give \[tensor\]",
     lambda x: {"out": byte_slots(999)[0]}),
    ("an array", TypeError, r"a tensor of torch as tensors\[1\], got ndarray",
     lambda x: {"tensors": [x, np.zeros(50, np.float16)]}),
    ("negated when it is read", UnsupportedTensorError, "give tensor.resolve_neg",
     lambda x: {"tensors": [x, torch._neg_view(x)]}),
    ("a list of sizes", TypeError, "a tensor of torch as sizes, got list", lambda x: {"sizes": [0, 0]}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "change"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_bad_input_is_refused_before_any_launch(
    driver: StandIn, error: type[Exception], message: str, change: Any
) -> None:
    tensor = normal(50)
    call = {"tensors": [tensor, tensor], "out": byte_slots(999, 999), "sizes": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(error, match=message):
        encode_into(**{**call, **change(tensor)})
    assert not driver.launches


def test_rows_that_shared_memory_does_not_hold_are_encoded_in_their_places(
    driver: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "shared_nbytes", 99 << 10)
    frames_of(driver, [torch.cat([normal(2, 64000), torch.ones(1, 64000, dtype=torch.bfloat16)])])


def test_no_tensors_are_no_launch(driver: StandIn) -> None:
    encode_into([], [], torch.zeros(0, dtype=torch.int64))
    assert not driver.launches


@pytest.mark.slow
def test_drawn_tensors(driver: StandIn) -> None:
    draw = np.random.default_rng(7)
    for number in range(60):
        tensors = []
        for dtype in (*encoding.CODINGS, *encoding.CODINGS):
            numel = int(draw.choice([int(draw.integers(0, 300)), int(draw.integers(300, 9000)), 32768, 70000]))
            scale, share = draw.choice([1e-30, 0.02, 30.0]), draw.choice([0.0, 0.001, 0.03, 0.3])
            tensor = (torch.randn(numel, generator=torch.Generator().manual_seed(number)) * scale).to(dtype)
            odd = torch.from_numpy(draw.random(numel) < share)
            tensors.append(torch.where(odd, random_bits(numel, dtype), tensor))
        driver.seed = number
        frames_of(driver, tensors, profile=("resident", "fast")[number % 2])
