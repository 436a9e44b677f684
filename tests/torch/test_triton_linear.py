"""Products with compressed rows, in Triton's interpreter or on a device (tests/support/devices.py)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.2")

import tensorwire  # noqa: E402
from tensorwire.torch.device.fields import PRMT_IN_STEPS  # noqa: E402
from tensorwire.torch.device.linear import (  # noqa: E402
    DeviceLinear,
    DeviceWeight,
    can_multiply,
)
from tests.support.devices import DEVICE, INTERPRETED, on_device  # noqa: E402


def opened(weight: Any, profile: Any) -> DeviceWeight:
    return DeviceWeight(on_device(tensorwire.compress(weight, profile=profile)))


def product(frame: DeviceWeight, x: Any) -> Any:
    return DeviceLinear(frame).multiply(x.to(DEVICE)).cpu()


def weights(rows: int, columns: int) -> Any:
    """With a few values that no common exponent covers."""
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, columns, generator=generator) * 0.02
    weight[3, 7], weight[5, 100], weight[rows - 1, 3], weight[rows - 2, columns - 1] = 0, 30, 1e-30, -0.0
    weight[4, :12] = 1e-20
    return weight.to(torch.bfloat16)


@pytest.mark.parametrize("profile", ["resident", "fast", "enec"])
def test_products(profile: str) -> None:
    """Whole numbers have no rounding: a product is wrong if one word, its column or its row is."""
    weight = weights(22, 512)
    frame = opened(weight, profile)
    if INTERPRETED:
        frame.permutation = PRMT_IN_STEPS.value
    generator = torch.Generator().manual_seed(1)
    places = torch.randint(0, 512, (3,), generator=generator)
    one_hot = torch.nn.functional.one_hot(torch.cat([torch.tensor([7, 100, 3, 511, 11]), places]), 512).float()
    for some in one_hot.split(4):
        assert torch.equal(product(frame, some), some @ weight.T.float())


@pytest.mark.parametrize("profile", ["resident", "enec"])
def test_sums_are_those_of_float32(profile: str) -> None:
    """Eight lanes or more share a sum, and each addition is off by half a unit in the last place at most."""
    columns = 768
    weight = weights(8, columns).double()
    x = torch.randn(2, columns, generator=torch.Generator().manual_seed(2))
    sums = product(opened(weight.bfloat16(), profile), x)
    num_roundings = columns // 8 + 16  # those of a lane, and a few to add up lanes and what escapes
    bound = num_roundings * torch.finfo(torch.float32).eps / 2 * (x.double().abs() @ weight.abs().T)
    assert ((sums - x.double() @ weight.T).abs() <= bound).all()


def test_stored_rows() -> None:
    weight = torch.randint(-(2**15), 2**15, (4, 256), dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    weight = weight.nan_to_num(0, 0, 0)
    frame = opened(weight, "fast")
    eye = torch.eye(256)[:4]
    assert torch.equal(product(frame, eye), weight.float().T[:4])


@pytest.mark.parametrize("shape", [(64, 250), (64,), (2, 4, 256)], ids=str)
def test_frames_that_are_decoded_instead(shape: tuple[int, ...]) -> None:
    frame = opened(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16), "fast")
    assert not can_multiply(frame)
    assert frame.product is None
    with pytest.raises(ValueError, match="decode it instead"):
        DeviceLinear(frame)


def test_too_many_inputs() -> None:
    with pytest.raises(ValueError, match="up to 4 inputs of 256"):
        DeviceLinear(opened(weights(8, 256), "resident")).multiply(torch.zeros(5, 256))


@pytest.mark.parametrize("name", ["decode", "decode.out", "rows", "linear"])
def test_operators_of_devices(name: str) -> None:
    for key in ("CUDA", "PrivateUse1"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tensorwire::{name}", key)
