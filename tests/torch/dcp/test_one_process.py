"""Distributed checkpoints without ranks: what a file holds, what the metadata says, what is refused."""

from __future__ import annotations

import pickle
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from tensorwire import inspect, verify
from tensorwire.errors import BaseMismatchError, CorruptDataError, UnsupportedTensorError
from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter
from tests.support.distributed import blank, failure, loaded, part, same, save, state
from tests.support.stores import faulty_store

JSON = "tensorwire-dcp.json"


def test_everything_comes_back(tmp_path: Path) -> None:
    save(tmp_path / "c", state(3))
    assert same(loaded(tmp_path / "c", state()), state(3))
    assert sorted(path.suffix for path in (tmp_path / "c").iterdir()) == ["", ".json", ".safetensors"]
    assert verify(tmp_path / "c").ok
    names = {tensor.name for tensor in inspect(tmp_path / "c").tensors}
    assert {"model.weight@0,0", "model.scalar@", "step@bytes"} <= names


def test_checkpoint_id_takes_the_place_of_the_path(tmp_path: Path) -> None:
    writer = TensorwireWriter(tmp_path / "none")
    for step in (1, 2):
        dcp.save(state(step), storage_writer=writer, checkpoint_id=tmp_path / f"step{step}")
    assert not (tmp_path / "none").exists()
    found = blank(state())
    dcp.load(found, storage_reader=TensorwireReader(tmp_path / "none"), checkpoint_id=tmp_path / "step2")
    assert same(found, state(2))


