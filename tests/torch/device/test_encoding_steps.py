"""Relative frames of tensors, in slots: kernels on the CPU's memory, and the core. A frame is right if the host and the
reference decode it to the tensor, and its hashes are those of the tensor and of its base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from benchmarks.synthetic_pairs import synthetic_pair  # noqa: E402
from reference.tensorwire_reference import decode  # noqa: E402
from tensorwire import UnsupportedTensorError, compress_bound, frame_info  # noqa: E402
from tensorwire.codec import FrameReader, content_hash  # noqa: E402
from tensorwire.torch.device import encode_into  # noqa: E402
from tensorwire.torch.device.writing import encoding  # noqa: E402
from tests.support.sent_tensors import bits  # noqa: E402

from .stand_in import StandIn, missing, stand_in_for_a_gpu  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Pair = tuple[torch.Tensor, torch.Tensor]

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

BEHIND = 64
"""Bytes behind each slot that no kernel may touch."""
NAMES = {dtype: coding.name for dtype, coding in encoding.CODINGS.items()}
WITHIN = 1.03
"""So many times the bytes of the host are allowed."""


def stand_in(monkeypatch: pytest.MonkeyPatch, **options: Any) -> StandIn:
    """What stands for the GPU: CPU tensors are its tensors."""
    driver = StandIn(**options)
    stand_in_for_a_gpu(monkeypatch, encoding, driver)
    return driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return stand_in(monkeypatch, seed=1)


def hash_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(content_hash(bits(tensor))), dtype=torch.uint8)[None]


def slot_nbytes(tensor: torch.Tensor) -> int:
    """What encode_into says that is always enough."""
    bound = compress_bound(dtype=NAMES[tensor.dtype], shape=tuple(tensor.shape), profile="fast")
    return bound + 8 * -(-tensor.numel() // 32768)


def frames_of(
    driver: StandIn, pairs: Sequence[Pair], slot_sizes: Sequence[int] | None = None, **options: Any
) -> list[bytes]:
    """Frames of tensors relative to their bases, which are right; an empty one for what does not fit."""
    tensors, bases = [new for _, new in pairs], [old for old, _ in pairs]
    slots = [
        torch.full((nbytes + BEHIND,), 77, dtype=torch.uint8)[:nbytes]
        for nbytes in slot_sizes or map(slot_nbytes, tensors)
    ]
    sizes = torch.full((len(tensors),), -1, dtype=torch.int64)
    driver.forget()
    driver.watch(*tensors, *bases, *(each for each in options.values() if isinstance(each, torch.Tensor)))
    driver.watch(*slots, writable=True)
    encode_into(tensors, slots, sizes, profile="fast", base=bases, **options)
    frames = [bytes(slot[:size].numpy()) for slot, size in zip(slots, sizes.tolist(), strict=True)]
    for (old, new), slot, frame in zip(pairs, slots, frames, strict=True):
        behind = slot.as_strided((BEHIND,), (1,), slot.storage_offset() + slot.numel())
        assert (behind == 77).all(), "nothing is written behind a slot"
        if frame:
            check(frame, old, new)
    return frames


def check(frame: bytes, old: torch.Tensor, new: torch.Tensor) -> None:
    info = frame_info(frame)
    assert info.shape == tuple(new.shape)
    assert info.frame_nbytes == len(frame)
    assert tensorwire.decompress(frame, base=bits(old), framework="bytes") == bits(new)
    assert decode(frame, bits(old)).data == bits(new)
    assert (info.content_hash, info.base_hash) == (content_hash(bits(new)), content_hash(bits(old)))


def words_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.frombuffer(bits(tensor), np.uint16 if tensor.itemsize == 2 else np.uint8).copy()


def moved(
    old: torch.Tensor, share: float, steps: Callable[[np.random.Generator, int], Any], seed: int = 3
) -> torch.Tensor:
    """The tensor with so many of its words moved by as many steps, as bits."""
    draw, words = np.random.default_rng(seed), words_of(old)
    changed = draw.random(words.size) < share
    words[changed] = (words[changed].astype(np.int64) + steps(draw, int(changed.sum()))).astype(words.dtype)
    return torch.from_numpy(words.view(np.uint8)).view(old.dtype).reshape(old.shape)


def small(draw: np.random.Generator, count: int) -> Any:
    return draw.integers(1, 7, count) * draw.choice([-1, 1], count)


def any_size(draw: np.random.Generator, count: int) -> Any:
    return draw.integers(0, 1 << 16, count)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 0.02) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)


def synthetic(words: int, rate: float) -> Pair:
    old, new = synthetic_pair(words, rate)
    return torch.from_numpy(old).view(torch.bfloat16), torch.from_numpy(new).view(torch.bfloat16)


def pair(old: torch.Tensor, share: float = 0.02, steps: Callable[..., Any] = small) -> Pair:
    return old, moved(old, share, steps)


def one_changed(numel: int, place: int) -> Pair:
    old = normal(numel)
    new = old.clone()
    new[place] = 3.0
    return old, new


def pieces_changed() -> Pair:
    """Blocks that are same, sparse, dense, stored, same."""
    old = normal(5 * 32768 - 5000)
    new = old.clone()
    new[32768 + 100 : 32768 + 900] += 1e-3
    new[70000:90000] = 7.0
    new[3 * 32768 : 4 * 32768] = moved(old[3 * 32768 : 4 * 32768], 1.0, any_size)
    return old, new


def longest_codes() -> Pair:
    """As many words changed as kind sparse may have, in one class, and no order suits the sizes of their steps."""
    words = np.full(32768, 0x3FC0, np.int64)
    words[::8] += np.where(np.arange(4096) % 4, 32760, 4)
    new = torch.from_numpy(words.astype(np.uint16).view(np.int16)).view(torch.bfloat16)
    return torch.full((32768,), 1.5, dtype=torch.bfloat16), new


def rare_in_front() -> Pair:
    """Symbols that are rare stand together, so that the last ones of the stream take all units."""
    words, draw = np.full(32768, 0x3FC0, np.int64), np.random.default_rng(9)
    words[:8000] += draw.integers(-(1 << 12), 1 << 12, 8000)
    new = torch.from_numpy(words.astype(np.uint16).view(np.int16)).view(torch.bfloat16)
    return torch.full((32768,), 1.5, dtype=torch.bfloat16), new


CASES: dict[str, Callable[[], Pair]] = {
    "nothing": lambda: pair(normal(0, 3)),
    "a number": lambda: pair(normal(), 1.0),
    "one element": lambda: pair(normal(1), 1.0),
    "few words": lambda: pair(normal(77), 0.1),
    "rows": lambda: pair(normal(300, 257)),
    "a word behind a block": lambda: pair(normal(32769)),
    "the first word": lambda: one_changed(40000, 0),
    "the last word": lambda: one_changed(40003, -1),
    "pieces": pieces_changed,
    "one value": lambda: pair(torch.full((40000,), 1.5, dtype=torch.bfloat16)),
    "NaN": lambda: pair(torch.full((3, 7000), float("nan"), dtype=torch.bfloat16)),
    "steps of any size": lambda: pair(normal(40001), 0.05, any_size),
    "the largest steps": lambda: pair(normal(20000), 0.1, lambda draw, count: np.full(count, 1 << 15)),
    "the longest codes": longest_codes,
    "all by one step": lambda: pair(normal(300, 200), 1.0, lambda draw, count: np.ones(count, int)),
    "rare symbols in front": rare_in_front,
    "many": lambda: pair(normal(3, 12001), 0.3),
    "many, of any size": lambda: pair(normal(33000), 0.2, any_size),
    "many of few": lambda: pair(normal(800), 0.5),
    "many in F8_E5M2": lambda: pair(normal(40001, dtype=torch.float8_e5m2), 0.6),
    "F16": lambda: pair(normal(257, 256, dtype=torch.float16)),
    "F8_E4M3": lambda: pair(normal(70001, dtype=torch.float8_e4m3fn, scale=1.0)),
    "F8_E5M2": lambda: pair(normal(3, 11, 1300, dtype=torch.float8_e5m2), 0.05),
}


DENSE = "the longest codes"
"""The host makes blocks of kind dense of these, though few words changed, and smaller frames."""


def test_frames_of_a_batch(driver: StandIn) -> None:
    """All together in two launches for each dtype, and one."""
    pairs = [make() for make in CASES.values()]
    frames = frames_of(driver, pairs)
    assert len(driver.launches) == 2 * len(NAMES) + 1
    for name, (old, new), frame in zip(CASES, pairs, frames, strict=True):
        host = len(tensorwire.compress(new, base=old, profile="fast"))
        assert len(frame) <= 1.06 * host + 64 or name == DENSE, name
        assert FrameReader(frame).extensions.get(1) == b"\2\0\0\0", name


def test_kinds_of_blocks(driver: StandIn) -> None:
    (frame,) = frames_of(driver, [pieces_changed()])
    reader = FrameReader(frame)
    assert [block.kind for block in reader.block_infos(frame[reader.info.header_nbytes :])] == [
        "same",
        "sparse",
        "dense",
        "stored",
        "same",
    ]


def test_no_access_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accesses and races are checked."""
    driver = stand_in(monkeypatch, checked=True, seed=1)
    frames_of(
        driver,
        [
            *(synthetic(33001, 2e-5), pair(normal(1003), 0.1, any_size), pair(normal(40), 0.0), longest_codes()),
            *(pair(normal(33001), 0.3), pair(normal(1003), 0.9, any_size)),
        ],
    )


