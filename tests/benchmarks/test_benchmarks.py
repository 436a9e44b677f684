"""The benchmarks measure what they say: data, adapters, arithmetic, targets and pages. No speed is tested here."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import data, environment, summary
from benchmarks.codecs import against, calls, contest, cycles, enec, report
from benchmarks.codecs.newcomers import NEWCOMERS
from benchmarks.timing import interleave, relative, speed
from tensorwire._ground.allocation import new_buffer
from tensorwire.cli.peers import ADAPTERS
from tensorwire.codec.frame import core

EXPONENTS = {"BF16": (8, 7), "F16": (5, 10), "F32": (8, 23), "F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}


@pytest.fixture(scope="module")
def tiny() -> data.Dataset:
    return data.synthetic("tiny", hidden=64, layers=2)


def weights(dtype: str) -> memoryview:
    """64 KiB of normal numbers."""
    values = data.CASTS[dtype](np.random.default_rng(5).standard_normal(16384, dtype=np.float32))
    buffer = new_buffer(values.nbytes)
    np.frombuffer(buffer, np.uint8)[:] = values.view(np.uint8)
    return buffer


def test_synthetic_data_is_deterministic(tiny: data.Dataset) -> None:
    assert data.synthetic("again", hidden=64, layers=2).sha256() == tiny.sha256()
    assert data.synthetic("other", hidden=64, layers=2, seed=1).sha256() != tiny.sha256()
    assert tiny.sha256() == hashlib.sha256(bytes(tiny.data)).hexdigest()


def test_synthetic_data_has_the_scales_it_claims() -> None:
    dataset = data.synthetic("scales", hidden=512, layers=1)
    tensors = dict(zip(dataset.names, zip(dataset.shapes, dataset.tensors(), strict=True), strict=True))

    def values(name: str) -> Any:
        shape, tensor = tensors[name]
        return (np.frombuffer(tensor, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)

    matrix = values("model.layers.0.mlp.up_proj.weight")
    assert matrix.shape == (1408, 512)
    for axis, sigma in ((1, data.ROW_SIGMA), (0, data.COLUMN_SIGMA)):
        assert np.log(matrix.std(axis=axis)).std() == pytest.approx(sigma, rel=0.15)
    assert np.median(np.abs(matrix)) == pytest.approx(0.02 * 0.6745, rel=0.1)
    embedding = values("model.embed_tokens.weight")
    assert np.log(embedding.std(axis=1)).std() == pytest.approx(data.EMBEDDING_SIGMA, rel=0.15)
    assert np.log(embedding.std(axis=0)).std() < 0.1
    norm = values("model.norm.weight")
    assert norm.mean() == pytest.approx(1, abs=0.02)
    assert norm.std() == pytest.approx(data.NORM_SIGMA, rel=0.2)


def test_tensors_cover_the_data(tiny: data.Dataset) -> None:
    assert b"".join(tiny.tensors()) == bytes(tiny.data)
    assert [len(tensor) for tensor in tiny.tensors()] == [2 * math.prod(shape) for shape in tiny.shapes]


@pytest.mark.parametrize("dtype", EXPONENTS)
def test_bounds(dtype: str) -> None:
    """Against the definition of entropy, on two tensors."""
    buffer = weights(dtype)
    bits, mantissa = EXPONENTS[dtype]
    width = bits + mantissa + 1
    half = 4096
    dataset = data.Dataset("bounds", dtype, ("a", "b"), ((half,), (16384 - half,)), buffer)
    words = np.frombuffer(buffer, f"u{width // 8}").astype(np.int64)
    exponents = words >> mantissa & ((1 << bits) - 1)

    def information(part: Any) -> float:
        _, counts = np.unique(part, return_counts=True)
        return float(-(counts * np.log2(counts / len(part))).sum())

    rest = len(words) * (width - bits)
    whole, by_tensor = dataset.bounds()
    assert whole == pytest.approx(len(words) * width / (information(exponents) + rest))
    parts = information(exponents[:half]) + information(exponents[half:])
    assert by_tensor == pytest.approx(len(words) * width / (parts + rest))


def test_scaled_casts_reach_the_largest_value_and_no_further() -> None:
    import ml_dtypes

    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        cast = data._scaled(np.array([-3.0, 0.5, 1.5], np.float32), dtype).astype(np.float32)
        assert cast[0] == -float(ml_dtypes.finfo(dtype).max)
        assert not data._scaled(np.zeros(3, np.float32), dtype).astype(np.float32).any()


@pytest.mark.filterwarnings("ignore")  # what peers warn of
@pytest.mark.parametrize("dtype", EXPONENTS)
@pytest.mark.parametrize("adapter", [*ADAPTERS, *NEWCOMERS], ids=lambda adapter: adapter.name)
def test_adapters_round_trip(adapter: Any, dtype: str) -> None:
    if not adapter.installed:
        pytest.skip(f"{adapter.package} is not installed")
    source = weights(dtype)
    original = bytes(source)
    for threads, verify in itertools.product((1, 2) if adapter.threaded else (1,), (True, False)):
        try:
            codec = adapter.make(dtype, threads=threads, verify=verify)
        except ValueError:
            assert adapter.name.endswith("float")
            assert dtype not in ("F16", "F32")
            return
        for _ in range(2):  # codecs are used again
            packed = codec.compress(codec.prepare(source))
            out = new_buffer(len(source))
            assert bytes(memoryview(codec.decompress(packed, out)).cast("B")) == original
        assert bytes(source) == original
    assert adapter.version or adapter.name == "memcpy"


def test_adapters_without_threads_refuse_them() -> None:
    refusing = [adapter for adapter in ADAPTERS if not adapter.threaded]
    assert refusing
    for adapter in refusing:
        with pytest.raises(ValueError, match="one thread only"):
            adapter.make("BF16", threads=2)


def test_checksums_can_be_left_out() -> None:
    """`verify` reaches the codec: damage is found with it, and not without."""
    adapter = next(adapter for adapter in ADAPTERS if adapter.name == "tensorwire fast")
    source, out = weights("BF16"), new_buffer(32768)
    packed = bytearray(adapter.make("BF16").compress(source))
    packed[1000] ^= 1  # sign and mantissa of a word
    with pytest.raises(ValueError, match="checksum"):
        adapter.make("BF16", verify=True).decompress(packed, out)
    adapter.make("BF16", verify=False).decompress(packed, out)
    assert out != source


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("unit", ["whole", "tensor"])
def test_contest_gives_a_row_for_each_setting(tiny: data.Dataset, unit: str) -> None:
    adapters = [adapter for adapter in ADAPTERS if adapter.package in ("memcpy", "tensorwire")]
    rows = contest.run(tiny, unit, (1, 2), 2, 10.0, adapters)
    settings = [(row["codec"], row["threads"], row["verify"]) for row in rows]
    assert len(set(settings)) == len(settings)
    fast = {(threads, verify) for codec, threads, verify in settings if codec == "tensorwire fast"}
    assert fast == {(1, True), (1, False), (2, True), (2, False)}
    for row in rows:
        assert row["nbytes"] == len(tiny.data)
        assert row["ratio"] == row["nbytes"] / row["compressed_nbytes"]
        assert row["compress"]["runs"] == row["decompress"]["runs"] == 2
        assert row["decompress"]["vs_memcpy"]["median"] > 0
        assert (row["ratio"] == 1) == (row["codec"] == "memcpy")


def test_contests_without_the_unverified_settings(tiny: data.Dataset) -> None:
    adapters = [adapter for adapter in ADAPTERS if adapter.package in ("memcpy", "tensorwire")]
    rows = contest.run(tiny, "whole", (1,), 1, 10.0, adapters, unverified=False)
    assert [row["codec"] for row in rows] == [adapter.name for adapter in adapters]
    assert all(row["verify"] is not False for row in rows)


def test_a_wrong_result_stops_the_contest(tiny: data.Dataset) -> None:
    good = ADAPTERS[0].make("BF16")

    def decompress(packed: Any, out: memoryview) -> memoryview:
        good.decompress(packed, out)
        out[-1] ^= 1
        return out

    entry = contest.Entry(ADAPTERS[0], replace(good, decompress=decompress), 1, None)
    with pytest.raises(RuntimeError, match="differs"):
        contest.Contest([tiny.data], 1.0).check(entry)


def test_interleave_rounds_and_budget() -> None:
    calls: list[str] = []

    def operation(name: str, seconds: float) -> Any:
        def run() -> float:
            calls.append(name)
            return seconds

        return run

    operations = {"a": operation("a", 1.0), "b": operation("b", 3.0), "c": operation("c", 1.0)}
    seconds = interleave(operations, {"a": 1.0, "b": 4.0, "c": 9.0}, 3, 5.0)
    assert calls == ["a", "b", "a", "b", "a"]
    assert seconds == {"a": [1.0, 1.0, 1.0], "b": [3.0, 3.0, None], "c": [9.0, None, None]}
    assert speed(seconds["b"], 6 * 10**9) == {"low": 2.0, "median": 2.0, "high": 2.0, "runs": 2}


def test_relative_is_taken_round_by_round() -> None:
    """Noise that hits both of a round cancels out: twice as fast in each, whatever the medians say."""
    assert relative([1.0, 5.0, 2.0], [2.0, 10.0, 4.0]) == {"low": 2.0, "median": 2.0, "high": 2.0, "runs": 3}
    assert relative([1.0, None], [None, 1.0]) is None


def test_large_data_has_512_mib_of_each_dtype() -> None:
    """Counted, not made: words of embeddings, layers and norms of the decoder that docs/benchmarks.md describes."""
    for dtype, layers in data.SYNTHETIC_LAYERS.items():
        hidden = data.SYNTHETIC_HIDDEN
        matrices = 2 * hidden * hidden + 2 * hidden * hidden // 8 + 3 * hidden * (11 * hidden // 4)
        words = 16 * hidden * hidden + layers * (matrices + 2 * hidden) + hidden
        assert words * data.dtype_bits(dtype) // 8 >= 512 << 20, dtype
        small = data.synthetic("small", hidden=64, layers=1, dtype=dtype)
        assert small.dtype == dtype
        assert len(small.data) == sum(math.prod(shape) for shape in small.shapes) * data.dtype_bits(dtype) // 8


def test_the_public_functions_are_compared_with_the_core(tiny: data.Dataset) -> None:
    rows = calls.measure(tiny, "fast", 2)
    assert [row["direction"] for row in rows] == ["compress", "decompress"]
    assert all(row["of_core"] > 0 and row["public"] > 0 for row in rows)
    assert calls.render(rows).count("| `fast` | ") == 2


def test_plot(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    report.write_plot(json.loads((environment.RESULTS / "codecs.json").read_text()), tmp_path / "plot.svg")
    chart = (tmp_path / "plot.svg").read_text()
    assert chart.startswith("<?xml")
    assert len(chart) < 24_000
    for codec in ("tensorwire fast", "tensorwire compact", "tensorwire enec", "zipnn", "memcpy"):
        assert codec in chart


def row(**more: Any) -> dict[str, Any]:
    figure: dict[str, Any] = {"low": 0.5, "median": 1.0, "high": 1.25, "runs": 7}
    figure |= {key: {"median": 0.1} for key in summary.YARDSTICKS}
    return {
        "dataset": "minilm-bf16", "unit": "whole", "codec": "zipnn", "version": "1", "threads": 1, "cpu": None,
        "verify": None, "ratio": 1.5, "compress": figure, "decompress": figure,
    } | more  # fmt: skip


def test_a_summary_keeps_what_was_measured() -> None:
    """Both units in one row; a spread is half of the distance of the quartiles; a forced target stays apart."""
    tensor = row(unit="tensor", ratio=1.51, compress={"median": 1.25}, decompress={"median": 2.0})
    rows = [row(), tensor, row(forced_cpu="avx2")]
    made = summary.summarize({"rows": rows, "enec": {"pi": math.pi}})
    both, forced = made["rows"]
    assert both["ratio"] == 1.5
    assert both["by_tensor"] == {"ratio": 1.51, "compress": 1.25, "decompress": 2.0}
    assert (both["decompress"]["spread"], both["decompress"]["runs"]) == (0.375, 7)
    assert both["decompress"]["vs_memcpy"] == 0.1
    assert made["enec"] == {"pi": 3.1415927}
    assert json.loads(summary.dumps(made)) == made
    assert forced["forced_cpu"] == "avx2"
    assert "by_tensor" not in forced


def test_enec_least_size_is_the_least() -> None:
    """Against the worked example of the paper's method, counted by hand: 16 exponents, groups of 4 in order."""
    exponents = np.array([122, 121, 120, 119, 123, 122, 118, 121, 121, 125, 122, 117, 120, 121, 123, 110])
    # b = 125, m = 3, n = 5: y = 3 4 5 6 | 2 3 7 4 | 4 0 3 8 | 5 4 2 15. Low: 4 + 4 bytes. Mask: 4. Two groups are
    # flagged: 8 high parts of 2 bits, 4 bytes. m = 4 flags nothing and takes 8 + 4 bytes.
    assert enec.least_nbytes(exponents, 8)[4] == 12
    assert enec.least_nbytes(np.full(1024, 100), 8) == {4: 128 + 32, 8: 128 + 16, 16: 128 + 8, 32: 128 + 4}
    assert [enec.field_nbytes(256, width) for width in (1, 3, 8)] == [32, 96, 256]
    assert enec.field_nbytes(259, 3) == 96 + 8  # of 3 numbers: 4 bytes of 2-bit plane, 4 bytes of 1-bit plane


