"""The benchmark of checkpoints: what it computes itself, and how it judges."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

from benchmarks.checkpoints import dcp, ranks, remote, targets, training  # noqa: E402


def test_the_bound_is_the_entropy_of_exponents_and_all_other_bits() -> None:
    tensor = torch.tensor([1.0, 1.5, 2.0, 4.0])  # exponents 0, 0, 1, 2
    entropy = 4 * 1.5
    assert ranks.bound_bits(tensor) == pytest.approx(entropy + 4 * 24)
    assert ranks.bound_bits(-tensor.bfloat16()) == pytest.approx(entropy + 4 * 8)
    assert ranks.bound_bits(torch.ones(10)) == 10 * 24


def test_the_tensors_of_a_state_are_its_parts_with_elements() -> None:
    state = {"a": torch.ones(3), "b": [{"c": torch.zeros(2, 2)}, torch.tensor(1.0), "text"], "d": 7}
    assert [tuple(each.shape) for each in ranks._tensors(state)] == [(3,), (2, 2)]


def test_quotients_are_those_of_one_round() -> None:
    turns = [
        {"writer": name, "cpu_seconds": cpu, "seconds": 2 * cpu}
        for scale in (1, 5, 2)
        for name, cpu in ((ranks.TORCH, 1.0 * scale), (ranks.FAST, 0.5 * scale), (ranks.COMPACT, 2.0 * scale))
    ]
    rows = dcp.saves("float32", turns)
    assert [(row["writer"], row["cpu_seconds of torch"], row["seconds"]) for row in rows] == [
        (ranks.TORCH, 1, 4), (ranks.FAST, 0.5, 2), (ranks.COMPACT, 2, 8),
    ]  # fmt: skip


@pytest.mark.parametrize(("part", "same", "missed"), [(1.05, True, 0), (1.2, True, 1), (1.05, False, 1)])
def test_a_load_reads_little_and_gives_all_bits(part: float, same: bool, missed: int) -> None:
    row = {"dtype": "bfloat16", "ranks": "4 to 2", "part": part, "same": same}
    found = targets.evaluate({"loads": [row | {"storage": ranks.FAST}, row | {"storage": ranks.TORCH, "part": 9}]})
    assert len(found) == 2
    assert sum(each.met is False for each in found) == missed


@pytest.mark.parametrize(
    ("size", "requests", "met"), [(8 << 20, 3, True), (8 << 20, 4, False), ((8 << 20) + 1, 4, True)]
)
def test_a_load_asks_once_for_each_piece_begun(size: int, requests: int, met: bool) -> None:
    row = {"file": "a", "with": remote.OURS, "what": remote.LOAD, "size": size, "requests": requests, "part": 1.0}
    by_target = {each.target: each.met for each in targets.evaluate({"files": [row]})}
    assert by_target == {"load: bytes, of the file": True, "load: requests": met}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_bound_of_a_change_is_the_entropy_of_lengths_and_the_bits_below(dtype: torch.dtype) -> None:
    base = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=dtype)
    assert training.relative_bits(base, base) == 0
    words = base.view(torch.int16 if dtype == torch.bfloat16 else torch.int32)
    changed = (words + torch.tensor([0, 1, 0, 1], dtype=words.dtype)).view(dtype)  # one up, one down: none, 1, -1
    assert training.relative_bits(changed, base) == pytest.approx(2 + 2 + 1 + 1)
    far = (words + torch.tensor([5, 5, 5, 5], dtype=words.dtype)).view(dtype)  # two up, two down, each of three bits
    assert training.relative_bits(far, base) == pytest.approx(4 + 4 * 2)


@pytest.mark.parametrize(
    ("part", "kills", "same", "missed"), [(0.5, 3, True, 0), (0.6, 2, True, 2), (0.7, 3, False, 3)]
)
def test_a_run_is_judged_by_its_bytes_its_kills_and_its_losses(
    part: float, kills: int, same: bool, missed: int
) -> None:
    row = {"dtype": "bfloat16", "form": training.OURS, "of dense": part, "kills": kills, "same": same}
    found = targets.evaluate({"run": [row, row | {"form": training.ALONE, "of dense": 9}]})
    assert len(found) == 4
    assert sum(each.met is False for each in found) == missed
