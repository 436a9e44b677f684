"""Followed directories that came from elsewhere: links and notes in them lead a follower to no other place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorwire import load_file
from tensorwire._ground import filesystem
from tensorwire.sync import Follower, Publisher
from tests.support.checkpoint_models import tree_hashes
from tests.support.sync_runs import FIRST, FORMS, OWN, SECOND, STRIDES, THIRD, contents, follow, stepped, write_plain


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


HOSTILE: dict[str, Callable[[Path, Path], Any]] = {
    "own folder": lambda served, outside: _link(served / OWN, outside),
    "lock": lambda served, outside: _link(served / OWN / "lock", outside / "model.safetensors"),
    "current": lambda served, outside: _link(served / OWN / "current", outside),
    "current of a good name": lambda served, outside: (
        _link(served / OWN / "v000000-0123456789abcdef", outside),
        _link(served / OWN / "current", Path("v000000-0123456789abcdef")),
    ),
    "a file of current": lambda served, outside: (
        _link(served / OWN / "v000000-0123456789abcdef" / "model.safetensors", outside / "model.safetensors"),
        _link(served / OWN / "current", Path("v000000-0123456789abcdef")),
    ),
    "an old version": lambda served, outside: _link(served / OWN / "v000009-0123456789abcdef", outside),
    "a temporary name": lambda served, outside: _link(served / OWN / "new-0123456789abcdef", outside),
    "the note": lambda served, outside: _link(served / OWN / "in_place.json", outside / "model.safetensors"),
    "a version up": lambda served, outside: _link(served / OWN / "current", Path("../../outside")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_link_leads_a_follower_elsewhere(name: str, form: str, tmp_path: Path) -> None:
    served, outside = tmp_path / "served", tmp_path / "outside"
    outside.mkdir()
    write_plain(outside / "model.safetensors", FIRST)
    (outside / "version.json").write_text("{}")
    before = tree_hashes(outside)
    HOSTILE[name](served, outside)
    publisher = Publisher(tmp_path / "store", threads=1)
    tensors = FIRST
    for seed in range(3):
        publisher.publish(tensors)
        try:
            follow(Follower(tmp_path / "store", served, threads=1, **FORMS[form]))
            assert contents(load_file(served)) == contents(tensors)
        except OSError:
            assert name in ("own folder", "lock")
        assert tree_hashes(outside) == before
        tensors = stepped(tensors, seed)


@pytest.mark.parametrize(
    "name", ["../victim", "/etc/passwd", "sub/x", "", ".", "..", "nul\0", "\ud800", "x" * 5000, ".tensorwire-sync"]
)
def test_a_note_names_no_file_elsewhere(name: str, tmp_path: Path) -> None:
    served = tmp_path / "served"
    (tmp_path / "victim").write_text("precious")
    (served / OWN).mkdir(parents=True)
    note = {"position": None, "files": {name: "1 2 3", "model.safetensors": "1 2 3"}}
    (served / OWN / "in_place.json").write_text(json.dumps(note))
    publisher = Publisher(tmp_path / "store", threads=1)
    for tensors, form in ((FIRST, "in place"), (SECOND, "links"), (THIRD, "in place")):
        publisher.publish(tensors)
        follow(Follower(tmp_path / "store", served, threads=1, **FORMS[form]))
        assert contents(load_file(served)) == contents(tensors)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["", "1 2 3"])
def test_a_note_does_not_make_a_file_the_followers(mark: str, form: str, tmp_path: Path) -> None:
    served = tmp_path / "served"
    (served / OWN).mkdir(parents=True)
    write_plain(served / "adapter_model.safetensors", {"mine": FIRST["norm"]})
    note = {"position": None, "files": {"adapter_model.safetensors": mark}}
    (served / OWN / "in_place.json").write_text(json.dumps(note))
    publisher = Publisher(tmp_path / "store", threads=1)
    for tensors in (FIRST, SECOND):
        publisher.publish(tensors)
        follow(Follower(tmp_path / "store", served, threads=1, **FORMS[form]))
        assert contents(load_file(served / "model.safetensors")) == contents(tensors)
    assert contents(load_file(served / "adapter_model.safetensors")) == contents({"mine": FIRST["norm"]})


VALUES = [None, True, 0, -1, 1.5, "", "x", [], {}, [[]], {"a": 1}, ["x"], 2**70, "0" * 32, [None]]


def _mutants(value: Any) -> list[Any]:
    """The value with one member, at any depth, replaced by each of `VALUES`."""
    found = list(VALUES)
    if isinstance(value, dict):
        found += [{**value, key: each} for key, member in value.items() for each in _mutants(member)]
        found += [{key: each for key, each in value.items() if key != left} for left in value]
    elif isinstance(value, list):
        for index, member in enumerate(value):
            found += [[*value[:index], each, *value[index + 1 :]] for each in _mutants(member)]
    return found


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("form", ["links", "in place"])
def test_a_note_of_other_types_says_nothing(form: str, stride: int, tmp_path: Path) -> None:
    """A note that is damaged or forged costs a look at the files, and is no error."""
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store, threads=1)
    small = {"a": FIRST["norm"]}
    publisher.publish(small)
    follow(Follower(store, served, threads=1, **FORMS[form]))
    own = served / OWN
    place = own / "in_place.json" if form == "in place" else own / "current" / "version.json"
    good = json.loads(place.read_text())
    after = {"a": FIRST["norm"] + 1}
    publisher.publish(after)
    for mutant in _mutants(good)[::stride]:
        mutated = tmp_path / "mutated"
        shutil.copytree(served, mutated, symlinks=True)
        other = mutated / place.relative_to(served)
        text = json.dumps(mutant)
        for path in (*(served / OWN).rglob("*.safetensors"), served / "model.safetensors"):
            if path.is_symlink():
                continue
            copied = mutated / path.relative_to(served)
            text = text.replace(filesystem.mark(path.stat()), filesystem.mark(copied.stat()))
        other.write_text(text)
        again = Follower(store, mutated, threads=1, **FORMS[form])
        if again.stage() is not None:
            again.commit()
        assert contents(load_file(mutated)) == contents(after), mutant
        shutil.rmtree(mutated)
