"""Small files that travel with a version: config.json, the tokenizer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tensorwire import load_file
from tensorwire.checkpoint import compress_checkpoint
from tensorwire.errors import CorruptDataError, LimitExceededError
from tensorwire.sync import Follower, Publisher, small_files
from tensorwire.sync.small_files import is_small
from tests.support.processes import killing
from tests.support.sync_runs import FIRST, FOLLOWER, FORMS, OWN, SECOND, THIRD, contents, follow, write_plain

CONFIG, TOKENIZER = b'{"model_type": "llama"}', b'{"version": "1.0"}'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory as it comes from a hub, with what does not travel beside what does."""
    place = tmp_path / "model"
    (place / ".git").mkdir(parents=True)
    (place / "onnx").mkdir()
    write_plain(place / "model.safetensors", FIRST)
    for name, content in (("config.json", CONFIG), ("tokenizer.json", TOKENIZER)):
        (place / name).write_bytes(content)
    for name in ("model.safetensors.index.json", "pytorch_model.BIN", ".gitattributes", ".git/config", "onnx/a.json"):
        (place / name).write_text("{}")
    return place


def beside(served: Path) -> dict[str, bytes]:
    """What an engine finds beside the tensors."""
    return {path.name: path.read_bytes() for path in served.iterdir() if path.is_file() and is_small(path.name)}


