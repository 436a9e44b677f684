"""The bound holds for every element, and damaged messages are refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from tensorwire import FormatError
from tensorwire.torch.traffic import Bounded
from tensorwire.torch.traffic.codecs import bounded

SLACK = 1 + 2**-20


def restored_by(codec: Bounded, values: torch.Tensor) -> torch.Tensor | None:
    """None if the tensor travels as it is."""
    message = codec.encode(values)
    if message is None:
        return None
    assert len(message) < values.nbytes
    out = torch.full_like(values, 77.0)
    codec.decode(message, out)
    return out


def error_of(codec: Bounded, values: torch.Tensor) -> float:
    """What an element may be wrong by."""
    return codec.bound * (values.max().double() - values.min().double()).item() if codec.relative else codec.bound


def violations(codec: Bounded, values: torch.Tensor) -> int:
    out = restored_by(codec, values)
    assert out is not None
    wrong = (out.double() - values.double()).abs()
    return int((wrong > error_of(codec, values) * SLACK).sum())


def distributions(numel: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(numel, generator=generator)
    return [
        normal,
        normal * 1e-30,
        normal * 1e30,
        normal.exp(),
        10 + normal,
        torch.rand(numel, generator=generator).round(decimals=1),
    ]


@pytest.mark.parametrize("bound", [0.3, 0.03, 0.001, 0.00001])
def test_no_element_is_wrong_by_more_than_the_bound(bound: float) -> None:
    codec = Bounded(bound, relative=True)
    assert sum(violations(codec, values) for values in distributions(420_000, seed=1)) == 0


@pytest.mark.slow
def test_no_element_of_many_is_wrong_by_more_than_the_bound() -> None:
    """They are 10^8."""
    for seed in range(5):
        for bound in (0.03, 0.0001):
            assert sum(violations(Bounded(bound, relative=True), each) for each in distributions(1_700_000, seed)) == 0


def test_an_absolute_bound_does_not_depend_on_the_range() -> None:
    values = torch.randn(10_000)
    out = restored_by(Bounded(0.01), values)
    assert out is not None
    assert 0.009 < (out - values).abs().max() <= 0.01 * SLACK
    equal = restored_by(Bounded(0.01), torch.full((10_000,), 3.7))
    assert equal is not None
    assert torch.equal(equal, torch.full((10_000,), 3.7))


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (Bounded(0.1), [1.0, float("nan"), 2.0]),
        (Bounded(0.1, relative=True), [1.0, float("nan"), 2.0]),
        (Bounded(0.1), [1.0, float("inf")]),
        (Bounded(0.1), [1.0, float("-inf")]),
        (Bounded(0.1, relative=True), [float("inf"), float("-inf")]),
        (Bounded(0.1, relative=True), [5.0]),  # a range of 0
        (Bounded(0.01), [0.0, 65_536 * 0.02]),  # too many steps
        (Bounded(1e-30), [0.0, 1e30]),
        (Bounded(0.001), [16_777_216.0, 16_777_217.0, 16_777_218.0, 16_777_220.0]),  # a large offset
        (Bounded(0.0001, relative=True), [1e6, 1e6 + 0.0625, 1e6 + 1]),
        (Bounded(1e-46), [0.0, 1e-45]),  # FP32 has no such step
        (Bounded(1e-45, relative=True), [0.0, 1e-30]),
        (Bounded(1e300), [0.0, 1.0]),  # nor such
        (Bounded(0.6, relative=True), [-3e38, 3e38]),
    ],
)
def test_what_fp32_has_no_steps_for_travels_as_it_is(codec: Bounded, values: list[float]) -> None:
    assert codec.encode(torch.tensor(values * 1000)) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_only_fp32_is_coded(dtype: torch.dtype) -> None:
    assert Bounded(0.1).encode(torch.randn(1000).to(dtype)) is None
    assert Bounded(0.1).encode(torch.empty(0)) is None


def test_the_ends_of_what_is_coded() -> None:
    steps = 60_000 * 0.02
    cases = [
        (Bounded(0.01), [0.0, steps, steps / 3]),
        (Bounded(0.1, relative=True), [-1.7e38, 1.7e38, 0.0]),
        (Bounded(0.4, relative=True), [3e-45, 1e-42, 0.0]),
        (Bounded(0.25, relative=True), [-0.0, 1.0]),
    ]
    for codec, values in cases:
        assert violations(codec, torch.tensor(values * 2000)) == 0


def zipf_rows(count: int, kinds: int, row: int) -> torch.Tensor:
    """Rows of a table, some of them often."""
    generator = np.random.default_rng(5)
    table = torch.randn(kinds, row)
    return table[torch.from_numpy(np.minimum(generator.zipf(1.3, count), kinds) - 1)].reshape(-1)


def test_repeated_rows_travel_once() -> None:
    values = zipf_rows(4096, 500, 16)
    plain, repeated = Bounded(0.03, relative=True), Bounded(0.03, relative=True, row=16)
    sizes = [len(codec.encode(values)) for codec in (plain, repeated)]
    assert sizes[1] < 0.5 * sizes[0]
    assert torch.equal(restored_by(plain, values), restored_by(repeated, values))


@pytest.mark.parametrize("row", [2, 16, 4096])
@pytest.mark.parametrize("bound", [0.03, 0.0005])
def test_rows_are_never_a_loss(row: int, bound: float) -> None:
    values = torch.randn(1 << 16)
    plain, repeated = (Bounded(bound, relative=True, row=each).encode(values) for each in (1, row))
    assert len(repeated) <= len(plain) < values.nbytes / 2
    if row >= 16:  # no row is there twice
        assert torch.equal(plain, repeated)


def test_elements_that_are_no_whole_rows() -> None:
    values = zipf_rows(4096, 50, 16)[:-3]
    assert violations(Bounded(0.03, relative=True, row=16), values) == 0


def test_many_unlike_rows_have_wider_numbers() -> None:
    values = torch.randn(400, 4)[torch.arange(4000) % 400].reshape(-1)
    out = restored_by(Bounded(0.001, relative=True, row=4), values)
    assert out is not None
    assert len(set(map(tuple, out.view(-1, 4).tolist()))) > 256


@pytest.mark.parametrize("row", [1, 16])
def test_every_truncation_is_refused(row: int) -> None:
    values = zipf_rows(64, 5, 16)
    codec = Bounded(0.03, relative=True, row=row)
    message = codec.encode(values)
    for length in range(len(message)):
        with pytest.raises(FormatError):
            codec.decode(message[:length].clone(), torch.empty(values.shape))
    with pytest.raises(FormatError):
        codec.decode(torch.cat([message, message[-8:]]), torch.empty(values.shape))


@pytest.mark.parametrize("row", [1, 16])
@pytest.mark.parametrize("numel", [1023, 1025, 1040, 0, 16])
def test_messages_of_another_size_are_refused(row: int, numel: int) -> None:
    codec = Bounded(0.03, relative=True, row=row)
    with pytest.raises(FormatError):
        codec.decode(codec.encode(zipf_rows(64, 5, 16)), torch.empty(numel))


@pytest.mark.parametrize("row", [1, 16])
def test_damaged_messages_never_crash(row: int) -> None:
    """Low and step have no checksum: any value of theirs decodes. All else of the message is checked."""
    values = zipf_rows(64, 5, 16)
    codec = Bounded(0.03, relative=True, row=row)
    message = codec.encode(values)
    unprotected = range(12, 20)
    for place in (place for place in range(len(message)) if place not in unprotected):
        for bit in (0, 7):
            damaged = message.clone()
            damaged[place] ^= 1 << bit
            out = torch.empty(values.shape)
            try:
                codec.decode(damaged, out)
            except FormatError:
                continue
            assert torch.equal(out, restored_by(codec, values)), f"byte {place}"


def test_claims_of_a_message_are_checked_before_memory_is_taken() -> None:
    values = zipf_rows(64, 5, 16)
    codec = Bounded(0.03, relative=True, row=16)
    message = codec.encode(values)
    for head in ((1 << 63, 5), (40, 1 << 31), (0, 1 << 31), ((1 << 64) - 1, 0)):
        damaged = message.clone()
        damaged[:12] = torch.frombuffer(bytearray(struct.pack("<QI", *head)), dtype=torch.uint8)
        with pytest.raises(FormatError):
            codec.decode(damaged, torch.empty(values.shape))
    rows = bounded._frame(np.zeros((1 << 20, 16), np.uint8).reshape(-1))  # a small frame of many rows
    assert len(rows) < 100_000
    with pytest.raises(FormatError, match="up to 64 rows"):
        codec.decode(torch.cat([bounded._head(len(rows), 1 << 20, 0.0, 1.0), rows]), torch.empty(values.shape))


def test_numbers_beyond_the_rows_are_refused() -> None:
    first, second = bounded._frame(np.zeros(32, np.uint8)), bounded._frame(np.full(64, 2, np.uint8))
    message = torch.cat([bounded._head(len(first), 2, 0.0, 1.0), first, second])
    with pytest.raises(FormatError, match="numbers of 2 rows, got 2"):
        Bounded(0.1, row=16).decode(message, torch.empty(1024))


def test_bad_arguments() -> None:
    for bound in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="bound above 0"):
            Bounded(bound)
    with pytest.raises(ValueError, match="at least one element"):
        Bounded(0.1, row=0)
    with pytest.raises(TypeError, match="expected bound to be a number, got '1e-3'"):
        Bounded("1e-3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected row to be an integer, got 1\.5"):
        Bounded(0.1, row=1.5)  # type: ignore[arg-type]
