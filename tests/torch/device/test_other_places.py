"""A frame that was opened in one place is decoded and multiplied in another, to which its bytes come later."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from reference.tensorwire_reference import Constant, Stored  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.device.frame import DeviceFrame  # noqa: E402

from .stand_in import StandIn  # noqa: E402
from .summed import same_bits, sums_of  # noqa: E402
from .weights import frame_of, numbers, watch, weight  # noqa: E402


@pytest.mark.parametrize("profile", ["fast", "resident", "enec", "compact"])
def test_decoded_in_another_place(profile: str) -> None:
    dense = weight(300, 512, 0.01)
    frame = CompressedTensor.from_dense(dense, profile).frame.clone()
    first, place = DeviceFrame(frame, driver=StandIn(checked=True)), torch.zeros_like(frame)
    twin = first.at(place)
    place.copy_(frame)
    frame.zero_()
    for first_element, shape in ((0, (300, 512)), (7 * 512, (100, 512))):
        out = torch.empty(shape, dtype=torch.bfloat16)
        twin.decode(first_element, out)
        assert same_bits(out, dense.view(-1)[first_element : first_element + out.numel()].view(shape))
    if twin.rows is not None:
        ids, out = torch.tensor([299, 0, 7]), torch.empty(3, 512, dtype=torch.bfloat16)
        twin.rows(ids, out)
        assert same_bits(out, dense[ids])


def test_multiplied_in_another_place() -> None:
    """Blocks of other kinds were coded anew when the frame was opened: these stay where they are."""
    dense, x = weight(96, 512, 0.02), numbers(5, 512)
    dense[8:16] = 1.5
    frame = frame_of(dense, 4, {1: Stored(), 2: Constant(), 3: Constant()})
    driver = StandIn(checked=True)
    first, place = DeviceFrame(frame, driver=driver), torch.zeros_like(frame)
    assert first.product is not None
    twin = first.at(place)
    product = twin.product
    assert product is not None
    place.copy_(frame)
    frame.zero_()
    watch(driver, product)
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


def test_another_frame_is_refused() -> None:
    frame = CompressedTensor.from_dense(weight(300, 512)).frame.clone()
    opened = DeviceFrame(frame, driver=StandIn())
    with pytest.raises(ValueError, match="at a multiple of 16"):
        opened.at(torch.zeros(frame.numel() + 16, dtype=torch.uint8)[8:-8])
    with pytest.raises(ValueError, match=f"expected {frame.numel()} bytes"):
        opened.at(frame[:-16])
