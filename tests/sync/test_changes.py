"""What a staged version changes, as whole tensors and as patches: applied to the old weights, it makes the new ones."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorwire.errors import BaseMismatchError, CorruptDataError, FormatError
from tensorwire.sync import Changes, Follower, Publisher, followed_arrays, frames
from tests.support.command_line import damage
from tests.support.sync_runs import FIRST, SECOND, THIRD, Weights, contents, follow, stepped

torch = pytest.importorskip("torch")

DTYPES = [bool, np.uint8, np.int16, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64,
          ml_dtypes.float8_e4m3fn]  # fmt: skip


def copies(weights: Weights) -> Weights:
    return {name: array.copy() for name, array in weights.items()}


def words(array: Any) -> Any:
    """The bits of each element of a flat array, one below the other."""
    view = array.reshape(-1) if isinstance(array, np.ndarray) else array.reshape(-1).view(torch.uint8).numpy()
    return view.view(np.uint8).reshape(array.size if isinstance(array, np.ndarray) else array.numel(), -1)


def patched(old: Weights, changes: Changes) -> Weights:
    """The old weights with all patches, each of which has exactly the elements that differ."""
    new = {name: np.array(array) for name, array in old.items()}
    seen = []
    for patch in changes.patches():
        seen.append(patch.name)
        before = words(new[patch.name]).copy()
        assert (patch.shape, len(patch.indices)) == (new[patch.name].shape, len(patch.values))
        flat = new[patch.name].reshape(-1)
        flat[patch.indices] = patch.values
        assert np.array_equal(np.flatnonzero((words(flat) != before).any(axis=1)), patch.indices)
        assert patch.indices.dtype == np.int32
    assert tuple(seen) == changes.names
    return new


def changes_of(follower: Follower) -> Changes:
    assert follower.stage() is not None
    return follower.changes()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_patches_and_tensors_make_the_new_weights(
    in_place: bool, profile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_PIECE_NBYTES", 4096)  # mostly a block at a time
    held = copies(FIRST)
    publisher = Publisher(tmp_path, profile=profile, threads=1)
    follower = Follower(tmp_path, held, in_place=in_place, threads=1)
    publisher.publish(FIRST)
    follow(follower, 0)
    weights = FIRST
    for seed in range(3):
        weights = stepped(weights, seed)
        publisher.publish(weights)
        if seed == 1:  # the next look skips a version
            continue
        changes = changes_of(follower)
        assert contents(held) != contents(weights)
        assert contents(patched(held, changes)) == contents(weights)
        assert contents({**held, **dict(changes.tensors())}) == contents(weights)
        assert set(changes.names) == {name for name in held if bits(held[name]) != bits(weights[name])}
        follow(follower)
        assert contents(held) == contents(weights)


def bits(array: Any) -> bytes:
    return bytes(array.tobytes())


def large(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((700, 512)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("share", [1e-5, 0.02, 0.4, 1])
def test_few_changes_and_many_and_frames_of_unlike_blocks(
    in_place: bool, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_PIECE_NBYTES", 100_000)
    held = {"x": large(0)}
    follower = Follower(tmp_path, held, in_place=in_place, threads=2)
    content = held["x"].copy()
    Publisher(tmp_path, threads=1).publish({"x": content})
    follow(follower, 0)
    for seed, profile in enumerate(("fast", "compact", "fast")):
        generator = np.random.default_rng(seed)
        places = generator.choice(content.size, max(int(share * content.size), 1), replace=False)
        content.reshape(-1).view(np.uint16)[places] += generator.integers(1, 4, len(places), np.uint16)
        publisher = Publisher(tmp_path, profile=profile, threads=1)  # type: ignore[arg-type]
        publisher.publish({"x": content}, anchor=share == 0.4 and seed == 1)
    assert contents(patched(held, changes_of(follower))) == contents({"x": content})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_place", [False, True])
def test_elements_of_every_size(dtype: Any, in_place: bool, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    size = np.dtype(dtype).itemsize
    raw = generator.integers(0, 2, (40, 30 * size), np.uint8)
    old = raw.view(dtype)
    raw = raw.copy()
    raw[7, 5 * size], raw[39, -1] = raw[7, 5 * size] ^ 1, raw[39, -1] ^ 1
    held = {"x": old.copy()}
    follower = Follower(tmp_path, held, in_place=in_place, threads=1)
    publisher = Publisher(tmp_path, threads=1)
    publisher.publish({"x": old})
    follow(follower, 0)
    publisher.publish({"x": raw.view(dtype)})
    [patch] = changes_of(follower).patches()
    assert patch.indices.tolist() == [7 * 30 + 5, 40 * 30 - 1]
    assert patch.values.dtype == dtype
    assert contents(patched(held, follower.changes())) == contents({"x": raw.view(dtype)})


def test_bits_are_compared_and_not_values(tmp_path: Path) -> None:
    old = torch.tensor([0.0, float("nan"), 1.0, -0.0, float("inf")])
    new = old.clone()
    new[0] = -0.0
    new.view(torch.int32)[1] += 1  # another NaN
    held = {"x": old}
    follower, publisher = Follower(tmp_path, held, threads=1), Publisher(tmp_path, threads=1)
    publisher.publish(held)
    follow(follower, 0)
    publisher.publish({"x": new})
    [patch] = changes_of(follower).patches()
    assert (patch.indices.tolist(), patch.indices.dtype) == ([0, 1], torch.int32)
    assert torch.equal(patch.values.view(torch.int32), new.view(torch.int32)[:2])
    assert repr(patch) == "<Patch x, F32, (5,), 2 elements>"


def test_what_changed_and_changed_back_is_no_change(tmp_path: Path) -> None:
    held = copies(FIRST)
    follower, publisher = Follower(tmp_path, held, threads=1), Publisher(tmp_path, threads=1)
    publisher.publish(FIRST)
    follow(follower, 0)
    once = {**FIRST, "norm": FIRST["norm"] + np.float16(1), "scale": np.array(2.0)}
    publisher.publish(once)
    publisher.publish({**once, "norm": FIRST["norm"]})
    [patch] = changes_of(follower).patches()
    assert (patch.name, patch.shape, patch.indices.tolist(), patch.values.tolist()) == ("scale", (), [0], [2.0])


def test_a_tensor_that_is_new_or_has_another_layout_has_all_elements_in_its_patch(tmp_path: Path) -> None:
    held = {"same": np.arange(4), "gone": np.arange(3), "shape": np.arange(6), "dtype": np.arange(2)}
    follower, publisher = Follower(tmp_path, held, threads=1), Publisher(tmp_path, threads=1)
    publisher.publish(held)
    follow(follower, 0)
    after = {
        "same": np.arange(4),
        "shape": np.arange(6).reshape(2, 3),
        "dtype": np.arange(2, dtype=np.uint64),
        "new": np.ones((2, 2), np.float16),
    }
    publisher.publish(after)
    changes = changes_of(follower)
    assert set(changes.names) == {"shape", "dtype", "new"}
    for patch in changes.patches():
        assert patch.indices.tolist() == [*range(after[patch.name].size)]
        assert (patch.shape, patch.values.tolist()) == (after[patch.name].shape, after[patch.name].reshape(-1).tolist())


def test_two_elements_of_torch_in_a_byte(tmp_path: Path) -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this release of torch has no elements of four bits")
    old = torch.arange(64, dtype=torch.uint8).reshape(4, 16)
    new = old.clone()
    new[2, 3] ^= 0x50
    held = {"x": old.view(torch.float4_e2m1fn_x2)}
    follower, publisher = Follower(tmp_path, held, threads=1), Publisher(tmp_path, threads=1)
    publisher.publish(held)
    follow(follower, 0)
    publisher.publish({"x": new.view(torch.float4_e2m1fn_x2)})
    [patch] = changes_of(follower).patches()
    assert (patch.shape, patch.dtype, patch.indices.tolist()) == ((4, 16), "F4", [35])
    assert patch.values.view(torch.uint8).tolist() == [new[2, 3]]


def test_versions_that_go_back_and_a_store_that_was_begun_anew(tmp_path: Path) -> None:
    held: Weights = {}
    publisher, follower = Publisher(tmp_path / "a", threads=1), Follower(tmp_path / "a", held, threads=1)
    for weights in (FIRST, SECOND, THIRD):
        publisher.publish(weights)
    follow(follower, 2)
    assert follower.stage(version=1) is not None
    assert contents(patched(held, follower.changes())) == contents(SECOND)
    follower.commit()
    other = Follower(tmp_path / "b", held, threads=1)  # a store of another run
    Publisher(tmp_path / "b", threads=1).publish(THIRD)
    assert contents(patched(held, changes_of(other))) == contents(THIRD)


def test_what_is_not_staged_has_no_changes(tmp_path: Path) -> None:
    publisher, follower = Publisher(tmp_path / "store", threads=1), Follower(tmp_path / "store", {}, threads=1)
    with pytest.raises(ValueError, match="expected a staged version, got none; call stage"):
        follower.changes()
    publisher.publish(FIRST)
    assert follower.stage() is not None
    first = follower.changes()
    assert (first.version, repr(first)) == (0, f"<Changes version 0, {len(FIRST)} tensors>")
    publisher.publish(SECOND)
    assert follower.stage() is not None
    second, begun = follower.changes(), follower.changes().patches()
    next(begun)
    follower.commit()
    for late in (first.patches(), first.tensors(), second.patches(), begun):
        with pytest.raises(ValueError, match=r"expected version \d to be staged still, but the follower has staged or"):
            next(late)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="got none"):
        follower.changes()
    directory = Follower(tmp_path / "store", tmp_path / "served", threads=1)
    assert directory.stage() is not None
    with pytest.raises(TypeError, match="expected a follower of a dict, got one of a directory"):
        directory.changes()


def staged_in_place(store: Path) -> tuple[Follower, Weights, Weights]:
    """A follower in place that has staged two changed tensors, with its arrays and what they are to become."""
    before = {name: large(seed) for seed, name in enumerate("ab")}
    after = copies(before)
    for array in after.values():
        array.reshape(-1).view(np.uint16)[::500] += 1
    held, publisher = copies(before), Publisher(store, threads=1)
    follower = Follower(store, held, in_place=True, threads=1)
    publisher.publish(before)
    follow(follower, 0)
    publisher.publish(after)
    return follower, held, after


def test_a_damaged_frame_ends_the_patches_and_changes_nothing(tmp_path: Path) -> None:
    follower, held, _ = staged_in_place(tmp_path)
    before = contents(held)
    [shard] = (tmp_path / "weight_v000001").glob("model-*.safetensors")
    damage(shard, shard.stat().st_size - 600)  # in a block of the second one
    patches = changes_of(follower).patches()
    assert next(patches).name == "a"
    with pytest.raises(CorruptDataError, match="checksum") as error:
        next(patches)
    assert (error.value.tensor, Path(str(error.value.file)).name) == ("b", shard.name)
    assert [name for name, _ in _until_damage(follower.changes())] == ["a"]
    assert contents(held) == before


def _until_damage(changes: Changes) -> Any:
    tensors = changes.tensors()
    yield next(tensors)
    with pytest.raises(CorruptDataError, match="tensor 'b'"):
        next(tensors)


def test_no_damage_of_a_frame_makes_a_wrong_patch(tmp_path: Path) -> None:
    follower, held, after = staged_in_place(tmp_path)
    before, seen = contents(held), 0
    [shard] = (tmp_path / "weight_v000001").glob("model-*.safetensors")
    content = shard.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for offset in range(start, len(content), (len(content) - start) // 40):
        shard.write_bytes(content[:offset] + bytes([content[offset] ^ 1 << offset % 8]) + content[offset + 1 :])
        another = Follower(tmp_path, held, in_place=True, verify=False, threads=1)
        try:
            another.stage()
            found = patched(held, another.changes())
        except FormatError:
            seen += 1
        else:
            assert contents(found) == contents(after)  # damage of what no reader looks at
        assert contents(held) == before
    assert seen > 30
    shard.write_bytes(content)
    assert contents(patched(held, changes_of(follower))) == contents(after)


@pytest.mark.parametrize("edit", ["written", "removed", "replaced"])
def test_an_array_that_was_changed_since_is_found(edit: str, tmp_path: Path) -> None:
    follower, held, _ = staged_in_place(tmp_path)
    changes = changes_of(follower)
    if edit == "written":
        held["b"].view(np.uint16)[3, 3] ^= 1
    elif edit == "removed":
        del held["b"]
    else:
        held["b"] = held["b"][:1]
    for given in (changes.patches(), changes.tensors()):
        next(given)  # type: ignore[call-overload]
        with pytest.raises(BaseMismatchError, match="tensor 'b'"):
            next(given)  # type: ignore[call-overload]


def test_tied_arrays_have_a_patch_each(tmp_path: Path) -> None:
    weight = torch.zeros(300, 20, dtype=torch.bfloat16)
    held = {"embed": weight, "head": weight}
    follower, publisher = Follower(tmp_path, held, in_place=True, threads=1), Publisher(tmp_path, threads=1)
    publisher.publish(held)
    follow(follower, 0)
    new = weight.clone()
    new[11, 11] = 2
    publisher.publish({"embed": new, "head": new})
    found = {patch.name: (patch.indices.tolist(), patch.values.tolist()) for patch in changes_of(follower).patches()}
    assert found == dict.fromkeys(held, ([231], [2.0]))


def test_a_change_in_a_large_tensor_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"x": np.zeros(8 << 20, np.uint16)}
    follower, publisher = Follower(tmp_path, held, in_place=True, threads=1), Publisher(tmp_path, threads=1)
    publisher.publish(held)
    follow(follower, 0)
    after = held["x"].copy()
    after[-5] = 7
    publisher.publish({"x": after})
    changes, taken, new_buffer = changes_of(follower), [], followed_arrays.new_buffer
    monkeypatch.setattr(followed_arrays, "new_buffer", lambda nbytes: taken.append(nbytes) or new_buffer(nbytes))
    [patch] = changes.patches()
    assert (patch.indices.tolist(), patch.values.tolist()) == ([len(after) - 5], [7])
    assert max(taken) <= 2 << 20


def test_one_thread_stages_and_others_take_the_changes(tmp_path: Path) -> None:
    held = copies(FIRST)
    publisher = Publisher(tmp_path, threads=1)
    publisher.publish(FIRST)
    followers = [Follower(tmp_path, copies(FIRST), in_place=number % 2 == 0, threads=2) for number in range(8)]
    for follower in followers:
        follow(follower, 0)
    publisher.publish(SECOND)

    def take(follower: Follower) -> Weights:
        return patched(held, follower.changes())

    with ThreadPoolExecutor(8) as pool:
        assert all(staged is not None for staged in pool.map(Follower.stage, followers))
        for found in pool.map(take, followers):
            assert contents(found) == contents(SECOND)


WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None
from tensorwire.sync import Follower
follower = Follower(sys.argv[1], {})
try:
    follower.stage()
except TypeError as error:
    print(error)
"""


def test_a_dtype_that_numpy_lacks_is_an_error_whose_advice_works(tmp_path: Path) -> None:
    content = {"x": torch.ones(3, dtype=torch.bfloat16)}
    Publisher(tmp_path, threads=1).publish(content)
    run = subprocess.run([sys.executable, "-c", WITHOUT, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout == (
        "NumPy has no dtype BF16 without ml_dtypes.bfloat16 (tensor 'x'); pip install -U ml_dtypes; a directory as "
        'target takes all dtypes, framework="pt" a tensor of torch.bfloat16\n'
    )
    held: Weights = {}
    follow(Follower(tmp_path, held, framework="pt", threads=1))
    assert torch.equal(held["x"], content["x"])
