"""What a publisher removes, what it leaves alone, and what it refuses to write."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire._ground.new_file import temporary_name
from tensorwire.errors import LimitExceededError
from tensorwire.sync import Follower, Publisher, new_shards, store, versions
from tensorwire.sync.interchange import write_version
from tests.support.acting import acting
from tests.support.sync_runs import FIRST, SECOND, contents, fetched, folders, follow


def publish(to: Publisher, times: int) -> list[str]:
    """Anchors, one after the other; what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            to.publish(FIRST)
    return [str(each.message) for each in caught]


def moved(place: Path, number: int, to: Path) -> Path:
    """A version that lies elsewhere, with a link in the store."""
    folder = place / f"weight_v{number:06d}"
    shutil.move(folder, to)
    folder.symlink_to(to)
    return to


def test_nothing_goes_through_a_link(tmp_path: Path) -> None:
    place = tmp_path / "store"
    to = Publisher(place, anchor_every=1, keep=1, threads=1)
    to.publish(FIRST)
    archive = moved(place, 0, tmp_path / "archive")
    before = sorted(path.name for path in archive.iterdir())
    (text,) = publish(to, 4)
    assert "weight_v000000" in text
    assert "is a link" in text
    assert folders(place) == ["weight_v000000", "weight_v000004"]
    assert sorted(path.name for path in archive.iterdir()) == before
    follow(Follower(tmp_path / "store", {}, threads=1), 4)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    to = Publisher(place, threads=1)
    to.publish(FIRST)
    elsewhere.mkdir()
    (place / "weight_v000001").symlink_to(elsewhere)
    for given in (SECOND, FIRST):  # one with files, and one of an index alone
        with pytest.raises(OSError, match=r"is a link.*weight_v000001"):
            to.publish(given, version=1)
        to = Publisher(place, base=FIRST, threads=1)
    assert list(elsewhere.iterdir()) == []
    (place / "weight_v000001").unlink()
    assert to.publish(SECOND).version == 1


