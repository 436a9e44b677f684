"""Frames that are relative to a base, as Python has them: what fits, in place, twice, wrong bases, chains."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorwire
from tensorwire import BaseMismatchError, CorruptDataError, codec
from tests.support import registry

DTYPES = ["BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "I8", "I64", "BOOL", "F4", "X_OTHER"]
PROFILES = ["fast", "compact", "enec"]


def pair(dtype: str, numel: int, share: float = 0.01) -> tuple[bytes, bytes]:
    """Random bytes of a dtype, and the same with some of them changed."""
    generator = registry.rng(f"{dtype} {numel}")
    nbytes = -(-numel * (codec.dtype_bits(dtype) or 8) // 8)
    old = np.frombuffer(generator.bytes(nbytes), np.uint8)
    new = old.copy()
    new[generator.random(nbytes) < share] += 1
    return old.tobytes(), new.tobytes()


def training_step(numel: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Synthetic: BF16 weights and what a small update makes of them; about one in a hundred changes."""
    generator = np.random.default_rng(seed)
    master = generator.standard_normal(numel).astype(np.float32) * 0.02
    update = generator.standard_normal(numel).astype(np.float32) * 1e-6
    return master.astype(ml_dtypes.bfloat16), (master + update).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back(dtype: str, profile: Any) -> None:
    for shape in [(0,), (1,), (3, 5), (300, 256), (7, 33_333)]:
        check_there_and_back(dtype, shape, profile)


def check_there_and_back(dtype: str, shape: tuple[int, ...], profile: Any) -> None:
    old, new = pair(dtype, int(np.prod(shape)))
    frame = tensorwire.compress(new, dtype=dtype, shape=shape, base=old, profile=profile)
    info = tensorwire.frame_info(frame)
    assert (info.dtype, info.shape, info.profile) == (dtype, shape, profile)
    assert (info.base_hash, info.content_hash) == (codec.content_hash(old), codec.content_hash(new))
    assert tensorwire.decompress(frame, base=old, framework="bytes") == new
    assert tensorwire.decompress(frame, base=old, framework="bytes", verify=False, threads=1) == new
    memory = bytearray(old)
    assert tensorwire.decompress(frame, base=memory, out=memory) is memory
    assert memory == new
    memory = bytearray(old)
    tensorwire.decompress(frame, base=memory, out=memory, verify=False)
    assert memory == new


def test_a_plain_frame_has_no_base() -> None:
    frame = tensorwire.compress(b"weights")
    assert tensorwire.frame_info(frame).base_hash is None
    with pytest.raises(ValueError, match="expected no base, the frame is not relative to one; leave base out"):
        tensorwire.decompress(frame, base=b"weights")


def test_arrays_of_every_framework_are_bases() -> None:
    torch = pytest.importorskip("torch")
    old, new = training_step(10_000)
    frame = tensorwire.compress(new, base=old)
    tensor = torch.from_numpy(old.view(np.int16).copy()).view(torch.bfloat16)
    assert tensorwire.compress(torch.from_numpy(new.view(np.int16)).view(torch.bfloat16), base=tensor) == frame
    assert tensorwire.decompress(frame, base=tensor).tobytes() == new.tobytes()
    assert tensorwire.compress(new.tobytes(), dtype="BF16", base=old.tobytes()) == frame
    result = tensorwire.decompress(frame, base=tensor, out=tensor)
    assert result is tensor
    assert tensor.view(torch.int16).numpy().tobytes() == new.tobytes()
    out = bytearray(tensorwire.compress_bound(new))
    assert tensorwire.compress(new, base=old, out=out) == frame


@pytest.mark.parametrize("numel", [0, 1, 1000, 1 << 20])
def test_a_frame_that_changes_nothing_is_a_header(numel: int) -> None:
    content = np.frombuffer(registry.rng("same").bytes(4 * numel), np.uint32)
    frame = tensorwire.compress(content, base=content.copy())
    assert len(frame) <= 256
    assert tensorwire.decompress(frame, base=content).tobytes() == content.tobytes()
    memory = content.copy()
    tensorwire.decompress(frame, base=memory, out=memory)
    assert memory.tobytes() == content.tobytes()


