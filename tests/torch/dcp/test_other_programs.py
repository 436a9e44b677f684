"""What a distributed checkpoint of ours is to programs that know torch's alone, and to our commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from tensorwire import compress_checkpoint, decompress_checkpoint, load_file, transcode_checkpoint
from tensorwire.cli import generation
from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter
from tests.support.distributed import loaded, part, same, save, state


def test_torchs_own_reader_names_ours(tmp_path: Path) -> None:
    save(tmp_path / "c", state(1))
    text = r"load it with storage_reader=tensorwire\.torch\.dcp\.TensorwireReader"
    with pytest.raises(CheckpointException, match=text):
        dcp.load(state(), checkpoint_id=tmp_path / "c")
    with pytest.raises(CheckpointException, match=text):
        dcp_to_torch_save(tmp_path / "c", tmp_path / "all.pt")


def test_a_torch_file_is_made_with_our_reader(tmp_path: Path) -> None:
    """As docs/dcp.md says: torch's own way, with two of its names that are not public."""
    save(tmp_path / "c", state(1))
    found: dict[str, Any] = {}
    reader = TensorwireReader(tmp_path / "c")
    _load_state_dict(found, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert same(found, state(1))


WANT_A_MODEL = {
    "decompress": lambda path, out: decompress_checkpoint(path, out),
    "transcode": lambda path, out: transcode_checkpoint(path, out, profile="compact"),
    "compress": lambda path, out: compress_checkpoint(path, out),
    "load_file": lambda path, _: load_file(path),
    "run": lambda path, _: generation._check_directory(path),
}


@pytest.mark.parametrize("name", WANT_A_MODEL)
@pytest.mark.parametrize(
    ("writer", "way"), [(TensorwireWriter, "TensorwireReader"), (dcp.FileSystemWriter, "checkpoint_id=")]
)
def test_what_wants_a_model_names_what_reads_and_what_converts(
    tmp_path: Path, name: str, writer: Any, way: str
) -> None:
    dcp.save(state(1), storage_writer=writer(tmp_path / "c"))
    with pytest.raises(
        (ValueError, click.UsageError), match=rf"is a distributed checkpoint.*{way}.*tensorwire convert .*/c DST"
    ):
        WANT_A_MODEL[name](tmp_path / "c", tmp_path / "out")


def test_what_compresses_checkpoints_says_that_ours_are_compressed(tmp_path: Path) -> None:
    save(tmp_path / "c", state(1))
    with pytest.raises(ValueError, match=r"is a distributed checkpoint.*are compressed already"):
        compress_checkpoint(tmp_path / "c", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"profile": "zz"}, ValueError),
        ({"profile": ["fast"]}, ValueError),
        ({"threads": 0}, ValueError),
        ({"threads": "two"}, TypeError),
        ({"base": 7}, TypeError),
        ({"base": ["a", 7]}, TypeError),
    ],
)
def test_a_writer_that_could_not_save_is_not_made(tmp_path: Path, options: dict[str, Any], error: type) -> None:
    """Or the error comes after the training."""
    with pytest.raises(error):
        TensorwireWriter(tmp_path, **options)
    if "profile" not in options:
        with pytest.raises(error):
            TensorwireReader(tmp_path, **options)


def test_names_that_are_no_text_in_the_data_of_a_planner(tmp_path: Path) -> None:
    """JSON would make texts of them, so the pickle has them alone."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Planner(DefaultSavePlanner):
        def create_global_plan(self, plans: Any) -> Any:
            plans, metadata = super().create_global_plan(plans)
            metadata.planner_data = [("w", 1.5, b"x", None, True)]
            return plans, metadata

    dcp.save({"w": torch.ones(3)}, storage_writer=TensorwireWriter(tmp_path), planner=Planner())
    assert TensorwireReader(tmp_path).read_metadata().planner_data == [("w", 1.5, b"x", None, True)]


def test_complex_numbers_of_128_bits(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(40, 30, dtype=torch.complex128, generator=generator)
    content = {"w": values, "row": values[0], "one": values[0, 0].clone(), "conj": values.conj(), "t": values.T}
    save(tmp_path, content)
    found = loaded(tmp_path, content)
    for name, value in content.items():
        assert torch.equal(torch.view_as_real(found[name].resolve_conj()), torch.view_as_real(value.resolve_conj()))
    assert torch.equal(part(tmp_path, "w", (3, 7), (5, 2)), values[3:8, 7:9])


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no FP4")
@pytest.mark.parametrize("shape", [(8, 8), (6,), (), (0, 4), (2, 3, 4), (4, 0)])
def test_fp4(tmp_path: Path, shape: tuple[int, ...]) -> None:
    numel = torch.Size(shape).numel()
    values = (torch.arange(numel, dtype=torch.int64) * 37 % 251).to(torch.uint8).reshape(shape)
    dtype = torch.float4_e2m1fn_x2
    save(tmp_path, {"w": values.view(dtype)})
    found = {"w": torch.zeros(shape, dtype=torch.uint8).view(dtype)}
    dcp.load(found, storage_reader=TensorwireReader(tmp_path))
    assert torch.equal(found["w"].view(torch.uint8), values)
    if numel:
        start, lengths = (0, 1, 2)[: len(shape)], (2, 2, 1)[: len(shape)]
        box = tuple(slice(first, first + length) for first, length in zip(start, lengths, strict=True))
        assert torch.equal(part(tmp_path, "w", start, lengths, dtype).view(torch.uint8), values[box])
