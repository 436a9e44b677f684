"""The benchmark of checkpoints: what it computes itself, and how it judges."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

from benchmarks.checkpoints import dcp, ranks, remote, targets  # noqa: E402


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
