"""The kernel that decodes enec: every group, dtype, width, trimmed rests, short runs, parts, damage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorwire.torch.device.plan import EnecLaunch, field_nbytes
from tests.support.registry import FLOATS

from .opened import Opened, enec_cases, enec_of, launch
from .stand_in import StandIn

LAYOUTS = dict(zip(FLOATS, ["Bf16", "F16", "F32", "F8E4M3", "F8E5M2"], strict=True))
AROUND = 64
CASES = list(enec_cases())


def decode(opened: Opened, first_block: int = 0, parts: int = 1) -> torch.Tensor:
    """The words of the blocks of enec from `first_block` on; 0x55 where there are none, and around."""
    info = opened.info
    block_nbytes = info.block_words * info.layout.word_nbytes
    nbytes = info.uncompressed_nbytes - first_block * block_nbytes
    memory = torch.full((nbytes + 2 * AROUND,), 0x55, dtype=torch.uint8)
    for key, table in opened.tables.items():
        table = table[table[:, 1] >= first_block]
        if not isinstance(key, EnecLaunch) or not len(table):
            continue
        numbers = (key.rest_bits, key.trail, key.quads_log2, key.m, key.nb)
        expression = f"enec_words<{LAYOUTS[info.dtype]}, {', '.join(map(str, numbers))}, {str(key.whole).lower()}>"
        launch(
            opened.driver, "enec.cuh", expression, (len(table), parts), 256, opened.frame, table, opened.before,
            memory[AROUND : AROUND + nbytes], first_block, opened.runs_per_block,
        )  # fmt: skip
    return memory


def expected(opened: Opened, data: bytes, first_block: int = 0) -> np.ndarray:
    size = opened.info.block_words * opened.info.layout.word_nbytes
    out = np.full(len(data) - first_block * size + 2 * AROUND, 0x55, np.uint8)
    for key, rows in opened.rows.items():
        for row in rows.tolist() if isinstance(key, EnecLaunch) else ():
            if row[1] >= first_block:
                part = np.frombuffer(data, np.uint8)[row[1] * size :][: row[2] * opened.info.layout.word_nbytes]
                start = AROUND + (row[1] - first_block) * size
                out[start : start + len(part)] = part
    return out


@pytest.mark.parametrize(
    ("case", "checked"),
    [
        *((case, True) for case in CASES[:-1]),
        *(pytest.param(*slow, marks=pytest.mark.slow) for slow in ((CASES[-1], True), (CASES[0], False))),
    ],
    ids=str,
)
def test_words(case: tuple[str, int, int, int, int, int], checked: bool) -> None:
    data, frame = enec_of(*case)
    opened = Opened(StandIn(checked=checked, seed=checked), frame)
    assert any(isinstance(key, EnecLaunch) for key in opened.rows)
    np.testing.assert_array_equal(decode(opened).numpy(), expected(opened, data))
    np.testing.assert_array_equal(decode(opened, 1, 2).numpy(), expected(opened, data, 1))


@pytest.mark.parametrize("n", [36, 37, 129, 253, 254, 255, 257, 300])
def test_short_runs(n: int) -> None:
    data, frame = enec_of("BF16", 4, 3, 6, n, 256)
    opened = Opened(StandIn(checked=True), frame)
    assert any(isinstance(key, EnecLaunch) for key in opened.rows)
    np.testing.assert_array_equal(decode(opened).numpy(), expected(opened, data))


def test_damaged_numbers_stay_in_their_block() -> None:
    """Rests, low and high parts may be anything once the mask is counted."""
    driver = StandIn(checked=True)
    for case in CASES[::3]:
        data, frame = enec_of(*case)
        opened = Opened(driver, frame)
        generator = np.random.default_rng(case[4])
        for key, rows in opened.rows.items():
            for row in rows.tolist() if isinstance(key, EnecLaunch) else ():
                mask = row[0] * 32 + field_nbytes(row[2], key.rest_bits) + field_nbytes(row[2], key.m)
                high = mask + field_nbytes(-(-row[2] >> 2 + key.quads_log2), 1)
                end = high + field_nbytes(row[4], key.nb - key.m)
                for part in (opened.frame[row[0] * 32 : mask], opened.frame[high:end]):
                    part.copy_(torch.from_numpy(generator.integers(0, 256, len(part)).astype(np.uint8)))
        assert (decode(opened).numpy() == 0x55).sum() < 2 * AROUND + len(data) // 2
