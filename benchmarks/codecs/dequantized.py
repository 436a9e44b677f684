"""BF16 words that were made of 8-bit codes and scales: python -m benchmarks.codecs.dequantized.

A trial of a kind of block that the format does not have; docs/decisions.md, "Dequantized weights", judges it. Codes and
scales are found again from the words alone, block by block, as an encoder would have to find them. A frame of the codes
and 4 bytes for each scale of each block then stand for the words. Beside it: the words as the profiles compress them
today, and a palette, the list of the magnitudes of the words that share a scale, at the entropy of their numbers.

Speeds are of the CPU time of one thread. The trial decodes all codes first and multiplies them in a second pass, by
dequantized.c. That needs a C compiler. Results go to benchmarks/results/dequantized.json.
"""

from __future__ import annotations

import ctypes
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks.clock import compiled
from benchmarks.data import entropy, minilm_path
from benchmarks.results_page import keep_rows
from benchmarks.timing import cpu_by_turns, pinned, speed
from tensorwire.codec import FrameEncoder, compress, cpu_target, decompress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorwire.codec import Profile

PROFILES: tuple[Profile, ...] = ("fast", "compact")
ROUNDS = 15
SCALE_NBYTES, MAGNITUDE_NBYTES = 4, 2
TILE = 128
LEAST_RANGE = 2.0**-24
"""No float lies between the ends."""