def test_what_is_replaced_goes_when_the_new_one_stands(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model.safetensors").write_bytes(b"mine too")
    old = {path.name for path in tmp_path.glob("__*.safetensors")}
    save(tmp_path, state(2))
    assert same(loaded(tmp_path, state()), state(2))
    assert not old & {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["put_bytes", "remove_if_there"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_save_that_stops_while_it_ends_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """The old one until the metadata stands, then the new one."""
    from tensorwire.torch.dcp import writer

    own, calls = getattr(writer, name), 0

    def stop(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(28, "No space left on device")
        own(*arguments)

    save(tmp_path, state(1))
    with monkeypatch.context() as patch:
        patch.setattr(writer, name, stop)
        if (name, number) == ("remove_if_there", 2):
            save(tmp_path, state(2))
            assert calls == 1, "the one file that was replaced"
        else:
            with pytest.raises(CheckpointException, match="No space left"):
                save(tmp_path, state(2))
    assert same(loaded(tmp_path, state()), state(1 if (name, number) == ("put_bytes", 1) else 2))
    save(tmp_path, state(3))
    assert same(loaded(tmp_path, state()), state(3))


def test_saves_that_overlap_leave_the_one_that_ends_last(tmp_path: Path) -> None:
    class Overtaken(TensorwireWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            save(tmp_path, state(2))
            super().finish(metadata, results)

    save(tmp_path, state(1))
    dcp.save(state(3), storage_writer=Overtaken(tmp_path))
    assert same(loaded(tmp_path, state()), state(3))
    assert len(list(tmp_path.glob("__*.safetensors"))) == 1


def test_a_save_whose_files_are_gone_fails(tmp_path: Path) -> None:
    class Robbed(TensorwireWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            for place in set(tmp_path.glob("__*.safetensors")) - before:
                place.unlink()
            super().finish(metadata, results)

    save(tmp_path, state(1))
    before = set(tmp_path.glob("__*.safetensors"))
    with pytest.raises(CheckpointException, match="what a rank has saved is gone"):
        dcp.save(state(2), storage_writer=Robbed(tmp_path))
    assert same(loaded(tmp_path, state()), state(1))


def test_names_like_those_of_parts(tmp_path: Path) -> None:
    content = {"bytes:a": torch.arange(3), "a@0": [1, 2], "a": torch.arange(5), "a@bytes": "text"}
    save(tmp_path, content)
    assert same(loaded(tmp_path, content), content)


def test_relative_to_an_earlier_one(tmp_path: Path) -> None:
    first, second = state(1), state(1)
    second["model"]["weight"][7] += 1
    save(tmp_path / "first", first)
    save(tmp_path / "second", second, base=tmp_path / "first")
    sizes = [sum(path.stat().st_size for path in (tmp_path / name).glob("__*")) for name in ("first", "second")]
    assert sizes[1] < 0.25 * sizes[0]
    assert same(loaded(tmp_path / "second", first, base=tmp_path / "first"), second)
    with pytest.raises(CheckpointException) as caught:
        loaded(tmp_path / "second", first)
    assert isinstance(failure(caught), BaseMismatchError)


def test_relative_to_one_that_is_relative(tmp_path: Path) -> None:
    first, second, third = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    states = [state(1), state(1), state(1)]
    for number, each in enumerate(states):
        each["model"]["weight"][:number] += 1
    save(first, states[0])
    save(second, states[1], base=first)
    save(third, states[2], base=[second, first])
    assert same(loaded(third, states[0], base=[second, first]), states[2])


def test_a_save_never_removes_its_base(tmp_path: Path) -> None:
    save(tmp_path / "first", state(1))
    (file,) = (tmp_path / "first").glob("__*")
    before = file.read_bytes()
    for base in (tmp_path / "first", file):
        with pytest.raises(CheckpointException) as caught:
            save(tmp_path / "first", state(2), base=base)
        assert isinstance(failure(caught), ValueError)
        assert "are the same or lie in each other" in str(failure(caught))
    assert file.read_bytes() == before
    assert same(loaded(tmp_path / "first", state()), state(1))


def test_a_url(tmp_path: Path) -> None:
    with faulty_store() as store:
        save("faulty://run/step1", state(1))
        save("faulty://run/step2", state(2), base="faulty://run/step1")
        assert sorted(Path(key).suffix for key in store.store if "step1" in key) == ["", ".json", ".safetensors"]
        assert same(loaded("faulty://run/step2", state(), base="faulty://run/step1"), state(2))
        old = {key for key in store.store if "step2/__" in key}
        save("faulty://run/step2", state(3))
        assert same(loaded("faulty://run/step2", state()), state(3))
        assert not old & store.store.keys()


@pytest.mark.skipif(
    "enable_plan_caching" not in signature(DefaultSavePlanner).parameters, reason="this torch keeps no plans"
)
def test_a_plan_from_the_cache_of_another_writer(tmp_path: Path) -> None:
    for number, writer in enumerate((dcp.FileSystemWriter, TensorwireWriter, TensorwireWriter)):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state(number), storage_writer=writer(tmp_path / str(number)), planner=planner)
    for number in (1, 2):
        assert same(loaded(tmp_path / str(number), state()), state(number))


def test_a_checkpoint_of_torchs_own_writer_is_told(tmp_path: Path) -> None:
    dcp.save(state(1), storage_writer=dcp.FileSystemWriter(tmp_path))
    with pytest.raises(CorruptDataError, match="load it with torch's FileSystemReader"):
        TensorwireReader(tmp_path).read_metadata()


def test_a_dtype_that_no_file_holds(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException) as caught:
        save(tmp_path, {"w": torch.zeros(3, dtype=torch.complex32)})
    error = failure(caught)
    assert isinstance(error, UnsupportedTensorError)
    assert (error.tensor, str(error).partition(" (")[0]) == ("w", "no safetensors file holds torch.complex32")
    assert not list(tmp_path.glob("*.safetensors"))


def test_members_of_enumerations_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some versions of Python pickle them, and as some packages have all of them pickle."""
    monkeypatch.setattr(
        _MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)), raising=False
    )
    save(tmp_path, state(1))
    monkeypatch.undo()
    (tmp_path / JSON).unlink()
    assert b"getattr" in (tmp_path / ".metadata").read_bytes()
    assert same(loaded(tmp_path, state()), state(1))


def test_planners_with_data_of_their_own(tmp_path: Path) -> None:
    """JSON cannot hold it, so the reader takes the pickle; an older JSON must not speak for the new checkpoint."""

    class Planner(DefaultSavePlanner):
        def create_global_plan(self, plans: Any) -> Any:
            plans, metadata = super().create_global_plan(plans)
            metadata.planner_data = {name: [*path] for name, path in metadata.planner_data.items()}
            return plans, metadata

    save(tmp_path, state(1))
    dcp.save(state(2), storage_writer=TensorwireWriter(tmp_path), planner=Planner())
    assert not (tmp_path / JSON).exists()
    found = {"model": blank(state()["model"])}
    dcp.load(found, storage_reader=TensorwireReader(tmp_path))
    assert same(found["model"], state(2)["model"])


class Evil:
    def __reduce__(self) -> Any:
        return print, ("code ran",)


class Reaching:
    """For what is no enumeration."""

    def __reduce__(self) -> Any:
        return getattr, (Metadata, "__init__")


# What the module of metadata has imported itself, by a name with a dot: pickle's protocol 4 follows it.
DOTTED = b"\x80\x04\x8c\x27torch.distributed.checkpoint.metadata\x8c\x09os.system\x93\x8c\x0eecho code ran>x\x85R."
# Sets an attribute of a class, which the whole program has in common.
SETTING = b"\x80\x02cpathlib\nPosixPath\nN}X\x04\x00\x00\x00evilX\x02\x00\x00\x00his\x86b."


@pytest.mark.parametrize(
    "payload", [pickle.dumps(each) for each in (Evil(), Reaching(), {"a": 1})] + [b"junk", b"", DOTTED, SETTING]
)
def test_a_pickle_that_is_no_metadata_is_refused(tmp_path: Path, payload: bytes, capsys: Any) -> None:
    save(tmp_path, state(1))
    (tmp_path / JSON).unlink()
    (tmp_path / ".metadata").write_bytes(payload)
    with pytest.raises(CorruptDataError, match="expected a pickle of metadata"):
        TensorwireReader(tmp_path).read_metadata()
    with pytest.raises(CheckpointException, match="expected a pickle of metadata"):
        loaded(tmp_path, state())
    assert "code ran" not in capsys.readouterr().out
    assert not Path("x").exists()
    assert not hasattr(Path(), "evil")


def test_a_pickle_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    (tmp_path / JSON).unlink()
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    metadata.storage_data = {index: each._replace(file="../other") for index, each in metadata.storage_data.items()}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CorruptDataError, match="expected names of files beside the metadata"):
        TensorwireReader(tmp_path).read_metadata()


def test_a_look_at_the_metadata_that_fails_once_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asks once more with the rank. If that gives metadata, this rank no longer meets the others."""
    from tensorwire.torch.dcp import reader

    own, asked = reader.read_metadata, 0

    def once(folder: Any) -> Metadata:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionResetError(104, "Connection reset by peer")
        return own(folder)

    save(tmp_path, state(1))
    monkeypatch.setattr(reader, "read_metadata", once)
    with pytest.raises(CheckpointException, match="Connection reset by peer"):
        loaded(tmp_path, state())


def test_a_part_takes_the_blocks_of_its_rows() -> None:
    weight = (torch.randn(8192, 256, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    with faulty_store() as store:
        save("faulty://c", {"w": weight})
        (nbytes,) = (store.info(key)["size"] for key in store.store if key.endswith(".safetensors"))
        store.asked.clear()
        found = part("faulty://c", "w", (5000, 0), (100, 256), torch.bfloat16)
        read = sum(arguments[2] - arguments[1] for name, arguments in store.asked if name == "cat_file")
    assert torch.equal(found.view(torch.int16), weight[5000:5100].view(torch.int16))
    assert nbytes > 2 << 20
    assert read < nbytes / 8


def test_a_damaged_shard_names_tensor_and_file(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    (shard,) = tmp_path.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointException) as caught:
        loaded(tmp_path, state())
    assert isinstance(failure(caught), CorruptDataError)
    assert shard.name in str(failure(caught))


def test_nothing_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match=r"expected a distributed checkpoint, .*none'"):
        loaded(tmp_path / "none", state())


def test_ranks_without_coordination_are_refused(tmp_path: Path) -> None:
    with pytest.raises((CheckpointException, ValueError), match="use_collectives"):
        TensorwireWriter(tmp_path).set_up_storage_writer(True, use_collectives=False)


def test_writers_can_be_pickled(tmp_path: Path) -> None:
    """A process of its own may save."""
    dcp.save(state(1), storage_writer=pickle.loads(pickle.dumps(TensorwireWriter(tmp_path))))
    found = blank(state())
    dcp.load(found, storage_reader=pickle.loads(pickle.dumps(TensorwireReader(tmp_path))))
    assert same(found, state(1))
