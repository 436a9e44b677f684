"""What is no distributed checkpoint, and names that say something else than would stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

from tensorwire import convert_checkpoint
from tests.support.distributed import state
from tests.support.stores import faulty_store


@pytest.mark.parametrize(
    ("to", "name", "text"),
    [
        (
            "safetensors",
            "x.safetensors",
            r"expected the name of a directory .* got 'x\.safetensors'; leave \.safetensors out",
        ),
        ("safetensors", "x.PT", r"leave \.pt out; to=\"torch\" \(--to torch\) writes one file"),
        ("torch", "x.safetensors", r"expected the name of a torch file .* got 'x\.safetensors'; to=\"safetensors\""),
    ],
)
def test_a_name_that_says_something_else_is_refused(tmp_path: Path, to: Any, name: str, text: str) -> None:
    dcp.save(state(1), checkpoint_id=tmp_path / "c")
    with pytest.raises(ValueError, match=text):
        convert_checkpoint(tmp_path / "c", tmp_path / name, to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_what_is_no_distributed_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="expected a distributed checkpoint; name the directory that was saved to"
    ):
        convert_checkpoint(tmp_path, tmp_path / "out")
    dcp.save(state(1), checkpoint_id=tmp_path / "pytorch_model_fsdp_0")
    with pytest.raises(FileNotFoundError, match="such as pytorch_model_fsdp_0 below it"):
        convert_checkpoint(tmp_path, tmp_path / "out")
    with pytest.raises(NotADirectoryError, match="expected the directory that a distributed checkpoint was saved to"):
        convert_checkpoint(tmp_path / "pytorch_model_fsdp_0/.metadata", tmp_path / "out")
    with faulty_store(), pytest.raises(FileNotFoundError, match="expected a distributed checkpoint"):
        convert_checkpoint("faulty://run/none", tmp_path / "out")
