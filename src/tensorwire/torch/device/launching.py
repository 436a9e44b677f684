"""How products are launched: the kernel, its grid and its shared memory, for so many inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .driver import Kernel
from .rows import QUARTERS_NBYTES, SUMS_NBYTES, TILE_ROWS

if TYPE_CHECKING:
    import ctypes

    from .driver import Driver, Function
    from .orders import DeviceOrder
    from .rows import Cascades

_LAYOUTS = {torch.bfloat16: "Bf16", torch.float16: "F16"}  # frame.cuh
_MOST_WARPS = 8
_WARP_NBYTES = 2 * 6144 + 1024  # of shared memory (thin.cuh)
_RESERVED_NBYTES = 1024  # of shared memory, in each block, by the device

_HOPPER = 90
_LEAST_EIGHTS = 3  # of inputs, for wgmma: with fewer a tensor core has little to do
_GROUP_ROWS = 64
_GROUP_NBYTES = 4 * 9216  # of shared memory (wgmma.cuh)
_INPUTS_NBYTES = 2048  # for eight inputs
_GROUP_SUMS_NBYTES = 8 * 68 * 4
_LEAST_BUSY = 2 / 5
"""With tiles for a smaller share of the processors, those of thin.cuh, which are smaller, serve better. By what an
instruction and a byte cost; not measured."""


class ProductLaunch(NamedTuple):
    """How a product with so many inputs is launched.

    Attributes:
        together: how many tiles a block takes at once.
        more: arguments behind those that all kernels have.
        kept: what these have addresses of.
        free: packed arguments that no call has now, cells of 64 bits and their addresses. A call takes some, or makes
            its own. So it shares them with none: not with one of another thread, nor of a signal's handler.
    """

    function: Function
    grid: tuple[int, int, int]
    threads: int
    shared_nbytes: int
    together: int
    more: tuple[int, ...]
    kept: torch.Tensor | None
    free: list[tuple[ctypes.Array[ctypes.c_uint64], ctypes.Array[ctypes.c_void_p]]]


def thin_launch(driver: Driver, rows: int, order: DeviceOrder, eights: int) -> ProductLaunch:
    """That of thin.cuh, for up to 8 * `eights` inputs."""
    eights, tiles = next(each for each in (1, 2, 4, 8) if eights <= each), -(-rows // TILE_ROWS)
    ways = min(order.parts, _MOST_WARPS)
    together = max(1, min(_MOST_WARPS // ways, tiles // (2 * driver.num_processors)))

    def nbytes() -> int:
        return together * (ways * _WARP_NBYTES + order.parts * eights * SUMS_NBYTES)

    while nbytes() > driver.shared_nbytes and together * ways > 1:
        together, ways = (together - 1, ways) if together > 1 else (together, ways - 1)
    function = driver.function(Kernel("thin.cuh", f"thin<{eights}, {_cpp(order.two)}>"), nbytes())
    grid = _grid(driver, -(-tiles // together), together * ways, nbytes(), two=eights < 8)
    return ProductLaunch(function, grid, 32 * together * ways, nbytes(), together, (), None, [])


def cascade_launch(
    driver: Driver, cascades: Cascades, order: DeviceOrder, eights: int, device: torch.device
) -> ProductLaunch:
    """That of thin_cascade.cuh, for up to 8 * `eights` inputs on the device."""
    eights, parts = next(each for each in (1, 2, 4, 8) if eights <= each), order.parts
    tiles = -(-int(cascades.rows.max()) // TILE_ROWS)
    together = max(1, min(tiles, _MOST_WARPS // parts))
    warps = max(2, min(_MOST_WARPS, parts * together))
    most_blocks = max(1, TILE_ROWS // int(np.median(cascades.rows)))
    teams = min(2, most_blocks)

    def nbytes() -> int:
        sums = warps * QUARTERS_NBYTES + together * parts * eights * SUMS_NBYTES
        return most_blocks * cascades.slot_nbytes + max(teams * cascades.scratch_nbytes, sums)

    while nbytes() > driver.shared_nbytes:
        if together > 1:
            together -= 1
        elif most_blocks > 1:
            most_blocks = -(-most_blocks // 2)
            teams = min(teams, most_blocks)
        else:
            warps -= 1
    table = torch.from_numpy(cascades.groups(most_blocks)).to(device)
    expression = f"thin_cascade<{_LAYOUTS[cascades.dtype]}, {cascades.width}, {eights}, {_cpp(order.two)}>"
    function = driver.function(Kernel("thin_cascade.cuh", expression), nbytes())
    more = (
        table.data_ptr(), len(table), most_blocks * cascades.slot_nbytes, cascades.slot_nbytes,
        cascades.scratch_nbytes, teams, cascades.later,
    )  # fmt: skip
    narrow = cascades.width <= 2
    two = (narrow and eights <= 2) or (cascades.dtype == torch.bfloat16 and (eights == 1 or (narrow and eights < 8)))
    grid = _grid(driver, len(table), warps, nbytes(), two=two)
    return ProductLaunch(function, grid, 32 * warps, nbytes(), together, more, table, [])


def _grid(driver: Driver, blocks: int, warps: int, shared_nbytes: int, *, two: bool) -> tuple[int, int, int]:
    """So many blocks, as far as processors have room for them at the same time. Registers allow `two` of eight warps,
    or one."""
    at_once = min(
        _MOST_WARPS * (2 if two else 1) // warps,
        (driver.shared_nbytes + _RESERVED_NBYTES) // (shared_nbytes + _RESERVED_NBYTES),
    )
    return min(blocks, driver.num_processors * max(1, at_once)), 1, 1


def is_for_wgmma(driver: Driver, rows: int, eights: int) -> bool:
    """Whether wgmma.cuh serves better: on Hopper, for more than 16 inputs and enough rows."""
    tiles = -(-rows // _GROUP_ROWS)
    return (
        driver.architecture == _HOPPER
        and eights >= _LEAST_EIGHTS
        and tiles >= _LEAST_BUSY * driver.num_processors
        and _shared_nbytes(_even(eights), 1, 1) <= driver.shared_nbytes
    )


def wgmma_launch(driver: Driver, rows: int, order: DeviceOrder, eights: int) -> ProductLaunch:
    """That of wgmma.cuh, for up to 8 * `eights` inputs."""
    eights, tiles = _even(eights), -(-rows // _GROUP_ROWS)
    sums = eights << order.two
    most = 4 if sums <= 8 else 3 if sums <= 12 else 2
    ways = -(-order.parts // -(-order.parts // most))
    together = max(1, min(most // ways, tiles // driver.num_processors))
    while _shared_nbytes(eights, ways, together) > driver.shared_nbytes:
        together, ways = (together - 1, ways) if together > 1 else (together, ways - 1)
    nbytes = _shared_nbytes(eights, ways, together)
    kernel = Kernel("wgmma.cuh", f"wgmma<{eights}, {_cpp(order.two)}>", "a")
    grid = min(-(-tiles // together), driver.num_processors), 1, 1
    function = driver.function(kernel, nbytes)
    return ProductLaunch(function, grid, 128 * ways * together, nbytes, together, (), None, [])


def _even(eights: int) -> int:
    """For how many eights of inputs there is an instance of wgmma.cuh that takes `eights`."""
    return max(4, eights + eights % 2)


def _shared_nbytes(eights: int, ways: int, together: int) -> int:
    return together * (ways * (_GROUP_NBYTES + eights * _INPUTS_NBYTES) + eights * _GROUP_SUMS_NBYTES)


def _cpp(value: bool) -> str:
    return str(value).lower()
