"""The table of dtypes of docs/format.md, against all that know it: the core, the reference, and the names of Python."""

from __future__ import annotations

import re
from dataclasses import astuple
from itertools import cycle
from pathlib import Path

import pytest

from reference.tensorwire_reference import layouts as reference
from tensorwire import codec
from tensorwire.codec import Layout
from tensorwire.codec.frame import core as _core
from tensorwire.codec.frame.layouts import as_layout
from tests.support import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"


def _table() -> dict[str, tuple[int, Layout]]:
    """Bits per element and layout of every dtype that the page names."""
    section = PAGE.read_text().split("### Layouts")[1].split("\n## ")[0]
    cells = r"^\| ([A-Z0-9_, ]+) \| ([\d, ]+) \| (\d) \| (\d) \| (\d+) \| (\w+) \| ([01]) \|$"
    found = {}
    for names, bits, word, exponent, rest, split, ordered in re.findall(cells, section, re.MULTILINE):
        layout = Layout(int(word), int(exponent), int(rest), split, ordered == "1")
        found |= {name: (int(n), layout) for name, n in zip(names.split(", "), cycle(bits.split(", ")))}
    return found


TABLE = _table()


def test_the_page_names_every_dtype_that_tests_take_for_one_of_its_own() -> None:
    assert TABLE.keys() >= {*registry.FLOATS, *registry.PLAIN}


@pytest.mark.parametrize("name", TABLE)
def test_everybody_agrees_with_the_page(name: str) -> None:
    bits, layout = TABLE[name]
    found = _core.find_dtype(name)
    assert found is not None
    assert (found[0], as_layout(found[1])) == (bits, layout)
    assert codec.dtype_bits(name) == bits
    fields = codec.float_fields(name)
    of_words = name not in ("C64", "C128", "F64"), "two exponents an element, or one of more bits than a layout has"
    assert (fields is not None) == (layout.split == "float" and of_words[0]), of_words[1]
    assert fields is None or (fields.exponent_bits, fields.mantissa_bits + 1) == (
        layout.exponent_bits,
        layout.rest_bits,
    )
    assert (reference.TABLE[name][0], astuple(reference.TABLE[name][1])) == (bits, layout)


def test_the_reference_has_no_other_name() -> None:
    assert reference.TABLE.keys() == TABLE.keys()


@pytest.mark.parametrize("name", [*sorted({*registry.OPAQUE} - TABLE.keys()), "", "bf16", "BF16X"])
def test_no_other_name_is_in_the_table(name: str) -> None:
    assert _core.find_dtype(name) is None
    assert codec.float_fields(name) is None


@pytest.mark.parametrize("name", registry.FLOATS)
def test_the_bias_is_the_exponent_of_one(name: str) -> None:
    fields = codec.float_fields(name)
    assert fields is not None
    one = registry.FLOATS[name].numpy.type(1).view(registry.FLOATS[name].word)
    assert int(one) == fields.bias << fields.mantissa_bits
