"""Grid and Float8 against plain references, written from their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tensorwire import FormatError
from tensorwire.torch.traffic import Float8, Grid
from tensorwire.torch.traffic.codecs.grouped import hadamard

F32 = np.float32
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SUBNORMAL = 2.0**-149
MANTISSA_BITS = {"e4m3": 3, "e5m2": 2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def sylvester(size: int) -> np.ndarray:
    """The Hadamard matrix of this size."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron(np.array([[1, 1], [1, -1]]), matrix)
    return matrix


def groups_of(values: np.ndarray, group: int, block: int) -> list[np.ndarray]:
    """Groups as they are quantized. The transform is divided by its size, so that its inverse needs no factor."""
    padded = np.concatenate([values, np.zeros(-len(values) % group, F32)])
    if block:
        padded = (padded.reshape(-1, block) @ sylvester(block) / block).astype(F32)
    return list(padded.reshape(-1, group))


def grid_reference(values: np.ndarray, bits: int, group: int, block: int = 0) -> tuple[bytes, np.ndarray]:
    """The message and what it decodes to. Codes are integers in a long number, the first one lowest."""
    most = 2 ** (bits - 1) - 1
    scales, number, restored, place = [], 0, [], 0
    for part in groups_of(values, group, block):
        scale = F32(max(abs(part)) / F32(most))
        scales.append(scale)
        codes = [int(np.clip(np.rint(each / scale), -most, most)) if scale else 0 for each in part]
        for code in codes:
            number |= code + most << place
            place += bits
        decoded = np.array(codes, F32) * scale
        if block:
            decoded = (decoded.reshape(-1, block) @ sylvester(block)).astype(F32).reshape(-1)
        restored.append(decoded)
    message = np.array(scales, F32).tobytes() + number.to_bytes(place // 8, "little")
    return message, np.concatenate([*restored, np.empty(0, F32)])[: len(values)]


def float8_values(name: str) -> np.ndarray:
    """The finite numbers of the positive codes, in order."""
    bits, bias = MANTISSA_BITS[name], 7 if name == "e4m3" else 15
    found = []
    for code in range(128):
        exponent, mantissa = code >> bits, (code & (1 << bits) - 1) / (1 << bits)
        found.append(mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias))
    return np.array([each for each in found if each <= LARGEST[name]], F32)


def float8_reference(values: np.ndarray, name: str, group: int, block: int = 0) -> tuple[bytes, np.ndarray]:
    table = float8_values(name)
    scales, codes, restored = [], [], []
    for part in groups_of(values, group, block):
        scale = F32(max(abs(part)) / F32(LARGEST[name]))
        scales.append(scale)
        for each in part:
            distances = abs(table - abs(F32(each / scale)))
            near = np.flatnonzero(distances == distances.min())
            code = next(each for each in near if len(near) == 1 or each % 2 == 0)
            codes.append(code | 128 * bool(np.signbit(each)))
            restored.append(F32(math.copysign(table[code], each)) * scale)
    if block:
        restored = np.reshape(restored, (-1, block)) @ sylvester(block)
    return np.array(scales, F32).tobytes() + bytes(codes), np.array(restored, F32).reshape(-1)[: len(values)]


def restored_by(codec: Grid | Float8, tensor: torch.Tensor, base: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.full_like(tensor, 77.0)
    codec.decode(codec.encode(tensor, base), out, base)
    return out


def integers(numel: int, seed: int = 0) -> torch.Tensor:
    """Floats of which a Hadamard transform of 32 elements is exact."""
    return torch.randint(-500, 501, (numel,), generator=torch.Generator().manual_seed(seed)).float()


def assert_decoded(out: torch.Tensor, expected: np.ndarray, block: int) -> None:
    """The same bits; but a transform adds in another order than the reference does, which adds in FP64."""
    np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=2e-4 if block else 0)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("group", "block"), [(8, 0), (128, 0), (32, 32), (64, 16)])
def test_grid_equals_the_plain_reference(bits: int, group: int, block: int) -> None:
    """With no group, a part of one, whole ones and a part of one more."""
    codec = Grid(bits, group, hadamard=block)
    for numel in (0, 1, 7, 8, 129, 300):
        values = integers(numel)
        message = codec.encode(values)
        expected, decoded = grid_reference(values.numpy(), bits, group, block)
        assert bytes(message.numpy()) == expected
        assert len(expected) == codec.nbytes(numel)
        out = torch.full_like(values, 77.0)
        codec.decode(message, out)
        assert_decoded(out, decoded, block)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