@pytest.mark.parametrize(("profile", "factor"), [("fast", 8), ("compact", 12), ("enec", 1)])
def test_a_step_is_small(profile: Any, factor: int) -> None:
    """A few percent of the words change, by one unit in the last place."""
    old, new = training_step(200_000)
    share = float((old.view(np.uint16) != new.view(np.uint16)).mean())
    assert 0.005 < share < 0.05
    frame = tensorwire.compress(new, base=old, profile=profile)
    assert factor * len(frame) < len(tensorwire.compress(new, profile=profile))


def test_one_delta_is_composed_to_itself() -> None:
    old, new = training_step(300_000)
    frame = tensorwire.compress(new, base=old)
    assert tensorwire.compose(old, frame) == frame


# Bases that do not fit ----------------------------------------------------------------------------------------------


def test_a_base_of_another_dtype_or_size_is_no_base() -> None:
    new = np.ones(100, np.float32)
    with pytest.raises(ValueError, match="expected a base of dtype F32, got I32"):
        tensorwire.compress(new, base=np.ones(100, np.int32))
    with pytest.raises(ValueError, match="expected a base of 400 bytes, as the tensor has, got 396"):
        tensorwire.compress(new, base=new[1:])
    assert tensorwire.compress(new, base=new.reshape(10, 10)) == tensorwire.compress(new, base=new)


def wrong(frame: bytes, base: Any, **options: Any) -> BaseMismatchError:
    with pytest.raises(BaseMismatchError) as caught:
        tensorwire.decompress(frame, base=base, **options)
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, tensorwire.FormatError)
    return caught.value


@pytest.mark.parametrize("verify", [True, False])
def test_a_base_that_is_missing_or_short(verify: bool) -> None:
    old, new = training_step(1000)
    frame = tensorwire.compress(new, base=old)
    text = str(wrong(frame, None, verify=verify))
    assert f"2000 bytes with content hash {codec.content_hash(old)}" in text
    assert "pass base=" in text
    error = str(wrong(frame, old[1:], verify=verify))
    assert "expected a base of 2000 bytes" in error
    assert "got 1998 bytes" in error


def test_a_wrong_base_writes_nothing() -> None:
    old, new = training_step(1000)
    frame = tensorwire.compress(new, base=old)
    other = old.copy()
    other.view(np.uint16)[999] ^= 1
    memory, out = other.copy(), bytearray(2000)
    for target in (None, out, memory):
        text = str(wrong(frame, memory, out=target))
        assert codec.content_hash(old) in text
        assert codec.content_hash(other) in text
    assert memory.tobytes() == other.tobytes()
    assert out == bytes(2000)
    with pytest.raises(BaseMismatchError):
        tensorwire.decompress_range(frame, 0, 2, base=other)


def test_a_frame_is_applied_once() -> None:
    old, new = training_step(1000)
    frame = tensorwire.compress(new, base=old)
    memory = old.copy()
    for _ in range(3):
        tensorwire.decompress(frame, base=memory, out=memory)
        assert memory.tobytes() == new.tobytes()
    assert "was applied already" in str(wrong(frame, new))


def test_a_damaged_frame_leaves_the_base_as_it_is() -> None:
    """One whose last block is damaged, so that others would have been decoded before it is found."""
    old, new = training_step(500_000)
    frame = bytearray(tensorwire.compress(new, base=old))
    frame[-1] ^= 1
    memory = old.copy()
    with pytest.raises(CorruptDataError, match="checksum"):
        tensorwire.decompress(frame, base=memory, out=memory, threads=1)
    assert memory.tobytes() == old.tobytes()


def test_a_base_that_changes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a block that is the base's, so that nothing else could tell."""
    old, _ = training_step(1_000_000)
    new, base = old.copy(), old.copy()
    new.view(np.uint16)[0] ^= 1
    frame = tensorwire.compress(new, base=old)
    decode = codec.FrameReader.decode_and_hash

    def late(self: Any, *arguments: Any, **options: Any) -> tuple[str, str | None]:
        base.view(np.uint16)[-1] ^= 1
        return decode(self, *arguments, **options)

    monkeypatch.setattr(codec.FrameReader, "decode_and_hash", late)
    with pytest.raises(CorruptDataError, match="the base changed while it was read"):
        tensorwire.decompress(frame, base=base, out=bytearray(old.nbytes))
    base.view(np.uint16)[-1] = old.view(np.uint16)[-1]
    with pytest.raises(BaseMismatchError):  # without a caller's memory the base is hashed while it is decoded against
        tensorwire.decompress(frame, base=base)


