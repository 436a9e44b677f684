"""What ``tensorwire doctor`` asks a device: engines on tensors in CPU memory, and NVRTC, with nothing private named."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from tensorwire.cli import device, proof  # noqa: E402
from tensorwire.codec import compress, decompress  # noqa: E402
from tensorwire.torch.device import engines  # noqa: E402
from tensorwire.torch.device.engines import CompilerFacts  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

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


def test_engines_where_the_driver_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    assert list(engines.engines(CPU)) == ["Triton"], "no driver of NVIDIA's"
    monkeypatch.setattr(engines, "driver_for", lambda device: object())
    assert list(engines.engines(CPU)) == ["CUDA C++", "Triton"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/data/alice/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
         "site-packages/nvidia/cu13/lib/libnvrtc.so.13"),
        ("/usr/local/cuda/lib64/libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.12"),
        ("/data/alice/cuda/libnvrtc.so.12", ".../libnvrtc.so.12"),
        ("libnvrtc.so.13", "libnvrtc.so.13"),
        ("NVRTC cannot be loaded (/data/alice/site-packages/a.so: no)", "NVRTC cannot be loaded (.../a.so: no)"),
    ],
)  # fmt: skip
def test_the_place_of_nvrtc(place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tensorwire" / "kernels"
    monkeypatch.setattr(device, "compiler_facts", lambda: CompilerFacts("13.0", place, folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert device.nvrtc() == device.Nvrtc("13.0", said, "$XDG_CACHE_HOME/tensorwire/kernels", True)
    (tmp_path / "tensorwire").write_text("a file")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert device.nvrtc() == device.Nvrtc("13.0", said, "~/.cache/tensorwire/kernels", False)
    monkeypatch.setattr(device, "compiler_facts", lambda: CompilerFacts(None, place, None))
    assert device.nvrtc() == device.Nvrtc(None, said, None, False)


def test_a_cache_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 100) / "tensorwire" / "kernels"
    monkeypatch.setattr(device, "compiler_facts", lambda: CompilerFacts("13.0", "libnvrtc.so.13", folder))
    assert not device.nvrtc().writable


def test_no_gpu_no_engines() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert device.find() == ({}, None)
