"""Frames go by their layout, under torch and on a device: the dtype's name is a label. Alignment and padding too."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.2")

import tensorwire  # noqa: E402
from tensorwire import CorruptDataError, Layout, UnsupportedTensorError  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.device import decode_frame  # noqa: E402
from tensorwire.torch.device.frame import DeviceFrame  # noqa: E402
from tensorwire.torch.device.triton import decode as triton_decode  # noqa: E402
from tests.support import registry  # noqa: E402
from tests.support.encoders import encode  # noqa: E402
from tests.support.frame_surgery import Surgery  # noqa: E402
from tests.support.interpreter import hurry  # noqa: E402

ROWS, COLUMNS = 64, 256
BF16 = Layout(2, 8, 8, "float", True)
LAYOUTS = {
    "its own": BF16,
    "that of F16": Layout(2, 5, 11, "float", True),
    "unknown to kernels": Layout(2, 6, 10, "float", True),
    "unsigned": Layout(2, 8, 8, "unsigned", False),
    "bytes": Layout(1, 4, 4, "unsigned", False),
    "not split": Layout(2, 0, 0, "none", False),
}
BY_HOST = {"unknown to kernels", "unsigned"}  # words of the others are coded for kernels, or stored


@pytest.fixture(autouse=True)
def large_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes as long for a small tile as for a large one. In slow items it looks that numbers fit."""
    hurry(monkeypatch, overflows=request.node.get_closest_marker("slow") is not None)
    monkeypatch.setattr(triton_decode, "_RUNS_OF_WORDS", 64)
    monkeypatch.setattr(triton_decode, "_LATER_RUNS", 32)


def tensor_of(frame: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(frame), dtype=torch.uint8)


def content(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def words_for(layout: Layout) -> bytes:
    """BF16 numbers, or such as suit F16's layout, so that blocks are coded by their exponents."""
    dtype = "F16" if layout.exponent_bits == 5 else "BF16"
    return registry.weights(dtype, ROWS * COLUMNS, "layouts").tobytes()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_device_goes_by_the_layout(name: str) -> None:
    data = words_for(LAYOUTS[name])
    options: dict[str, Any] = {"dtype": "BF16", "shape": (ROWS, COLUMNS), "layout": LAYOUTS[name]}
    opened = DeviceFrame(tensor_of(tensorwire.compress(data, **options)))
    decoded = opened.decode_all()
    assert (decoded.dtype, tuple(decoded.shape), content(decoded)) == (torch.bfloat16, (ROWS, COLUMNS), data)
    assert bool(opened.held.plan.host_blocks) == (name in BY_HOST)


@pytest.mark.parametrize("name", LAYOUTS)
def test_products_on_the_cpu_have_the_dense_bits(name: str) -> None:
    data = words_for(LAYOUTS[name])
    options: dict[str, Any] = {"dtype": "BF16", "shape": (ROWS, COLUMNS), "layout": LAYOUTS[name]}
    weight = CompressedTensor(tensor_of(tensorwire.compress(data, **options)))
    dense = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(ROWS, COLUMNS)
    assert content(weight.decode()) == data
    x = torch.linspace(-1, 1, 3 * COLUMNS).reshape(3, COLUMNS).bfloat16()
    expected = torch.nn.functional.linear(x, dense)
    assert content(torch.nn.functional.linear(x, weight)) == content(expected)


@pytest.mark.parametrize(
    ("dtype", "by_kernels"),
    [
        ("C64", True), ("F8_E4M3FNUZ", True), pytest.param("F8_E5M2FNUZ", True, marks=pytest.mark.slow),
        ("F8_E8M0", False), ("C128", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("profile", ["fast", pytest.param("enec", marks=pytest.mark.slow)])
def test_dtypes_with_the_layout_of_another(dtype: str, by_kernels: bool, profile: Any) -> None:
    twin = {"C64": "F32", "C128": "F64", "F8_E5M2FNUZ": "F8_E5M2"}.get(dtype, "F8_E4M3")
    data = registry.weights(twin, 1500, "twins").tobytes()
    frame = tensorwire.compress(data, dtype=dtype, profile=profile)
    opened = DeviceFrame(tensor_of(frame))
    decoded = opened.decode_all()
    assert content(decoded) == data
    assert decoded.dtype == tensorwire.decompress(frame, framework="pt").dtype
    assert not (by_kernels and opened.held.plan.host_blocks)


@pytest.mark.parametrize(("block", "frame"), [(32, 4096), (128, 128), (4096, 4096)])
def test_alignments(block: int, frame: int) -> None:
    data = registry.weights("BF16", 33_001, "alignments").tobytes()
    options: dict[str, Any] = {"block_alignment": block, "frame_alignment": frame}
    opened = DeviceFrame(tensor_of(encode(data, "BF16", (33_001,), **options)))
    assert opened.held.info.num_blocks == 2
    assert not opened.held.plan.host_blocks
    first, part = 32_768 if block == frame else 32_700, torch.empty(100, dtype=torch.bfloat16)  # or from both
    opened.decode(first, part)
    assert content(part) == data[2 * first : 2 * first + 200]


def test_padding_lets_an_npu_read_behind_the_last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the host decodes the block at the end of the frame."""
    monkeypatch.setattr(triton_decode, "_is_vector_processor", lambda device: True)
    monkeypatch.setattr(triton_decode, "_RUNS_OF_WORDS", 16)
    data = registry.weights("BF16", 2 * 32_768, "padding").tobytes()
    for padding, by_host in ((0, [1]), (1024, [])):
        opened = DeviceFrame(tensor_of(encode(data, "BF16", (65_536,), padding_nbytes=padding)))
        assert opened.held.plan.host_blocks == by_host
        part = torch.empty(100, dtype=torch.bfloat16)
        opened.decode(65_436, part)
        assert content(part) == data[-200:]


def test_what_a_device_refuses_of_a_header() -> None:
    frame = bytearray(encode(bytes(4096), "BF16", (2048,), padding_nbytes=32))
    frame[-1] = 1
    surgery = Surgery(tensorwire.compress(bytes(4096), dtype="BF16"))
    surgery.set("dtype", b"F32")
    narrow = surgery.close()
    for call in (decode_frame, CompressedTensor):
        with pytest.raises(CorruptDataError, match="zeros behind the blocks"):
            call(tensor_of(frame))
        with pytest.raises(UnsupportedTensorError, match="expected 32 bits per element"):
            call(tensor_of(narrow))
