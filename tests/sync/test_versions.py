"""Indexes of versions, and what leads from one to another, without any file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorwire.checkpoint.directory.config_and_index import checked_index
from tensorwire.errors import CorruptDataError, LimitExceededError
from tensorwire.sync import versions
from tensorwire.sync.versions import (
    Tensor,
    Version,
    dump_index,
    folder_name,
    hinted_number,
    number_of,
    parse_index,
    result,
    state_of,
    steps,
)

_FILE = "model-00001-0123456789abcdef.safetensors"


def tensor(content: int, shape: tuple[int, ...] = (4,)) -> Tensor:
    return Tensor("F32", shape, f"{content:032x}")


def version(number: int, tensors: dict[str, Tensor], held: dict[str, Tensor] | None) -> Version:
    """With `held` one that is relative to the version before."""
    state = state_of({**(held or {}), **tensors})
    base = (None, None) if held is None else (number - 1, state_of(held))
    homes = dict.fromkeys(tensors, _FILE)
    return Version(number, "lineage", "writer", state, *base, tensors, homes, {_FILE: 7} if tensors else {})


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("weight_v000000", 0), ("weight_v000017", 17), ("weight_v999999", 999999), ("weight_v1000000", 1000000),
        ("weight_v17", None), ("weight_v0000017", None), ("weight_v-00001", None), ("weight_v00001x", None),
        ("weight_v\u0660\u0660\u0660\u0660\u0660\u0661", None), ("latest", None), ("weight_v000017.partial", None),
    ],
)  # fmt: skip
def test_a_folder_has_a_number_that_names_it_again(name: str, number: int | None) -> None:
    assert number_of(name) == number
    assert number is None or folder_name(number) == name


@pytest.mark.parametrize("hint", [b"", b"\xff\xfe", b"lineage/", b"../../weight_v00001", b"lineage/weight_v000001/x"])
def test_a_hint_that_names_no_version_says_nothing(hint: bytes) -> None:
    assert hinted_number(hint) is None


def test_a_hint_may_end_with_a_line_feed() -> None:
    assert hinted_number(b"lineage/weight_v000017\n") == 17


@pytest.mark.parametrize("held", [None, {"a": tensor(1), "b": tensor(2)}])
def test_an_index_says_what_was_dumped(held: dict[str, Tensor] | None) -> None:
    given = version(17, {"a": tensor(3)}, held)
    assert parse_index(dump_index(given), 17) == given


def test_an_index_has_the_keys_of_the_layout() -> None:
    metadata = json.loads(dump_index(version(17, {"a": tensor(3)}, {"a": tensor(1)})))["metadata"]
    assert (metadata["version"], metadata["base_version"]) == ("000017", "000016")
    assert {metadata[key] for key in ("delta_encoding", "compression_format", "checksum_format")} == {"tensorwire"}
    assert "base_version" not in json.loads(dump_index(version(17, {"a": tensor(3)}, None)))["metadata"]


def broken(change: Any) -> bytes:
    index = json.loads(dump_index(version(17, {"a": tensor(3)}, {"a": tensor(1), "b": tensor(2)})))
    change(index, index["metadata"])
    return json.dumps(index).encode()


def _set(**entries: Any) -> Any:
    return lambda index, metadata: metadata.update(entries)


@pytest.mark.parametrize(
    "change",
    [
        _set(version="000018"),
        _set(version=17),
        _set(delta_encoding="xor"),
        _set(compression_format="zstd"),
        _set(base_version="000017"),
        _set(base_version="16"),
        _set(base_version=16),
        _set(**{"tensorwire.state": "0" * 31}),
        _set(**{"tensorwire.base_state": None}),
        _set(**{"tensorwire.lineage": 3}),
        _set(**{"tensorwire.files": {"../model-00001-0123456789abcdef.safetensors": 7}}),
        _set(**{"tensorwire.files": {_FILE: True}}),
        _set(**{"tensorwire.files": {}}),
        _set(**{"tensorwire.tensors": {}}),
        _set(**{"tensorwire.tensors": {"a": ["F32", [-1], "0" * 32]}}),
        _set(**{"tensorwire.tensors": {"a": ["F32", [1 << 64], "0" * 32]}}),
        _set(**{"tensorwire.tensors": {"a": ["F32", [4], "X" * 32]}}),
        _set(**{"tensorwire.tensors": {"a": ["F32", [4]]}}),
        lambda index, metadata: index.update(weight_map={"a": "../../etc/passwd"}),
        lambda index, metadata: index.update(weight_map={"a": "model\0.safetensors"}),
        lambda index, metadata: index.update(weight_map={"b": _FILE}),
        lambda index, metadata: index.pop("metadata"),
        lambda index, metadata: (metadata.pop("base_version"), metadata.pop("tensorwire.base_state")),
    ],
)
def test_an_index_that_breaks_a_rule_is_refused(change: Any) -> None:
    with pytest.raises(CorruptDataError):
        parse_index(broken(change), 17)


def test_versions_lead_to_their_state_or_are_refused() -> None:
    first = version(0, {"a": tensor(1), "b": tensor(2)}, None)
    second = version(1, {"a": tensor(3)}, {"a": tensor(1), "b": tensor(2)})
    assert result({}, [first, second]) == {"a": tensor(3), "b": tensor(2)}
    assert result({"a": tensor(1), "b": tensor(2)}, [second]) == {"a": tensor(3), "b": tensor(2)}
    with pytest.raises(CorruptDataError):
        result({"a": tensor(1), "b": tensor(9)}, [second])


def test_steps_begin_with_what_is_held_or_with_a_plain_frame() -> None:
    anchor = version(0, {"a": tensor(1), "b": tensor(2), "c": tensor(8)}, None)
    after = {"a": tensor(1), "b": tensor(2), "c": tensor(8)}
    second = version(1, {"a": tensor(3), "c": tensor(9, (2,))}, after)
    third = version(2, {"a": tensor(4)}, {**after, **second.tensors})
    links = [anchor, second, third]
    goal = result({}, links)
    nothing_held = steps({}, links, goal)
    assert nothing_held == {"a": links, "b": [anchor], "c": [second]}
    held = {"a": tensor(3), "b": tensor(2), "c": tensor(8)}
    assert steps(held, links, goal) == {"a": [third], "b": [], "c": [second]}
    assert not any(steps(goal, links, goal).values())


def test_a_wrong_version_in_the_middle_is_found_by_the_last_state() -> None:
    first = version(0, {"a": tensor(1), "b": tensor(2)}, None)
    second = version(1, {"a": tensor(3)}, first.tensors)
    third = version(2, {"b": tensor(4)}, {**first.tensors, **second.tensors})
    assert result({}, [first, second, third]) == {"a": tensor(3), "b": tensor(4)}
    forged = second._replace(tensors={"a": tensor(9)})
    with pytest.raises(CorruptDataError, match="expected version 000002 to lead to the state"):
        result({}, [first, forged, third])


def test_a_chain_takes_no_longer_for_tensors_that_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {f"t{number}": tensor(number) for number in range(50)}
    steps_of_t0 = [{"t0": tensor(100 + number)} for number in range(20)]
    changes = [version(number, steps_of_t0[number], {**held, **steps_of_t0[number - 1]}) for number in range(1, 20)]
    links = [version(0, held, None), *changes]
    seen: list[int] = []
    monkeypatch.setattr(versions, "state_of", lambda tensors: seen.append(len(tensors)) or links[-1].state)
    goal = result({}, links)
    assert seen == [50]
    assert steps({}, links, goal)["t0"] == links


def test_an_index_is_parsed_if_it_was_dumped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One limit, whichever side looks."""
    given = version(0, {f"a,[{{{number}": tensor(number) for number in range(20)}, None)
    data = dump_index(given)
    place = "tensorwire.checkpoint.directory.config_and_index"
    count = sum(map(data.count, (b",", b"[", b"{")))
    for name, most in (("MAX_INDEX_NBYTES", len(data)), ("_MAX_INDEX_VALUES", count)):
        monkeypatch.setattr(f"{place}.{name}", most)
        assert checked_index(dump_index(given)) == data
        monkeypatch.setattr(f"{place}.{name}", most - 1)
        for call in (lambda: dump_index(given), lambda: checked_index(data)):
            with pytest.raises(LimitExceededError):
                call()
        monkeypatch.undo()
    monkeypatch.setattr(versions, "MAX_TENSORS", 19)
    with pytest.raises(LimitExceededError, match="at most 19 tensors, got 20"):
        parse_index(data, 0)
