"""Kernels that copy and fill blocks: every length of word, odd ends, targets at any multiple of a word."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .opened import bytes_tensor, launch
from .stand_in import StandIn

WORDS = pytest.mark.parametrize(("word_nbytes", "checked"), [(1, True), (2, True), (2, False), (4, True), (8, True)])
NUMBERS = (np.arange(1 << 15, dtype=np.uint32) * 40503 >> 3).astype(np.uint8)
LENGTHS = [768, 768, 600, 1]  # words of blocks, of which full ones have 768
AROUND = 64


def target(nbytes: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of 0x55, and a part of it that begins `offset` bytes behind a multiple of 16."""
    memory = torch.full((nbytes + offset + 2 * AROUND,), 0x55, dtype=torch.uint8)
    return memory, memory[AROUND + offset : AROUND + offset + nbytes]


def rows_of(lengths: list[int], first: int, extra: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Launch data of blocks from ordinal `first` on, and where each begins in the source."""
    places = [1 + 257 * k for k in range(len(lengths))]
    zeros = [0] * (5 - len(extra))
    rows = [[place, first + k, n, *extra, *zeros] for k, (n, place) in enumerate(zip(lengths, places, strict=True))]
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32), [32 * place for place in places]


@WORDS
@pytest.mark.parametrize("parts", [1, 3])
def test_copied_blocks(word_nbytes: int, checked: bool, parts: int) -> None:
    """Each block has a place of its own in the source; nothing beside the words is written."""
    driver = StandIn(checked=checked)
    source = bytes_tensor(NUMBERS[: 32 * (2 + 257 * 3) + 8 * word_nbytes])
    table, places = rows_of(LENGTHS, 5, [])
    for offset in {0, word_nbytes, 3 * word_nbytes % 16, 8}:
        for first in (5, 3):
            skipped = (5 - first) * 768 * word_nbytes
            memory, out = target(skipped + 3 * 768 * word_nbytes + word_nbytes, offset)
            launch(
                driver, "copy.cuh", f"copy_blocks<{word_nbytes}>", (len(LENGTHS), parts), 96,
                source, table, out, first, 768 * word_nbytes,
            )  # fmt: skip
            expected = torch.full_like(memory, 0x55)
            for k, (n, place) in enumerate(zip(LENGTHS, places, strict=True)):
                start = AROUND + offset + skipped + k * 768 * word_nbytes
                expected[start : start + n * word_nbytes] = source[place : place + n * word_nbytes]
            assert torch.equal(memory, expected)


@WORDS
def test_filled_blocks(word_nbytes: int, checked: bool) -> None:
    driver = StandIn(checked=checked)
    word = bytes(range(0x81, 0x81 + word_nbytes))
    pattern = np.frombuffer(word * (8 // word_nbytes), np.uint32).tolist()
    table, _ = rows_of(LENGTHS, 2, pattern)
    for offset in {0, word_nbytes, 3 * word_nbytes % 16, 8}:
        for parts in (1, 2):
            memory, out = target(3 * 768 * word_nbytes + word_nbytes, offset)
            grid = (len(LENGTHS), parts)
            launch(driver, "copy.cuh", f"fill_blocks<{word_nbytes}>", grid, 96, table, out, 2, 768 * word_nbytes)
            expected = torch.full_like(memory, 0x55)
            for k, n in enumerate(LENGTHS):
                start = AROUND + offset + k * 768 * word_nbytes
                expected[start : start + n * word_nbytes] = bytes_tensor(word * n)
            assert torch.equal(memory, expected)


def test_a_source_that_ends_is_not_read_beyond() -> None:
    for nbytes in (1, 15, 16, 17, 47):
        source = bytes_tensor(NUMBERS[: 32 + nbytes])
        memory, out = target(nbytes, 0)
        table, _ = rows_of([nbytes], 0, [])
        launch(StandIn(checked=True), "copy.cuh", "copy_blocks<1>", (1,), 32, source, table, out, 0, 256)
        assert torch.equal(out, source[32:])
        assert (memory[:AROUND] == 0x55).all()
        assert (memory[AROUND + nbytes :] == 0x55).all()
