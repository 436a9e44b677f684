"""Frames that break one rule of the format page each, with all checksums right, and the error that the page names.

Wherever it can be done, a decoder that overlooks the rule would return the right content: no other check catches them.
This module has those of the tags; its neighbours have those of the header and of the kinds.
"""

from collections.abc import Iterator
from typing import Any

from reference.tensorwire_reference import Bytes, Cascade, Constant, Enec, Entropy, Plain, Trimmed, Zeros
from tests.support.malformed_coders import MALFORMED_CODERS
from tests.support.malformed_headers import MALFORMED_HEADERS
from tests.support.malformed_layouts import MALFORMED_LAYOUTS
from tests.support.malformed_parts import MALFORMED_PARTS
from tests.support.malformed_scaled import MALFORMED_SCALED
from tests.support.malformed_words import MALFORMED_WORDS
from tests.support.malforming import (
    VERSION,
    Malformed,
    bf16,
    insert_unit,
    instead,
    make,
    mask,
    replace,
    retag,
    unchanged,
)

__all__ = ["MALFORMED", "Malformed"]


def _tags() -> Iterator[Malformed]:
    cascade: dict[str, Any] = {"kind": Cascade(variant=1, lo=124, below=(1, 2, 0))}
    plain: dict[str, Any] = {"kind": Plain(), "rest": Trimmed()}
    words, same = bf16(), b"\x80\x3f" * 300
    yield make("stored-padding", replace({-1: 1}), words, stored=True)
    yield make("stored-padding-to-64", replace({630: 1}), words, stored=True, alignment=64)
    yield make("padding-set", replace({-15: 1}), words, **cascade)
    yield make("padding-of-a-unit", insert_unit(14), words, **cascade)
    many = bf16(1000)
    yield make("padding-of-64-in-units-of-64", insert_unit(14, 64), many, alignment=64, **cascade)
    yield make("streams-too-short", lambda block: block[32:], words, **cascade)
    yield make("kind-0", retag(3), words, error=VERSION, **cascade)
    yield make("rest-3", retag(3 << 3), words, error=VERSION, **cascade)
    yield make("rest-3-of-constant", retag(3 << 3), same, error=VERSION, kind=Constant())
    for extended in (0, 7, 255):
        edit = replace({-1: 7, -2: extended})
        yield make(f"extended-kind-{extended}", edit, words, error=VERSION, **cascade)
        yield make(f"extended-kind-{extended}-in-enec", edit, words, error=VERSION, profile="enec", **plain)
    yield make("plain-rest-0", retag(1 << 3), words, **plain)
    yield make("plain-variant", retag(1 << 5), words, **plain)
    yield make("constant-rest", retag(1 << 3), same, kind=Constant())
    yield make("constant-variant", retag(1 << 5), same, kind=Constant())
    yield make("constant-two-units", insert_unit(3), same, kind=Constant())
    yield make("constant-padding", replace({0: 1}), same, kind=Constant())
    second: dict[str, Any] = {"kind": Cascade(variant=0, table=2)}
    table: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("enec", ("resident",), {"kind": Enec()}),
        ("enec-bytes", ("enec", "fast"), {"kind": Enec(), "rest": Bytes()}),
        ("cascade", ("enec", "resident"), cascade),
        ("cascade-bytes", ("fast",), {**cascade, "rest": Bytes()}),
        ("second-table", ("enec",), second),
        ("second-table-trimmed", ("resident",), {**second, "rest": Trimmed()}),
        ("second-table-bytes", ("fast", "resident"), {**second, "rest": Bytes()}),
        ("entropy", ("enec", "fast", "resident"), {"kind": Entropy()}),
        ("plain", ("resident",), plain),
        ("plain-bytes", ("enec", "fast"), {"kind": Plain(), "rest": Bytes()}),
    ]
    for name, profiles, options in table:
        for profile in profiles:
            yield make(f"{name}-in-{profile}", unchanged, bf16(600), profile=profile, **options)
    # A tier of one bit that names exponent 0, and a rest of 0 bits.
    cascade_of_nothing = instead(mask(300, 0), bytes(13), 3, 0, 7)
    yield make("exponent-kind-of-integers", cascade_of_nothing, bytes(4 * 300), dtype="I32")
    nested = Zeros(inner=Plain(), variant=2)
    yield make("zeros-in-enec", unchanged, words + bytes(500), profile="enec", kind=nested, rest=Trimmed())


MALFORMED = (
    *MALFORMED_HEADERS,
    *_tags(),
    *MALFORMED_CODERS,
    *MALFORMED_WORDS,
    *MALFORMED_LAYOUTS,
    *MALFORMED_PARTS,
    *MALFORMED_SCALED,
)
