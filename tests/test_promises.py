"""What is written down twice agrees: the bindings have the numbers of the C headers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tensorwire import __version__
from tensorwire.codec.frame import core
from tests.support.prose import newest_version

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["MAX_NDIM", "FIXED_HEADER_NBYTES", "LEAF_NBYTES"])
def test_the_binding_has_the_constants_of_the_header(repository: Path, name: str) -> None:
    header = (repository / "core/include/tensorwire.h").read_text()
    (number,) = re.findall(rf"^#define TW_{name} (\d+)u?\b", header, re.MULTILINE)
    assert getattr(core, name) == int(number)


def test_the_binding_has_the_fields_of_the_header(repository: Path) -> None:
    header = (repository / "core/include/tensorwire.h").read_text()
    for name, binding in {"error": core.Error, "frame": core.Frame, "block_info": core.BlockInfo}.items():
        (body,) = re.findall(rf"^typedef struct tw_{name} {{\n(.*?)^}} tw_{name};", header, re.MULTILINE | re.DOTALL)
        declared = re.findall(r"^  \w+ (\w+)(?:\[\w+\])?;", body, re.MULTILINE)
        assert declared
        assert [field[0] for field in binding._fields_] == declared


def test_the_citation_names_the_version(repository: Path) -> None:
    assert f"\nversion: {__version__}\n" in (repository / "CITATION.cff").read_text()
    assert newest_version(repository / "CHANGELOG.md") == __version__.split(".dev")[0]
