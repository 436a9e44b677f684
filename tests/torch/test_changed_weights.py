"""The rule for files under a running model: one that may hold something else by now is an error at the next use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from tests.support.linear_models import chain, inputs, loaded, same, saved  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_LAYERS = 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = saved(chain(num_layers=NUM_LAYERS), tmp_path / "model.safetensors")
    os.utime(path, (0, 0))
    return path


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b" ")


def write_the_same(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(path.read_bytes()[:1])


CHANGES: dict[str, Callable[[Path], object]] = {"touched": Path.touch, "appended": append, "written": write_the_same}
OTHERS: dict[str, Callable[[Path], object]] = {
    "read": Path.read_bytes,
    "renamed": lambda path: path.rename(path.with_suffix(".old")),
    "deleted": Path.unlink,
    "protected": lambda path: path.chmod(0o400),
    "replaced": lambda path: saved(chain(num_layers=1), path.with_suffix(".new")).replace(path),
}
kinds = pytest.mark.parametrize("resident_nbytes", [0, None], ids=["streamed", "mapped"])


@kinds
@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_may_have_changed(
    file: Path, change: Callable[[Path], object], resident_nbytes: int | None, verify: bool
) -> None:
    """A touch cannot be told from a write."""
    model = loaded(file, NUM_LAYERS, resident_nbytes=resident_nbytes, verify=verify)
    for _ in range(3):  # what comes next is read ahead by now
        model(inputs())
    change(file)
    weight = model[1].weight
    uses: list[Callable[[], object]] = [lambda: model(inputs()), lambda: weight[3], weight.decode, weight.clone]
    for use in uses:
        with pytest.raises(OSError, match="changed while it was read") as caught:
            use()
        assert caught.value.filename == str(file)


@kinds
@pytest.mark.parametrize("what", OTHERS.values(), ids=OTHERS)
def test_a_file_whose_content_stays(file: Path, what: Callable[[Path], object], resident_nbytes: int | None) -> None:
    reference = chain(num_layers=NUM_LAYERS)
    model = loaded(file, NUM_LAYERS, resident_nbytes=resident_nbytes)
    what(file)
    for _ in range(3):
        assert same(model(inputs()), reference(inputs()))
