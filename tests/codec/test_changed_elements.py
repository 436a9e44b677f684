"""Elements that differ from a base, one by one: what NumPy finds. core/tests/test_changes.cpp has every CPU target."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwire.codec import ChangedElements

DTYPES = {"U8": 1, "BF16": 2, "F32": 4, "C64": 8, "F4": 1}
NUMEL = 9000


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [1, 4096, NUMEL])
def test_they_are_those_of_numpy(dtype: str, chunk: int) -> None:
    each = DTYPES[dtype]
    generator = np.random.default_rng(each)
    base = generator.integers(0, 256, (NUMEL, each), np.uint8)
    content = base.copy()
    rows = generator.choice(NUMEL, NUMEL // 70, replace=False)
    content[rows, generator.integers(0, each, len(rows))] ^= 0x80
    expected = np.flatnonzero((content != base).any(axis=1))
    numel = NUMEL if chunk > 1 else 300
    found = ChangedElements(dtype, numel * each)
    for start in range(0, numel, chunk):
        part = slice(start, min(start + chunk, numel))
        found.add(memoryview(content[part].tobytes()), memoryview(base[part].tobytes()))
    expected = expected[expected < numel]
    assert np.array_equal(np.frombuffer(found.indices, np.int32), expected)
    assert found.values == content[expected].tobytes()


def test_without_a_base_all_elements_differ() -> None:
    found = ChangedElements("BF16", 6)
    found.add(memoryview(b"abcd"), None)
    found.add(memoryview(b"ef"), None)
    assert (np.frombuffer(found.indices, np.int32).tolist(), found.values) == ([0, 1, 2], b"abcdef")


@pytest.mark.parametrize(("numel", "name"), [(2**31 - 1, "I32"), (2**31, "I64")])
def test_a_tensor_that_is_too_long_for_numbers_of_4_bytes_has_8(numel: int, name: str) -> None:
    found = ChangedElements("F32", 4 * numel)
    found._first = numel - 2  # what went before
    found.add(memoryview(b"12345678"), memoryview(b"1234567x"))
    numbers = np.frombuffer(found.indices, np.int32 if name == "I32" else np.int64)
    assert (found.index_dtype, numbers.tolist(), found.values) == (name, [numel - 1], b"5678")


def test_what_is_refused() -> None:
    for content, base in ((b"abc", b"abc"), (b"abcd", b"ab")):
        with pytest.raises(ValueError, match="whole elements of 2 bytes"):
            ChangedElements("BF16", 4).add(memoryview(content), memoryview(base))
    with pytest.raises(ValueError, match="elements of 1, 2, 4 or 8 bytes"):
        ChangedElements("C128", 16).add(memoryview(bytes(16)), None)
