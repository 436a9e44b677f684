"""The odd tensors of ``tensorwire doctor``: kernels in CUDA C++, on a CPU, against the core.

Kernels for the dtypes left out of the quick test have tests of their own: to compile them takes long.
"""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tensorwire.cli import device, proof  # noqa: E402
from tensorwire.torch.device import engines  # noqa: E402

from .stand_in import StandIn  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("left_out", [("F16", "F32"), pytest.param((), marks=pytest.mark.slow)])
def test_small_odd_tensors(monkeypatch: pytest.MonkeyPatch, left_out: tuple[str, ...]) -> None:
    cases = [case for case in proof.cases() if len(case.data) <= 1024 and case.dtype not in left_out]
    monkeypatch.setattr(proof, "cases", lambda: cases)
    monkeypatch.setattr(engines, "driver_for", lambda device: StandIn())
    engine = partial(device.decoded, engines.engines(CPU)["CUDA C++"], CPU)
    results = proof.prove_engines({"CUDA C++": engine})
    assert len(results) == len(cases) > 8
    assert [result for result in results if result.verdict != "ok"] == []
