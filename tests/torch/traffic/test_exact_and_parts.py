"""Lossless messages, and messages of several codecs."""

from __future__ import annotations

import pytest
import torch

from tensorwire import BaseMismatchError, FormatError
from tensorwire.torch.traffic import Bounded, Exact, Float8, Grid
from tensorwire.torch.traffic.codecs.codec import Codec, Raw, same_bytes
from tensorwire.torch.traffic.codecs.exact import _decode_there
from tensorwire.torch.traffic.codecs.parts import Parts

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
NBYTES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def special(dtype: torch.dtype, numel: int = 5000) -> torch.Tensor:
    """Small numbers with NaNs of several payloads, zeros of both signs, infinities and subnormals between them."""
    values = (torch.randn(numel, generator=torch.Generator().manual_seed(2)) * 0.01).to(dtype)
    words = values.view(NBYTES[dtype.itemsize])
    nan = torch.tensor(float("nan"), dtype=dtype).view(words.dtype).item()
    words[0::100], words[1::100], words[2::100], words[3::100] = nan, nan + 1, 0, 1
    values[4::100], values[5::100], values[6::100] = -0.0, float("inf"), float("-inf")
    return values


def later(values: torch.Tensor) -> torch.Tensor:
    """Some words are another value."""
    words = values.clone().view(NBYTES[values.dtype.itemsize])
    words[7::9] += 1
    return words.view(values.dtype)


