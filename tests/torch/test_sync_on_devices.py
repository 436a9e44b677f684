"""Publishers and followers of tensors on a device. Tensors of the CPU stand for them here, whose frames the core makes
and applies; tests/torch/device has the kernels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import tensorwire.torch  # noqa: E402
from tensorwire import BaseMismatchError, CorruptDataError, UnsupportedTensorError  # noqa: E402
from tensorwire.sync import Follower, Publisher  # noqa: E402
from tensorwire.sync import elsewhere as elsewhere_module  # noqa: E402
from tensorwire.torch.device.sync import target as target_module  # noqa: E402
from tensorwire.torch.device.sync.memory import DeviceMemory  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

Weights = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU lie elsewhere, unless they are of int64. The core decodes plain frames, too."""
    monkeypatch.setattr(target_module, "decode_frame", lambda frame: tensorwire.decompress(frame, framework="pt"))
    monkeypatch.setattr(
        DeviceMemory, "takes", lambda _, array: isinstance(array, torch.Tensor) and array.dtype != torch.int64
    )


def weights(seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    found = {
        name: (torch.randn(shape, generator=generator) * 0.02).to(dtype)
        for name, shape, dtype in (
            ("matrix", (64, 300), torch.bfloat16),
            ("half", (40, 100), torch.float16),
            ("bias", (3,), torch.bfloat16),
            ("scale", (500,), torch.float32),
            ("nothing", (0, 4), torch.bfloat16),
        )
    }
    return found | {"tied": found["matrix"]}


def stepped(held: Weights) -> Weights:
    """A few words of a matrix change."""
    changed = {name: each.clone() for name, each in held.items() if name != "tied"}
    changed["matrix"].view(torch.int16)[::7, ::11] += 1
    return changed | {"tied": changed["matrix"]}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8)) for name in one
    )


def test_tensors_are_published_and_followed_where_they_are(tmp_path: Path) -> None:
    publisher, target = Publisher(tmp_path / "store"), weights(9)
    follower = Follower(tmp_path / "store", target, in_place=True)
    places = {name: each.data_ptr() for name, each in target.items()}
    trained = weights()
    for number in range(3):
        published = publisher.publish(trained)
        assert published.is_anchor == (number == 0)
        staged = follower.stage()
        assert staged is not None
        assert not same(target, trained), "a version that is staged is not visible"
        follower.commit()
        assert same(target, trained)
        assert {name: each.data_ptr() for name, each in target.items()} == places
        trained = stepped(trained)
    assert published.num_changed == 2, "the matrix and its other name"
    assert published.nbytes < 5000


def test_dtypes_that_no_kernel_encodes_are_sent_as_changes(tmp_path: Path) -> None:
    """Also where a tensor has another dtype in the next version, which is as large."""
    publisher = Publisher(tmp_path / "store")
    trained = {"scale": torch.randn(50_000, generator=torch.Generator().manual_seed(1))}
    target = {"scale": torch.zeros(50_000)}
    follower = Follower(tmp_path / "store", target, in_place=True)
    for number in range(2):
        published = publisher.publish(trained)
        assert follower.stage() is not None
        follower.commit()
        assert same(target, trained)
        trained = {"scale": trained["scale"].clone()}
        trained["scale"].view(torch.int32)[::900] += 1 + number
    assert published.nbytes < 3000
    for dtype in (torch.bfloat16, torch.float32):
        other = {"scale": trained["scale"].view(dtype)}
        publisher.publish(other)
        target = {"scale": torch.zeros_like(other["scale"])}
        follower = Follower(tmp_path / "store", target, in_place=True)
        assert follower.stage() is not None
        follower.commit()
        assert same(target, other)


