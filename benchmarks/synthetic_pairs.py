"""Synthetic pairs of BF16 tensors, one optimizer step apart, made after the law that the trained pairs follow.

A step of AdamW moves each FP32 master weight by the learning rate times u, where u has about the same spread whatever
the weight. So the BF16 copy changes with a probability of rate * |u| / ulp, which halves from each exponent to the
next. The three constants are fitted to the encoder matrices of benchmarks.trained_pairs.
"""

from __future__ import annotations

import numpy as np

WEIGHT_SIGMA = 0.052
ROW_SIGMA = 0.3  # of the logarithm of a row's scale
UPDATE_SIGMA = 0.238
ROW = 384


def synthetic_pair(words: int, rate: float, seed: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Two tensors of `words` BF16 weights as uint16: before and after a step at the learning rate `rate`."""
    generator = np.random.default_rng(seed)
    masters = _masters(generator, words)
    updates = generator.standard_normal(words, np.float32)
    updates *= np.float32(UPDATE_SIGMA)
    np.clip(updates, -1, 1, out=updates)
    updates *= np.float32(rate)
    updates += masters
    return to_bf16(masters), to_bf16(updates)


def synthetic_versions(words: int, rate: float, seed: int) -> list[np.ndarray]:
    """Three such tensors, of which each is one step away from each other one: turns can go round them without end."""
    generator = np.random.default_rng(seed)
    masters, found = _masters(generator, words), []
    for _ in range(3):
        updates = generator.standard_normal(words, np.float32)
        updates *= np.float32(UPDATE_SIGMA * rate / np.sqrt(2))  # so that the difference of two has the spread of one
        updates += masters
        found.append(to_bf16(updates))
    return found


def _masters(generator: np.random.Generator, words: int) -> np.ndarray:
    rows = -(-words // ROW)
    scales = np.exp(ROW_SIGMA * generator.standard_normal((rows, 1), np.float32)) * np.float32(WEIGHT_SIGMA)
    masters = (generator.standard_normal((rows, ROW), np.float32) * scales).reshape(-1)[:words]
    masters += np.float32(0)  # a sum of two zeros is plus zero: so must be what it is compared with
    return masters


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The BF16 nearest to each FP32, ties to even, as uint16; no NaN."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
