"""Arrays of every order and kind that a follower is given: each gets the version where it lies, or is refused first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorwire.errors import BaseMismatchError, UnsupportedTensorError
from tensorwire.sync import Follower, Publisher
from tests.support.sync_runs import follow

torch = pytest.importorskip("torch")

SHAPE = (4, 6, 8, 2)


def contents(number: int, dtype: Any = np.float32) -> Any:
    generator = np.random.default_rng(number)
    return generator.integers(0, 256, (*SHAPE[:-1], SHAPE[-1] * np.dtype(dtype).itemsize), np.uint8).view(dtype)


def bits(array: Any) -> bytes:
    """Row-major and little-endian, whatever the order of the array."""
    if isinstance(array, torch.Tensor):
        return bits(array.detach().contiguous().view(torch.uint8).numpy())
    return bytes(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="), copy=False).tobytes())


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(SHAPE[::-1]).permute(3, 2, 1, 0)


KINDS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.zeros(SHAPE),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(SHAPE)),
    "channels_last": lambda: torch.zeros(SHAPE).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.nn.Parameter(torch.zeros(SHAPE[::-1])).permute(3, 2, 1, 0),
    "rows": lambda: torch.zeros(2 * SHAPE[0], *SHAPE[1:])[::2],
    "columns": lambda: torch.zeros(*SHAPE[:-1], 5)[..., 1:3],
    "inference": inference,
    "numpy": lambda: np.zeros(SHAPE, np.float32),
    "fortran": lambda: np.zeros(SHAPE, np.float32, order="F"),
    "reversed": lambda: np.zeros(SHAPE, np.float32)[::-1, :, ::-1],
    "swapped": lambda: np.zeros(SHAPE, ">f4"),
    "bf16": lambda: torch.zeros(SHAPE[::-1], dtype=torch.bfloat16).permute(3, 2, 1, 0),
    "ml_dtypes": lambda: np.zeros(SHAPE, ml_dtypes.bfloat16, order="F"),
    "complex": lambda: torch.zeros(SHAPE[::-1], dtype=torch.complex64).permute(3, 2, 1, 0),
}
DTYPES = {"bf16": ml_dtypes.bfloat16, "ml_dtypes": ml_dtypes.bfloat16, "complex": np.complex64}


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_in_any_order_gets_every_version(kind: str, tmp_path: Path) -> None:
    held, dtype = KINDS[kind](), DTYPES.get(kind, np.float32)
    target = {"x": held}
    publisher, follower = Publisher(tmp_path, threads=1), Follower(tmp_path, target, in_place=True, threads=1)
    content = contents(0, dtype)
    for number in range(4):
        publisher.publish({"x": content})
        if number != 2:  # two deltas at once
            follow(follower, number)
            assert bits(target["x"]) == content.tobytes()
            assert target["x"] is held
        content = content.copy()
        content.reshape(-1).view(np.uint8)[number::97] ^= 1


def test_an_engine_may_keep_an_order_of_its_own(tmp_path: Path) -> None:
    target: dict[str, Any] = {}
    publisher, follower = Publisher(tmp_path, threads=1), Follower(tmp_path, target, threads=1)
    content = torch.from_numpy(contents(0))
    for number in range(3):
        publisher.publish({"x": content})
        follow(follower, number)
        assert bits(target["x"]) == bits(content)
        target["x"] = torch.as_tensor(target["x"]).to(memory_format=torch.channels_last)
        content = content.clone()
        content[number] += 1


def read_only() -> Any:
    array = np.zeros(SHAPE, np.float32)
    array.flags.writeable = False
    return array


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "read-only": (read_only, "a read-only one"),
    "broadcast": (lambda: np.broadcast_to(np.float32(0), SHAPE), "a read-only one"),
    "expanded": (lambda: torch.zeros(SHAPE[1:]).expand(SHAPE), "several elements in one place"),
    "strided": (lambda: torch.zeros(100).as_strided((8, 8), (1, 1)), "several elements in one place"),
    "conjugate": (lambda: torch.zeros(SHAPE, dtype=torch.complex64).conj(), "a conjugate or negative view"),
    "negative": (lambda: torch.zeros(SHAPE, dtype=torch.complex64).conj().imag, "a conjugate or negative view"),
    "masked": (lambda: np.ma.zeros(SHAPE, np.float32), "a masked one"),
    "scalar": (lambda: np.float32(0), "a scalar of NumPy"),
    "meta": (lambda: torch.zeros(SHAPE, device="meta"), "on meta"),
    "sparse": (lambda: torch.zeros(SHAPE).to_sparse(), "sparse"),
    "bytes": (lambda: b"1234", "a read-only one"),
    "number": (lambda: 3, "got int"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_array_that_takes_nothing_where_it_lies_is_refused(kind: str, tmp_path: Path) -> None:
    make, text = REFUSED[kind]
    with pytest.raises(UnsupportedTensorError, match=rf"{text}.*\(tensor 'x'\)"):
        Follower(tmp_path, {"good": np.zeros(3), "x": make()}, in_place=True)


@pytest.mark.parametrize("exchanged", ["before stage", "before commit"])
def test_an_array_that_was_exchanged_is_looked_at_again(exchanged: str, tmp_path: Path) -> None:
    target: dict[str, Any] = {name: np.zeros(SHAPE, np.float32) for name in "xy"}
    publisher, follower = Publisher(tmp_path, threads=1), Follower(tmp_path, target, in_place=True, threads=1)
    publisher.publish({"x": contents(1), "y": contents(2)})
    if exchanged == "before commit":
        assert follower.stage() is not None
    target["y"] = read_only()
    with pytest.raises(UnsupportedTensorError, match="read-only"):
        follower.stage() if exchanged == "before stage" else follower.commit()
    assert not target["x"].any()
    target["y"] = np.zeros(SHAPE, np.float32, order="F")
    follow(follower, 0)
    assert bits(target["y"]) == contents(2).tobytes()


def test_tied_arrays_stay_tied_over_several_versions(tmp_path: Path) -> None:
    content, memory = contents(0), np.zeros(SHAPE[::-1], np.float32).T
    target = {"embed": memory, "head": memory.view(), "norm": np.zeros(2, np.float32)}
    publisher, follower = Publisher(tmp_path, threads=1), Follower(tmp_path, target, in_place=True, threads=1)
    for number in range(4):
        publisher.publish({"embed": content, "head": content, "norm": np.ones(2, np.float32)})
        if number in (0, 3):  # three deltas, and each is applied once
            follow(follower, number)
            assert bits(memory) == content.tobytes()
        content = content + np.float32(1)
    publisher.publish({"embed": content, "head": content + np.float32(1), "norm": np.ones(2, np.float32)})
    with pytest.raises(ValueError, match="one content of 'head' and 'embed', which have the same memory"):
        follower.stage()
    assert follower.version == 3


def test_arrays_that_share_memory_no_longer_are_told(tmp_path: Path) -> None:
    """One frame was staged for both."""
    memory = np.zeros(SHAPE, np.float32)
    target = {"embed": memory, "head": memory.view()}
    Publisher(tmp_path, threads=1).publish({"embed": contents(0), "head": contents(0)})
    follower = Follower(tmp_path, target, in_place=True, threads=1)
    assert follower.stage() is not None
    target["head"] = memory.copy()
    with pytest.raises(BaseMismatchError, match=r"expected the arrays to share memory as when .*; stage again"):
        follower.commit()
    assert not memory.any()
    follow(follower, 0)
    assert bits(target["head"]) == bits(memory) == contents(0).tobytes()


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda all_: {"all": all_, "part": all_[:, :2]}, True),
        (lambda all_: {"one": all_[:, ::2], "other": all_[:, 1::2]}, False),
        (lambda all_: {"one": all_[:, :3], "other": all_[:, 3:]}, False),
        (lambda all_: {"one": all_[:, :4], "other": all_[:, 3:]}, True),
        (lambda all_: {"square": all_[:, :4], "turned": all_[:, :4].T}, True),
    ],
)
def test_arrays_may_share_all_of_their_memory_or_none(make: Any, refused: bool, tmp_path: Path) -> None:
    target = make(np.zeros((4, 6), np.float32))
    if refused:
        with pytest.raises(UnsupportedTensorError, match="shares a part of it with"):
            Follower(tmp_path, target, in_place=True)
        return
    given = {
        name: contents(number).reshape(-1)[: array.size].reshape(array.shape)
        for number, (name, array) in enumerate(target.items())
    }
    Publisher(tmp_path, threads=1).publish(given)
    follow(Follower(tmp_path, target, in_place=True, threads=1), 0)
    assert {name: bits(array) for name, array in target.items()} == {n: bits(a) for n, a in given.items()}


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"a": np.zeros((2, 3), np.float64)}, r"expected 'a' as F32 \(2, 3\), as the version has it, got F64"),
        ({"a": torch.zeros(3, 2)}, r"expected 'a' as F32 \(2, 3\), as the version has it, got F32 \(3, 2\)"),
        ({"model.a": np.zeros((2, 3), np.float32)}, "got 'a' in the version and not in the dict"),
        ({"a": np.zeros((2, 3), np.float32), "b": np.zeros(1)}, "got 'b' in the dict and not in the version"),
    ],
)
def test_in_place_nothing_comes_into_the_dict_while_a_model_has_the_old_one(
    target: dict[str, Any], text: str, tmp_path: Path
) -> None:
    before = dict(target)
    Publisher(tmp_path, threads=1).publish({"a": np.ones((2, 3), np.float32)})
    follower = Follower(tmp_path, target, in_place=True, threads=1)
    with pytest.raises(ValueError, match=text):
        follower.stage()
    assert all(target[name] is array and not array.any() for name, array in before.items())
    assert target.keys() == before.keys()
    follow(Follower(tmp_path, target, threads=1), 0)  # otherwise it does


def test_an_empty_dict_is_filled_once(tmp_path: Path) -> None:
    target: dict[str, Any] = {}
    publisher, follower = Publisher(tmp_path, threads=1), Follower(tmp_path, target, in_place=True, threads=1)
    publisher.publish({"a": contents(0)})
    follow(follower, 0)
    held = target["a"]
    publisher.publish({"a": contents(1)})
    follow(follower, 1)
    assert target["a"] is held
    assert bits(held) == contents(1).tobytes()
    publisher.publish({"a": contents(1), "b": contents(2)})
    with pytest.raises(ValueError, match="'b' in the version and not in the dict"):
        follower.stage()
    target.clear()
    assert follower.stage() is not None
    target["a"] = held
    with pytest.raises(BaseMismatchError, match="expected an empty dict"):
        follower.commit()
    assert target == {"a": held}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("verify", [True, False])
def test_an_array_that_no_version_changes_is_hashed_unless_the_caller_knows_better(
    verify: bool, in_place: bool, tmp_path: Path
) -> None:
    target: dict[str, Any] = {}
    publisher = Publisher(tmp_path, threads=1)
    follower = Follower(tmp_path, target, in_place=in_place, verify=verify, threads=1)
    publisher.publish({"a": contents(0), "b": contents(1)})
    follow(follower, 0)
    target["b"].view(np.uint32)[0, 0, 0] ^= 1
    publisher.publish({"a": contents(0) + np.float32(1), "b": contents(1)})
    follow(follower, 1)
    assert (bits(target["b"]) == contents(1).tobytes()) == verify


def test_an_array_that_was_removed_comes_back(tmp_path: Path) -> None:
    target: dict[str, Any] = {}
    publisher, follower = Publisher(tmp_path, threads=1), Follower(tmp_path, target, verify=False, threads=1)
    given = {"a": contents(0), "b": contents(1)}
    publisher.publish(given)
    follow(follower, 0)
    del target["b"]
    publisher.publish(given := {**given, "a": contents(2)})
    follow(follower, 1)
    assert {name: bits(array) for name, array in target.items()} == {n: bits(a) for n, a in given.items()}
    publisher.publish(given := {**given, "a": contents(3)})
    assert follower.stage() is not None
    del target["b"]
    with pytest.raises(BaseMismatchError, match=r"removed since a version was staged \(tensor 'b'\); stage again"):
        follower.commit()
    follow(follower, 2)
    assert {name: bits(array) for name, array in target.items()} == {n: bits(a) for n, a in given.items()}


def test_memory_that_was_cut_is_not_written_behind(tmp_path: Path) -> None:
    held = torch.zeros(SHAPE)
    target = {"a": torch.zeros(SHAPE), "x": held}
    follower = Follower(tmp_path, target, in_place=True, verify=False, threads=1)
    Publisher(tmp_path, threads=1).publish({"a": contents(0), "x": contents(1)})
    assert follower.stage() is not None
    held.untyped_storage().resize_(held.nbytes // 2)
    with pytest.raises(UnsupportedTensorError, match="one whose memory was cut"):
        follower.commit()
    assert not target["a"].any()
