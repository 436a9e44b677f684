"""Digests of frames, to compare machines, CPU targets and processes.

``python -m tests.support.encode_registry SET`` prints one JSON document: the CPU target that runs, and the digests.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable

import numpy as np

from tensorwire.codec.frame import core
from tests.support import registry
from tests.support.frames import compress, decompress
from tests.support.registry import Input

RELATIVE_PROFILES = ("enec", "fast", "compact")


def stepped(item: Input) -> bytes:
    """Content of which a few percent of the words of `item` differ by one, some by more, and some rows are others."""
    word = registry.word_type(item.dtype)
    words = np.frombuffer(item.data, word).copy()
    generator = registry.rng(f"step {item}")
    changed = np.flatnonzero(generator.random(len(words)) < 0.03)
    words[changed] += generator.choice(np.array([1, 2, 0, np.iinfo(word).max], word), len(changed))
    words[len(words) // 2 : len(words) // 2 + 700] ^= word(np.iinfo(word).max >> 3)
    return words.tobytes()


def some() -> Iterable[Input]:
    """One tensor of each dtype, of several blocks in most profiles."""
    for dtype in registry.DTYPES:
        if dtype in registry.OPAQUE:
            yield registry.opaque_input(dtype, 40_000)
        else:
            words = registry.weights(dtype, 40_000, "same bytes")
            words[:10_000:7] = registry.random_words(dtype, len(words[:10_000:7]))
            yield Input("some", dtype, (40, 1000), words.tobytes())


def everything() -> Iterable[Input]:
    """All contents of the registry."""
    yield from (*registry.small_inputs(), *registry.pattern_inputs())
    for dtype in registry.FLOATS:
        yield from (*registry.boundary_inputs(dtype, 32768), registry.mixed_input(dtype))
    yield from map(registry.mixed_input, ("I8", "I16"))


SETS: dict[str, Callable[[], Iterable[Input]]] = {"some": some, "everything": everything}


def digests(inputs: Iterable[Input]) -> dict[str, str]:
    """By profile and dtype one digest over all frames, plain and relative. Each frame is decoded, too."""
    found: dict[str, hashlib._Hash] = {}
    for item in inputs:
        base = stepped(item)
        for profile in registry.PROFILES:
            for old in (None, base) if profile in RELATIVE_PROFILES and item.data else (None,):
                frame = compress(item, profile, base=old)
                if decompress(frame, old) != item.data:
                    raise SystemExit(f"{item} is not restored on {core.cpu_target()}")
                found.setdefault(f"{profile} {item.dtype}", hashlib.sha256()).update(frame)
    return {name: digest.hexdigest() for name, digest in found.items()}


if __name__ == "__main__":
    print(json.dumps([core.cpu_target(), digests(SETS[sys.argv[1]]())]))