def test_the_error_can_be_pickled_and_copied() -> None:
    old, new = training_step(1000)
    error = wrong(tensorwire.compress(new, base=old), new)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other)) == (BaseMismatchError, str(error))


# Ranges -------------------------------------------------------------------------------------------------------------


def test_a_range_as_long_as_the_tensor_lies_within_it_too() -> None:
    old, new = training_step(1000)
    frame = tensorwire.compress(new, base=old)
    with pytest.raises(ValueError, match=r"expected a range within \[0, 2000\)"):
        tensorwire.decompress_range(frame, 2, 2002, base=old, out=bytearray(2000))


def test_ranges_need_the_same_blocks_of_the_base() -> None:
    old, new = training_step(1_000_000)
    frame = tensorwire.compress(new, base=old)
    content = new.tobytes()
    reader = codec.FrameReader(frame)
    size = reader.block_nbytes
    assert 2 * size < len(content)
    ranges = [(0, 0), (0, 2), (1, 3), (size - 1, size + 1), (size, 2 * size), (1_999_990, 2_000_000)]
    for start, stop in ranges:
        assert tensorwire.decompress_range(frame, start, stop, base=old) == content[start:stop]
        lo, hi = reader.base_range(start, stop)
        assert lo <= start <= stop <= hi
        assert hi - lo < stop - start + 2 * size
        first, last = reader.data_range(start, stop)
        out = bytearray(stop - start)
        data = frame[reader.info.header_nbytes :][first:last]
        reader.decode(data, out, start=start, stop=stop, data_offset=first, base=old.tobytes()[lo:hi], base_offset=lo)
        assert out == content[start:stop]
    memory = memoryview(bytearray(old.tobytes()))
    for start in range(0, len(content), size):  # in place, block by block
        block = memory[start : start + size]
        first, last = reader.data_range(start, start + len(block))
        data, options = frame[reader.info.header_nbytes :][first:last], {"base": block, "base_offset": start}
        reader.decode(data, block, start=start, stop=start + len(block), data_offset=first, **options)
    assert memory == content


# Chains -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps() -> list[np.ndarray]:
    first = training_step(5000)[0]
    generator = np.random.default_rng(1)
    found = [first]
    for _ in range(4):
        new = found[-1].copy()
        new.view(np.uint16)[generator.integers(0, 5000, 50)] += 1
        found.append(new)
    return found


@pytest.fixture(scope="module")
def deltas(steps: list[np.ndarray]) -> list[bytes]:
    return [tensorwire.compress(new, base=old) for old, new in itertools.pairwise(steps)]


def test_compose(steps: list[np.ndarray], deltas: list[bytes]) -> None:
    before = steps[0].tobytes()
    for count in range(1, 5):
        frame = tensorwire.compose(steps[0], *deltas[:count])
        assert frame == tensorwire.compress(steps[count], base=steps[0])
    assert tensorwire.frame_info(tensorwire.compose(steps[0], *deltas, profile="compact")).profile == "compact"
    assert steps[0].tobytes() == before


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ((0, 2), "delta 2 needs .* one between them is missing"),
        ((1, 2), "delta 1 needs .* the base has .* one between them is missing"),
        ((1, 0), "delta 1 needs .* out of order"),
        ((0, 2, 1), "delta 2 needs .* what delta 1 gives has .* out of order"),
        ((0, 1, 1), "delta 3 needs .* there twice"),
        ((0, 0), "delta 2 needs .* there twice"),
    ],
)
def test_chains_that_are_none(steps: list[np.ndarray], deltas: list[bytes], order: tuple[int, ...], text: str) -> None:
    with pytest.raises(BaseMismatchError, match=text):
        tensorwire.compose(steps[0], *(deltas[index] for index in order))


def test_what_compose_refuses(steps: list[np.ndarray], deltas: list[bytes]) -> None:
    with pytest.raises(ValueError, match="expected one relative frame or more"):
        tensorwire.compose(steps[0])
    with pytest.raises(TypeError, match="give each as an argument"):
        tensorwire.compose(steps[0], deltas)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delta 2 is a plain one"):
        tensorwire.compose(steps[0], deltas[0], tensorwire.compress(steps[1]))
    with pytest.raises(BaseMismatchError, match="the base has 9998"):
        tensorwire.compose(steps[0][1:], deltas[0])
    damaged = bytearray(deltas[1])
    damaged[-1] ^= 1
    with pytest.raises(CorruptDataError):
        tensorwire.compose(steps[0], deltas[0], damaged)
