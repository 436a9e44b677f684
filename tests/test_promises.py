"""What is written down twice agrees: the bindings have the numbers of the C headers."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING

import pytest

from tensorwire import __version__
from tensorwire.codec import device_blocks
from tensorwire.codec.frame import core
from tests.support.prose import newest_version

if TYPE_CHECKING:
    from pathlib import Path


NUMBERS = {"MAX_NDIM": core, "FIXED_HEADER_NBYTES": core, "LEAF_NBYTES": core, "TAIL_NBYTES": device_blocks}
STRUCTS = {
    "error": core.Error,
    "layout": core.Layout,
    "form": core.Form,
    "frame": core.Frame,
    "block_info": core.BlockInfo,
    "leaves": core.Leaves,
}
TYPES = {
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "char": ctypes.c_char,
    "void*": ctypes.c_void_p,
    "tw_layout": core.Layout,
}
COUNTS = {"": 0, "TW_MAX_NDIM": core.MAX_NDIM}
Places = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def header(repository: Path) -> str:
    return (repository / "core/include/tensorwire.h").read_text()


def places_of(struct: type[ctypes.Structure]) -> Places:
    """Offset and size of each field, and of the whole."""
    fields = {name.lstrip("_"): getattr(struct, name) for name, *_ in struct._fields_}
    return {name: (field.offset, field.size) for name, field in fields.items()} | {"": (0, ctypes.sizeof(struct))}


def declared(header: str, name: str) -> Places:
    """What places_of gives for a struct that the header declares."""
    (body,) = re.findall(rf"^typedef struct tw_{name} {{\n(.*?)^}} tw_{name};", header, re.MULTILINE | re.DOTALL)
    fields = []
    for kind, field, size in re.findall(r"^  ([\w*]+) (\w+)(?:\[(\w+)\])?;", body, re.MULTILINE):
        count = COUNTS[size] if size in COUNTS else int(size)
        fields.append((field, TYPES[kind] * count if count else TYPES[kind]))
    return places_of(type(name, (ctypes.Structure,), {"_fields_": fields}))


@pytest.mark.parametrize("name", NUMBERS)
def test_the_binding_has_the_constants_of_the_header(header: str, name: str) -> None:
    (number,) = re.findall(rf"^#define TW_{name} (\d+)u?\b", header, re.MULTILINE)
    assert getattr(NUMBERS[name], name) == int(number)


@pytest.mark.parametrize("name", STRUCTS)
def test_the_binding_has_the_structs_of_the_header(header: str, name: str) -> None:
    assert places_of(STRUCTS[name]) == declared(header, name)


def test_what_devices_know_of_blocks_is_what_the_header_says(header: str) -> None:
    row, block = declared(header, "device_row"), declared(header, "device_block")
    assert (row[""][1], block[""][1]) == (device_blocks.ROW_NBYTES, device_blocks.BLOCK_NBYTES)
    plan = pytest.importorskip("tensorwire.torch.device.plan")
    assert row[""][1] == 4 * plan.ROW
    found = {name: (offset, dtype.itemsize) for name, (dtype, offset) in plan._BLOCK.fields.items()}
    assert found.pop("launch") == (block["kind"][0], sum(block["coding"]))
    assert found == {name: block[name] for name in found}
    kinds = re.findall(r"^  TW_DEVICE_(\w+) = (\d)", header, re.MULTILINE)
    assert [(getattr(plan, f"_{name}"), name) for name, _ in kinds] == [(int(number), name) for name, number in kinds]


def test_the_products_have_one_version(repository: Path) -> None:
    """And that of the reference, which reads what they write."""
    job = (repository / "job/src/tensorwire_job/version.py").read_text()
    assert f'\n__version__ = "{__version__}"\n' in job
    released = __version__.split(".dev")[0]
    assert f'\nversion = "{released}"\n' in (repository / "reference/pyproject.toml").read_text()
    assert f'"tensorwire>={__version__},<' in (repository / "job/pyproject.toml").read_text()


def test_the_citation_names_the_version(repository: Path) -> None:
    assert f"\nversion: {__version__}\n" in (repository / "CITATION.cff").read_text()
    assert newest_version(repository / "CHANGELOG.md") == __version__.split(".dev")[0]