@pytest.mark.parametrize(("group", "block"), [(3, 0), (128, 0), (32, 32)])
@pytest.mark.parametrize("numel", [1, 7, 300])
def test_float8_equals_the_plain_reference(name: str, group: int, block: int, numel: int) -> None:
    codec, values = Float8(name, group, block), integers(numel) + 0.5
    expected, decoded = float8_reference(values.numpy(), name, group, block)
    message = codec.encode(values)
    assert bytes(message.numpy()) == expected
    assert len(expected) == codec.nbytes(numel)
    out = torch.full_like(values, 77.0)
    codec.decode(message, out)
    assert_decoded(out, decoded, block)


@pytest.mark.parametrize("size", [2, 8, 32, 128])
def test_the_transform_is_that_of_sylvesters_matrix_and_its_own_inverse(size: int) -> None:
    rows = integers(5 * size).view(5, size)
    np.testing.assert_array_equal(hadamard(rows).numpy(), rows.numpy() @ sylvester(size))
    assert torch.equal(hadamard(hadamard(rows)) / size, rows)


def test_bits_on_the_wire() -> None:
    numel = 1 << 20
    sizes = {
        Grid(4, 2048): 4 + 32 / 2048,
        Grid(8, 128, hadamard=32): 8.25,
        Grid(4, 128, hadamard=32): 4.25,
        Float8("e4m3", 128): 8.25,
    }
    for codec, bits in sizes.items():
        assert codec.encode(torch.randn(numel)).nbytes == codec.nbytes(numel) == numel * bits / 8


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("codec", [Grid(4, 64), Grid(8, 64, hadamard=32), Float8(), Float8("e5m2", 64, hadamard=64)])
def test_other_dtypes_decode_to_what_fp32_rounds_to(codec: Grid | Float8, dtype: torch.dtype) -> None:
    values = integers(1000).to(dtype)
    assert torch.equal(restored_by(codec, values), restored_by(codec, values.float()).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("codec", [Grid(4, 64), Grid(5, 64, hadamard=32), Float8("e4m3", 64)])
def test_a_base_that_follows_comes_as_near_as_the_dtype_can(codec: Grid | Float8, dtype: torch.dtype) -> None:
    """The closed loop: each round sends what is left, in the memory of the base."""
    values = torch.randn(1000, dtype=torch.float64).to(dtype)
    held = torch.zeros_like(values)
    for _ in range(25):
        codec.decode(codec.encode(values, held), held, held)
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(held, values, rtol=eps, atol=eps)


def test_groups_of_zeros_stay_zeros_beside_others() -> None:
    values = torch.cat([torch.zeros(64), torch.randn(64), torch.zeros(3)])
    for codec in (Grid(4, 64), Grid(4, 64, rounding="stochastic"), Grid(4, 64, hadamard=64), Float8("e4m3", 64)):
        out = restored_by(codec, values)
        assert not out[:64].any()
        assert not out[128:].any()
        assert out[64:128].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "codec",
    [Grid(4, 64), Grid(8, 64), Grid(4, 64, rounding="stochastic"), Grid(4, 64, 32), Float8("e4m3", 64),
     Float8("e5m2", 64, 32)],
)  # fmt: skip
def test_nan_and_infinities_make_their_group_nan_and_no_other(
    codec: Grid | Float8, dtype: torch.dtype, bad: float
) -> None:
    values = torch.randn(64 * 3 - 5).to(dtype)
    fine = restored_by(codec, values)
    for base in (None, torch.randn(values.shape).to(dtype)):
        fine = restored_by(codec, values, base)
        assert fine.isfinite().all()
        spoilt = values.clone()
        spoilt[70] = bad
        out = restored_by(codec, spoilt, base)
        assert out[64:128].isnan().all()
        assert torch.equal(out[:64], fine[:64])
        assert torch.equal(out[128:], fine[128:])


