"""Relative frames applied in place by kernels, and by the core where tensors are on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import tensorwire
from tensorwire.codec import torch_name
from tensorwire.torch.device.writing.applying import Batch, apply_
from tensorwire.torch.device.writing.status import Status
from tests.support.conformance_relative import base_of, step, steps_of
from tests.support.golden import FOLDER, base_of as golden_base, frame_of, manifest

from .opened import bytes_tensor
from .stand_in import StandIn, missing

if TYPE_CHECKING:
    from tensorwire.codec import Profile

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def applied(
    pairs: Sequence[tuple[bytes, bytes, str]], *, verify: bool = True, checked: bool = False, seed: int = 1
) -> tuple[list[bytes], list[int]]:
    """What kernels make of bases with frames, and their statuses: (frame, base, dtype) each."""
    driver = StandIn(checked=checked, seed=seed)
    frames = [bytes_tensor(frame) for frame, _, _ in pairs]
    tensors = [bytes_tensor(base).view(getattr(torch, str(torch_name(dtype)))) for _, base, dtype in pairs]
    status = torch.full((len(pairs),), -1, dtype=torch.int32)
    batch = Batch(driver, frames, tensors, status, verify=verify)
    if checked:
        driver.watch(*frames)
        driver.watch(*tensors, writable=True)
    batch.apply()
    return [each.view(torch.uint8).numpy().tobytes() for each in tensors], status.tolist()


def pair_of(
    dtype: str, n: int, share: float, largest: int = 3, profile: Profile = "fast"
) -> tuple[bytes, bytes, bytes]:
    """Frame, base and content of `n` words, of which about `share` changed."""
    base = base_of(dtype, n)
    data = step(base, dtype, steps_of(n, f"applied {dtype} {n} {share}", share, largest=largest))
    return bytes(tensorwire.compress(data, dtype=dtype, base=base, profile=profile)), base, data


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("dtype", "n", "share", "largest"),
    [("BF16", 3000, 0.02, 3), ("BF16", 70_001, 0.01, 40), ("F16", 3001, 0.02, 5), ("F8_E4M3", 5003, 0.02, 3)],
)
def test_applied(dtype: str, n: int, share: float, largest: int, verify: bool) -> None:
    frame, base, data = pair_of(dtype, n, share, largest)
    found, status = applied([(frame, base, dtype)], verify=verify, checked=n < 10_000)
    assert status == [Status.DONE]
    assert found == [data]


GOLDENS = [entry for entry in manifest("frames") if entry["base"] and torch_name(entry["dtype"])]
KINDS = {"same", "stored", "constant"}


def applies(entry: dict) -> bool:
    """Whether kernels apply a golden, or find nothing to do."""
    if entry["content_hash"] == entry["base"]:
        return True
    kinds = {coding.split("/")[0].split("(")[0].split("+")[0] for coding in entry["codings"]}
    return kinds <= (KINDS | {"sparse"} if entry["layout"][0] <= 2 else KINDS)


def test_goldens() -> None:
    """Every valid one is applied, or left to the host and its base left as it was."""
    pairs = [(frame_of(entry), golden_base(entry), entry["dtype"]) for entry in GOLDENS]
    found, status = applied(pairs)
    for entry, (frame, base, _), result, number in zip(GOLDENS, pairs, found, status, strict=True):
        assert number == (Status.DONE if applies(entry) else Status.HOST_ONLY), entry["name"]
        expected = base
        if number == Status.DONE:
            expected = tensorwire.decompress(frame, base=base, framework="bytes")
        assert result == expected, entry["name"]
