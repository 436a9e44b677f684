"""The stand-in for a device: it runs right kernels, and finds what is wrong in others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorwire.torch.device.driver import Kernel

from .stand_in import KernelError, StandIn, missing, packed

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

HEADERS = Path(__file__).resolve().parent / "kernels"
BUILDS = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
NUMBERS = torch.arange(1024, dtype=torch.int32) * 7919 % 1009


def run(
    expression: str, *arguments: torch.Tensor | int, grid: int = 1, threads: int = 32, shared: int = 0,
    checked: bool = True, seed: int = 0,
) -> StandIn:  # fmt: skip
    driver = StandIn(checked=checked, seed=seed, headers=HEADERS)
    driver.watch(*(argument for argument in arguments if isinstance(argument, torch.Tensor)))
    function = driver.function(Kernel("small.cuh", expression), shared)
    function.launch((grid, 1, 1), threads, shared, driver.stream(), packed(*arguments))
    return driver


@BUILDS
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocks_with_shuffles_and_barriers(checked: bool, seed: int) -> None:
    out = torch.full((1024,), -1, dtype=torch.int32)
    driver = run("sums_before<256>", NUMBERS, out, grid=4, threads=256, checked=checked, seed=seed)
    blocks = NUMBERS.view(4, 256)
    assert torch.equal(out.view(4, 256), blocks.cumsum(1).to(torch.int32) - blocks)
    assert [launch.grid for launch in driver.launches] == [(4, 1, 1)]


@BUILDS
def test_counts_of_all_threads(checked: bool) -> None:
    out = torch.zeros(2, dtype=torch.int32)
    run("counted<0>", NUMBERS, out, grid=4, threads=256, checked=checked, seed=3)
    assert out.tolist() == [int((NUMBERS % 2).sum()), int(NUMBERS.max())]


@pytest.mark.parametrize(("distance", "barrier"), [(1, 1), (0, 2), (0, 0)])
def test_shared_memory_behind_a_barrier(distance: int, barrier: int) -> None:
    out = torch.zeros(64, dtype=torch.int32)
    run(f"neighbours<{barrier}, {distance}>", NUMBERS[:64], out, threads=64, shared=256)
    assert torch.equal(out, NUMBERS[:64].roll(-distance))


@pytest.mark.parametrize("barrier", [0, 2])  # that of a warp orders nothing for threads of another one
def test_a_missing_barrier_is_found(barrier: int) -> None:
    with pytest.raises(KernelError, match=r"race: .* of shared memory"):
        run(f"neighbours<{barrier}, 32>", NUMBERS[:64], torch.zeros(64, dtype=torch.int32), threads=64, shared=256)


def test_the_barrier_of_a_warp_orders_its_lanes() -> None:
    out = torch.zeros(32, dtype=torch.int32)
    run("neighbours<2, 1>", NUMBERS[:32], out, threads=32, shared=128)
    assert torch.equal(out, NUMBERS[:32].roll(-1))
    with pytest.raises(KernelError, match="race: "):
        run("neighbours<0, 1>", NUMBERS[:32], out, threads=32, shared=128)


@BUILDS
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_copies_ahead(checked: bool, steps: int) -> None:
    out = torch.zeros(128 * steps, dtype=torch.int32)
    run("copied_ahead<true>", NUMBERS[: 128 * steps], out, steps, shared=48 * 32, checked=checked)
    assert torch.equal(out, NUMBERS[: 128 * steps])


def test_a_missing_wait_gives_other_bytes() -> None:
    out = torch.zeros(640, dtype=torch.int32)
    run("copied_ahead<false>", NUMBERS[:640], out, 5, shared=48 * 32)
    assert torch.equal(out, torch.full_like(out, -0x5A5A5A5B))  # what shared memory held before


ERRORS = [
    (1, "reads 4 bytes at byte 64 of buffer 0, which has 64 and is only read"),
    (2, "writes 4 bytes at byte 32 of buffer 1, which has 32"),
    (3, "writes 4 bytes at byte 0 of buffer 0, which has 64 and is only read"),
    (4, "reads 1 bytes at byte -1 of buffer 0"),
    (5, "small.cuh:[0-9]+ uses an address that is no multiple of 4"),
    (6, "writes 4 bytes of shared memory outside its arrays, from byte 32 on"),
    (7, "writes 4 bytes of shared memory outside its arrays"),
    (8, "warp operation after some lanes left: 31 of warp 0"),
    (9, "small.cuh:[0-9]+ uses an address that is no multiple of 8"),
    (10, "reads 16 bytes at byte 16 of buffer 0, which has 20 and is only read"),
    (11, "changes 4 bytes at byte 32 of buffer 1, which has 32"),
    (12, "reads 4 bytes at 0x10, far from all buffers"),
]


@pytest.mark.parametrize(("what", "message"), ERRORS)
def test_errors_are_found(what: int, message: str) -> None:
    count = {1: 16}.get(what, 8)
    numbers = NUMBERS.clone()[64 : 64 + (5 if what == 10 else 16)]
    with pytest.raises(KernelError, match=f"errs<0>: block \\(0, 0, 0\\), .*{message}"):
        run("errs<0>", numbers, torch.zeros(8, dtype=torch.int32), count, what, shared=32)
    run("errs<0>", numbers, torch.zeros(8, dtype=torch.int32), count, 0, shared=32)  # and it can go on


@BUILDS
def test_lanes_that_part_are_found(checked: bool) -> None:
    with pytest.raises(KernelError, match="warp operation while 16 lanes of warp 0 wait at a barrier"):
        run("diverges<0>", torch.zeros(32, dtype=torch.int32), checked=checked)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_tiles(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(rows, 16, generator=generator).to(dtype) for rows in (16, 8))
    c = torch.zeros(16, 8)
    run(f"tile<{str(dtype == torch.float16).lower()}>", a, b, c)
    assert torch.equal(c, (a.double() @ b.double().T).float())


def test_buffers_are_found_by_their_addresses() -> None:
    numbers, out = NUMBERS.clone(), torch.zeros(1024, dtype=torch.int32)
    driver = StandIn(checked=True, headers=HEADERS)
    function = driver.function(Kernel("small.cuh", "sums_before<256>"))
    function.launch((4, 1, 1), 256, 0, 0, packed(numbers, out))
    with pytest.raises(KernelError, match=r"4 bytes at byte [0-9]+ of buffer [01], which has 4096"):
        function.launch(
            (4096, 1, 1), 256, 0, 0, packed(numbers, out)
        )  # too many for one buffer to lie behind the other


def test_what_no_device_launches_is_refused() -> None:
    with pytest.raises(KernelError, match="expected 2 arguments, got 1"):
        run("sums_before<256>", NUMBERS)
    with pytest.raises(KernelError, match="no device launches"):
        run("sums_before<256>", NUMBERS, NUMBERS.clone(), threads=33)
    with pytest.raises(ValueError, match="at most 232448 bytes of shared memory"):
        StandIn().function(Kernel("small.cuh", "sums_before<256>"), 1 << 20)
