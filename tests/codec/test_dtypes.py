"""The table of dtypes of docs/format.md, against all that know it: the core, the reference, and the names of Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from reference.tensorwire_reference.layouts import dtype_of
from tensorwire import codec
from tensorwire.codec import core as _core
from tests.support import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"


class Row(NamedTuple):
    """What the page says of a dtype: E, and R where words are split."""

    bits: int
    word_nbytes: int
    exponent_bits: int
    rest_bits: int
    split: str
    ordered: bool


def _table() -> dict[str, Row]:
    section = PAGE.read_text().split("### Dtypes")[1].split("\n## ")[0]
    cells = r"^\| ([A-Z0-9_, ]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+|-) \| (\w+) \| (yes|no) \|$"
    return {
        name: Row(int(bits), int(word), int(exponent), 0 if rest == "-" else int(rest), split, ordered == "yes")
        for names, bits, word, exponent, rest, split, ordered in re.findall(cells, section, re.MULTILINE)
        for name in names.split(", ")
    }


TABLE = _table()


def test_the_page_names_every_dtype_of_the_registry_that_is_not_opaque() -> None:
    assert TABLE.keys() == {*registry.FLOATS, *registry.PLAIN}


@pytest.mark.parametrize("name", TABLE)
def test_everybody_agrees_with_the_page(name: str) -> None:
    row, core = TABLE[name], _core.find_dtype(name)
    assert core is not None
    assert (core.bits, core.word_nbytes) == (row.bits, row.word_nbytes)
    of_float = (row.exponent_bits, row.rest_bits - 1) if row.split == "float" else None
    assert (core.exponent_bits, core.mantissa_bits) == (of_float or (0, 0))
    assert codec.dtype_bits(name) == row.bits
    assert codec.float_fields(name) == of_float
    reference = dtype_of(name)
    assert Row(*(getattr(reference, field) for field in Row._fields)) == row


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
