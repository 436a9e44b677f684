"""The kernels through Triton-Ascend's compiler. ``make ascend`` has the environment for it.

It lowers Triton's IR to MLIR of the dialects linalg and memref by a program that its wheel brings, which needs no NPU.
The next stage, bishengir-compile, is in the package ascendnpu-ir, and needs none either. The last one, hivmc, makes
machine code; it is in Huawei's CANN, which PyPI lacks.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

try:
    importlib.metadata.version("triton-ascend")
except importlib.metadata.PackageNotFoundError:
    pytest.skip(
        "Triton-Ascend is missing, which make ascend installs apart from everything else", allow_module_level=True
    )

from triton._C.libtriton import ir
from triton.backends.ascend import compiler
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from tests.torch.compile_kernels import Source, sources, types_of

TARGET = GPUTarget("npu", "Ascend910B", 0)
BISHENGIR = (
    "--target=Ascend910B2", "--enable-auto-multi-buffer=true", "--enable-hfusion-compile=true",
    "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true", "--hivmc-version=0.2.0",
)  # fmt: skip
# What a loop over single numbers consists of: one is put into a tensor, or memory of one number is copied.
_SINGLE_NUMBER = re.compile(r"tensor\.insert |(?:memref\.copy|materialize_in_destination) .*memref<(?:1x)+[if]\d")


def ttir(source: Source) -> tuple[Any, Any]:
    """Triton's own IR, and the options with which it was made. The front end is that of Triton 3.2."""
    kernel, constants, changed = source
    backend = make_backend(TARGET)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    parsed = ASTSource(kernel, types_of(kernel, changed), constants)
    module = parsed.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    return compiler.make_ttir(module, {"hash": ""}, options), options


def linalg(source: Source) -> str:
    module, options = ttir(source)
    text: str = compiler.ttir_to_linalg(module, vars(options), options, named_ops=True)
    return text


def lines_of_loops_over_single_numbers(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if _SINGLE_NUMBER.search(line)]


def name_of(source: Source) -> str:
    kernel, constants, _ = source
    return "-".join(
        [kernel.__name__, *(str(constants[name]) for name in ("widths", "quads_log2") if name in constants)]
    )


@pytest.mark.parametrize("source", sources(by_group=True), ids=name_of)
def test_vectors_only(source: Source) -> None:
    """All tiers of cascades, `resident` and its escapes among them, and enec: loops are over blocks, runs and windows
    of consecutive words."""
    text = linalg(source)
    assert "func.func @" + source[0].__name__ in text
    assert lines_of_loops_over_single_numbers(text) == []
    assert "unrealized_conversion_cast %arg" not in text, "a pointer that is cast keeps its offset in units of the old"
    assert "arith.cmpi u" not in text, "bishengir-compile widens unsigned numbers to compare them, by a cast it refuses"


@pytest.mark.parametrize("source", sources(by_group=True), ids=name_of)
def test_the_next_stage_lacks_hivmc_alone(source: Source, tmp_path: Path) -> None:
    """It goes through all of its passes, up to the call of the program that makes machine code."""
    (tmp_path / "kernel.mlir").write_text(linalg(source))
    package = importlib.util.find_spec("ascendnpuir")
    assert package is not None
    assert package.origin is not None
    line = [Path(package.origin).parent / "bin/bishengir-compile", *BISHENGIR, "kernel.mlir", "-o", "kernel.o"]
    env = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    said = done.stdout + done.stderr
    assert "External hivmc run fails, returning module before running external compiler" in said
    errors = [line for line in said.splitlines() if "error" in line.lower() and "hivmc" not in line]
    assert errors == ["[ERROR] Failed to run BiShengIR pipeline"]


def test_loops_over_single_numbers_are_found() -> None:
    """The tiles that suit threads have them."""
    found = {
        name_of(source): len(lines_of_loops_over_single_numbers(linalg(source)))
        for source in sources()
        if source[0].__name__.endswith("words_kernel")
    }
    assert len(found) >= 4
    assert min(found.values()) > 0


@pytest.mark.parametrize("source", sources(), ids=name_of)
def test_the_language_is_that_of_triton_3_2(source: Source) -> None:
    """The oldest one that this package takes; the front end of Triton-Ascend 3.2 is that one's."""
    assert "tt.func" in str(ttir(source)[0])
