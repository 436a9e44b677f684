"""The stand-in for a device finds what is wrong in kernels. Tests of our own kernels prove that it runs right ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorwire.torch.device.driver import Kernel

from .stand_in import KernelError, StandIn, missing, packed

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

HEADERS = Path(__file__).resolve().parent / "kernels"
NUMBERS = torch.arange(1024, dtype=torch.int32) * 7919 % 1009


def run(
    expression: str, *arguments: torch.Tensor | int, threads: int = 32, shared: int = 0, checked: bool = True
) -> None:
    driver = StandIn(checked=checked, headers=HEADERS)
    driver.watch(*(argument for argument in arguments if isinstance(argument, torch.Tensor)))
    function = driver.function(Kernel("small.cuh", expression), shared)
    function.launch((1, 1, 1), threads, shared, driver.stream(), packed(*arguments))


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


def test_a_missing_wait_gives_other_bytes() -> None:
    out = torch.zeros(128, dtype=torch.int32)
    run("copied<0>", NUMBERS[:128], out, shared=16 * 32)
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
    (13, "an address in shared memory is taken for one in global memory"),
]


@pytest.mark.parametrize(("what", "message"), ERRORS)
def test_errors_are_found(what: int, message: str) -> None:
    count = {1: 16}.get(what, 8)
    numbers = NUMBERS.clone()[64 : 64 + (5 if what == 10 else 16)]
    with pytest.raises(KernelError, match=f"errs<0>: block \\(0, 0, 0\\), .*{message}"):
        run("errs<0>", numbers, torch.zeros(8, dtype=torch.int32), count, what, shared=32)
    run("errs<0>", numbers, torch.zeros(8, dtype=torch.int32), count, 0, shared=32)  # and it can go on


@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_lanes_that_part_are_found(checked: bool) -> None:
    with pytest.raises(KernelError, match="warp operation while 16 lanes of warp 0 wait at a barrier"):
        run("diverges<0>", torch.zeros(32, dtype=torch.int32), checked=checked)


def test_buffers_are_found_by_their_addresses() -> None:
    numbers, out = NUMBERS.clone(), torch.zeros(1024, dtype=torch.int32)
    driver = StandIn(checked=True, headers=HEADERS)
    function = driver.function(Kernel("small.cuh", "stores<0>"))
    function.launch((4, 1, 1), 256, 0, 0, packed(numbers, out))
    with pytest.raises(KernelError, match=r"4 bytes at byte [0-9]+ of buffer [01], which has 4096"):
        # So many that neither buffer can lie behind the other.
        function.launch((4096, 1, 1), 256, 0, 0, packed(numbers, out))
