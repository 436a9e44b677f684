"""The content hashes of tensors, where the tensors are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ....codec import LEAF_NBYTES, byte_view, content_hash
from ..cuda_kernels import PackedKernel
from ..driver import Kernel
from ..nvidia import required_driver
from .launch_data import LaunchData
from .operands import placed

_THREADS, _SHARED_NBYTES = 256, 8192  # content_hashes.cuh


def content_hashes(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The content hash of each tensor (docs/format.md).

    On a CUDA device kernels compute them, on the current stream, in two launches for all tensors together; the host
    waits for nothing. One that is not contiguous, or not at a multiple of 16 bytes there, is copied first.

    Args:
        tensors: all on one device, of any dtype and shape; one or more.

    Returns:
        uint8, (count, 16), on that device.

    Raises:
        ValueError: they are on several devices, or there is none.
        RuntimeError: the device has no NVRTC.
    """
    if len({each.device for each in tensors}) != 1:
        raise ValueError(
            f"expected tensors on one device, got {len(tensors)} on {sorted({str(t.device) for t in tensors})}"
        )
    device = tensors[0].device
    driver = required_driver(device)
    given = [each.detach().contiguous() for each in tensors]
    if driver is None:
        found = [bytes.fromhex(content_hash(byte_view(each).data)) for each in given]
        return torch.frombuffer(bytearray(b"".join(found)), dtype=torch.uint8).view(-1, 16)
    given = [placed(each) for each in given]
    leaves = np.array([-(-each.nbytes // LEAF_NBYTES) for each in given], np.int64)
    first = np.cumsum(1 + 2 * leaves) - 1 - 2 * leaves
    table = [(each.data_ptr(), each.nbytes, message) for each, message in zip(given, first, strict=True)]
    items = np.empty((int(leaves.sum()), 2), np.uint32)
    items[:, 0] = np.repeat(np.arange(len(given)), leaves)
    items[:, 1] = np.arange(len(items)) - np.repeat(np.cumsum(leaves) - leaves, leaves)
    parts = [np.array(table, np.int64).ravel(), items.view(np.int64).ravel()]
    tensors_there, items_there = LaunchData(parts, device).parts
    messages = torch.empty(len(given) + 2 * len(items), dtype=torch.int64, device=device)
    hashes = torch.empty((len(given), 16), dtype=torch.uint8, device=device)
    stream = driver.stream()
    for name, count, arguments in (
        ("hash_leaves", len(items), {"tensors": tensors_there, "items": items_there, "messages": messages}),
        ("hash_messages", len(given), {"tensors": tensors_there, "messages": messages, "hashes": hashes}),
    ):
        if count:
            kernel = PackedKernel(driver, Kernel("content_hashes.cuh", name), _THREADS, _SHARED_NBYTES, **arguments)
            kernel.launch(stream, count)
    return hashes
