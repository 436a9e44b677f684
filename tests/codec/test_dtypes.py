"""The table of dtypes of docs/format.md, against all that know it: the core, the reference, and the names of Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reference.tensorwire_reference.header import dtype_of
from tensorwire import _core, codec
from tests.support import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"


def _table() -> dict[str, tuple[int, int, int, int]]:
    """Bits, bytes of a word, E and M of each dtype that the page names."""
    section = PAGE.read_text().split("### Dtypes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z0-9_, ]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+|-) \|$", section, re.MULTILINE)
    return {
        name: (int(bits), int(word), int(exponent), 0 if mantissa == "-" else int(mantissa))
        for names, bits, word, exponent, mantissa in rows
        for name in names.split(", ")
    }


TABLE = _table()


def test_the_page_names_every_dtype_of_the_registry_that_is_not_opaque() -> None:
    assert TABLE.keys() == {*registry.FLOATS, *registry.PLAIN}


@pytest.mark.parametrize("name", TABLE)
def test_everybody_agrees_with_the_page(name: str) -> None:
    bits, word_nbytes, exponent_bits, mantissa_bits = TABLE[name]
    row = _core.find_dtype(name)
    assert row is not None
    assert (row.bits, row.word_nbytes, row.exponent_bits, row.mantissa_bits) == TABLE[name]
    reference = dtype_of(name)
    assert (reference.bits, reference.word_nbytes) == (bits, word_nbytes)
    assert (reference.exponent_bits, reference.mantissa_bits) == (exponent_bits, mantissa_bits)
    assert codec.dtype_bits(name) == bits
    assert codec.float_fields(name) == ((exponent_bits, mantissa_bits) if exponent_bits else None)


@pytest.mark.parametrize("name", [*registry.OPAQUE, "", "bf16", "BF16X"])
def test_no_other_name_is_in_the_table(name: str) -> None:
    assert _core.find_dtype(name) is None
    assert codec.float_fields(name) is None


@pytest.mark.parametrize("name", registry.FLOATS)
def test_the_bias_is_the_exponent_of_one(name: str) -> None:
    fields = codec.float_fields(name)
    assert fields is not None
    one = registry.FLOATS[name].numpy.type(1).view(registry.FLOATS[name].word)
    assert int(one) == fields.bias << fields.mantissa_bits
