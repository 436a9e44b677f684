"""Weights that are quantized or pruned: python -m benchmarks.codecs.forms writes benchmarks/results/forms.json.

The data are the matrices of all-MiniLM-L6-v2's encoder. Weights are rounded to the nearest value; a quantizer that
corrects for the error, as GPTQ does, chooses other values for some of them. Sizes are the same on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks.data import minilm_path
from benchmarks.results_page import keep_rows
from tensorwire.codec import compress

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire.codec import Profile

PROFILES: tuple[Profile, ...] = ("fast", "compact")
GROUP = 128
"""Weights that share a scale and a zero point in int4."""
NIBBLES = 4 * np.arange(8, dtype=np.uint32)


def int8(weights: Any) -> list[Any]:
    """A scale for each row, which takes its largest magnitude to 127."""
    scales = np.abs(weights).max(axis=1, keepdims=True) / 127
    return [np.rint(weights / scales).astype(np.int8), scales.astype(np.float16)]


def int4(weights: Any) -> list[Any]:
    """qweight, scales and qzeros as GPTQ's files have them: eight numbers in an I32, GROUP inputs in a group."""
    groups = weights.reshape(len(weights), -1, GROUP)
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    scales = (high - low) / 15
    zeros = np.rint(-low / scales)
    numbers = np.clip(np.rint(groups / scales) + zeros, 0, 15).reshape(weights.shape)
    qweight = _packed(numbers).T
    qzeros = _packed(zeros[..., 0].T)
    return [np.ascontiguousarray(part) for part in (qweight, scales[..., 0].T.astype(np.float16), qzeros)]


def _packed(numbers: Any) -> Any:
    """Eight neighbours of the last dimension in one I32, the first in its lowest bits."""
    eights = numbers.astype(np.uint32).reshape(len(numbers), -1, 8)
    return (eights << NIBBLES).sum(axis=2, dtype=np.uint32).view(np.int32)


def two_of_four(weights: Any) -> list[Any]:
    """BF16 in which the two smallest of every four neighbours are zero."""
    fours = weights.astype(ml_dtypes.bfloat16).reshape(-1, 4)
    smallest = np.argsort(np.abs(fours.astype(np.float32)), axis=1, kind="stable")[:, :2]
    np.put_along_axis(fours, smallest, 0, axis=1)
    return [fours.reshape(weights.shape)]


FORMS: dict[str, Callable[[Any], list[Any]]] = {"int8": int8, "int4": int4, "2:4": two_of_four}


def measure(form: str, matrices: list[Any]) -> dict[str, Any]:
    """The ratio of all tensors together in each profile."""
    tensors = [tensor for weights in matrices for tensor in FORMS[form](weights)]
    before = sum(tensor.nbytes for tensor in tensors)
    sizes = {name: sum(len(compress(tensor, profile=name)) for tensor in tensors) for name in PROFILES}
    return {"form": form, **{name: before / size for name, size in sizes.items()}}


def main() -> None:
    from safetensors.numpy import load_file

    weights = load_file(minilm_path() / "model.safetensors")
    matrices = [weights[name] for name in sorted(weights) if "encoder" in name and weights[name].ndim == 2]
    rows = [measure(form, matrices) for form in FORMS]
    columns = [("form", "form", ""), *((name, name, ".4f") for name in PROFILES)]
    keep_rows("forms", "python -m benchmarks.codecs.forms", rows, columns)


if __name__ == "__main__":
    main()
