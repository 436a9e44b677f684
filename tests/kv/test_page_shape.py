"""Pages in the layouts of engines: contiguous ones lie in their pools, and are encoded there."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwire.kv import KVCodec, page_shape

# tokens 16, heads 4, of a head 8, layers 3
SIZES = {"N": 16, "T": 16, "H": 4, "L": 3, "2": 2, "C": 8, "D": 8}
AXES = {
    "NHC": (1, 16, 32), "HNC": (4, 16, 8), "NC": (1, 16, 8), "LNHC": (3, 16, 32), "LHNC": (12, 16, 8),
    "HLNC": (12, 16, 8), "2LTD": (6, 16, 8), "2TD": (2, 16, 8), "T2D": (1, 16, 16), "THD": (1, 16, 32),
    "TLHD": (1, 16, 96), "LTHD": (3, 16, 32), "HTLD": (4, 16, 24),
}  # fmt: skip


def test_the_docstring_names_these() -> None:
    assert {cell for line in str(page_shape.__doc__).splitlines() for cell in line.split("``")} >= AXES.keys()


@pytest.mark.parametrize("axes", AXES)
def test_a_page_lies_in_its_pool(axes: str) -> None:
    shape = tuple(SIZES[axis] for axis in axes)
    groups = page_shape(axes, shape)
    assert groups == AXES[axes]
    pool = np.random.default_rng(3).normal(size=(5, *shape)).astype(np.float32)
    for transposed in (False, True):
        codec = KVCodec(transposed=transposed)
        slot = bytearray(codec.nbytes("F32", groups))
        codec.encode(pool[2], slot, "F32", groups)
        target = np.zeros_like(pool)
        codec.decode(slot, target[4], "F32", groups)
        assert target[4].tobytes() == pool[2].tobytes()
        assert not target[:4].any()
    # The groups have what a token has, in order.
    of_token = pool[2].take(5, axis=axes.replace("N", "T").index("T"))
    assert np.array_equal(pool[2].reshape(groups)[:, 5, :].ravel(), of_token.ravel())


@pytest.mark.parametrize(
    ("axes", "sizes"), [("HC", (4, 8)), ("NT", (4, 8)), ("NHC", (4, 8)), ("", ()), ("N", (4, 8)), ("TD", (4,))]
)
def test_axes_that_name_no_tokens(axes: str, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"expected a letter for each of {len(sizes)} sizes, one of them N or T"):
        page_shape(axes, sizes)
