"""A marker whose payload is gone is no weight, in a framework that has the dtype of markers too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tensorwire
from tensorwire import UnsupportedTensorError, compress
from tensorwire.codec.view import dtypes
from tensorwire.files.names import MARKER_DTYPE
from tests.support.checkpoint_models import container, weights

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

import tensorwire.safetensors  # noqa: E402

FRAME = bytes(compress(weights(300, 1), dtype="BF16", shape=(300,)))
PAYLOAD = ("m._w_tensorwire", "U8", (len(FRAME),), FRAME)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The day on which ml_dtypes, which has it today, and torch can hold the dtype."""
    monkeypatch.setitem(dtypes._DTYPES, MARKER_DTYPE, (6, "float6_e2m3fn", "float8_e8m0fnu"))


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_it_is_refused(tmp_path: Path, framework: str) -> None:
    (tmp_path / "x").write_bytes(container([("m.w", MARKER_DTYPE, (0,), b""), ("other", "U8", (3,), b"abc")]))
    text = r"the file has no payload 'm\._w_tensorwire' \(file '.*x', tensor 'm\.w'\); fetch the file again"
    with pytest.raises(UnsupportedTensorError, match=text):
        tensorwire.load_file(tmp_path / "x", framework=framework)
    with tensorwire.safetensors.safe_open(tmp_path / "x", framework) as file:
        for read in (file.get_tensor, file.get_slice):
            with pytest.raises(UnsupportedTensorError, match=text):
                read("m.w")
        assert len(file.get_tensor("other")) == 3
    assert tensorwire.load_file(tmp_path / "x", framework="bytes") == {"m.w": b"", "other": b"abc"}


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_one_with_its_payload_is_the_weight(tmp_path: Path, framework: str) -> None:
    (tmp_path / "x").write_bytes(container([("m.w", MARKER_DTYPE, (0,), b""), PAYLOAD]))
    assert tensorwire.load_file(tmp_path / "x", framework=framework)["m.w"].shape == (300,)


def test_other_tensors_of_the_dtype_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(container([("w", MARKER_DTYPE, (0, 4), b""), ("v", MARKER_DTYPE, (1, 0), b"")]))
    loaded = tensorwire.load_file(tmp_path / "x")
    assert {name: array.shape for name, array in loaded.items()} == {"w": (0, 4), "v": (1, 0)}