@pytest.mark.parametrize(
    "dtype", [torch.float8_e5m2, *(pytest.param(each, marks=pytest.mark.slow) for each in NAMES)], ids=str
)
def test_no_access_is_wrong_in_other_dtypes(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    driver = stand_in(monkeypatch, checked=True, seed=2)
    frames_of(driver, [pair(normal(3001, dtype=dtype), 0.1, any_size), pair(normal(33000, dtype=dtype), 0.01)])


@pytest.mark.parametrize("rate", [1e-6, 5e-6, 2e-5])
def test_frames_are_as_small_as_those_of_the_host(driver: StandIn, rate: float) -> None:
    old, new = synthetic(1 << 17, rate)
    (frame,) = frames_of(driver, [(old, new)])
    assert len(frame) <= WITHIN * len(tensorwire.compress(new, base=old, profile="fast"))


@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_frames_of_many_changes_are_as_small_as_those_of_the_host(
    driver: StandIn, dtype: torch.dtype, share: float
) -> None:
    old, new = pair(normal(1 << 16, dtype=dtype, scale=0.02 if dtype == torch.bfloat16 else 1.0), share)
    (frame,) = frames_of(driver, [(old, new)])
    assert len(frame) <= 1.01 * len(tensorwire.compress(new, base=old, profile="fast"))


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["1e-6", "5e-6", "2e-5"])
def test_frames_of_trained_pairs_are_as_small_as_those_of_the_host(driver: StandIn, rate: float) -> None:
    pairs = pytest.importorskip("benchmarks.deltas.pairs")
    old, new = (
        torch.from_numpy(each[: 1 << 20].copy()).view(torch.bfloat16) for each in pairs.joined(pairs.load(rate))
    )
    (frame,) = frames_of(driver, [(old, new)])
    assert len(frame) <= WITHIN * len(tensorwire.compress(new, base=old, profile="fast"))


