"""Exit reasons that are too long for a page, and the ranks that they name."""

from __future__ import annotations

import pytest

from tensorwire_job import words

PRINT = (
    "CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float, Options="
    + "x" * 200
)
MISMATCH = f"RuntimeError: Detected mismatch. Rank 0 is running collective: {PRINT}), but Rank 2 is running: {PRINT})"


@pytest.mark.parametrize("room", [80, 120, 255])
def test_a_long_text_keeps_the_rank_that_it_compares_with(room: int) -> None:
    text = words.shortened(MISMATCH, room)
    assert len(text) <= room
    assert text.startswith("RuntimeError: Detected mismatch")
    assert 2 in words.ranks_named(text)
    assert words.shortened("rank 1 " + "x" * 300, 255) == "rank 1 " + "x" * 245 + "..."
    assert words.shortened("rank 1", 255) == "rank 1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Rank 0 has 10 params, while rank 1 has 12", {0, 1}),
        ("sizes of the same param in process 0.", {0}),
        ("CheckpointException ranks:dict_keys([1, 3])", {1, 3}),
        ("Traceback (RANK 1)", {1}),
        ("[Rank 3]: failed", {3}),
        ("ranks 1, 2 and 5 have not come", {1, 2, 5}),
        ("rank=7", {7}),
        ("4 ranks, local rank 1, lora rank 8, a rank 2 tensor, tensor of rank 3, rank_5.pt, franks 6", set()),
    ],
)
def test_ranks_that_a_text_names(text: str, named: set[int]) -> None:
    assert words.ranks_named(text) == named


def test_a_number_that_no_rank_has_is_left_out() -> None:
    text = f"rank {'7' * 5000} has other parameters than rank 3"
    assert words.ranks_named(text) == {3}
    assert len(words.shortened(text, 255)) <= 255
