"""Whether a model fits into memory, as ``tensorwire fit`` reckons it: pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .architecture import Cache

DENSE = "dense"
VALUE_NBYTES = {"bf16": 2, "f16": 2, "f32": 4, "f8": 1}
_OF_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "BF16": "bf16", "F16": "f16", "F32": "f32"}

# Compressed size as a part of the dense one, where nothing but config.json is there: the ratios of one small model's
# weights (docs/choose.md, By dtype).
RATIOS = {
    "BF16": {"resident": 1.332, "fast": 1.501, "compact": 1.518},
    "F16": {"resident": 1.123, "fast": 1.172, "compact": 1.182},
    "F32": {"resident": 1.142, "fast": 1.222, "compact": 1.227},
    "F8_E4M3": {"resident": 1.104, "fast": 1.200, "compact": 1.213},
}
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}


@dataclass(frozen=True)
class Form:
    """A model in memory in one form.

    Attributes:
        form: "dense" or a profile.
        weights_nbytes: of all weights.
        workspace_nbytes: of the largest weight, which is dense while a layer multiplies; 0 for "dense".
        cache_nbytes: of the key-value cache; None where it is not known.
        left_nbytes: what is left of the memory; less than 0 if it does not fit.
        longest_context: tokens of each sequence for which there is room, up to the longest that the model is made for;
            None where it is not known, or where windows bound the cache and the model names no longest.
    """

    form: str
    weights_nbytes: int
    workspace_nbytes: int
    cache_nbytes: int | None
    left_nbytes: int
    longest_context: int | None

    @property
    def fits(self) -> bool:
        return self.left_nbytes >= 0


def forms(
    dense_nbytes: int,
    largest_nbytes: int,
    stored: Mapping[str, int],
    memory_nbytes: int,
    cache: Cache | None,
    *,
    context: int,
    batch: int,
    value_nbytes: int,
) -> list[Form]:
    """The dense model, then each profile of `stored`.

    Args:
        dense_nbytes, largest_nbytes: of all weights, and of the largest.
        stored: size of all weights by profile.
        cache: None where it is not known; then nothing is reckoned for it.
    """
    cache_nbytes = None if cache is None else cache.nbytes(context, batch, value_nbytes)
    sizes = [(DENSE, dense_nbytes, 0)]
    sizes += [(profile, nbytes, largest_nbytes) for profile, nbytes in stored.items()]
    found = []
    for form, nbytes, workspace_nbytes in sizes:
        room = memory_nbytes - nbytes - workspace_nbytes
        longest = None
        if cache is not None:
            longest = cache.longest(room, batch, value_nbytes)
            if cache.limit is not None:
                longest = cache.limit if longest is None else min(longest, cache.limit)
        found.append(Form(form, nbytes, workspace_nbytes, cache_nbytes, room - (cache_nbytes or 0), longest))
    return found


def quickest(found: Sequence[Form], advised: str) -> Form | None:
    """The compressed form to use: the advised profile if it fits, else the first that does of `fast` and `compact`."""
    by_name = {form.form: form for form in found if form.fits}
    order = (advised, "fast", "resident", "compact", "enec")
    return next((by_name[name] for name in order if name in by_name), None)


def value_dtype(*names: str | None) -> str:
    """The dtype of cached values after the first dtype that is a float of at least 16 bits; "bf16" without one."""
    return next((_OF_DTYPES[name] for name in names if name in _OF_DTYPES), "bf16")