@pytest.mark.parametrize("form", FORMS)
def test_they_come_change_and_go_with_a_version(form: str, store: str, model: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    follower = Follower(store, served, threads=1, **FORMS[form])
    publisher = Publisher(store, anchor_every=3, keep=1, threads=1)

    def publish(tensors: dict[str, Any], **options: Any) -> int:
        published = publisher.publish(tensors, **options)
        follow(follower, published.version)
        assert contents(load_file(served)) == contents(tensors)
        return published.nbytes

    publish(FIRST)
    assert beside(served) == {}
    first = publish(FIRST, small_files=model)
    assert first == len(CONFIG) + len(TOKENIZER)
    assert beside(served) == {"config.json": CONFIG, "tokenizer.json": TOKENIZER}
    (model / "config.json").write_bytes(b"{}")
    assert publish(FIRST, small_files=model) == 2  # of the other one nothing
    assert beside(served) == {"config.json": b"{}", "tokenizer.json": TOKENIZER}
    for tensors in (SECOND, THIRD, {"other": FIRST["norm"]}, FIRST):  # anchors among them
        publish(tensors)
        assert beside(served) == {"config.json": b"{}", "tokenizer.json": TOKENIZER}
    Publisher(store, threads=1).publish(SECOND)
    follow(follower)
    late = tmp_path / "late"
    follow(Follower(store, late, threads=1))
    assert beside(late) == beside(served) == {"config.json": b"{}", "tokenizer.json": TOKENIZER}
    (model / "config.json").unlink()
    publisher = Publisher(store, threads=1)
    publish(SECOND, small_files=model)
    assert beside(served) == {"tokenizer.json": TOKENIZER}
    assert follower.stage() is None


@pytest.mark.parametrize("form", FORMS)
def test_what_an_owner_put_there_stays_unless_it_is_the_same(form: str, model: Path, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST, small_files=model)
    served.mkdir()
    write_plain(served / "model.safetensors", FIRST)
    (served / "config.json").write_bytes(CONFIG)
    (served / "tokenizer.json").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="none of the follower's files"):
        Follower(store, served, threads=1, **FORMS[form]).stage()
    assert sorted(path.name for path in served.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not (served / "model.safetensors").is_symlink()
    (served / "tokenizer.json").unlink()
    follower = Follower(store, served, threads=1, **FORMS[form])
    follow(follower, 0)
    (model / "config.json").write_bytes(b"{}")
    publisher.publish(SECOND, small_files=model)
    follow(follower, 1)
    assert beside(served) == {"config.json": b"{}", "tokenizer.json": TOKENIZER}


@pytest.mark.parametrize("form", FORMS)
def test_one_that_was_edited_is_made_anew(form: str, model: Path, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST, small_files=model)
    follower = Follower(store, served, threads=1, **FORMS[form])
    follow(follower, 0)
    with (served / "config.json").open("ab") as file:
        file.write(b" ")
    follow(follower, 0)
    assert beside(served)["config.json"] == CONFIG


def test_a_directory_may_change_its_form(model: Path, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    for number, form in enumerate(("links", "copies", "links", "in place", "links", "in place", "copies")):
        (model / "config.json").write_bytes(bytes([number]))
        publisher.publish(FIRST if number % 2 else SECOND, small_files=model)
        follow(Follower(store, served, threads=1, **FORMS[form]), number)
        assert beside(served) == {"config.json": bytes([number]), "tokenizer.json": TOKENIZER}
        assert (served / "config.json").is_symlink() is (form == "links")


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", FORMS)
def test_a_follower_killed_at_any_step_goes_on(form: str, stride: int, model: Path, tmp_path: Path) -> None:
    """Also with a version that came since, whose small files are others again."""
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST)
    follow(Follower(store, served, threads=1, **FORMS[form]), 0)

    def act() -> None:
        follower = Follower(store, served, threads=1, **FORMS[form])
        follower.stage()
        follower.commit()

    for number, kill in enumerate(killing(FOLLOWER, stride)):
        (model / "config.json").write_text("x" * (number + 1))
        (model / f"{number}.txt").write_text("new")
        (model / f"{number - 1}.txt").unlink(missing_ok=True)
        publisher.publish((FIRST, SECOND)[number % 2], small_files=model)
        kill(act)
        (model / "config.json").write_text("y" * (number + 1))
        published = publisher.publish((SECOND, FIRST)[number % 2], small_files=model)
        follow(Follower(store, served, threads=1, **FORMS[form]), published.version)
        expected = {"config.json": b"y" * (number + 1), "tokenizer.json": TOKENIZER, f"{number}.txt": b"new"}
        assert beside(served) == expected


def test_those_of_a_url_come_and_those_of_a_compressed_directory_are_the_originals(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    (model / "pytorch_model.BIN").unlink()
    pytest.importorskip("fsspec").filesystem("memory").put(str(model), "/model", recursive=True)
    Publisher(tmp_path / "far", threads=1).publish(FIRST, small_files="memory://model")
    follow(Follower(tmp_path / "far", tmp_path / "fetched", threads=1))
    assert beside(tmp_path / "fetched") == {"config.json": CONFIG, "tokenizer.json": TOKENIZER}
    compress_checkpoint(model, tmp_path / "small")
    assert (tmp_path / "small" / "config.json").read_bytes() != CONFIG
    Publisher(tmp_path / "store", threads=1).publish(FIRST, small_files=tmp_path / "small")
    follow(Follower(tmp_path / "store", tmp_path / "served", threads=1))
    assert beside(tmp_path / "served") == {"config.json": CONFIG, "tokenizer.json": TOKENIZER}


def test_what_is_too_large_is_told_or_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path / "store", threads=1)
    with monkeypatch.context() as patch:
        patch.setattr(small_files, "MAX_NBYTES", len(TOKENIZER))
        with pytest.warns(RuntimeWarning, match=r"'config.json' has more than .* does not travel"):
            publisher.publish(FIRST, small_files=model)
    for name in ("MAX_FILES", "_MAX_TOTAL_NBYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(small_files, name, 1)
            with pytest.raises(LimitExceededError, match="small files"):
                publisher.publish(FIRST, small_files=model)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["latest", "weight_v000000"]
    with pytest.raises(NotADirectoryError):
        publisher.publish(FIRST, small_files=model / "config.json")


def test_one_that_the_store_has_lost_is_told(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    publisher = Publisher(store, threads=1)
    publisher.publish(FIRST, small_files=model)
    next((store / "weight_v000000").glob("small-00001-*")).unlink()
    with pytest.raises(FileNotFoundError, match="small-00001"):
        Follower(store, tmp_path / "served", threads=1).stage()
    with pytest.warns(RuntimeWarning, match=r"'config.json' is no longer in the store, publish with small_files="):
        publisher.publish(FIRST, anchor=True)
    follow(Follower(store, tmp_path / "served", threads=1))
    assert beside(tmp_path / "served") == {"tokenizer.json": TOKENIZER}


HOSTILE = {
    "up": "../config.json", "absolute": "/etc/x", "a folder": "a/b", "hidden": ".bashrc", "tensors": "a.safetensors",
    "pickle": "pytorch_model.bin", "an index": "model.safetensors.index.json", "a note": "version.json",
    "a line": "a\nb", "no name": "", "a dot": "..",
}  # fmt: skip
FACTS: dict[str, Any] = {
    "too large": [1 << 40, "0" * 32, 0, "small-00001-0123456789abcdef"],
    "negative": [-1, "0" * 32, 0, "small-00001-0123456789abcdef"],
    "no hash": [1, "x", 0, "small-00001-0123456789abcdef"],
    "another place": [1, "0" * 32, 0, "../../secret"],
    "of a later version": [1, "0" * 32, 9, "small-00001-0123456789abcdef"],
    "short": [1], "a number": 7,
}  # fmt: skip


@pytest.mark.parametrize("hostile", [*HOSTILE, *FACTS, "a list"])
def test_an_index_leads_nowhere_else(hostile: str, model: Path, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    Publisher(store, threads=1).publish(FIRST, small_files=model)
    place = store / "weight_v000000" / "model.safetensors.index.json"
    index = json.loads(place.read_text())
    files = index["metadata"]["tensorwire.small_files"]
    files[HOSTILE.get(hostile, "a.json")] = FACTS.get(hostile, files["config.json"])
    index["metadata"]["tensorwire.small_files"] = [1] if hostile == "a list" else files
    place.write_text(json.dumps(index))
    with pytest.raises(CorruptDataError, match="small file"):
        Follower(store, served, threads=1).stage()
    assert not served.exists()


def test_content_is_checked(model: Path, tmp_path: Path) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    Publisher(store, threads=1).publish(FIRST, small_files=model)
    place = next((store / "weight_v000000").glob("small-00001-*"))
    for content in (CONFIG[:-1] + b" ", CONFIG + b" ", b""):
        place.write_bytes(content)
        with pytest.raises(CorruptDataError, match="with hash"):
            Follower(store, served, threads=1).stage()
        assert not served.exists()


def test_a_link_under_the_name_of_one_is_not_written_through(model: Path, tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    Publisher(store, threads=1).publish(FIRST, small_files=model)
    outside.write_text("mine")
    for form in FORMS:
        served = tmp_path / form
        served.mkdir()
        (served / "config.json").symlink_to(outside)
        os.mkfifo(served / "tokenizer.json")
        with pytest.raises(FileExistsError, match="none of the follower's"):
            Follower(store, served, threads=1, **FORMS[form]).stage()
        assert outside.read_text() == "mine"
        assert not (served / OWN).exists()
