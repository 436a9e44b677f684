"""A sampled estimate: near what compressing gives, the same each time, and soon there."""

from __future__ import annotations

import json
import resource
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.codecs.dequantized import FORMS, multiplied
from tensorwire.checkpoint import compress_checkpoint, estimate_ratio, inspect
from tests.support.checkpoint_models import container, random_bytes, weights

if TYPE_CHECKING:
    from pathlib import Path

    from tensorwire.codec import Profile


def same_each_time(path: Path, **settings: int) -> dict[str, object]:
    values = dict(vars(estimate_ratio(path, **settings)))
    del values["seconds"]
    return values


@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_a_small_checkpoint_is_encoded_whole(model: Path, tmp_path: Path, profile: Profile) -> None:
    done = compress_checkpoint(model, tmp_path / "x", profile=profile)
    found = estimate_ratio(model, profile=profile)
    assert found.sample_share == 1
    assert found.nbytes_in == done.nbytes_in
    of_tensors = sum(file.nbytes_out for file in done.files if file.path != "tensorwire.json")
    assert found.nbytes_out == pytest.approx(of_tensors, rel=0.1), "headers that grow are not in it"
    assert found.lowest_nbytes_out == found.nbytes_out == found.highest_nbytes_out


def test_the_range_holds_what_compressing_gives(tmp_path: Path) -> None:
    """Weights of three dtypes, and bytes that nothing compresses, in one file of 90 MB."""
    path = tmp_path / "a.safetensors"
    brain_floats = weights(4_000_000, 0)
    entries = [
        *((f"w{i}", "BF16", (4_000_000,), brain_floats) for i in range(5)),
        ("f", "F32", (4_000_000,), weights(4_000_000, 8, "F32")),
        ("h", "F16", (8_000_000,), weights(8_000_000, 9, "F16")),
        ("r", "U8", (18_000_000,), random_bytes(18_000_000, 3)),
    ]
    path.write_bytes(container(entries))
    done = compress_checkpoint(path, tmp_path / "x.safetensors")
    found = estimate_ratio(path)
    assert 0.2 < found.sample_share < 0.5
    assert found.lowest_ratio < done.ratio < found.highest_ratio
    assert found.ratio == pytest.approx(done.ratio, rel=0.03)
    assert same_each_time(path, threads=1) == same_each_time(path, threads=3)


def test_samples_are_whole_rows(tmp_path: Path) -> None:
    """Rows that have a scale each: `compact` finds them where they begin."""
    words = multiplied(
        *FORMS["int8, a scale for each row"].quantize(np.random.default_rng(5).standard_normal((700, 1000), np.float32))
    )
    path = tmp_path / "a.safetensors"
    path.write_bytes(container([("w", "BF16", words.shape, words.tobytes())]))
    done = compress_checkpoint(path, tmp_path / "x.safetensors", profile="compact")
    assert done.ratio > 2
    assert estimate_ratio(path, profile="compact").ratio == pytest.approx(done.ratio, rel=0.02)


def test_the_storages_of_torch_files_are_sampled(model: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    parts = ((random_bytes(2_000_000, 1), torch.uint8), (weights(1_000_000, 2), torch.bfloat16))
    torch.save([torch.frombuffer(bytearray(data), dtype=dtype) for data, dtype in parts], model / "optimizer.pt")
    done, found = compress_checkpoint(model, tmp_path / "x"), estimate_ratio(model)
    assert found.nbytes_in == done.nbytes_in
    assert found.sample_nbytes == sum(tensor.nbytes for tensor in inspect(model).tensors)
    assert found.ratio == pytest.approx(done.ratio, rel=0.02)


def test_it_reads_its_sample_only(tmp_path: Path) -> None:
    """64 GB that nobody could read in the time; nearly all are a hole."""
    path = tmp_path / "large.safetensors"
    nbytes = 1 << 36
    raw = json.dumps({"w": {"dtype": "BF16", "shape": [nbytes // 2], "data_offsets": [0, nbytes]}}).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + nbytes)
    started = time.monotonic()
    found = estimate_ratio(path)
    assert time.monotonic() - started < 20, "loaded as the machine may be"
    assert found.num_samples == 64
    assert found.sample_nbytes == 64 << 19
    assert found.ratio > 100, "zeros"


def test_bad_sources(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compressed already"):
        estimate_ratio(packed)
    with pytest.raises(FileNotFoundError):
        estimate_ratio(tmp_path / "none.safetensors")
    path = tmp_path / "empty.safetensors"
    path.write_bytes(container([("e", "F32", (0,), np.zeros(0, np.float32).tobytes())]))
    assert estimate_ratio(path).ratio == 1


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for index in range(100):
        entry = (f"t{index}", "BF16", (1000,), weights(1000, index))
        (tmp_path / "model" / f"{index}.safetensors").write_bytes(container([entry]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 90), hard))
    try:
        assert estimate_ratio(tmp_path / "model").num_samples == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
