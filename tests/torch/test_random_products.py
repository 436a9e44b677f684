"""Products of random shapes and values have the words of dense torch's, as on several CPUs; and corners where a random
product is seldom."""

from __future__ import annotations

import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.frames.team import on_team, team  # noqa: E402
from tensorwire.torch.products import linear  # noqa: E402
from tests.support.random_products import VARIANTS, differences, main  # noqa: E402
from tests.support.versions import is_torch_before  # noqa: E402

NUM_FEW, NUM_FEW_ELSEWHERE, NUM_MANY = 25, 8, 3_400
ON_X86 = platform.machine() == "x86_64"


@pytest.fixture(autouse=True)
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    linear._choose.cache_clear()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run(variant: str, seed: int, count: int) -> None:
    if VARIANTS[variant] and not ON_X86:
        pytest.skip("the CPUs to run as are x86")
    if not VARIANTS[variant]:
        assert main(seed, count) == 0
        return
    command = [sys.executable, "-m", "tests.support.random_products", str(seed), str(count)]
    # Three threads on two cores would wait for each other.
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", **VARIANTS[variant]}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


QUICK = ("as it is", "all for AVX2")


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VARIANTS]
)
def test_random_products(variant: str) -> None:
    run(variant, 1, NUM_FEW_ELSEWHERE if VARIANTS[variant] else NUM_FEW)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("variant", VARIANTS)
def test_many_random_products(variant: str, pytestconfig: pytest.Config) -> None:
    """Newly drawn ones in `make test-slow`. The message of a failure has the seed."""
    is_new = pytestconfig.getoption("--hypothesis-profile") == "new"
    run(variant, random.SystemRandom().randrange(2**32) if is_new else 2, NUM_MANY)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize(("rows", "columns", "num_threads"), [(129, 129, 2), (129, 129, 3), (1025, 4096, 1)])
def test_a_last_slab_of_one_row(
    rows: int, columns: int, num_threads: int, count: int, bias: bool, threads: Any
) -> None:
    """F32: torch has another kernel for a single row."""
    threads(num_threads)
    generator = torch.Generator().manual_seed(rows)
    weight, x = (torch.randn(number, columns, generator=generator) for number in (rows, count))
    assert differences(x, weight, torch.randn(rows, generator=generator) if bias else None) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [3, 300])
@pytest.mark.parametrize("is_first", [False, True], ids=["", "before it is tried"])
def test_a_worker_that_flushes_denormals(dtype: Any, rows: int, is_first: bool, threads: Any) -> None:
    """`torch.set_flush_denormal` is for one thread alone, and those that it starts."""
    if team() is None:
        pytest.skip("torch has no team on this machine")
    threads(2)
    scale = 2.0**-20 if dtype is torch.float16 else 2.0**-64
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(number, 200, generator=generator).mul(scale).to(dtype) for number in (rows, 2))
    compressed = CompressedTensor.from_dense(weight)
    if not is_first:
        assert differences(x, weight, None, compressed) == 0
    try:
        for caller in (False, True):
            on_team(lambda: torch.set_flush_denormal(True), 2)
            torch.set_flush_denormal(caller)
            assert differences(x, weight, None, compressed) == 0
    finally:
        on_team(lambda: torch.set_flush_denormal(False), 2)
    assert differences(x, weight, None, compressed) == 0


UNLIKE_FUSED = {"a negative zero": (-(2.0**-100), 2.0**-100), "an infinity": (2.0**63, -(2.0**64))}


@pytest.mark.parametrize("values", UNLIKE_FUSED.values(), ids=UNLIKE_FUSED)
@pytest.mark.parametrize("columns", [2, 8, 16, 71, 138])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("onednn", [False, True], ids=["", "oneDNN"])
def test_products_that_are_rounded_before_they_are_added(
    values: tuple[float, float], columns: int, count: int, onednn: bool
) -> None:
    """In BF16 torch rounds the last products, which without oneDNN are its own. Fused ones would leave a zero negative,
    and a sum finite."""
    if columns == 2 and values[0] > 1 and is_torch_before(2, 13):
        pytest.skip("torch 2.5 fuses the product of the second of two columns")
    enabled = torch.backends.mkldnn.enabled
    weight = torch.full((64, columns), values[0]).bfloat16()
    x = torch.full((count, columns), values[1]).bfloat16()
    x[:, ::2] *= -1 if values[0] > 1 else 1
    x[:, 1::2] *= 2 if values[0] > 1 else 1
    try:
        torch.backends.mkldnn.enabled = onednn
        assert differences(x, weight, None) == 0
    finally:
        torch.backends.mkldnn.enabled = enabled
