"""The pairs of tensors that are measured, by name: trained ones, and synthetic ones that are larger than the caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.synthetic_pairs import synthetic_pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    Words = np.ndarray[tuple[int, ...], np.dtype[np.uint16]]

LARGE_WORDS = 1 << 25
NEAR, FAR = ("1e-6", "5e-6", "2e-5"), ("far4", "far24")
UNRELATED = "unrelated"
# By name the learning rate: nothing changes, about 2 % of the words do, and most of them.
SYNTHETIC = {"synthetic-same": 0.0, "synthetic-sparse": 5e-6, "synthetic-dense": 1e-3}
NAMES = (*NEAR, *FAR, UNRELATED, *SYNTHETIC)


def load(name: str) -> list[tuple[Words, Words]]:
    """(old, new) of each tensor: the encoder's matrices, or a synthetic tensor. KeyError for what is not in NAMES."""
    if name in SYNTHETIC:
        return [synthetic_pair(LARGE_WORDS, SYNTHETIC[name])]
    if name == UNRELATED:  # the words are those of the tensor, but each from another place
        return [(new[::-1].copy(), new) for _, new in load(NEAR[0])]
    from benchmarks import trained_pairs

    pair = trained_pairs.pair(name)
    return [(pair.old[key].reshape(-1), pair.new[key].reshape(-1)) for key in pair.matrices()]


def joined(tensors: Sequence[tuple[Words, Words]]) -> tuple[Words, Words]:
    """All of them as one."""
    old, new = (np.concatenate([words.reshape(-1) for words in side]) for side in zip(*tensors, strict=True))
    return old, new