@pytest.mark.parametrize("error", [errno.EACCES, errno.EBUSY])
def test_a_version_that_does_not_go_keeps_no_other_one(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Publisher(tmp_path, anchor_every=1, keep=1, threads=1)

    def refuse(folder: Path) -> None:
        if folder.name == "weight_v000000":
            raise OSError(error, os.strerror(error), str(folder))

    acting(monkeypatch, store.shutil, "rmtree", refuse)
    assert len(publish(to, 5)) == 1  # it is said once
    assert folders(tmp_path) == ["weight_v000000", "weight_v000004"]
    monkeypatch.undo()
    assert publish(to, 1) == []
    assert folders(tmp_path) == ["weight_v000005"]


def test_files_that_a_killed_publisher_has_left_go_at_the_second_anchor_that_sees_them(tmp_path: Path) -> None:
    left, late = temporary_name(), temporary_name()
    stays = [".tensorwire-notes", ".tensorwire-0123", ".tensorwire-0123456789abcdef0", ".tensorwire-0123456789abcdeF"]
    for name in (left, *stays):
        (tmp_path / name).write_bytes(b"")
    folder, link = temporary_name(), temporary_name()
    (tmp_path / folder).mkdir()
    (tmp_path / link).symlink_to(tmp_path / left)
    to = Publisher(tmp_path, anchor_every=2, threads=1)
    to.publish(FIRST)
    to.publish(FIRST)
    (tmp_path / late).write_bytes(b"")  # another process writes it now
    assert (tmp_path / left).exists()
    assert to.publish(FIRST).is_anchor
    assert not (tmp_path / left).exists()
    assert (tmp_path / late).exists()
    assert not to.publish(FIRST).is_anchor
    assert to.publish(FIRST).is_anchor
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == {*stays, folder, link}


def test_a_folder_of_another_layout_keeps_no_files_of_killed_writers(tmp_path: Path) -> None:
    folder, left = tmp_path / "weight_v000001", temporary_name()
    folder.mkdir()
    (folder / left).write_bytes(b"half of a shard")
    (folder / ".tensorwire-notes").write_bytes(b"mine")
    write_version(tmp_path, {"a": np.ones(3)}, version=1)
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == {".tensorwire-notes"}


def test_the_last_number_is_followed_by_none(tmp_path: Path) -> None:
    last = 10**18 - 1
    to = Publisher(tmp_path, threads=1)
    assert to.publish(FIRST, version=last).version == last
    assert contents(fetched(tmp_path, last)) == contents(FIRST)
    for version in (None, last + 1):
        with pytest.raises(ValueError, match=f"up to {last}"):
            to.publish(SECOND, version=version)
    assert folders(tmp_path) == [f"weight_v{last}"]
    with pytest.raises(ValueError, match=f"up to {last}"):
        write_version(tmp_path, FIRST, version=last + 1)


@pytest.mark.parametrize("as_pairs", [False, True])
def test_more_tensors_than_a_version_has_are_refused(
    as_pairs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "MAX_TENSORS", len(FIRST))
    to = Publisher(tmp_path, threads=1)
    to.publish(FIRST)
    more = {**FIRST, "one more": np.zeros(3)}
    with pytest.raises(LimitExceededError, match=rf"at most {len(FIRST)} tensors, got {len(more)}"):
        to.publish(more.items() if as_pairs else more)
    assert folders(tmp_path) == ["weight_v000000"]
    assert to.publish(FIRST).is_anchor
    follow(Follower(tmp_path, {}, threads=1), 1)


def test_an_index_that_could_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = Publisher(tmp_path, threads=1)
    to.publish(FIRST)
    monkeypatch.setattr("tensorwire.checkpoint.directory.config_and_index.MAX_INDEX_NBYTES", 3000)
    many = {f"tensor.{number}": np.zeros(1) for number in range(40)}
    with pytest.raises(LimitExceededError, match="expected an index of at most 3,000 bytes"):
        to.publish(many)
    assert folders(tmp_path) == ["weight_v000000"]
    follow(Follower(tmp_path, {}, threads=1), 0)
    monkeypatch.setattr("tensorwire.checkpoint.directory.config_and_index.MAX_INDEX_NBYTES", 300)
    with pytest.raises(LimitExceededError, match=r"at most 300 bytes.*weight_v000000"):
        Follower(tmp_path, {}, threads=1).stage()


def test_a_part_that_could_not_be_read_is_an_error_and_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "rank-00001.json").open("wb") as file:
        file.truncate(600 << 20)
    with pytest.raises(LimitExceededError, match=r"expected an index of at most.*rank-00001\.json"):
        Publisher(tmp_path, num_ranks=2, threads=1).publish(FIRST, 0)
    assert folders(tmp_path) == []


def test_files_end_before_their_headers_grow_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_shards, "_HEADER_NBYTES", 10_000)
    given = {f"{'long' * 20}.{number}": np.full(1, number, np.float32) for number in range(200)}
    Publisher(tmp_path, threads=1).publish(given)
    headers = [
        int.from_bytes(path.read_bytes()[:8], "little") for path in (tmp_path / "weight_v000000").glob("*.safetensors")
    ]
    assert len(headers) > 5
    assert max(headers) < 10_000 + 1000
    assert contents(fetched(tmp_path, 0)) == contents(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "expected a mapping of names to tensors, or such pairs, got int"),
        ([np.zeros(3)], "expected pairs of a name and a tensor, got ndarray"),
    ],
)
def test_what_is_no_mapping_is_told_what_to_give(given: Any, text: str, tmp_path: Path) -> None:
    is_refused(given, text, tmp_path)


def test_a_module_is_told_to_give_its_state_dict(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    is_refused(torch.nn.Linear(2, 2), "got Linear; give its state_dict()", tmp_path)
    is_refused(torch.nn.Sequential(torch.nn.Linear(2, 2)), "got Sequential; give its state_dict()", tmp_path)


def is_refused(given: Any, text: str, tmp_path: Path) -> None:
    for call in (lambda: Publisher(tmp_path).publish(given), lambda: write_version(tmp_path, given, version=0)):
        with pytest.raises(TypeError) as caught:
            call()
        assert text in str(caught.value)
    assert folders(tmp_path) == []
