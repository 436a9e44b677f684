"""H of docs/format.md on a device: by all threads of a block, at once or part by part, and by one warp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from reference.tensorwire_reference.hashes import h128
from tensorwire.torch.device.driver import Kernel

from .opened import bytes_tensor
from .stand_in import StandIn, packed

KERNELS = Path(__file__).parent / "kernels"
SIZES = (0, 1, 8, 13, 248, 255, 256, 264, 960, 1016, 1024, 1032, 1087, 1088, 1280, 2048, 2056, 4096, 5000, 5003, 131064)
LONG = (131072, 131080, 130048 + 131072, 300001)  # of more pieces than there is room for sums, but for the first


@pytest.mark.parametrize(("warps", "checked"), [(8, True), (4, False), (1, False)])
def test_hashes_are_those_of_the_format(warps: int, checked: bool) -> None:
    """Messages with zeros behind them, which hash_by_warp reads."""
    sizes = [size for size in (SIZES if checked else SIZES + LONG) if not checked or size <= 5003]
    room = -(-max(sizes) // 256) * 256
    data = np.zeros((len(sizes), room), np.uint8)
    for row, size in zip(data, sizes, strict=True):
        row[:size] = np.random.default_rng(size).integers(0, 256, size)
    shared_nbytes = max(128, -(-room // 1024)) * 64
    driver = StandIn(checked=checked, seed=1, headers=KERNELS)
    messages, out = bytes_tensor(data.ravel()), torch.zeros(6 * len(sizes), dtype=torch.int64)
    counts = torch.tensor(sizes, dtype=torch.int32)
    driver.watch(messages, counts, out)
    function = driver.function(Kernel("hashes.cuh", f"hashes<{warps}>"), shared_nbytes)
    function.launch((len(sizes), 1, 1), 32 * warps, shared_nbytes, 0, packed(messages, counts, room, out))
    for row, size, found in zip(data, sizes, out.numpy().reshape(-1, 3, 2), strict=True):
        for hash_ in found:
            assert hash_.tobytes() == h128(row[:size].tobytes()), size
