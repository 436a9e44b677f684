"""Compile every kernel for a device that need not be there: ``python -m tests.torch.compile_kernels cuda 90 32``.

Exits with 77 if this build of Triton has no backend for it.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tensorwire.torch.device.plan import leading
from tensorwire.torch.device.triton import decode
from tensorwire.torch.device.triton import kernels as triton_kernels
from tensorwire.torch.device.triton.fields import BY_GROUP

Source = tuple[Any, dict[str, int], dict[str, str]]  # a kernel, its constants, and what it has in place of TYPES
TYPES = {
    **dict.fromkeys(("frame", "blocks", "resolved"), "*u32"),
    **dict.fromkeys(("table", "counts"), "*i32"),
    "before": "*i16",
    "words": "*u64",
}
NUMBERS = ("first_block", "block_nwords", "runs_per_block")
BF16 = {"exponent_bits": 8, "mantissa_bits": 7, "rest_bits": 8, "trail": 0}
F32 = {"exponent_bits": 8, "mantissa_bits": 23, "rest_bits": 13, "trail": 11}
F8 = {"exponent_bits": 4, "mantissa_bits": 3, "rest_bits": 4, "trail": 0}


def sources(*, by_group: bool = False) -> list[Source]:
    """All kernels."""
    k, lead = triton_kernels, {w: BY_GROUP.value if by_group else leading(w) for w in range(1, 5)}
    tiers, enec = {"widths": 0x8322, "last": 3}, {"quads_log2": 2, "m": 3, "nb": 6}
    resident = {"widths": 0x84, "last": 1, "lead": lead[4]}
    later, words = {"runs": decode._LATER_RUNS}, {"runs": decode._RUNS_OF_WORDS}
    f8 = {**F8, "widths": 0x81, "last": 1, "whole": by_group, "lead": lead[1]}
    f32 = {**F32, "quads_log2": 0, "m": 1, "nb": 8, "whole": by_group, "lead": lead[1]}
    return [
        (k.copy_kernel, {"word_nbytes": 2, "constant": 0}, {"words": "*u32"}),
        (k.copy_kernel, {"word_nbytes": 4, "constant": 1}, {"words": "*u32"}),
        (k.count_kernel, {"rest_bits": 8, "widths": 0x8322, "tier": 3, "lead": lead[3], **later}, {}),
        (k.count_kernel, {"rest_bits": 8, "widths": 0x84, "tier": 1, "lead": lead[4], **later}, {}),
        (k.count_mask_kernel, {"rest_bits": 8, "m": 3, "quads_log2": 2, "lead": lead[1], **later}, {}),
        (k.resolve_kernel, {"rest_bits": 8, **tiers, "tier": 3, "lead": lead[3], **later}, {}),
        (k.high_kernel, {"rest_bits": 8, "m": 3, "high_bits": 3, "quads_log2": 2, "lead": lead[3], **later}, {}),
        (k.cascade_words_kernel, {**BF16, **tiers, "whole": 1, "lead": lead[2], **words}, {}),
        (k.cascade_words_kernel, {**BF16, **resident, "whole": 1, **words}, {}),
        (k.cascade_words_kernel, {**f8, **words}, {"words": "*u32"}),
        (k.enec_words_kernel, {**BF16, **enec, "whole": 1, "lead": lead[3], **words}, {}),
        (k.enec_words_kernel, {**f32, **words}, {}),
    ]


def types_of(kernel: Any, changed: dict[str, str] | None = None) -> dict[str, str]:
    """The types of a kernel's arguments that are no constants: TYPES, but for those that are changed."""
    types = {**TYPES, **dict.fromkeys(NUMBERS, "i32"), **(changed or {})}
    return {name: types[name] for name in kernel.arg_names if name in types}


def compile_kernel(kernel: Any, constants: dict[str, int], target: Any, changed: dict[str, str] | None = None) -> Any:
    """What Triton makes of a kernel of one warp whose pointers are multiples of 16 bytes."""
    types = types_of(kernel, changed)
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if types.get(name, "").startswith("*")
    }
    options = {"num_warps": 1, "enable_fp_fusion": True}
    return triton.compile(ASTSource(kernel, signature, constants, aligned), target=target, options=options)


def main() -> None:
    backend, arch, warp = sys.argv[1:]
    if {"cuda": "nvidia", "hip": "amd"}[backend] not in triton.backends.backends:
        sys.exit(77)
    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))
    for kernel, constants, changed in sources():
        compiled = compile_kernel(kernel, constants, target, changed)
        assert compiled.asm["cubin" if backend == "cuda" else "hsaco"][:4] == b"\x7fELF"


if __name__ == "__main__":
    main()
