"""verify of directories without a manifest that hold torch files: what is checked, and what is named as not checked."""

from __future__ import annotations

import errno
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire.checkpoint import compress_checkpoint, inspect, replace_checkpoint, verify
from tensorwire.cli import main
from tensorwire.errors import CorruptDataError
from tensorwire.storage.inputs import open_input
from tests.support.acting import interrupt

pytest.importorskip("torch")

from tests.checkpoint.test_torch_checkpoints import train

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return train(tmp_path / "step-3", 3)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("offset", [-500, 200], ids=["data", "header"])
def test_verify_without_a_manifest(trained: Path, tmp_path: Path, offset: int) -> None:
    compress_checkpoint(trained, tmp_path / "packed")
    (tmp_path / "packed" / "tensorwire.json").unlink()
    report = verify(tmp_path / "packed")
    assert (report.ok, report.num_files, report.ignored) == (True, 3, ("scheduler.pt", "training_args.bin"))
    flip(tmp_path / "packed" / "optimizer.pt", offset)
    assert [problem.file for problem in verify(tmp_path / "packed").problems] == ["optimizer.pt"]
    if offset > 0:
        with pytest.raises(CorruptDataError, match=r"header .*optimizer\.pt"):
            inspect(tmp_path / "packed")


def test_verify_of_files_that_are_replaced_in_part(trained: Path) -> None:
    interrupt(replace_checkpoint, trained, at="rng_state.pth")
    assert inspect(trained / "optimizer.pt").kind == "compressed"
    assert verify(trained).ok
    flip(trained / "optimizer.pt", -500)
    assert [problem.file for problem in verify(trained).problems] == ["optimizer.pt"]


def test_verify_of_torch_files_alone(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have no checksums, as plain safetensors files have none. One that cannot be looked into is named."""
    (trained / "model.safetensors").unlink()
    with zipfile.ZipFile(trained / "scripted.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("scripted/data.pkl", b"x" * 1000)
    assert main(["verify", str(trained)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "note: not checked, since no manifest lists it: scheduler.pt",
        "note: not checked, since no manifest lists it: scripted.pt",
        "note: not checked, since no manifest lists it: training_args.bin",
        f"{trained}: plain; the structure is ok, there are no checksums to check the data against",
        "7 tensors in 2 files",
    ]


def test_a_file_that_may_not_be_opened(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of if it is called as a model is."""

    def refused(location: Path) -> Any:
        if location.name in ("secret.txt", "secret.pt"):
            raise PermissionError(errno.EACCES, "Permission denied", str(location))
        return open_input(location)

    for module in ("checkpoint.directory.shards", "files.torch_file"):
        monkeypatch.setattr(f"tensorwire.{module}.open_input", refused)
    (trained / "secret.txt").write_bytes(b"mine")
    assert verify(trained).ok
    (trained / "secret.pt").write_bytes(b"mine")
    report = verify(trained)
    assert [(problem.file, "Permission denied" in problem.message) for problem in report.problems] == [
        ("secret.pt", True)
    ]
