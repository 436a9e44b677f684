"""What the weights of a model take: the files of an index, torch files, files in a store, and files that are none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import compress_checkpoint, inspect
from tensorwire.checkpoint.operations.weights import weights_of
from tensorwire.errors import BaseMismatchError
from tensorwire.storage.locations import locate
from tests.support.checkpoint_models import container, weights
from tests.support.stores import faulty_store

if TYPE_CHECKING:
    from tensorwire.checkpoint.operations.weights import Weights

PROFILES = ("fast", "compact")


def check_index(path: Path, found: Weights) -> None:
    shards = [inspect(path / f"model-0000{shard}-of-00002.safetensors") for shard in (1, 2)]
    assert found.nbytes == sum(shard.nbytes for shard in shards), "not those of the folder vae"
    assert found.largest_nbytes == max(tensor.nbytes for shard in shards for tensor in shard.tensors)


def test_shards_of_an_index(model: Path, packed: Path) -> None:
    plain, compressed = weights_of(model, PROFILES), weights_of(packed, PROFILES)
    check_index(model, plain)
    check_index(packed, compressed)
    assert (plain.compressed, compressed.compressed) == (False, True)
    assert tuple(plain.stored) == PROFILES
    stored = sum(inspect(packed / f"model-0000{shard}-of-00002.safetensors").stored_nbytes for shard in (1, 2))
    assert compressed.stored == {"fast": stored}
    assert plain.dtype == compressed.dtype
    # A model that is smaller than the sample is encoded whole, in pieces.
    assert plain.stored["fast"] == pytest.approx(stored, rel=0.01)


def test_a_store(model: Path) -> None:
    with faulty_store():
        compress_checkpoint(model, "faulty://m")
        assert weights_of(locate("faulty://m"), PROFILES).nbytes == weights_of(model, PROFILES).nbytes


def test_a_torch_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = torch.frombuffer(bytearray(weights(300_000, 1)), dtype=torch.bfloat16)
    torch.save({"a": values}, tmp_path / "pytorch_model.bin")
    found = weights_of(tmp_path, ("fast",))
    assert (found.nbytes, found.largest_nbytes, found.compressed) == (600_000, 600_000, False)
    assert found.stored["fast"] < 450_000


def test_nothing_to_weigh(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.safetensors file"):
        weights_of(tmp_path, PROFILES)
    (tmp_path / "model.safetensors").write_bytes(container([("empty", "F32", (0,), b"")]))
    with pytest.raises(ValueError, match="holds no tensor that has any bytes"):
        weights_of(tmp_path, PROFILES)


def test_a_compressed_file_in_which_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(container([("small", "F32", (4,), bytes(16))]))
    compress_checkpoint(tmp_path, tmp_path.with_name("packed-small"))
    found = weights_of(tmp_path.with_name("packed-small"), PROFILES)
    assert (found.nbytes, found.largest_nbytes) == (16, 16)


def test_tensors_that_are_relative_to_other_files(tmp_path: Path) -> None:
    """Loading makes whole frames of them, as large as those that they lead to."""
    data = weights(300_000, 1)
    for step in (1, 2, 3):
        (tmp_path / f"run/step-{step}").mkdir(parents=True)
        changed = data[: -2 * step] + bytes(2 * step)
        file = container([("w", "BF16", (300_000,), changed), ("small", "F32", (4,), bytes(16))])
        (tmp_path / f"run/step-{step}/model.safetensors").write_bytes(file)
    compress_checkpoint(tmp_path / "run", tmp_path / "packed", chain=True)
    first, *others = [weights_of(tmp_path / f"packed/step-{step}", PROFILES) for step in (1, 2, 3)]
    assert first.compressed
    assert 400_000 < first.stored["fast"] < 450_000
    assert others == [first, first]
    assert weights_of(tmp_path / "packed/step-3/model.safetensors", PROFILES) == first
    shutil.rmtree(tmp_path / "packed/step-1")
    with pytest.raises(BaseMismatchError, match=r"step-1/model\.safetensors"):
        weights_of(tmp_path / "packed/step-3", PROFILES)
