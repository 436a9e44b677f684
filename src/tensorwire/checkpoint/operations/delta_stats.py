"""How much of a checkpoint changed, where, and what a delta would take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from math import log2
from typing import TYPE_CHECKING, Any

from ..._ground.allocation import new_buffer
from ...codec import FrameEncoder, dtype_bits, exponent_histogram, float_fields
from ...files.writer import may_save, saves
from ...storage.pipeline import WINDOW_NBYTES
from ..differences import ChangedWords, DeltaStats, DtypeStats

if TYPE_CHECKING:
    from ...codec import Profile

    Read = Callable[[int, memoryview], None]

_ORDERED = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")
_PROFILES: tuple[Profile, ...] = ("fast", "compact")
_LARGE_STEP = 256
"""Steps from here on are counted by sign and highest bit, so that what is counted does not grow with the tensors."""


class DeltaCounter:
    """Counts pairs of tensors, and encodes the new one of each."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._dtypes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._words: defaultdict[tuple[str, int | None], Counter[str]] = defaultdict(Counter)
        self._steps: defaultdict[tuple[str, int | None], Counter[int]] = defaultdict(Counter)

    def add(self, dtype: str, shape: tuple[int, ...], nbytes: int, new: Read, old: Read | None) -> None:
        """Count a tensor: ``new(start, out)`` puts its content into `out`, `old` that of its base, if it has one."""
        counts = self._dtypes[dtype]
        counts["num_tensors"] += 1
        counts["nbytes"] += nbytes
        size = min(WINDOW_NBYTES, nbytes)
        buffers = new_buffer(size), new_buffer(size)
        out = new_buffer(0)
        encoders: dict[Profile, FrameEncoder] = {}
        for start in range(0, nbytes, WINDOW_NBYTES):
            count = min(WINDOW_NBYTES, nbytes - start)
            content, base = buffers[0][:count], None
            new(start, content)
            if old is not None:
                base = buffers[1][:count]
                old(start, base)
                self._count(dtype, content, base)
            if start == 0:
                encoders = self._encoders(dtype, shape, content, base)
            for encoder in encoders.values():
                room = encoder.data_bound(count)  # more than that of the first window where that one ends in a block
                if room > len(out):
                    out = new_buffer(room)
                encoder.encode(content, out, base=base)
        for profile in _PROFILES:
            taken = nbytes
            if profile in encoders:
                encoders[profile].finish()
                frame_nbytes = encoders[profile].info.frame_nbytes
                taken = frame_nbytes if saves(frame_nbytes, nbytes) else nbytes
            counts[profile] += taken

    def _encoders(
        self, dtype: str, shape: tuple[int, ...], content: memoryview, base: memoryview | None
    ) -> dict[Profile, FrameEncoder]:
        """An encoder for each profile; none for a tensor that stays plain."""
        return {
            profile: FrameEncoder(dtype, shape, profile=profile, relative=base is not None, threads=self._threads)
            for profile in _PROFILES
            if may_save(dtype, len(content))
        }

    def _count(self, dtype: str, new: memoryview, old: memoryview) -> None:
        import numpy

        bits, fields = dtype_bits(dtype), float_fields(dtype) if dtype in _ORDERED else None
        word = numpy.dtype(f"u{bits // 8}" if bits in (8, 16, 32, 64) else "u1")
        a, b = numpy.frombuffer(old, word), numpy.frombuffer(new, word)
        changed = numpy.flatnonzero(a != b)
        counts = self._dtypes[dtype]
        counts["num_words"] += len(a)
        counts["num_changed"] += len(changed)
        before, after = a[changed], b[changed]
        steps = (_ordinals(after, dtype) - _ordinals(before, dtype)).view(f"i{word.itemsize}")
        if fields is None:
            self._add_class(dtype, None, len(a), steps)
            return
        numbers = exponent_histogram(dtype, old)
        exponents = (before >> fields.mantissa_bits) & ((1 << fields.exponent_bits) - 1)
        order = numpy.argsort(exponents, kind="stable")
        starts = numpy.searchsorted(exponents[order], numpy.arange(257))
        for exponent, number in enumerate(numbers):
            if number:
                chosen = order[starts[exponent] : starts[exponent + 1]]
                self._add_class(dtype, exponent, number, steps[chosen])

    def _add_class(self, dtype: str, exponent: int | None, num_words: int, steps: Any) -> None:
        import numpy

        words = self._words[dtype, exponent]
        words["num_words"] += num_words
        words["num_changed"] += len(steps)
        values, numbers = numpy.unique(_rounded(steps), return_counts=True)
        self._steps[dtype, exponent].update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))

    def stats(self) -> DeltaStats:
        dtypes = [
            DtypeStats(
                dtype,
                counts["num_tensors"],
                counts["nbytes"],
                counts["num_words"],
                counts["num_changed"],
                {profile: counts[profile] for profile in _PROFILES},
            )
            for dtype, counts in sorted(self._dtypes.items())
        ]
        words = [
            ChangedWords(
                dtype,
                exponent,
                counts["num_words"],
                counts["num_changed"],
                _position_bits(counts["num_words"], counts["num_changed"]),
                _entropy(self._steps[dtype, exponent]),
            )
            for (dtype, exponent), counts in sorted(
                self._words.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1])
            )
        ]
        return DeltaStats(tuple(dtypes), tuple(words))


def _ordinals(words: Any, dtype: str) -> Any:
    """The words so that neighbouring floats differ by 1 (docs/format.md, "Dtypes"); other dtypes as they are."""
    import numpy

    if dtype not in _ORDERED:
        return words
    top = words.dtype.type(1 << (8 * words.dtype.itemsize - 1))
    return numpy.where(words & top, ~words, words ^ top)


def _position_bits(num_words: int, num_changed: int) -> float | None:
    """What the best code without context takes to say which words changed, in bits for each of them."""
    if not num_changed:
        return None
    rest = num_words - num_changed
    bits = num_changed * log2(num_words / num_changed) + (rest * log2(num_words / rest) if rest else 0.0)
    return bits / num_changed


def _rounded(steps: Any) -> Any:
    """Large steps as the power of two at or below their size, with their sign; other steps as they are."""
    import numpy

    steps = steps.astype(numpy.int64)
    powers = numpy.abs(steps).view(numpy.uint64)  # of the smallest step too
    for shift in (1, 2, 4, 8, 16, 32):
        powers |= powers >> numpy.uint64(shift)
    powers -= powers >> numpy.uint64(1)
    rounded = powers.view(numpy.int64) * numpy.sign(steps)
    return numpy.where(powers >= numpy.uint64(_LARGE_STEP), rounded, steps)


def _entropy(counts: Counter[int]) -> float | None:
    """The entropy of steps as `_rounded` gives them: what a large one has below its highest bit counts as it is."""
    total = sum(counts.values())
    if not total:
        return None
    bits = sum(count * log2(total / count) for count in counts.values())
    return (bits + sum(count * log2(abs(step)) for step, count in counts.items() if abs(step) >= _LARGE_STEP)) / total
