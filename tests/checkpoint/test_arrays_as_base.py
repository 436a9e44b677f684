"""Arrays as a base: a delta never takes the place of the file that they may have come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy

from tensorwire import checkpoint
from tests.support.checkpoint_models import tree_hashes

if TYPE_CHECKING:
    from pathlib import Path


def steps(count: int) -> list[dict[str, Any]]:
    """Weights, of which one that changes, one that stays, and a small one that stays and is never worth a frame."""
    words = np.random.default_rng(7).standard_normal(5000).astype(np.float32)
    stays = {"stays": words[::-1].copy(), "small": words[:100].copy()}
    return [{"w": np.where(np.arange(5000) % 500 < step, 0, words), **stays} for step in range(count)]


@pytest.mark.parametrize("form", ["plain", "compressed", "renamed", "delta", "chain"])
def test_a_file_that_arrays_of_the_base_were_loaded_from_stays(form: str, tmp_path: Path) -> None:
    """A delta in its place could not be restored any more."""
    first, second, third = steps(3)
    path, full = tmp_path / "model.safetensors", tmp_path / "full.safetensors"
    base: Any = first
    if form == "plain":
        safetensors.numpy.save_file(first, path)
    elif form == "delta":
        checkpoint.save_file(first, full)
        checkpoint.save_file(second, path, base=full)
        base = checkpoint.load_file(path, base=full)
    else:
        checkpoint.save_file(first, path)
        base = checkpoint.load_file(path)
    if form == "renamed":
        base = {f"other.{name}": array for name, array in base.items()}
        third = {"stays": third["stays"], "w": base["other.w"]}
    elif form == "chain":
        checkpoint.save_file(second, tmp_path / "second.safetensors", base=base)
        base = [tmp_path / "second.safetensors", base]
    before = tree_hashes(tmp_path)
    with pytest.raises(ValueError, match=r"as the arrays of base have it.*name another destination"):
        checkpoint.save_file(third, path, base=base)
    assert tree_hashes(tmp_path) == before


def test_a_file_that_holds_no_base_is_replaced_by_a_delta(tmp_path: Path) -> None:
    first, second, third = steps(3)
    path, copy = tmp_path / "model.safetensors", tmp_path / "copy.safetensors"
    for content in (b"", b"text"):
        path.write_bytes(content)
        checkpoint.save_file(second, path, base=first)
    for tensors in (second, third, first):  # over a delta from the same base, which says of some tensors that they stay
        checkpoint.save_file(tensors, path, base=first)
        assert all(
            np.array_equal(array, tensors[name]) for name, array in checkpoint.load_file(path, base=first).items()
        )
    checkpoint.save_file(third, path)
    checkpoint.save_file({"w": second["w"]}, path, base={"w": first["w"]})
    for place in (path, copy):
        checkpoint.save_file(first, place)
    checkpoint.save_file(second, path, base=copy)
    assert np.array_equal(checkpoint.load_file(path, base=copy)["w"], second["w"])
