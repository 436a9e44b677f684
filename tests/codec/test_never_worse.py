"""What profiles promise each other: compact is not larger than fast, and fast is next to nothing larger than enec.

The first promise is kept block by block, whatever the content: compact codes each block as fast would, too, and takes
what is smaller. docs/decisions.md, "The geometry of frames", says how.

The second one is: fast is larger than enec by 0.5 % or 64 bytes at most, whichever is more. That rests on a sample of
each block, so it is no theorem. It holds for all tensors that are drawn here.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import frames, mixtures, registry
from tests.support.encoders import encode
from tests.support.mixtures import CHANGES, CONTENTS, Stretch
from tests.support.registry import DTYPES, OPAQUE, Input


def stretches(most: int) -> st.SearchStrategy[list[Stretch]]:
    """Parts of one to 2^`most` words; all sizes are equally likely, on a logarithmic scale."""
    stretch = st.builds(
        Stretch,
        content=st.sampled_from(CONTENTS),
        change=st.sampled_from(CHANGES),
        count=st.floats(0, most).map(lambda log: int(2**log)),
        scale=st.floats(-6, 6),
        rate=st.floats(-8, -1),
    )
    return st.lists(stretch, min_size=1, max_size=8)


def draw(dtype: str, drawn: list[Stretch], seed: int, *, relative: bool) -> tuple[Input, bytes | None]:
    """A tensor and its base, if it is relative to one."""
    word = np.dtype(registry.word_type(dtype)).itemsize
    old = mixtures.words_of(dtype, drawn, seed)
    new = mixtures.changed(dtype, old, drawn, seed) if relative else old
    bits, group = OPAQUE.get(dtype, (8 * word, 1))
    nbytes = len(old) * word // (bits * group) * (bits * group)  # whole elements of any dtype
    base = old.tobytes()[:nbytes] if relative else None
    return Input("drawn", dtype, (8 * nbytes // bits,), new.tobytes()[:nbytes]), base


def check(dtype: str, drawn: list[Stretch], seed: int, *, relative: bool) -> None:
    item, base = draw(dtype, drawn, seed, relative=relative)
    made = {profile: frames.compress(item, profile, base=base) for profile in ("enec", "fast", "compact")}
    sizes = {profile: len(frame) for profile, frame in made.items()}
    assert frames.decompress(made["compact"], base) == item.data
    assert sizes["compact"] <= sizes["fast"], sizes
    assert sizes["fast"] <= max(1.005 * sizes["enec"], sizes["enec"] + 64), sizes


DRAWN = {"dtype": st.sampled_from(DTYPES), "seed": st.integers(0, 2**32 - 1), "relative": st.booleans()}


@settings(max_examples=60)
@given(drawn=stretches(14), **DRAWN)
def test_no_profile_is_larger_than_a_quicker_one(dtype: str, drawn: list[Stretch], seed: int, relative: bool) -> None:
    check(dtype, drawn, seed, relative=relative)


ONE_BLOCK = [Stretch("moments", "few", 8192, 2.75, -1.0), Stretch("drifting", "few", 4096, 3.0, -1.0)]
"""Fast takes less for it, so that the block of compact is that of fast."""


@settings(max_examples=60)
@example(drawn=ONE_BLOCK, log2_alignment=6, dtype="F8_E4M3", seed=240, relative=True)
@given(drawn=stretches(14), log2_alignment=st.integers(5, 12), **DRAWN)
def test_blocks_of_any_alignment(
    dtype: str, drawn: list[Stretch], seed: int, relative: bool, log2_alignment: int
) -> None:
    item, base = draw(dtype, drawn, seed, relative=relative)
    options = {"base": base, "bits": OPAQUE.get(dtype, (0,))[0], "block_alignment": 1 << log2_alignment}
    compact, fast = (encode(item.data, dtype, item.shape, profile=name, **options) for name in ("compact", "fast"))
    assert frames.decompress(compact, base) == frames.decompress(fast, base) == item.data
    assert len(compact) <= len(fast)


@pytest.mark.slow
@settings(max_examples=1000)
@given(drawn=stretches(18), **DRAWN)
def test_no_profile_is_larger_for_any_of_a_thousand(
    dtype: str, drawn: list[Stretch], seed: int, relative: bool
) -> None:
    check(dtype, drawn, seed, relative=relative)


# The inputs by which the promise was broken once ----------------------------------------------------------------------

WORDS = 1 << 20


def sizes(dtype: str, new: np.ndarray, old: np.ndarray | None) -> tuple[int, int]:
    item = Input("", dtype, new.shape, new.tobytes())
    base = None if old is None else old.tobytes()
    return len(frames.compress(item, "compact", base=base)), len(frames.compress(item, "fast", base=base))


def weights(dtype: str) -> np.ndarray:
    values = registry.rng(f"never worse {dtype}").standard_normal(WORDS).astype(np.float32) * np.float32(0.02)
    return values.astype(registry.FLOATS[dtype].numpy).view(registry.FLOATS[dtype].word)


@pytest.mark.parametrize("dtype", registry.FLOATS)
@pytest.mark.parametrize(("name", "log", "share"), [("clusters", 13, 0.2), ("rows", 10, 0.1)])
def test_groups_that_change(name: str, log: int, share: float, dtype: str) -> None:
    """A fifth of the blocks of 2^13 words change, or a tenth of the rows of an embedding; each word by a few steps."""
    generator, old = registry.rng(name), weights(dtype)
    steps = generator.integers(1, 5, WORDS).astype(old.dtype)
    steps[generator.random(WORDS >> log).repeat(1 << log) >= share] = 0
    compact, fast = sizes(dtype, old + steps, old)
    assert compact <= fast


def test_a_step_of_f32() -> None:
    old = weights("F32").view(np.float32)
    new = old + np.float32(1e-5) * registry.rng("step").standard_normal(WORDS).astype(np.float32)
    compact, fast = sizes("F32", new, old)
    assert compact <= fast


def test_tensors_of_unlike_scale_in_one_buffer() -> None:
    generator = registry.rng("scales")
    counts = np.exp(generator.uniform(np.log(50), np.log(60_000), 60)).astype(int)
    tensors = [generator.standard_normal(count) * np.exp(generator.uniform(-6, 3)) for count in counts]
    compact, fast = sizes("F32", np.concatenate(tensors).astype(np.float32).view(np.uint32), None)
    assert compact <= fast
