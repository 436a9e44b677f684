"""The benchmark of publishing and following: what it computes itself, and how it judges."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch", minversion="2.9")
pytest.importorskip("xxhash")
zstandard = pytest.importorskip("zstandard")

from benchmarks import timing  # noqa: E402
from benchmarks.sync import codecs, cost, finetune, links, targets  # noqa: E402
from benchmarks.sync.model import Model  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(1 << 16, 2)


def test_each_version_is_one_step_from_each_other_one(model: Model) -> None:
    turns = [model.turn(number) for number in range(4)]
    for before, after in pairwise(turns):
        changed = [np.mean(after.old[name] != after.new[name]) for name in after.new]
        assert all(after.old[name] is before.new[name] for name in after.new)
        assert 0.01 < min(changed) <= max(changed) < 0.03
    assert all(turns[0].new[name] is turns[3].new[name] for name in turns[0].new)


@pytest.mark.parametrize("name", codecs.CODECS)
def test_what_is_sent_makes_the_words_of_the_sender(name: str, model: Model) -> None:
    turn = model.turn(1)
    hashes = codecs.hashes(turn.old)
    for tensor, old in turn.old.items():
        held = old.copy()
        sent = codecs.CODECS[name].encode(old, turn.new[tensor], hashes[tensor])
        codecs.CODECS[name].apply(sent, held)
        assert held.tobytes() == turn.new[tensor].tobytes()
        assert len(sent) <= held.nbytes


def test_the_forms_of_others_have_the_published_layout() -> None:
    old, new = np.array([1, 2, 3], np.uint16), np.array([1, 0x0202, 3], np.uint16)
    xor, overwrite = (
        zstandard.ZstdDecompressor().decompress(codecs.CODECS[name].encode(old, new, "")[16:])
        for name in (codecs.XOR, codecs.OVERWRITE)
    )
    assert xor == bytes([0, 0, 0, 2, 0, 0])
    assert overwrite == bytes([1, 0, 0, 0, 3, 0, 0, 0, 2])  # a count, a position, a byte


def _costs(found: dict[str, tuple[float, float, float]]) -> list[dict[str, Any]]:
    every = dict.fromkeys((cost.MEMCPY, cost.REFRESHED, cost.COPIED, *links.NAMES), (1.0, 1.0, 1e9)) | found
    return [
        {"with": name, "publish": publish, "apply": apply, "nbytes": nbytes}
        for name, (publish, apply, nbytes) in every.items()
    ]


def test_links_are_computed_from_stages() -> None:
    rows = {(row["link"], row["with"]): row for row in links.computed(_costs({codecs.FAST: (0.5, 0.25, 1e7)}))}
    assert rows[1, codecs.DENSE]["serial"] == 16
    ours = rows[1, codecs.FAST]
    assert ours["serial"] == pytest.approx(2 * 0.75 + 0.16)
    assert ours["pipelined"] == 1.0
    assert ours["pipelined, of dense"] == 16
    assert rows[0.1, codecs.FAST]["pipelined"] == pytest.approx(1.6)  # the link is the longest


def test_at_the_break_even_dense_takes_as_long() -> None:
    (ours,) = (row for row in links.break_even(_costs({codecs.FAST: (0.5, 0.25, 1e8)})) if row["with"] == codecs.FAST)
    serial = ours["serial"]
    assert 8 / serial == pytest.approx(0.5 + 0.25 + 0.8 / serial)
    assert 8 / ours["pipelined"] == 0.5


def test_a_commit_that_decodes_is_missed() -> None:
    row = {"shards": 3, "seconds": 0.004, "staging": 3}
    met = [[each.met for each in targets.evaluate({"commit": [row | {"committing": calls}]})] for calls in (0, 1)]
    assert met == [[True, True], [True, False]]


def test_calls_are_counted_and_functions_put_back() -> None:
    own = os.fsync
    with timing.spent({"wait": (os, "fsync")}) as found, pytest.raises(TypeError):
        os.fsync("no descriptor")
    assert (found["wait"].calls, os.fsync) == (1, own)


def test_the_lines_of_the_example_are_read(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = finetune.parsed("version 0: 30,298 bytes of 45,426\nversion 1: 682 bytes of 45,426\nbit-identical: yes\n")
    assert [(row["version"], row["nbytes"], row["dense"]) for row in rows] == [(0, 30298, 45426), (1, 682, 45426)]
    finetune.draw(rows, tmp_path / "picture.svg")
    assert "all weights, BF16" in (tmp_path / "picture.svg").read_text()
