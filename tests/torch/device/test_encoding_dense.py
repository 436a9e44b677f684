"""Tensors and models on a device become compressed there: nothing but sizes comes to the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tensorwire

torch = pytest.importorskip("torch")

from tensorwire.torch import CompressedTensor, compress_module  # noqa: E402
from tensorwire.torch.device.frame import DeviceFrame  # noqa: E402
from tensorwire.torch.frames.open_frame import opened_there  # noqa: E402
from tests.support.disguised import DEVICE, Disguised, DisguisedDevice, plain  # noqa: E402

from .stand_in import StandIn  # noqa: E402
from .test_encoding import bits, normal, random_bits  # noqa: E402

TABLES_NBYTES = 1024
"""What comes from the host to open a frame: not the frame."""


@pytest.fixture
def device() -> Iterator[DisguisedDevice]:
    with DisguisedDevice(StandIn()) as found, torch.no_grad():
        yield found


def launched(device: DisguisedDevice) -> list[str]:
    assert isinstance(device._driver, StandIn)
    return [each.kernel.expression.partition("<")[0] for each in device._driver.launches]


@pytest.mark.parametrize("profile", ["resident", "fast"])
def test_a_tensor_is_compressed_where_it_is(device: DisguisedDevice, profile: Any) -> None:
    weight = normal(96, 512)
    there = weight.to(DEVICE)
    before = device.moved_nbytes
    compressed = CompressedTensor.from_dense(there, profile)
    frame = plain(compressed.frame)
    assert device.moved_nbytes - before < TABLES_NBYTES
    assert launched(device)[:3] == ["write_blocks", "write_others", "finish_frames"]
    assert compressed.device.type == DEVICE.type
    assert frame.numel() == frame.untyped_storage().nbytes() == tensorwire.frame_info(frame).frame_nbytes
    assert tensorwire.frame_info(frame).profile == profile
    assert tensorwire.decompress(frame, framework="bytes") == bits(weight)
    assert bits(plain(compressed.decode())) == bits(weight)


@pytest.mark.parametrize("profile", ["resident", "fast"])
def test_such_frames_are_multiplied_as_those_of_the_host_are(profile: Any) -> None:
    """Kernels take their blocks as rows."""
    with DisguisedDevice(StandIn()) as device, torch.no_grad():
        frame = plain(CompressedTensor.from_dense(normal(96, 512).to(DEVICE), profile).frame)
        driver = device._driver
    assert DeviceFrame(frame, driver=driver).product is not None


@pytest.mark.parametrize(
    ("tensor", "profile"),
    [(normal(40, 50).float(), "fast"), (normal(40, 50), "compact"), (normal(40, 50), "enec")],
    ids=["float32", "compact", "enec"],
)
def test_the_host_makes_the_others(device: DisguisedDevice, tensor: torch.Tensor, profile: Any) -> None:
    compressed = CompressedTensor.from_dense(tensor.to(DEVICE), profile)
    assert "write_blocks" not in launched(device)
    assert compressed.device.type == DEVICE.type
    assert bits(plain(compressed.decode())) == bits(tensor)


def test_odd_tensors(device: DisguisedDevice) -> None:
    """At other places and with other strides they are copied first."""
    base = normal(70, 33)
    for tensor in (base[1:], base.t(), base[:, 3:9], normal(), torch.empty(0, 5, dtype=torch.bfloat16)):
        compressed = CompressedTensor.from_dense(Disguised(tensor), "resident")
        assert bits(plain(compressed.decode())) == bits(tensor)


def test_a_module_is_compressed_where_it_is(device: DisguisedDevice) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 300), torch.nn.Linear(300, 40)).to(torch.bfloat16)
    with torch.no_grad():
        model[1].weight.view(torch.int16).copy_(random_bits(40 * 300).view(torch.int16).reshape(40, 300))
    dense = {name: bits(each.detach()) for name, each in model.named_parameters()}
    model.to(DEVICE)
    before = device.moved_nbytes
    compress_module(model, profile="resident", min_numel=1000)
    assert device.moved_nbytes - before < TABLES_NBYTES
    assert isinstance(model[0].weight, CompressedTensor)
    assert not isinstance(model[1].weight, CompressedTensor), "its frame is no smaller"
    weight = model[0].weight
    assert bits(plain(weight.decode())) == dense["0.weight"]
    opened = opened_there(weight.frame)
    assert opened.info.profile == "resident"
    device.calls.clear()
    weight.data.copy_(weight.decode().neg())
    assert bits(plain(weight.decode())) == bits(-_of(dense["0.weight"]))
    assert opened_there(weight.frame).info.profile == "resident"


def _of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16)
