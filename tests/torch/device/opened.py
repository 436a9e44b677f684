"""Frames as kernels see them: launch data, and the tables that are made when a frame is opened; and cases for tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch

from reference.tensorwire_reference import Cascade, Enec, Kind, Trimmed, Verbatim, encode
from reference.tensorwire_reference.cascade import widths_of
from tensorwire.torch.device.driver import Kernel
from tensorwire.torch.device.plan import BlockLaunch, CascadeLaunch, EnecLaunch, StoredLaunch, plan
from tests.support.cases import floats
from tests.support.registry import FLOATS

from .stand_in import StandIn, packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

THREADS_TO_OPEN = 128
CASCADES = [*(Cascade(variant=v) for v in range(8)), *(Cascade(variant=v, table=2) for v in range(6))]


def launch(
    driver: StandIn, header: str, expression: str, grid: tuple[int, ...], threads: int, *arguments: torch.Tensor | int,
    shared_nbytes: int = 0,
) -> None:  # fmt: skip
    """Run a kernel, which may touch the bytes of the tensors and no others."""
    driver.forget()
    driver.watch(*(argument for argument in arguments if isinstance(argument, torch.Tensor)))
    function = driver.function(Kernel(header, expression), shared_nbytes)
    function.launch((*grid, 1, 1)[:3], threads, shared_nbytes, driver.stream(), packed(*arguments))  # type: ignore[arg-type]
    driver.forget()


def bytes_tensor(data: bytes | memoryview | np.ndarray) -> torch.Tensor:
    """A tensor with exactly these bytes, at a multiple of 16."""
    out = torch.empty(memoryview(data).nbytes, dtype=torch.uint8)
    out.numpy()[:] = np.frombuffer(data, np.uint8)
    return out


class Opened:
    """A frame whose blocks' escapes are counted.

    Attributes:
        rows: by launch, the launch data of its blocks, by ordinal.
        before, before_later: see open.cuh; entries that are not written are -1.
        wrong: what open.cuh tells of wrong counts.
    """

    def __init__(self, driver: StandIn, frame: bytes) -> None:
        self.driver = driver
        self.frame = bytes_tensor(frame)
        self.plan = plan(self.frame)
        self.info = self.plan.reader.info
        self.runs_per_block = self.info.block_words // 256
        self.rows = {key: torch.from_numpy(rows.astype(np.int64)) for key, rows in self.plan.rows.items()}
        self.tables = {key: rows.to(torch.int32) for key, rows in self.rows.items()}
        self.before = torch.full((self.info.num_blocks * self.runs_per_block,), -1, dtype=torch.int16)
        self.before_later = torch.full((self.plan.later_runs,), -1, dtype=torch.int16)
        self.wrong = torch.full((1,), -1, dtype=torch.int64)
        for key, table in self.tables.items():
            if isinstance(key, CascadeLaunch):
                launch(
                    driver, "open.cuh", "count_escapes", (len(table),), THREADS_TO_OPEN, self.frame, table, self.before,
                    self.before_later, self.wrong, self.runs_per_block, key.rest_bits, key.packed_widths,
                )  # fmt: skip
            elif isinstance(key, EnecLaunch):
                launch(
                    driver, "open.cuh", "count_mask", (len(table),), THREADS_TO_OPEN, self.frame, table, self.before,
                    self.wrong, self.runs_per_block, key.rest_bits, key.m, key.quads_log2,
                )  # fmt: skip

    @property
    def error(self) -> tuple[int, int, int] | None:
        """Ordinal, tier and count of the first block that is wrong."""
        number = int(self.wrong)
        return None if number == -1 else (number >> 32 & 0xFFFFFFFF, number >> 24 & 0xFF, number & 0xFFFFFF)


def fits(dtype: str, kind: Cascade) -> bool:
    """Whether the exponents that the tiers of a shape name are no more than there are."""
    widths = widths_of(kind.table)[kind.variant or 0]
    return sum((1 << w) - 1 for w in widths) <= 1 << FLOATS[dtype].exponent_bits


def of_kind(
    dtype: str, n: int, kind: Kind | Sequence[Kind], block_words: int, trimmed: bool = False
) -> tuple[bytes, bytes]:
    """Content of `n` words, and its frame; with `trimmed`, two zeros end each mantissa."""
    data = floats(dtype, n, f"{dtype} {n} {kind}", zero_bits=2 * trimmed)
    rest = Trimmed() if trimmed else Verbatim()
    return data, encode(data, dtype, (n,), kind=kind, rest=rest, profile="fast", block_words=block_words)


def enec_of(dtype: str, group: int, m: int, nb: int, n: int, block_words: int) -> tuple[bytes, bytes]:
    """The same in enec; every 37th exponent is far off, and so is the last one."""
    top = 1 << FLOATS[dtype].exponent_bits
    steps = np.arange(n) * 7919 % (1 << m)
    steps[::37] = np.arange(len(steps[::37])) * 31 % (1 << nb) - (1 << nb) // 2
    steps[-1] = -1
    exponents = (top // 2 - steps) % top
    data = floats(dtype, n, f"{dtype} {n} enec {group}", exponents=exponents)
    kind = Enec(group=group, b=top // 2, m=m, nb=nb)
    return data, encode(data, dtype, (n,), kind=kind, rest=Verbatim(), profile="fast", block_words=block_words)


def cascade_cases() -> Iterator[tuple[str, Cascade, int, int, bool]]:
    """Dtype, kind, number of words, words of a block, whether trimmed: every tier shape and dtype, short ends."""
    sizes = itertools.cycle([(2045, 768), (1324, 1024), (512, 512), (3 * 256 + 1, 256), (4096, 2048)])
    for number, (kind, dtype) in enumerate(zip(CASCADES * 2, itertools.cycle(FLOATS), strict=False)):
        yield dtype if fits(dtype, kind) else "BF16", kind, *next(sizes), number % 3 == 2


def enec_cases() -> Iterator[tuple[str, int, int, int, int, int]]:
    """Dtype, group, m, nb, number of words, words of a block."""
    yield "BF16", 4, 3, 6, 2045, 768
    yield "F16", 8, 2, 4, 1324, 1024
    yield "F32", 16, 1, 8, 16384 - 255, 8192
    yield "F8_E4M3", 32, 3, 4, 2045, 1024
    yield "F8_E5M2", 4, 1, 3, 512, 512
    yield "BF16", 8, 7, 8, 1324, 768
    yield "BF16", 16, 6, 7, 1024, 512
    yield "F32", 32, 4, 5, 2560, 1280


STORED, BY_HOST, CONSTANT, CASCADE, ENEC = range(5)


def coding_of(key: BlockLaunch) -> tuple[int, int]:
    """What rows.cuh is told of the blocks of a launch."""
    if isinstance(key, CascadeLaunch):
        return CASCADE | key.rest_bits << 8 | key.trail << 16, key.packed_widths
    if isinstance(key, EnecLaunch):
        return ENEC | key.rest_bits << 8 | key.trail << 16, key.m | key.nb << 4 | key.quads_log2 << 8
    if isinstance(key, StoredLaunch):
        return (BY_HOST if key.by_host else STORED), 0
    return CONSTANT, 0


class Rows:
    """Takes rows of a frame, whose content is `data`."""

    def __init__(self, opened: Opened, data: bytes) -> None:
        self.opened = opened
        info = opened.info
        self.rows = torch.zeros(info.num_blocks, 8, dtype=torch.int32)
        self.codings = torch.zeros(info.num_blocks, 2, dtype=torch.int32)
        size = -(-opened.plan.reader.block_nbytes // 32) * 32
        self.host_words = torch.zeros(len(opened.plan.host_blocks) * size, dtype=torch.uint8)
        for place, block in enumerate(opened.plan.host_blocks):
            part = bytes_tensor(data[block * opened.plan.reader.block_nbytes :][: opened.plan.reader.block_nbytes])
            self.host_words[place * size : place * size + len(part)] = part
        for key, table in opened.tables.items():
            self.rows[table[:, 1].long()] = table
            self.codings[table[:, 1].long()] = torch.tensor(coding_of(key), dtype=torch.int32)

    def take(self, ids: torch.Tensor, out: torch.Tensor, num_rows: int, row_nwords: int, parts: int = 1) -> None:
        opened, layout = self.opened, self.opened.info.layout
        launch(
            opened.driver, "rows.cuh", f"take_rows<u{8 * layout.word_nbytes}>", (len(ids), parts), 256, opened.frame,
            self.host_words, self.rows, self.codings, opened.before, opened.before_later, ids, out, num_rows,
            row_nwords, ids.element_size(), opened.info.block_words, layout.exponent_bits, layout.rest_bits,
        )  # fmt: skip