@pytest.mark.slow
def test_drawn_pairs(driver: StandIn) -> None:
    draw = np.random.default_rng(5)
    for number in range(250):
        pairs = []
        for dtype in NAMES:
            numel = int(draw.choice([int(draw.integers(1, 300)), int(draw.integers(300, 9000)), 32768, 40000]))
            share, steps = draw.choice([0.0, 0.001, 0.02, 0.1, 0.125, 0.3, 1.0]), draw.choice([small, any_size])
            old = normal(numel, dtype=dtype, scale=draw.choice([0.0, 0.02, 30.0]))
            pairs.append((old, moved(old, share, steps, number)))
        frames_of(driver, pairs)


def test_what_did_not_change_has_no_index(driver: StandIn) -> None:
    """Whether the base is a copy, the tensor itself, or one that overlaps it."""
    tensor, same = normal(5, 20000), torch.ones(40008, dtype=torch.bfloat16)
    pairs = [(tensor.clone(), tensor), (tensor, tensor), (same[8:], same[:-8])]
    for (_, new), frame in zip(pairs, frames_of(driver, pairs, [200, 160, 160]), strict=True):
        info = frame_info(frame)
        assert info.content_hash == info.base_hash
        assert (info.data_nbytes, info.frame_nbytes) == (0, 160)
        assert info.shape == tuple(new.shape)


