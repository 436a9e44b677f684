"""The benchmark of engines: what it computes itself, and how it judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.engines import delta, kv, pictures, run, weights

if TYPE_CHECKING:
    from pathlib import Path


def _words(*numbers: float) -> np.ndarray:
    return np.array(numbers, ml_dtypes.bfloat16).view(np.uint16)


def test_a_section_is_a_module_with_tables_and_targets() -> None:
    found = run.sections()
    assert found["kv"] is kv
    names = [table.name for module in found.values() for table in module.TABLES]
    assert len(names) == len(set(names))
    assert all(callable(module.evaluate) for module in found.values())


def test_splitzip_takes_12_bits_and_more_for_what_escapes() -> None:
    page = _words(1.0, -1.5, 2.0, 4.0)
    book = kv._frequent(np.repeat(page, 4))
    assert set(book[:3]) == {127, 128, 129}
    assert kv._splitzip_nbytes(page, book) == 6 + 2 + 16
    assert kv._splitzip_nbytes(page, np.array([127])) == 6 + 2 * 3 + 2 + 16


def test_bounds_are_entropies_of_exponents_and_of_the_rest() -> None:
    words = _words(1.0, 4.0, 1.0, 4.0).reshape(2, 2)
    assert kv._bits(kv.BF16, words) == pytest.approx((1.0 + 0.0, 7.0))  # one bit; a channel has one exponent
    words = _words(1.0, -1.0, 1.0, -1.0).reshape(2, 2)
    assert kv._bits(kv.BF16, words) == pytest.approx((1.0, 7.0))
    eight = np.array([1.0, 2.0, 1.0, 2.0], ml_dtypes.float8_e4m3fn).view(np.uint8).reshape(2, 2)
    assert kv._bits(kv.FP8, eight) == pytest.approx((1.0, 3.0))


def test_the_largest_number_becomes_that_of_the_dtype() -> None:
    assert kv._scaled(_words(0.5, -2.0)).view(ml_dtypes.float8_e4m3fn).tolist() == [112.0, -448.0]


def test_pages_go_through_all_codecs_and_come_back() -> None:
    words = np.random.default_rng(0).normal(size=(128, 64)).astype(ml_dtypes.bfloat16).view(np.uint16)
    tensors = {(0, "keys"): words, (0, "values"): words[::-1].copy()}
    pytest.importorskip("zstandard")
    pytest.importorskip("lz4")
    found = kv._ratios(kv.BF16, tensors)
    assert found["`fast`"]["both", 64] > found[kv.LZ4]["both", 64]
    rows = list(kv._speeds(64, kv.ALL, list(kv._pages_of(tensors, 64, kv.ALL)), 1))
    assert {row["with"] for row in rows} >= {*kv.OURS, kv.ZSTD, kv.LZ4}


def test_targets_are_those_of_fast() -> None:
    ratios = [{"dtype": kv.BF16, "with": name, "both, 64": ratio} for name, ratio in (("`fast`", 1.5), (kv.LZ4, 1.0))]
    speed = {"with": "`fast`", "encode, of zstd": 4.9, "decode, of zstd": 7.0}
    speeds = [speed | {"frame": f"64 tokens, {what}"} for what in (kv.ONE, kv.ALL)]
    found = list(kv.evaluate({"ratios": ratios, "speeds": speeds}))
    assert [(each.measured, each.met) for each in found] == [(1.5, True), (4.9, False), (7.0, True)]


def test_a_weight_engine_is_as_good_as_its_answers_and_its_pause() -> None:
    answers = [{"tokens": [[number]], "logprobs": [[0.5]]} for number in range(2)]
    taken = [(answers[0], {**answers[0], "error": None}), (answers[1], {**answers[0], "error": None})]
    row = weights._row(weights.ENGINE, taken, [0.5, 0.25, 1.0], 1e6, 1, 0.75)
    assert (row["updates"], row["equal"], row["seconds"], row["range"]) == (2, 1, 0.5, [0.25, 1.0])
    for equal, met in ((1, False), (2, True)):
        found = weights.evaluate({"weights": [{**row, "equal": equal}]})
        assert [(each.measured, each.met) for each in found] == [(met, met), (0.75, True)]
    assert [each.met for each in weights.evaluate({})] == [None, None]


def test_behind_a_failure_the_engine_comes_first(tmp_path: Path) -> None:
    first, *steps = weights._steps(tmp_path, 4, {3: "load"})
    assert set(first) == {"init", "silent"}
    kinds = [next(key for key in step if key in ("update", "reload")) for step in steps]
    assert kinds == ["update", "reload", "reload", "update", "update", "update", "reload", "reload", "update"]
    assert [step.get("fault") for step in steps].index("load") == 4
    assert [number for number, step in enumerate(steps) if "publish" in step] == [0, 2, 4, 7]


def test_a_picture_has_all_wires_and_all_ratios(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    step = {"pair": delta.JUDGED, "changed": 0.018, "ours": 7.5, "xor_zstd": 20.25, "index_value": 48.0, "dense": 900.0}
    ratios = [{"dtype": kv.BF16, "with": name, "both, 64": 1.25} for name in pictures.PAGES]
    pictures.draw({"ratios": ratios}, tmp_path)
    assert not list(tmp_path.iterdir())
    for name in ("first.svg", "second.svg"):
        pictures.draw({"wires": [step], "ratios": ratios}, tmp_path)
        (tmp_path / pictures.PICTURE).rename(tmp_path / name)
    picture = (tmp_path / "first.svg").read_text()
    assert picture == (tmp_path / "second.svg").read_text()
    assert len(picture) < 30_000
    for text in (*pictures.WIRES.values(), *pictures.PAGES.values(), "1.8% of the words changed", "20.2", "1.250"):
        assert text.replace("'", "&#x27;") in picture or text in picture
