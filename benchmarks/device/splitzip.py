"""SplitZip's scheme, written after its paper (arXiv 2605.01708): 12 bits a BF16, without a file format.

A codebook has the 16 exponents that are most frequent. Each word has a code of 4 bits and a byte of sign and mantissa,
both at known places. Exponents that are not in the codebook escape: a list has their positions and values, which a
second launch writes over what the codes gave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Callable

_CODES = 16
_TILE = 4096
_PATCHED = 256
_jit: Callable[[Callable[..., Any]], Any] = triton.jit


class SplitZip:
    """BF16 numbers, coded on their device."""

    def __init__(self, weight: torch.Tensor) -> None:
        """
        Raises:
            ValueError: it is not BF16, or its numbers are odd.
        """
        if weight.dtype != torch.bfloat16 or weight.numel() % 2:
            raise ValueError(f"expected an even number of BF16 numbers, got {weight.numel()} of {weight.dtype}")
        self._shape = weight.shape
        words = weight.reshape(-1).view(torch.int16).to(torch.int32)
        exponents = (words >> 7) & 0xFF
        frequent = torch.bincount(exponents, minlength=256).topk(_CODES).indices
        code_of = torch.full((256,), -1, dtype=torch.int32, device=weight.device)
        code_of[frequent] = torch.arange(_CODES, dtype=torch.int32, device=weight.device)
        codes = code_of[exponents]
        self.codebook = frequent.to(torch.uint8)
        self.positions = (codes < 0).nonzero()[:, 0].to(torch.int32)
        self.values = exponents[self.positions].to(torch.uint8)
        pairs = codes.clamp(min=0).view(-1, 2)
        self.codes = (pairs[:, 0] | (pairs[:, 1] << 4)).to(torch.uint8)
        self.rests = (((words >> 8) & 0x80) | (words & 0x7F)).to(torch.uint8)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.codebook, self.codes, self.rests, self.positions, self.values))

    def decode(self) -> torch.Tensor:
        words = torch.empty(self.rests.numel(), dtype=torch.int16, device=self.rests.device)
        grid = (triton.cdiv(len(words), _TILE),)
        _words_kernel[grid](self.codes, self.rests, self.codebook, words, len(words), _TILE, num_warps=8)
        escaped = len(self.positions)
        if escaped:
            grid = (triton.cdiv(escaped, _PATCHED),)
            _patch_kernel[grid](self.positions, self.values, words, escaped, _PATCHED)
        return words.view(torch.bfloat16).view(self._shape)


@_jit
def _words_kernel(codes: Any, rests: Any, codebook: Any, words: Any, count: Any, tile: tl.constexpr) -> None:
    half: tl.constexpr = tile // 2
    pairs = tl.program_id(0) * half + tl.arange(0, half)
    places = tl.program_id(0) * tile + tl.arange(0, tile)
    pair = tl.load(codes + pairs, mask=pairs * 2 < count, other=0).to(tl.int32)
    code = tl.interleave(pair & 15, pair >> 4)
    exponent = tl.load(codebook + code).to(tl.int32)
    rest = tl.load(rests + places, mask=places < count, other=0).to(tl.int32)
    word = ((rest & 0x80) << 8) | (exponent << 7) | (rest & 0x7F)
    tl.store(words + places, word.to(tl.int16), mask=places < count)


@_jit
def _patch_kernel(positions: Any, values: Any, words: Any, count: Any, tile: tl.constexpr) -> None:
    listed = tl.program_id(0) * tile + tl.arange(0, tile)
    known = listed < count
    place = tl.load(positions + listed, mask=known, other=0)
    value = tl.load(values + listed, mask=known, other=0).to(tl.int32)
    word = tl.load(words + place, mask=known, other=0).to(tl.int32)
    tl.store(words + place, ((word & 0x807F) | (value << 7)).to(tl.int16), mask=known)
