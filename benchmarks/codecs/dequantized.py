"""BF16 words that were made of 8-bit codes and scales: python -m benchmarks.codecs.dequantized.

Weights are quantized by absmax, and become BF16 again. `compact` finds codes and scales in the words (kind scaled),
other profiles do not. `other kinds`: what `compact` takes where one word in OUTLIER_EVERY is too large for any scale of
its neighbours. Speeds are of the CPU time of one thread. Results go to benchmarks/results/dequantized.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks.data import minilm_path
from benchmarks.results_page import keep_rows
from benchmarks.timing import cpu_by_turns, pinned, speed
from tensorwire.codec import compress, cpu_target, decompress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorwire.codec import Profile

PROFILES: tuple[Profile, ...] = ("fast", "compact")
ROUNDS = 9
TILE = 128
OUTLIER_EVERY = 8192


@dataclass(frozen=True)
class Form:
    """How weights were quantized.

    Attributes:
        dtype: of the codes.
        largest: number of a code.
        rows, columns: that share a scale, None for all.
    """

    dtype: Any
    largest: int
    rows: int | None
    columns: int | None

    def groups(self, shape: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
        """What shares a scale."""
        rows, columns = self.rows or shape[0], self.columns or shape[1]
        for top in range(0, shape[0], rows):
            for left in range(0, shape[1], columns):
                yield slice(top, top + rows), slice(left, left + columns)

    def quantize(self, weights: Any) -> tuple[Any, Any]:
        """Codes, as numbers, and the scale of each word: absmax, and the nearest code."""
        scales = np.empty_like(weights)
        for group in self.groups(weights.shape):
            scales[group] = np.abs(weights[group]).max() / np.float32(self.largest)
        numbers = np.rint(weights / scales) if self.dtype is np.int8 else weights / scales
        return numbers.astype(self.dtype).astype(np.float32), scales


FORMS = {
    "F8_E4M3, a scale for 128 x 128": Form(ml_dtypes.float8_e4m3fn, 448, TILE, TILE),
    "F8_E4M3, a scale for each row": Form(ml_dtypes.float8_e4m3fn, 448, 1, None),
    "int8, a scale for each row": Form(np.int8, 127, 1, None),
    "int8, one scale": Form(np.int8, 127, None, None),
}


def multiplied(codes: Any, scales: Any) -> Any:
    """The words, as numbers of 16 bits."""
    return (codes * scales).astype(ml_dtypes.bfloat16).view(np.uint16)


def measure(matrices: list[Any], form: Form) -> dict[str, Any]:
    """Ratios, and GB/s, of all matrices together."""
    words = [multiplied(*form.quantize(weights)) for weights in matrices]
    nbytes, row, calls = sum(each.nbytes for each in words), {}, {}
    for profile in PROFILES:
        frames = [compress(each, dtype="BF16", profile=profile) for each in words]
        row[profile] = nbytes / sum(map(len, frames))
        calls[profile, "compress"] = partial(_compress, words, profile)
        calls[profile, "decompress"] = partial(_decompress, frames, [np.empty_like(each) for each in words])
    others = [compress(with_outliers(each), dtype="BF16", profile="compact") for each in words]
    row["other kinds"] = nbytes / sum(map(len, others))
    row["zipnn"] = nbytes / sum(len(_zipnn(each)) for each in words)
    with pinned(1):
        seconds = cpu_by_turns(calls, ROUNDS)
    return row | {" ".join(name): speed(seconds[name], nbytes)["median"] for name in calls}


def with_outliers(words: Any) -> Any:
    """The words, but some of 2^100."""
    changed = words.copy()
    changed.reshape(-1)[::OUTLIER_EVERY] = 100 + 127 << 7
    return changed


def _zipnn(words: Any) -> bytes:
    from zipnn import ZipNN

    compressed: bytes = ZipNN(bytearray_dtype="bfloat16").compress(bytearray(words.tobytes()))
    return compressed


def _compress(words: list[Any], profile: Profile) -> None:
    for each in words:
        compress(each, dtype="BF16", profile=profile, threads=1)


def _decompress(frames: list[Any], words: list[Any]) -> None:
    for frame, each in zip(frames, words, strict=True):
        decompress(frame, out=each, threads=1)


def normal() -> list[Any]:
    return [np.random.default_rng(7).standard_normal((4096, 4096), dtype=np.float32) * np.float32(0.02)]


def minilm() -> list[Any]:
    """The matrices of all-MiniLM-L6-v2."""
    from safetensors.numpy import load_file

    weights = load_file(minilm_path() / "model.safetensors")
    return [each for _, each in sorted(weights.items()) if each.dtype == np.float32 and each.ndim == 2]


def main() -> None:
    rows = [
        {"data": load.__name__, "form": name, **measure(load(), form)}
        for load in (normal, minilm)
        for name, form in FORMS.items()
    ]
    columns = [
        ("data", "data", ""),
        ("words", "form", ""),
        ("`compact`, other kinds", "other kinds", ".3f"),
        ("ZipNN", "zipnn", ".3f"),
    ]
    for profile in PROFILES:
        columns += [(f"`{profile}`", profile, ".3f")]
        columns += [(f"{what}, GB/s", f"{profile} {what}", ".2f") for what in ("compress", "decompress")]
    keep_rows("dequantized", "python -m benchmarks.codecs.dequantized", rows, columns, target=cpu_target())


if __name__ == "__main__":
    main()
