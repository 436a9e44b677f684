"""What ``tensorwire doctor`` asks a device: engines on tensors in CPU memory, and none without a GPU."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tensorwire.cli import device, proof  # noqa: E402
from tensorwire.codec import compress, decompress  # noqa: E402

CPU = torch.device("cpu")


def by_core(frame: torch.Tensor) -> torch.Tensor:
    return decompress(bytes(frame.numpy()), framework="pt")


def test_an_engine_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in proof.cases() if case.dtype in ("BF16", "I64") and len(case.data) < 30_000]
    monkeypatch.setattr(proof, "cases", lambda: cases)
    engine = partial(device.decoded, by_core, CPU)
    results = proof.prove_engines({"core": engine})
    assert len(results) == len(cases) > 5
    assert {result.verdict for result in results} == {"ok"}


def test_what_torch_has_no_dtype_for_is_left_out() -> None:
    frame = bytes(compress(bytes(3000), dtype="F6_E2M3", shape=(4000,)))
    assert device.decoded(by_core, CPU, frame) is None


def test_no_gpu_no_engines() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert device.find() == {}
