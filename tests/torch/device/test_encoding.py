"""Tensors to frames in slots: kernels on the CPU's memory, and the core. A frame is right if the host and the reference
decode it to the tensor, and its content hash is that of the host's frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from reference.tensorwire_reference import decode  # noqa: E402
from tensorwire import compress_bound, frame_info  # noqa: E402
from tensorwire.codec import FrameReader, content_hash  # noqa: E402
from tensorwire.torch.device import encode_into  # noqa: E402
from tensorwire.torch.device.writing import encoding  # noqa: E402
from tensorwire.torch.device.writing.kept import Kept  # noqa: E402

from .stand_in import StandIn  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BEHIND = 64
"""Bytes behind each slot that no kernel may touch."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What stands for the GPU: CPU tensors are its tensors."""
    driver = StandIn(seed=1)
    monkeypatch.setattr(encoding, "driver_of", lambda device: driver)
    monkeypatch.setattr(encoding, "_kept", Kept())
    return driver


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


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