@dataclass(frozen=True)
class Form:
    """How weights were quantized.

    Attributes:
        dtype: of the codes.
        rows, columns: that share a scale, None for all.
    """

    dtype: str
    rows: int | None
    columns: int | None

    @property
    def numpy(self) -> Any:
        return ml_dtypes.float8_e4m3fn if self.dtype == "F8_E4M3" else np.int8

    @property
    def codes(self) -> Any:
        """The positive numbers that codes stand for, ascending."""
        numbers = np.arange(1, 128, dtype=np.uint8).view(self.numpy).astype(np.float32)
        return numbers[np.isfinite(numbers)]

    def groups(self, shape: tuple[int, int], first: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """What shares a scale in the rows from `first` to `stop`, in order."""
        rows, columns = self.rows or shape[0], self.columns or shape[1]
        for low in range(first // rows * rows, stop, rows):
            for left in range(0, shape[1], columns):
                yield slice(max(low, first), min(low + rows, stop)), slice(left, left + columns)

    def quantize(self, weights: Any) -> tuple[Any, Any]:
        """Codes, as numbers, and the scale of each word: absmax, and the nearest code."""
        scales = np.empty_like(weights)
        for group in self.groups(weights.shape, 0, len(weights)):
            scales[group] = np.abs(weights[group]).max() / self.codes[-1]
        numbers = weights / scales if self.dtype == "F8_E4M3" else np.rint(weights / scales)
        return numbers.astype(self.numpy).astype(np.float32), scales


FORMS = {
    "F8_E4M3, a scale for 128 x 128": Form("F8_E4M3", TILE, TILE),
    "F8_E4M3, a scale for each row": Form("F8_E4M3", 1, None),
    "int8, a scale for each row": Form("I8", 1, None),
    "int8, one scale": Form("I8", None, None),
}


def multiplied(codes: Any, scales: Any) -> Any:
    """The words, as numbers of 16 bits."""
    return (codes.astype(np.float32) * scales).astype(ml_dtypes.bfloat16).view(np.uint16)


def find(words: Any, codes: Any) -> tuple[Any, Any] | None:
    """The scale of words, and the code of each as a number, where all are that scale times one of `codes`, which are
    ascending, 0 or negative. None where there is no such scale.

    The largest magnitude is tried as each code, which gives a range of scales. Each magnitude that only one code has
    within that range narrows it. Where some have two codes left, each half is tried.
    """
    found, places = np.unique(words & 0x7FFF, return_inverse=True)
    magnitudes = found[found > 0].astype(np.int64)
    if len(magnitudes) == 0:
        return np.float32(1), np.zeros(words.shape, np.float32)
    low, high = (_floats(2 * magnitudes + d) for d in (-1, 1))  # halfway to the neighbours
    numbers = codes.astype(np.float64)
    ranges = [(low[-1] / largest, high[-1] / largest) for largest in numbers]
    while ranges:
        least, most = ranges.pop()
        first, last = numbers.searchsorted(low / most), numbers.searchsorted(high / least, "right") - 1
        if least > most or (first > last).any():
            continue
        only = first == last
        of_only = numbers[first[only]]
        narrow = max(least, (low[only] / of_only).max(initial=0)), min(most, (high[only] / of_only).min(initial=np.inf))
        if narrow != (least, most):
            ranges.append(narrow)
        elif not only.all() and most - least > least * LEAST_RANGE:
            ranges += [((least + most) / 2, most), (least, (least + most) / 2)]
        elif only.all() and (multiplied(of_only, scale := np.float32((least + most) / 2)) == magnitudes).all():
            signless = np.concatenate([np.zeros(len(found) - len(magnitudes)), of_only])[places].reshape(words.shape)
            return scale, np.copysign(signless, words.view(np.int16)).astype(np.float32)
    return None


def _floats(halves: Any) -> Any:
    """Magnitudes of BF16 that are counted in halves of a step."""
    return (halves.astype(np.uint32) << 15).view(np.float32).astype(np.float64)


@dataclass
class Found:
    """What an encoder would find in the blocks of a tensor.

    Attributes:
        codes: the code of each word, as a number.
        scales: for each row those of its groups, from left to right.
        num_scales: how many the blocks have, a scale anew in each block.
        palette: bytes, if the magnitudes of each group were listed instead.
    """

    codes: Any
    scales: Any
    num_scales: int = 0
    palette: float = 0


def search(words: Any, form: Form, profile: Profile) -> Found:
    """Raises ValueError if words are none of that form."""
    columns = form.columns or words.shape[1]
    block_rows = FrameEncoder("BF16", words.shape, profile=profile).block_nbytes // words[0].nbytes
    found = Found(np.empty(words.shape, np.float32), np.empty((len(words), -(-words.shape[1] // columns)), np.float32))
    for first in range(0, len(words), block_rows):
        stop = min(first + block_rows, len(words))
        counts = np.zeros(1 << 16, np.int64)
        for rows, across in form.groups(words.shape, first, stop):
            part = words[rows, across]
            scale_and_codes = find(part, form.codes)
            if scale_and_codes is None:
                raise ValueError(f"expected rows {rows.start} to {rows.stop} to be a scale times codes of {form.dtype}")
            found.scales[rows, across.start // columns], found.codes[rows, across] = scale_and_codes
            found.num_scales += 1
            magnitudes, places = np.unique(part & 0x7FFF, return_inverse=True)
            below_largest = len(magnitudes) - 1 - places.reshape(-1)
            seen = np.bincount(2 * below_largest + (part >> 15).reshape(-1))
            counts[: len(seen)] += seen
            found.palette += MAGNITUDE_NBYTES * len(magnitudes)
        found.palette += entropy(counts) / 8
    return found


class Trial:
    """One tensor in one profile: as it is compressed today, and as a frame of codes with scales."""

    def __init__(self, words: Any, form: Form, profile: Profile, dequantize: Any) -> None:
        self._found, self._form, self._dequantize = search(words, form, profile), form, dequantize
        codes = self._found.codes.astype(form.numpy)
        self._today = compress(words, dtype="BF16", profile=profile)
        self._coded = compress(codes.view(np.uint8), dtype=form.dtype, profile=profile)
        self._codes, self._words = np.empty(words.shape, np.uint8), np.empty_like(words)
        self.nbytes = {
            "today": len(self._today),
            "codes": len(self._coded) + SCALE_NBYTES * self._found.num_scales,
            "palette": self._found.palette,
        }
        for decode in (self.today, self.codes):
            self._words[:] = 0
            decode()
            if (self._words != words).any():
                raise AssertionError("words that do not come back")

    def today(self) -> None:
        decompress(self._today, out=self._words, threads=1)

    def codes(self) -> None:
        decompress(self._coded, out=self._codes, threads=1)
        arrays = (each.ctypes for each in (self._codes, self._found.scales, self._words))
        codes, scales, words = (ctypes.c_void_p(each.data) for each in arrays)
        sizes = (*self._words.shape, self._form.columns or self._words.shape[1])
        self._dequantize(codes, scales, *map(ctypes.c_size_t, sizes), words)


def measure(matrices: list[Any], form: Form, profile: Profile, functions: ctypes.CDLL, rounds: int) -> dict[str, Any]:
    """Ratios, and GB/s of decoding, of all matrices together."""
    dequantize = getattr(functions, f"dequantize_{form.dtype.lower()}")
    words = [multiplied(*form.quantize(weights)) for weights in matrices]
    trials = [Trial(matrix, form, profile, dequantize) for matrix in words]
    nbytes = sum(matrix.nbytes for matrix in words)

    def each(decode: Callable[[Trial], None]) -> None:
        for trial in trials:
            decode(trial)

    with pinned(1):
        seconds = cpu_by_turns({"today": partial(each, Trial.today), "codes": partial(each, Trial.codes)}, rounds)
    ratios = {name: nbytes / sum(trial.nbytes[name] for trial in trials) for name in ("today", "codes", "palette")}
    speeds = {f"{name} decompress": speed(seconds[name], nbytes)["median"] for name in seconds}
    return {"profile": profile, **ratios, **speeds}


def normal() -> list[Any]:
    return [np.random.default_rng(7).standard_normal((4096, 4096), dtype=np.float32) * np.float32(0.02)]


def minilm() -> list[Any]:
    """The matrices of all-MiniLM-L6-v2."""
    from safetensors.numpy import load_file

    weights = load_file(minilm_path() / "model.safetensors")
    return [each for _, each in sorted(weights.items()) if each.dtype == np.float32 and each.ndim == 2]


DATASETS = {"normal": normal, "minilm": minilm}


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        functions = compiled(Path(__file__).with_name("dequantized.c"), Path(folder), "-O3", "-march=native")
        for name, load in DATASETS.items():
            matrices = load()
            for form in FORMS:
                for profile in PROFILES:
                    row = {"data": name, "form": form, **measure(matrices, FORMS[form], profile, functions, ROUNDS)}
                    rows.append(row)
    columns = (
        ("data", "data", ""), ("words", "form", ""), ("profile", lambda row: f"`{row['profile']}`"),
        ("ratio today", "today", ".3f"), ("GB/s", "today decompress", ".2f"),
        ("ratio, codes and scales", "codes", ".3f"), ("GB/s", "codes decompress", ".2f"),
        ("ratio, palettes", "palette", ".3f"),
    )  # fmt: skip
    keep_rows("dequantized", "python -m benchmarks.codecs.dequantized", rows, columns, target=cpu_target())


if __name__ == "__main__":
    main()
