"""tensorwire bench: the sample it takes, what it prints, what it does with codecs that fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorwire import codec
from tensorwire.cli import main, measure, peers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATTERN = np.random.default_rng(0).integers(0, 1 << 16, (100, 256), np.uint16)


def test_a_url_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "s3://key:hunter2@bucket/a"]) == 2
    assert (
        "expected a path of this machine, got s3://bucket/a; first run tensorwire decompress s3://bucket/a"
        in capsys.readouterr().err
    )


def copying(*settings: Any) -> peers.Codec:
    return peers.Codec(bytes, lambda packed, out: packed)


def wrong(*settings: Any) -> peers.Codec:
    """Loses the last byte."""
    return peers.Codec(bytes, lambda packed, out: packed[:-1] + bytes([packed[-1] ^ 1]))


def failing(*settings: Any) -> peers.Codec:
    def compress(prepared: memoryview) -> bytes:
        raise RuntimeError("first line\nsecond line")

    return peers.Codec(compress, lambda packed, out: packed)


def adapter(name: str, factory: Callable[..., peers.Codec] = copying, module: str | None = None) -> peers.Adapter:
    return peers.Adapter(name, "tensorwire", module, factory)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SAMPLE_NBYTES", 40_000)
    monkeypatch.setattr(measure, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(peers.Adapter, "version", "1.2.3")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    small = {"ids": np.arange(8), "scalar": np.array(1.0, np.float32)}
    save_file({"a": PATTERN[:60].view(ml_dtypes.bfloat16), "b": PATTERN[60:].view(ml_dtypes.bfloat16), **small}, path)
    return path


def test_sample_is_the_first_rows(file: Path) -> None:
    (sample,) = measure.samples(file)  # the few others are left out
    assert sample.dtype == "BF16"
    rows = 40_000 // 512
    assert bytes(sample.data) == PATTERN[:rows].tobytes()


def test_sample_of_a_compressed_directory_is_that_of_the_plain_one(file: Path) -> None:
    assert main(["compress", str(file.parent), str(file.parent) + "-small"]) == 0
    plain, small = measure.samples(file.parent), measure.samples(file.parent.with_name(file.parent.name + "-small"))
    assert [(sample.dtype, bytes(sample.data)) for sample in plain] == [
        (sample.dtype, bytes(sample.data)) for sample in small
    ]


def test_table(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    adapters = (
        adapter("copy"),
        adapter("wrong", wrong),
        adapter("failing", failing),
        adapter("absent", module="absent_"),
    )
    monkeypatch.setattr(peers, "ADAPTERS", adapters)
    assert main(["bench", str(file)]) == 0, "a peer that fails is no failure of ours"
    out, err = capsys.readouterr()
    assert err == ""
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["copy"][1:4] == ["1.2.3", "BF16", "1.000"]
    assert rows["copy"][5] == rows["copy"][7] == "GB/s"
    assert rows["wrong"][3:] == ["-", "-", "-"]
    assert "note: wrong on BF16: wrong result\n" in out
    assert "note: failing on BF16: RuntimeError: first line\n" in out
    assert "note: not installed: " in out
    assert f"CPU target {codec.cpu_target()}; one thread\n" in out


def test_json(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peers, "ADAPTERS", (adapter("copy"), adapter("absent", module="absent_")))
    assert main(["bench", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(file)
    assert report["missing"] == ["absent"]
    assert report["machine"]["cpu_target"] == codec.cpu_target()
    (result,) = report["results"]
    assert result["nbytes"] == result["compressed_nbytes"] == 40_000 // 512 * 512
    assert result["ratio"] == 1.0
    assert result["compress_seconds"] > 0
    assert result["decompress_seconds"] > 0


def test_a_wrong_result_of_ours_is_bad_data(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ADAPTERS", (adapter("tensorwire fast", wrong),))
    assert main(["bench", str(file)]) == 1


@pytest.mark.parametrize("name", ["tensorwire fast", "tensorwire compact", "tensorwire resident", "tensorwire enec"])
def test_ours_on_synthetic_weights(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "SAMPLE_NBYTES", 1 << 20)
    monkeypatch.setattr(peers, "ADAPTERS", tuple(item for item in peers.ADAPTERS if item.name == name))
    assert main(["bench", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["error"] is None
    assert 1.3 < result["ratio"] < 1.6  # 8 bits of 16 do not shrink, the other 8 to about 3
