"""Weights that a thread makes ahead, for engines that serve: which version comes out, after which failure."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tensorwire import compress_checkpoint
from tensorwire.errors import CorruptDataError
from tensorwire.sync import Follower, Publisher
from tensorwire.torch.integrations import staged_ahead
from tensorwire.torch.integrations.staged_ahead import StagedAhead
from tests.support.command_line import damage
from tests.support.waiting import wait_for

Tensors = dict[str, torch.Tensor]
NAMES = ["embed", "head", "norm"]


def weights(number: int) -> Tensors:
    """Weights of a version. The norm never changes, and the head changes with every second version."""
    parts = {"embed": number, "head": number // 2, "norm": 0}
    shapes = {"embed": (32, 64), "head": (32, 64), "norm": (64,)}
    return {
        name: torch.full(shapes[name], 1.0, dtype=torch.bfloat16).index_fill_(0, torch.tensor([3]), 2.0 + part)
        for name, part in parts.items()
    }


def bits(tensors: Any) -> dict[str, bytes]:
    return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in dict(tensors).items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with versions 0 to 3 in `store`, and in `model` the checkpoint that is version 0."""
    root = tmp_path_factory.mktemp("original")
    (root / "model").mkdir()
    save_file(weights(0), root / "model" / "model.safetensors")
    publisher = Publisher(root / "store", threads=1)
    for number in range(4):
        publisher.publish(weights(number))
    return root


@pytest.fixture
def folders(original: Path, tmp_path: Path) -> Path:
    """A copy of that."""
    return Path(shutil.copytree(original, tmp_path / "folders"))


@pytest.fixture
def opened(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StagedAhead]]:
    """Makes them, of the folders above, and closes them again."""
    monkeypatch.setattr(staged_ahead, "_POLL_SECONDS", 0.002)
    made = []

    def make(store: str = "store", model: str = "model") -> StagedAhead:
        made.append(StagedAhead(folders / store, folders / model, threads=1))
        return made[-1]

    yield make
    for each in made:
        each.close()


def staged(ahead: StagedAhead) -> int | None:
    found = ahead._follower._staged
    return None if found is None else found.version


def take(ahead: StagedAhead, version: int, *, changed_only: bool = False) -> Tensors:
    with ahead.update(version, changed_only=changed_only) as tensors:
        return dict(tensors)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_checkpoint_of_the_model_is_the_base_so_no_anchor_is_read(
    opened: Any, folders: Path, compressed: bool
) -> None:
    if compressed:
        compress_checkpoint(folders / "model", folders / "compressed")
    for file in (folders / "store" / "weight_v000000").glob("*.safetensors"):
        file.unlink()
    ahead = opened(model="compressed" if compressed else "model")
    wait_for(lambda: staged(ahead) == 3)
    assert bits(take(ahead, 3)) == bits(weights(3))


def test_another_checkpoint_is_no_wrong_base(opened: Any, folders: Path) -> None:
    other = {name: tensor + 1 for name, tensor in weights(9).items()}
    save_file(other, folders / "model" / "model.safetensors")
    assert bits(take(opened(), 2)) == bits(weights(2))


def test_what_is_staged_is_not_what_is_asked_for(opened: Any, folders: Path) -> None:
    """The thread has gone beyond that version; versions go back; one comes twice."""
    ahead = opened()
    for number in (1, 3, 0, 0, 2):
        wait_for(lambda: ahead._follower.version == 3 or staged(ahead) == 3)
        assert bits(take(ahead, number)) == bits(weights(number))