def test_a_follower_on_the_host_gets_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, trained = Publisher(tmp_path / "store"), weights()
    for _ in range(2):
        publisher.publish(trained)
        trained = stepped(trained)
    publisher.publish(trained)
    monkeypatch.setattr(DeviceMemory, "takes", lambda *_: False)
    arrays: Weights = {}
    follower = Follower(tmp_path / "store", arrays, framework="pt")
    assert follower.stage() is not None
    follower.commit()
    assert same(arrays, trained)


def test_versions_of_the_host_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of both profiles; the second version is relative."""
    with monkeypatch.context() as patched:
        patched.setattr(DeviceMemory, "takes", lambda *_: False)
        publisher, trained = Publisher(tmp_path / "store", profile="compact"), weights()
        publisher.publish(trained)
        trained = stepped(trained)
        publisher.publish(trained)
    target = weights()
    follower = Follower(tmp_path / "store", target, in_place=True)
    assert follower.stage() is not None
    follower.commit()
    assert same(target, trained)


def test_a_publisher_goes_on_behind_another_one(tmp_path: Path) -> None:
    """What it does not have of the last version it reads from the store."""
    trained = weights()
    Publisher(tmp_path / "store").publish(trained)
    for has_base in (False, True):
        before, trained = trained, stepped(trained)
        published = Publisher(tmp_path / "store", base=before if has_base else None).publish(trained)
        assert not published.is_anchor
    target = weights(1)
    follower = Follower(tmp_path / "store", target, in_place=True)
    assert follower.stage() is not None
    follower.commit()
    assert same(target, trained)


def test_a_tensor_that_was_written_to_is_told(tmp_path: Path) -> None:
    publisher, trained, target = Publisher(tmp_path / "store"), weights(), weights(1)
    follower = Follower(tmp_path / "store", target, in_place=True)
    publisher.publish(trained)
    assert follower.stage() is not None
    follower.commit()
    trained = stepped(trained)
    publisher.publish(trained)
    assert follower.stage() is not None
    target["matrix"][1, 2] = 5.0
    with pytest.raises(BaseMismatchError, match=r"got status 6: .*tensor 'matrix'"):
        follower.commit()
    assert follower.version is None
    assert follower.stage() is not None, "which begins with the anchor"
    follower.commit()
    assert same(target, trained)


def test_a_damaged_frame_changes_nothing(tmp_path: Path) -> None:
    publisher, trained, target = Publisher(tmp_path / "store"), weights(), weights(1)
    follower = Follower(tmp_path / "store", target, in_place=True)
    publisher.publish(trained)
    assert follower.stage() is not None
    follower.commit()
    publisher.publish(stepped(trained))
    (file,) = (tmp_path / "store").glob("weight_v000001/*.safetensors")
    content = file.read_bytes()
    frames = [found.start() for found in re.finditer(re.escape(b"\x93TWF\r\n\x1a\n"), content)]
    damaged = bytearray(content)
    for frame in frames:
        damaged[frame + 200] ^= 1
    file.write_bytes(damaged)
    assert follower.stage() is not None
    with pytest.raises(CorruptDataError, match="got status 1"):
        follower.commit()
    assert same(target, trained)


def test_dicts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    Publisher(tmp_path / "store").publish(weights())
    with pytest.raises(ValueError, match="expected in_place=True for arrays on a device"):
        Follower(tmp_path / "store", weights())
    with pytest.raises(UnsupportedTensorError, match=r"on a device and some .* move all of them to the device"):
        Follower(tmp_path / "store", {**weights(), "number": torch.zeros(3, dtype=torch.int64)}, in_place=True)
    with pytest.raises(UnsupportedTensorError, match="expected a contiguous tensor"):
        Follower(tmp_path / "store", {"matrix": weights()["matrix"].T}, in_place=True)
    memory = torch.zeros(100)
    with pytest.raises(UnsupportedTensorError, match="shares a part of it with 'a'"):
        Follower(tmp_path / "store", {"a": memory[:60], "b": memory[40:]}, in_place=True)
    for target, message in (
        ({"matrix": weights()["matrix"]}, "expected the same tensors in the version and in the dict"),
        ({**weights(), "bias": torch.zeros(4, dtype=torch.bfloat16)}, r"expected 'bias' as BF16 \(3,\)"),
        ({**weights(), "half": weights()["half"].flatten()}, r"expected 'half' as F16 \(40, 100\)"),
    ):
        with pytest.raises(ValueError, match=message):
            Follower(tmp_path / "store", target, in_place=True).stage()


def test_a_profile_that_no_kernel_writes_is_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "store", profile="compact")
    with pytest.raises(UnsupportedTensorError, match="expected profile 'fast' for tensors on a device"):
        publisher.publish(weights())


def test_changes_are_for_arrays_of_the_host(tmp_path: Path) -> None:
    Publisher(tmp_path / "store").publish(weights())
    follower = Follower(tmp_path / "store", weights(1), in_place=True)
    assert follower.stage() is not None
    with pytest.raises(TypeError, match="or of tensors on a device"):
        follower.changes()
    assert "5 tensors on a device" in repr(follower) or "6 tensors on a device" in repr(follower)
    assert tensorwire.torch is not None


def test_nothing_is_left_of_a_version_that_failed(tmp_path: Path) -> None:
    """Neither tensors that waited for their frames, nor copies as bases."""
    publisher, trained, target = Publisher(tmp_path / "store"), weights(), weights(1)
    follower = Follower(tmp_path / "store", target, in_place=True)
    publisher.publish(trained)
    with pytest.raises(UnsupportedTensorError, match="expected a dense tensor"):
        publisher.publish({**stepped(weights(2)), "extra": torch.ones(3), "other": torch.zeros(3).to_sparse()})
    for number in (1, 2):
        assert publisher.publish(trained).is_anchor == (number == 1)
        assert follower.stage() is not None
        follower.commit()
        assert same(target, trained)
        trained = stepped(trained)


def test_a_tensor_may_change_its_dtype(tmp_path: Path) -> None:
    """Its bytes are what counts, not the values that another dtype would have."""
    publisher = Publisher(tmp_path / "store")
    for dtype in (torch.float32, torch.int32, torch.float32):
        trained = weights() | {"scale": (torch.arange(500) + (1 << 24) + 1).to(torch.int32).view(dtype)}
        trained["half"] = weights()["half"].view(torch.bfloat16 if dtype == torch.int32 else torch.float16)
        publisher.publish(trained)
        target = {name: torch.zeros_like(each) for name, each in trained.items()}
        target["tied"] = target["matrix"]
        follower = Follower(tmp_path / "store", target, in_place=True)
        assert follower.stage() is not None
        follower.commit()
        assert same(target, trained)


def test_tensors_that_share_memory_no_longer_are_told(tmp_path: Path) -> None:
    """One frame was staged for both."""
    publisher, trained, target = Publisher(tmp_path / "store"), weights(), weights(1)
    follower = Follower(tmp_path / "store", target, in_place=True)
    publisher.publish(trained)
    assert follower.stage() is not None
    follower.commit()
    trained = stepped(trained)
    publisher.publish(trained)
    assert follower.stage() is not None
    target["tied"] = target["tied"].clone()
    with pytest.raises(BaseMismatchError, match=r"expected the arrays to share memory as when .*; stage again"):
        follower.commit()
    assert follower.stage() is not None
    follower.commit()
    assert same(target, trained)


class OnGpu:
    """What a publisher sees of a tensor on a GPU before anything is read of it."""

    is_cuda, device = True, "cuda:0"


def test_a_forgotten_import_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere_module, "_KNOWN", [])
    for call in (
        lambda: Publisher(tmp_path / "store").publish({"matrix": OnGpu()}),
        lambda: Follower(tmp_path / "store", {"matrix": OnGpu()}, in_place=True),
    ):
        with pytest.raises(
            UnsupportedTensorError, match=r"expected an import of tensorwire\.torch before tensors on a"
        ):
            call()