@pytest.mark.parametrize("profile", ["fast", "compact"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_bit_comes_back_with_a_base(dtype: torch.dtype, profile: str) -> None:
    codec, base = Exact(profile), special(dtype)  # type: ignore[arg-type]
    values = later(base)
    message = codec.encode(values, base)
    assert len(message) < values.nbytes / 2
    held = base.clone()
    codec.decode(message, held, held)
    assert same_bytes(held, values)
    out = torch.empty_like(values)
    codec.decode(message, out, base)
    assert same_bytes(out, values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_base", [True, False])
def test_the_way_of_tensors_on_a_device(dtype: torch.dtype, with_base: bool) -> None:
    """Here the core makes and applies the frames, as it does for all tensors of the CPU."""
    values = later(special(dtype))
    base = special(dtype) if with_base else None
    message = Exact()._encode_there(values, base)
    assert message is not None
    assert len(message) < values.nbytes / (2 if with_base else 1)
    for moved in (message, torch.cat([message[:1], message])[1:]):  # where kernels read, and between
        for held in (special(dtype), torch.zeros_like(values)):
            out = held.clone()
            _decode_there(moved, out, special(dtype))
            assert same_bytes(out, values)
    with pytest.raises(FormatError):
        _decode_there(message[:100], torch.empty_like(values), base)
    if with_base:
        with pytest.raises(BaseMismatchError):
            _decode_there(message, torch.empty_like(values), values + 1)
    assert Exact()._encode_there(values.float(), base) is None
    with pytest.raises(ValueError, match="expected profile 'fast' for tensors on"):
        Exact("compact")._encode_there(values, base)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_bit_comes_back_without_a_base(dtype: torch.dtype) -> None:
    values = special(dtype)
    message = Exact().encode(values)
    assert len(message) < values.nbytes
    for base in (None, torch.zeros_like(values)):  # the frame says that it has none
        out = torch.empty_like(values)
        Exact().decode(message, out, base)
        assert same_bytes(out, values)


@pytest.mark.parametrize("numel", [1000, 5000])
def test_bf16_numbers_that_were_cast_to_fp32_travel_as_a_frame(numel: int) -> None:
    values = special(torch.bfloat16, numel).float()
    message = Exact().encode(values)
    assert len(message) < values.nbytes / 2
    out = torch.empty_like(values)
    Exact().decode(message, out)
    assert same_bytes(out, values)
    for place in (0, numel // 2 + 1, numel - 1):  # one word that is no BF16 number
        other = values.clone()
        other.view(torch.int32)[place] |= 1
        assert Exact().encode(other) is None


def test_what_travels_as_it_is() -> None:
    assert Exact().encode(torch.randn(10_000) * 0.01) is None
    assert Exact().encode(torch.empty(0, dtype=torch.bfloat16)) is None
    assert Exact().encode(torch.empty(0), torch.empty(0)) is None
    random = torch.randint(0, 1 << 16, (10_000,)).to(torch.uint16).view(torch.bfloat16)
    assert Exact().encode(random) is None
    assert Exact().encode(torch.ones(1, dtype=torch.bfloat16)) is None  # a frame has a header


def test_another_base_is_refused() -> None:
    base = special(torch.bfloat16)
    message = Exact().encode(later(base), base)
    other = base.clone()
    other[9] += 1
    with pytest.raises(BaseMismatchError):
        Exact().decode(message, torch.empty_like(base), other)
    with pytest.raises((FormatError, ValueError)):
        Exact().decode(message, torch.empty_like(base))
    with pytest.raises(ValueError, match="base"):
        Exact().encode(base, base[:-1])
    with pytest.raises(ValueError, match="base"):
        Exact().encode(base, base.float())


@pytest.mark.parametrize(
    "out", [torch.empty(4999, dtype=torch.bfloat16), torch.empty(5001, dtype=torch.bfloat16), torch.empty(5000)]
)
def test_frames_of_another_tensor_are_refused(out: torch.Tensor) -> None:
    with pytest.raises((FormatError, ValueError)):
        Exact().decode(Exact().encode(special(torch.bfloat16)), out)


@pytest.mark.parametrize("relative", [False, True])
def test_damaged_frames_are_refused(relative: bool) -> None:
    base = special(torch.bfloat16)
    held = base if relative else None
    values = later(base)
    message = Exact().encode(values, held)
    for place in range(0, len(message), 37):
        damaged = message.clone()
        damaged[place] ^= 16
        out = torch.empty_like(values)
        try:
            Exact().decode(damaged, out, held)
        except (FormatError, BaseMismatchError):
            continue
        assert same_bytes(out, values)  # padding
    for length in (0, 1, 40, len(message) - 1):
        with pytest.raises(FormatError):
            Exact().decode(message[:length].clone(), torch.empty_like(values), held)


PARTS: list[tuple[int, Codec]] = [
    (1000, Exact()),
    (1, Grid(4, 128)),
    (0, Exact()),
    (0, Grid(4, 128)),
    (129, Grid(3, 8)),
    (333, Raw()),
    (256, Float8("e5m2", 32, 32)),
    (500, Bounded(0.01, relative=True)),
]


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_each_part_has_its_own_codec(dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Sums are of FP32 whatever travels."""
    values = torch.randn(sum(numel for numel, _ in PARTS)).to(dtype)
    codec = Parts(tuple(PARTS), dtype)
    assert not codec.lossless
    assert Parts(((5, Exact()), (6, Raw())), dtype).lossless
    out = torch.full(values.shape, 77.0, dtype=out_dtype or dtype)
    codec.decode(codec.encode(values), out)
    for (_, each), part, got in zip(PARTS, codec._split(values), codec._split(out), strict=True):
        message = each.encode(part)
        is_raw = message is None or message.numel() >= part.nbytes
        expected = part.to(out.dtype) if is_raw or each.lossless else torch.empty_like(got)
        if not is_raw and not each.lossless:
            each.decode(message, expected)
        assert torch.equal(got, expected), each


def test_parts_have_unlike_random_numbers_known_by_the_key() -> None:
    codec = Parts(((64, Grid(4, 64, rounding="stochastic")),) * 2, torch.float32)
    values = torch.randn(64).repeat(2)
    message = codec.encode(values, key=3)
    assert torch.equal(message, codec.encode(values, key=3))
    out = torch.empty(128)
    codec.decode(message, out)
    assert not torch.equal(out[:64], out[64:])


@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_damaged_lengths_are_refused(dtype: torch.dtype) -> None:
    codec = Parts(((100, Raw()), (64, Grid(4, 64)), (80, Raw())), dtype)
    message = codec.encode(torch.randn(244).to(dtype))
    size = dtype.itemsize
    for lengths in (
        (-99 * size, 36, -81 * size),  # the same sum
        (-size, 36 + 99 * size, -80 * size),  # one element for all
        (100 * size, 36, -80 * size),
        (-100 * size, -36, -80 * size),
        (-100 * size, 36, -(1 << 63)),
        (-100 * size - 1, 36, 1 - 80 * size),
        (0, 36 + 100 * size, -80 * size),
    ):
        damaged = message.clone()
        damaged[:24] = torch.tensor(lengths).view(torch.uint8)
        with pytest.raises((FormatError, NotImplementedError)):
            codec.decode(damaged, torch.empty(244, dtype=dtype))
    for length in (0, 23, 24, len(message) - 1):
        with pytest.raises(FormatError):
            codec.decode(message[:length].clone(), torch.empty(244, dtype=dtype))


@pytest.mark.parametrize("profile", ["fasst", "resident", None])
def test_a_profile_is_fast_or_compact(profile: str) -> None:
    with pytest.raises(ValueError, match=f"expected profile 'fast' or 'compact', got {profile!r}"):
        Exact(profile)  # type: ignore[arg-type]
