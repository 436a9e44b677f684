"""Compile every kernel for a device that need not be there: ``python -m tests.torch.compile_kernels cuda 90 32``.

Exits with 77 if this build of Triton has no backend for it.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tensorwire.torch import triton_kernels, triton_products

TYPES = {
    **dict.fromkeys(("frame", "blocks", "exponents"), "*u8"),
    **dict.fromkeys(("table", "counts", "places", "resolved"), "*i32"),
    **dict.fromkeys(("x", "y"), "*fp32"),
    "before": "*i16",
    "words": "*i16",
}
NUMBERS = ("first_block", "block_words", "runs_per_block", "num_rows", "rows_per_block", "columns", "all_rows")
BF16 = {"exponent_bits": 8, "mantissa_bits": 7, "rest_bits": 8, "trail": 0}
F32 = {"exponent_bits": 8, "mantissa_bits": 23, "rest_bits": 13, "trail": 11}
F8 = {"exponent_bits": 4, "mantissa_bits": 3, "rest_bits": 4, "trail": 0}


def sources(permutation: int) -> list[tuple[Any, dict[str, int], str]]:
    """Each kernel, its constants, and the type of `words`."""
    k, permuted = triton_kernels, {"permutation": permutation, "runs": 8}
    tiers, enec = {"widths": 0x8322, "last": 3}, {"quads_log2": 2, "m": 3, "nb": 6}
    product = {**tiers, **enec, "permutation": permutation, "chunks": 4, "rows": 4, "inputs": 1}
    return [
        (k.stored_kernel, {}, "*i16"),
        (k.constant_kernel, {}, "*i32"),
        (k.count_kernel, {"rest_bits": 8, "widths": 0x8322, "tier": 3, "runs": 8}, "*i16"),
        (k.count_mask_kernel, {"rest_bits": 8, "m": 3, "quads_log2": 2, "runs": 8}, "*i16"),
        (k.escapes_kernel, {"rest_bits": 8, "runs": 8}, "*i16"),
        (k.resolve_kernel, {"rest_bits": 8, **tiers, "tier": 3, **permuted}, "*i16"),
        (k.high_kernel, {"rest_bits": 8, "m": 3, "high_bits": 3, "quads_log2": 2, "runs": 8}, "*i16"),
        (k.cascade_words_kernel, {**BF16, **tiers, "whole": 1, **permuted}, "*i16"),
        (k.cascade_words_kernel, {**F8, "widths": 0x81, "last": 1, "whole": 0, **permuted}, "*u8"),
        (k.enec_words_kernel, {**BF16, **enec, "whole": 1, **permuted}, "*i16"),
        (k.enec_words_kernel, {**F32, "quads_log2": 0, "m": 1, "nb": 8, "whole": 0, **permuted}, "*i32"),
        *((triton_products.product_kernel, {**product, "coding": coding}, "*i16") for coding in (0, 1, 3)),
        (triton_products.product_kernel, {**product, "coding": 2, "widths": 0x84, "last": 1, "inputs": 8}, "*i16"),
    ]


def compile_kernel(kernel: Any, constants: dict[str, int], target: Any, words: str = "*i16", warps: int = 1) -> Any:
    """What Triton makes of a kernel whose pointers are multiples of 16 bytes."""
    types = {name: words if name == "words" else TYPES[name] for name in kernel.arg_names if name in TYPES}
    types |= {name: "i32" for name in kernel.arg_names if name in NUMBERS}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if types.get(name, "").startswith("*")
    }
    options = {"num_warps": warps, "enable_fp_fusion": True}
    return triton.compile(ASTSource(kernel, signature, constants, aligned), target=target, options=options)


def main() -> None:
    backend, arch, warp = sys.argv[1:]
    if {"cuda": "nvidia", "hip": "amd"}[backend] not in triton.backends.backends:
        sys.exit(77)
    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))
    for kernel, constants, words in sources(1 if backend == "cuda" else 0):
        compiled = compile_kernel(kernel, constants, target, words)
        assert compiled.asm["cubin" if backend == "cuda" else "hsaco"][:4] == b"\x7fELF"


if __name__ == "__main__":
    main()