def test_a_slot_may_be_too_small(driver: StandIn) -> None:
    pairs = [synthetic(70000, 5e-6), pieces_changed(), (normal(9), normal(9)), synthetic(70000, 5e-6)]
    whole = [len(frame) for frame in frames_of(driver, pairs)]
    found = frames_of(driver, pairs, [whole[0] - 1, whole[1], 0, 100])
    assert [len(frame) for frame in found] == [0, whole[1], 0, 0]


def test_known_hashes_are_taken(driver: StandIn) -> None:
    pairs = [synthetic(40000, 5e-6), pair(normal(77), 0.1), pair(normal(7), 0.0)]
    old, new = (torch.cat([hash_of(each) for each in side]) for side in zip(*pairs, strict=True))
    whole = frames_of(driver, pairs)
    items = [launch.grid[0] for launch in driver.launches if "write_steps" in launch.kernel.expression]
    assert frames_of(driver, pairs, hashes=new, base_hashes=old) == whole
    assert frames_of(driver, pairs, base_hashes=old) == whole
    assert items == [4 + 2 * 3]
    grids = [launch.grid[0] for launch in driver.launches if "write_steps" in launch.kernel.expression]
    assert grids == [10, 4, 7]


def test_the_host_does_the_same() -> None:
    old, new = synthetic(70000, 5e-6)
    sizes, slot = torch.zeros(2, dtype=torch.int64), torch.empty(100_000, dtype=torch.uint8)
    encode_into([new, new], [slot, slot[:0].clone()], sizes, profile="fast", base=[old, old])
    assert sizes.tolist() == [len(tensorwire.compress(new, base=old, profile="fast")), 0]
    check(bytes(slot[: sizes[0]].numpy()), old, new)


WRONG: list[tuple[str, type[Exception], str, Callable[[torch.Tensor], dict[str, Any]]]] = [
    ("fewer bases", ValueError, "expected 2 bases, one for each tensor, got 1", lambda x: {"base": [x]}),
    ("another dtype", ValueError, "base 1 of dtype torch.bfloat16, as its tensor has, got torch.float16",
     lambda x: {"base": [x, x.to(torch.float16)]}),
    ("another size", ValueError, r"base 0 of shape torch.Size\(\[50\]\)", lambda x: {"base": [x[1:], x]}),
    ("another device", ValueError, "base 1 of device cpu", lambda x: {"base": [x, x.to("meta")]}),
    ("another profile", ValueError, "'fast' for relative ones, got 'resident' with a base",
     lambda x: {"base": [x, x], "profile": "resident"}),
    ("no base", ValueError, "leave base_hashes out",
     lambda x: {"profile": "resident", "base_hashes": torch.zeros(2, 16, dtype=torch.uint8)}),
    ("hashes of another size", ValueError, "expected base_hashes as a contiguous tensor",
     lambda x: {"base": [x, x], "base_hashes": torch.zeros(1, 16, dtype=torch.uint8)}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "options"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_bad_input_is_refused_before_any_launch(
    driver: StandIn, error: type[Exception], message: str, options: Callable[[torch.Tensor], dict[str, Any]]
) -> None:
    tensor, sizes = normal(50), torch.zeros(2, dtype=torch.int64)
    slots = [torch.empty(999, dtype=torch.uint8) for _ in range(2)]
    with pytest.raises(error, match=message):
        encode_into([tensor, tensor], slots, sizes, **{"profile": "fast", **options(tensor)})
    assert not driver.launches


def test_other_dtypes_are_refused(driver: StandIn) -> None:
    tensor, slot, sizes = torch.zeros(50), torch.empty(999, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(UnsupportedTensorError, match=r"got one of torch\.float32"):
        encode_into([tensor], [slot], sizes, profile="fast", base=[tensor])
    assert not driver.launches