def test_a_version_that_is_asked_for_is_taken_from_the_thread(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = opened()
    wait_for(lambda: staged(ahead) == 3)
    monkeypatch.setattr(Follower, "_try", None)  # which would make it
    assert bits(take(ahead, 3)) == bits(weights(3))


def test_changed_tensors_alone(opened: Any) -> None:
    """All at first, since nothing is known of the model; then what changed, by way of versions that were skipped."""
    ahead = opened()
    found = [sorted(take(ahead, number, changed_only=True)) for number in (0, 1, 1, 3, 2)]
    assert found == [NAMES, ["embed"], [], ["embed", "head"], ["embed"]]


@pytest.mark.parametrize("error", [RuntimeError("a layer does not load"), KeyboardInterrupt()])
def test_after_an_update_that_ended_midway_all_tensors_come(opened: Any, error: BaseException) -> None:
    ahead = opened()
    take(ahead, 0, changed_only=True)
    assert fail(ahead, 1, error) == ["embed"]
    assert fail(ahead, 1, MemoryError()) == NAMES
    assert fail(ahead, 2, MemoryError()) == NAMES
    assert bits(take(ahead, 3, changed_only=True)) == bits(weights(3))
    assert sorted(take(ahead, 2, changed_only=True)) == ["embed"]


def test_an_update_that_was_refused_leaves_the_model_known(opened: Any) -> None:
    ahead = opened()
    take(ahead, 0, changed_only=True)
    with pytest.raises(FileNotFoundError, match=r"version 000007 is not in this store.*store"):
        take(ahead, 7)
    for bad in (-1, "1", True):
        with pytest.raises(ValueError, match="expected a whole number"):
            take(ahead, bad)  # type: ignore[arg-type]
    assert sorted(take(ahead, 1, changed_only=True)) == ["embed"]


def fail(ahead: StagedAhead, version: int, error: BaseException) -> list[str]:
    """The names of an update that ends midway."""
    names: list[str] = []

    def begin() -> None:
        with ahead.update(version, changed_only=True) as tensors:
            names.extend(name for name, _ in tensors)
            raise error

    with pytest.raises(type(error)):
        begin()
    return names


def test_a_damaged_version_is_told_and_the_others_are_taken(
    opened: Any, folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = (folders / "store" / "weight_v000003").glob("*.safetensors")
    whole = file.read_bytes()
    damage(file, -1)
    with caplog.at_level(logging.WARNING):
        ahead = opened()
        wait_for(lambda: len(caplog.records) > 0)
        with pytest.raises(CorruptDataError, match="weight_v000003"):
            take(ahead, 3)
        assert bits(take(ahead, 2)) == bits(weights(2))
    assert len(caplog.records) == 1
    assert "cannot stage the newest version" in caplog.text
    file.write_bytes(whole)
    assert bits(take(ahead, 3)) == bits(weights(3))


def test_a_store_without_a_version_is_told_once(opened: Any, folders: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ahead = opened(store="another")
        wait_for(lambda: len(caplog.records) > 0)
        with pytest.raises(FileNotFoundError):
            take(ahead, 0)
        (folders / "store").rename(folders / "another")
        wait_for(lambda: staged(ahead) == 3)
    assert [record.getMessage() for record in caplog.records] == [
        f"tensorwire: {folders / 'another'} has no version yet; if the trainer has published one, this is another place"
    ]


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({**weights(0), "norm": torch.ones(65, dtype=torch.bfloat16)}, r"'norm' as torch.bfloat16 \(65,\)"),
        ({**weights(0), "norm": torch.ones(64)}, r"'norm' as torch.float32 \(64,\) and not as torch.bfloat16"),
        ({name: weights(0)[name] for name in ("embed", "head")}, "none named 'norm'; publish all tensors"),
        ({**weights(0), "mtp": torch.ones(7)}, "'mtp' besides"),
        ({**weights(0), "tied": weights(0)["embed"] + 1}, "'tied' besides"),
    ],
)
def test_a_store_of_another_model_is_refused(opened: Any, folders: Path, other: Tensors, error: str) -> None:
    publisher = Publisher(folders / "other", threads=1)
    publisher.publish(other)
    ahead = opened("other")
    with pytest.raises(ValueError, match=error):
        take(ahead, 0)
    publisher.publish(weights(5))
    assert bits(take(ahead, 1)) == bits(weights(5))


def test_a_tensor_that_is_published_twice_comes_once(opened: Any, folders: Path) -> None:
    Publisher(folders / "tied", threads=1).publish({**weights(1), "lm_head": weights(1)["embed"]})
    assert bits(take(opened("tied"), 0)) == bits(weights(1))


def test_a_store_that_another_run_began_anew(opened: Any, folders: Path) -> None:
    ahead = opened()
    take(ahead, 2)
    shutil.rmtree(folders / "store")
    publisher = Publisher(folders / "store", threads=1)
    for number in range(3):
        publisher.publish(weights(number + 20))
    assert bits(take(ahead, 2)) == bits(weights(22))
    assert bits(take(ahead, 1)) == bits(weights(21))


def test_without_the_thread_versions_come_all_the_same(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dead:
        dead.setattr(StagedAhead, "_stage_ahead", lambda self: None)
        ahead = opened()
        wait_for(lambda: not ahead._thread.is_alive())
        assert bits(take(ahead, 1)) == bits(weights(1))
        assert bits(take(ahead, 3)) == bits(weights(3))


def test_closing_ends_what_the_thread_does(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = opened()
    wait_for(lambda: staged(ahead) == 3)
    ahead.close()
    ahead.close()
    assert not ahead._thread.is_alive()
    with pytest.raises(RuntimeError, match="was shut down; initialize it again"):
        take(ahead, 3)


def test_closing_does_not_wait_for_a_whole_version(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def stage(self: Follower, version: int | None = None, *, progress: Any) -> None:
        while True:
            reached.append(1)
            progress(1, 2, "embed")

    monkeypatch.setattr(Follower, "stage", stage)
    ahead = opened()
    wait_for(lambda: len(reached) > 2)
    ahead.close()
    assert not ahead._thread.is_alive()


def test_a_checkpoint_that_is_missing_is_told_at_once(folders: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StagedAhead(folders / "store", folders / "nowhere")
