"""The rule for files under a running model: one that may hold something else by now is an error at the next use."""

from __future__ import annotations

import copy
import io
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from tensorwire.storage import direct  # noqa: E402
from tests.support.linear_models import chain, inputs, loaded, same, saved  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_LAYERS = 3


@pytest.fixture
def file(file: Path) -> Path:
    os.utime(file, (0, 0))
    return file


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b" ")


def write_the_same(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(path.read_bytes()[:1])


def truncate(path: Path) -> None:
    os.truncate(path, 10_000)


def write_others(path: Path) -> None:
    """Blocks that are whole, of other weights."""
    model = chain(num_layers=NUM_LAYERS)
    for layer in model:
        layer.weight.mul_(-1.5)
    with path.open("r+b") as file:
        file.write(saved(model, path.with_suffix(".other")).read_bytes())


CHANGES: dict[str, Callable[[Path], object]] = {
    "touched": Path.touch,
    "appended": append,
    "cut": truncate,
    "written": write_the_same,
    "written over": write_others,
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "read": Path.read_bytes,
    "renamed": lambda path: path.rename(path.with_suffix(".old")),
    "deleted": Path.unlink,
    "protected": lambda path: path.chmod(0o400),
    "replaced": lambda path: saved(chain(num_layers=1), path.with_suffix(".new")).replace(path),
}


@pytest.fixture(params=["streamed", "by the page cache", "mapped"])
def resident_nbytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    if request.param == "by the page cache":
        monkeypatch.setattr(direct, "_open_directly", lambda number: None)
    return None if request.param == "mapped" else 0


def fused(weight: Any) -> None:
    weight.set_linear_mode("fused")
    torch.nn.functional.linear(inputs(), weight)


USES: list[Callable[[Any], object]] = [
    torch.Tensor.clone, copy.deepcopy, pickle.dumps, fused, lambda weight: torch.nn.functional.linear(inputs(), weight),
    lambda weight: weight[3], lambda weight: weight.decode(), lambda weight: weight.share_memory_(),
    lambda weight: torch.save(weight, io.BytesIO()),
]  # fmt: skip


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
    for use in (lambda weight: model(inputs()), *USES):
        with pytest.raises(OSError, match="changed while it was read") as caught:
            use(model[1].weight)
        assert caught.value.filename == str(file)


@pytest.mark.parametrize("what", OTHERS.values(), ids=OTHERS)
def test_a_file_whose_content_stays(file: Path, what: Callable[[Path], object], resident_nbytes: int | None) -> None:
    reference = chain(num_layers=NUM_LAYERS)
    model = loaded(file, NUM_LAYERS, resident_nbytes=resident_nbytes)
    what(file)
    for _ in range(3):
        assert same(model(inputs()), reference(inputs()))
