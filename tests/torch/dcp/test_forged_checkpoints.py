"""Forged checkpoints of torch's writer: what convert makes of one is bounded by its size."""

from __future__ import annotations

import copy
import io
import pickle
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from tensorwire import convert_checkpoint
from tensorwire.checkpoint.operations.distributed_tensors import MAX_NAMED
from tensorwire.errors import CorruptDataError, LimitExceededError
from tests.support.distributed import each_writer, from_safetensors, same, saved, shard, state


def change(folder: Path, **members: Any) -> None:
    """Give all places in the pickle of torch's writer other members."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        vars(place).update(copy.deepcopy(members))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"relative_path": "../c/other"}, "the name of a file beside the metadata"),
        ({"relative_path": "/etc/passwd"}, "the name of a file beside the metadata"),
        ({"relative_path": 7}, "int in the place of str"),
        ({"offset": -1}, "expected bytes of a file as the place of"),
        ({"length": 1.5}, "float in the place of int"),
        ({"transform_descriptors": ["stream.zstd"]}, "a transform of torch's FileSystemWriter has changed the parts"),
        ({"offset": 0, "length": 40}, "expected a tensor as torch.save writes it"),
    ],
)
def test_places_of_torch_that_lead_elsewhere(tmp_path: Path, members: dict[str, Any], text: str) -> None:
    saved(tmp_path / "c", "torchs", state(1))
    change(tmp_path / "c", **members)
    with pytest.raises(CorruptDataError, match=text):
        convert_checkpoint(tmp_path / "c", tmp_path / "out")


def test_a_forged_size_takes_no_memory(tmp_path: Path) -> None:
    """A tensor of 4 exabytes, in two parts that cannot be so large. A part of ours has a frame with its size."""
    saved(tmp_path / "c", "torchs", {"w": torch.ones(2**10)})
    metadata = pickle.loads((tmp_path / "c/.metadata").read_bytes())
    (place,) = metadata.storage_data.values()
    half = torch.Size([2**59])
    metadata.state_dict_metadata["w"].size = torch.Size([2**60])
    metadata.state_dict_metadata["w"].chunks = [ChunkStorageMetadata(torch.Size([at]), half) for at in (0, 2**59)]
    metadata.storage_data = {MetadataIndex("w", torch.Size([at])): copy.deepcopy(place) for at in (0, 2**59)}
    (tmp_path / "c/.metadata").write_bytes(pickle.dumps(metadata, protocol=4))
    with pytest.raises(CorruptDataError, match=f"expected a part of {2**61} bytes, got one in"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out")


def test_a_part_that_repeats_itself_takes_no_more_than_it_says(tmp_path: Path) -> None:
    saved(tmp_path / "c", "torchs", {"w": torch.ones(1000, 1000)})
    torch.save(torch.ones(1).expand(1000, 1000), shard(tmp_path / "c"))
    change(tmp_path / "c", offset=0, length=shard(tmp_path / "c").stat().st_size)
    with pytest.raises(CorruptDataError, match="expected a part of 4000000 bytes"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out")


def rename(folder: Path, names: list[str]) -> None:
    """Have the only tensor of a checkpoint of torch's under other names, all with its place."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    place, *_ = metadata.storage_data.values()
    tensor, *_ = metadata.state_dict_metadata.values()
    metadata.state_dict_metadata = {name: copy.deepcopy(tensor) for name in names}
    metadata.storage_data = {MetadataIndex(name, torch.Size([0])): copy.deepcopy(place) for name in names}
    metadata.planner_data = {name: (name,) for name in names}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))


@pytest.mark.parametrize("to", ["safetensors", "torch"])
def test_names_of_one_place_claim_no_more_than_the_limit(tmp_path: Path, to: Any) -> None:
    """A thousand names more take less than 100 kB in the metadata, whatever is at their place."""
    saved(tmp_path / "c", "torchs", {"w": torch.arange(2.0**15)})
    nbytes = shard(tmp_path / "c").stat().st_size
    convert = partial(convert_checkpoint, tmp_path / "c", tmp_path / "out", to=to)
    rename(tmp_path / "c", [f"t{index}" for index in range(1000)])
    with pytest.raises(LimitExceededError, match=f"{MAX_NAMED} times the {nbytes} bytes of the file.*'t{MAX_NAMED}'"):
        convert()
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    tied = [f"t{index}" for index in range(MAX_NAMED)]
    rename(tmp_path / "c", tied)
    convert()
    found = from_safetensors(tmp_path / "out") if to == "safetensors" else torch.load(tmp_path / "out")
    assert same(found, dict.fromkeys(sorted(tied), torch.arange(2.0**15)))


@each_writer
@pytest.mark.parametrize("to", ["safetensors", "torch"])
def test_tied_parameters(tmp_path: Path, writer: str, to: Any) -> None:
    weight = torch.randn(40, 30)
    saved(tmp_path / "c", writer, {f"layer{index}": weight for index in range(40)})
    convert_checkpoint(tmp_path / "c", tmp_path / "out", to=to)
    found = from_safetensors(tmp_path / "out") if to == "safetensors" else torch.load(tmp_path / "out")
    assert len(found) == 40
    assert all(torch.equal(each, weight) for each in found.values())


def pack(data: bytes) -> bytes:
    """The same torch file with its members deflated."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("small", "large", "to"),
    [
        (torch.zeros(1000), torch.zeros(1 << 20), "safetensors"),
        (torch.zeros(1000), torch.zeros(1 << 20), "torch"),
        (b"step", bytes(1 << 22), "torch"),
    ],
)
def test_what_is_packed_is_not_unpacked(
    tmp_path: Path, small: Any, large: Any, to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes of it may be gigabytes, and torch makes them before anything can look at their size."""
    saved(tmp_path / "c", "torchs", {"w": small})
    whole = io.BytesIO()
    torch.save(large, whole)
    data = pack(whole.getvalue())
    assert len(data) < (1 << 22) // 100
    shard(tmp_path / "c").write_bytes(data)
    change(tmp_path / "c", offset=0, length=len(data))
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ValueError, match=r"torch file that can be looked into, but its member '[^']*' is packed"):
        convert_checkpoint(tmp_path / "c", tmp_path / "out", to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
