"""Content hashes of tensors: kernels on the CPU's memory, and the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reference.tensorwire_reference.hashes import content_hash  # noqa: E402
from tensorwire.torch.device.writing import hashes  # noqa: E402

from .stand_in import StandIn, stand_in_for_a_gpu  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = (0, 1, 7, 8, 255, 256, 1025, 131_072, 131_073, 300_001)


def tensors(sizes: Sequence[int]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.random.default_rng(size).integers(0, 256, size, np.uint8)) for size in sizes]


@pytest.mark.parametrize(("checked", "sizes"), [(True, SIZES[:7]), (False, SIZES)])
def test_hashes_of_a_batch(checked: bool, sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of all sizes together, in two launches; and by the core."""
    given = tensors(sizes)
    expected = [content_hash(each.numpy().tobytes()) for each in given]
    assert [row.tobytes() for row in hashes.content_hashes(given).numpy()] == expected
    driver = StandIn(checked=checked, seed=1)
    driver.watch(*given)
    stand_in_for_a_gpu(monkeypatch, hashes, driver)
    assert [row.tobytes() for row in hashes.content_hashes(given).numpy()] == expected
    assert len(driver.launches) == 2


def test_tensors_that_lie_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not contiguous, at an odd address, or of no element alone."""
    driver = StandIn(seed=1)
    stand_in_for_a_gpu(monkeypatch, hashes, driver)
    words = torch.arange(600, dtype=torch.int32).view(20, 30)
    given = [words.T, words.flatten()[1:], torch.empty(0, 3), torch.tensor(1.5)]
    found = hashes.content_hashes(given)
    assert [row.tobytes() for row in found.numpy()] == [content_hash(each.numpy().tobytes()) for each in given]


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="expected tensors on one device, got 2"):
        hashes.content_hashes([torch.empty(1), torch.empty(1, device="meta")])
    with pytest.raises(ValueError, match="expected tensors on one device, got 0"):
        hashes.content_hashes([])