def test_encoder_reaches_the_least_size(tiny: data.Dataset) -> None:
    sizes = enec.sizes(tiny, 3)
    assert sizes["blocks"] >= 3
    assert sizes["nbytes"] == sizes["exact_nbytes"]


def test_cycles_covers_what_it_names() -> None:
    """Each case is made of the blocks that it is named after."""
    for case in cycles.cases():
        trial = cycles._Trial(case, 1 << 16)
        assert trial.kinds == case.coder.split(",")[0], case
        rests = {info.rest for info in trial._reader.block_infos(trial._blocks)}
        assert (rests == {"trimmed"}) == ("trimmed" in case.coder), case
    rows = json.loads((environment.RESULTS / "cycles.json").read_text())["rows"]
    assert {(row["coder"], row["dtype"]) for row in rows} <= {(case.coder, case.dtype) for case in cycles.cases()}


def test_a_function_runs_in_a_process_of_its_own() -> None:
    assert environment.asked(data.large_name, "F8_E4M3") == "synthetic-f8-e4m3"
    assert environment.asked(os.getpid) != os.getpid()


def test_code_is_compared_with_code(tiny: data.Dataset) -> None:
    """With itself: frames of the same size, and a verdict for each profile and direction."""
    cpu = core.cpu_target()
    verdicts = {verdict.target: verdict for verdict in against.measure(against.HERE, tiny, cpu, 2)}
    assert len(verdicts) == len(against.PROFILES) * (len(against.OPERATIONS) + 1)
    for profile in against.PROFILES:
        assert verdicts[f"{profile} size, of the older"].measured == 1
        assert verdicts[f"{profile} decompress unverified, times the older"].measured
    assert not against.measure(against.HERE, tiny, "no target", 1)