@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_the_largest_finite_numbers_stay_finite(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    values = torch.tensor([most, -most, most, most / 2, 0, 1, most, -most] * 16, dtype=dtype)
    for codec in (Grid(2, 64), Grid(4, 64), Grid(8, 64), Float8("e4m3", 64), Float8("e5m2", 64)):
        out = restored_by(codec, values)
        assert out.isfinite().all()
        assert torch.equal(out[:2], values[:2])
    transformed = restored_by(Grid(8, 64, hadamard=64), values)
    torch.testing.assert_close(transformed.double() / most, values.double() / most, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    "codec", [*(Grid(bits, 8) for bits in range(2, 9)), Float8("e4m3", 8), Float8("e5m2", 8), Float8("e4m3", 8, 8)]
)
def test_subnormal_scales_keep_numbers_finite_and_near(codec: Grid | Float8) -> None:
    for largest in [*range(1, 40), 300, 600, 672, 1000, 80_000, 1 << 20]:
        values = torch.linspace(-largest, largest, 8).round() * SUBNORMAL
        out = restored_by(codec, values)
        assert out.isfinite().all()
        # Half a code, and what the scale itself is wrong by, which is at most half a subnormal for each code.
        most = 2 ** (codec.bits - 1) - 1 if isinstance(codec, Grid) else LARGEST[codec.format]
        step = largest / most if isinstance(codec, Grid) else largest / 8
        error = (step / 2 + most / 2 + 1) * max(1, codec.hadamard)
        assert (out - values).abs().max() <= error * SUBNORMAL * 1.01


def test_stochastic_rounding_is_right_on_average_and_known_by_its_key() -> None:
    codec, values = Grid(4, 64, rounding="stochastic"), torch.randn(64)
    scale = values.abs().max().item() / 7
    total = torch.zeros(64, dtype=torch.float64)
    for key in range(1000):
        out = torch.empty(64)
        codec.decode(codec.encode(values, key=key), out)
        assert (out - values).abs().max() <= scale * 1.0001
        total += out
    # The deviation of one draw is at most half a step; five deviations of a mean of 1,000.
    assert (total / 1000 - values).abs().max() < 5 * 0.5 * scale / 1000**0.5
    assert torch.equal(codec.encode(values, key=7), codec.encode(values, key=7))
    assert not torch.equal(codec.encode(values, key=7), codec.encode(values, key=8))
    nearest = (restored_by(Grid(4, 64), values) - values).double()
    assert nearest.abs().max() <= scale / 2 * 1.0001


def test_stochastic_rounding_costs_the_square_root_of_two_of_the_error() -> None:
    values = torch.randn(1 << 17)
    norms = [(restored_by(Grid(4, 128, rounding=each), values) - values).norm() for each in ("nearest", "stochastic")]
    assert norms[1] / norms[0] == pytest.approx(2**0.5, rel=0.03)


@pytest.mark.parametrize("codec", [Grid(4, 64), Grid(3, 64), Float8("e4m3", 64)])
def test_messages_of_another_length_are_refused(codec: Grid | Float8) -> None:
    message = codec.encode(torch.randn(100))
    for damaged in (message[:-1], torch.cat([message, message[:1]]), message[:0]):
        with pytest.raises(FormatError, match=str(codec.nbytes(100))):
            codec.decode(damaged.clone(), torch.empty(100))


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_code_that_no_encoder_writes_is_refused(bits: int) -> None:
    message = Grid(bits, 8).encode(torch.randn(8))
    message[-bits:] = 255
    with pytest.raises(FormatError, match=f"codes up to {2**bits - 2}"):
        Grid(bits, 8).decode(message, torch.empty(8))


@pytest.mark.parametrize(("name", "code"), [("e4m3", 0x7F), ("e4m3", 0xFF), ("e5m2", 0x7C), ("e5m2", 0x7D)])
def test_codes_of_nan_and_infinity_are_refused(name: str, code: int) -> None:
    codec = Float8(name, 8)
    message = codec.encode(torch.randn(8))
    message[-1] = code
    with pytest.raises(FormatError, match="finite codes"):
        codec.decode(message, torch.empty(8))


def test_bad_arguments() -> None:
    for bits in (1, 9):
        with pytest.raises(ValueError, match="2 to 8 bits"):
            Grid(bits, 64)
    for group in (0, 4, 12):
        with pytest.raises(ValueError, match="multiple of 8"):
            Grid(4, group)
    for block in (1, 3, 48, 128):
        with pytest.raises(ValueError, match="power of two that divides 64"):
            Grid(4, 64, hadamard=block)
        with pytest.raises(ValueError, match="power of two that divides 64"):
            Float8("e4m3", 64, hadamard=block)
    with pytest.raises(ValueError, match="rounding"):
        Grid(4, 64, rounding="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="e4m3"):
        Float8("e3m4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one element"):
        Float8("e4m3", 0)
    for what, wrong in (("bits", "4"), ("group", 128.0), ("hadamard", None)):
        with pytest.raises(TypeError, match=f"expected {what} to be an integer, got {wrong!r}"):
            Grid(**{"bits": 4, "group": 128, what: wrong})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected group to be an integer, got True"):
        Float8("e4m3", True)


def test_codecs_are_equal_by_value() -> None:
    assert Grid(4, 128) == Grid(4, 128) != Grid(4, 128, rounding="stochastic")
    assert hash(Float8()) == hash(Float8("e4m3", 128))
    assert Float8() != Float8("e5m2")
