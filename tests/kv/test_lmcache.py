"""The serdes and adapters for LMCache, in its own storage manager. ``make lmcache`` has the environment for it."""

from __future__ import annotations

import enum
import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire

pytest.importorskip("lmcache", reason="LMCache is missing, which make lmcache installs apart from everything else")

import torch
from lmcache.v1.distributed import serde as lmcache_serde
from lmcache.v1.distributed.l2_adapters import fs_l2_adapter

from tensorwire.kv import lmcache as ours
from tests.support.lmcache_tiers import Tiers, dense, frames, keys, slots
from tests.support.real_kv import chunks
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

COUNT = 8
NAMES = keys(range(COUNT))


@pytest.fixture(scope="module")
def real() -> tuple[Tensor, ...]:
    """Keys and values of 64 tokens each."""
    return chunks(COUNT, 64)


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, int]]:
    """What the module counts, from zero on."""
    monkeypatch.setattr(ours, "_counts", ours._Counts())
    return lambda: ours._counts.of_all()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.data"))


def file_of(folder: Path, number: int) -> Path:
    return folder / fs_l2_adapter._object_key_to_filename(NAMES[number])


def bits(tensors: Sequence[Tensor]) -> list[bytes]:
    return [tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() for tensor in tensors]


def store(tiers: Tiers, folder: Path, objects: Sequence[Any]) -> None:
    tiers.store(NAMES[: len(objects)], objects, lambda: len(files(folder)) == len(objects))
    tiers.forget()


def check_loads(tiers: Tiers, objects: Sequence[Tensor]) -> None:
    """That each object comes back, bit for bit."""
    found = tiers.load(NAMES[: len(objects)], objects[0])
    assert [bits(each) for each in found] == [bits([each]) for each in objects]


def random(like: Tensor, seed: int = 0) -> Tensor:
    """Bits that no codec makes smaller."""
    drawn = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**15), 2**15, like.shape, generator=drawn, dtype=torch.int16)
    return words.view(like.dtype)


@pytest.mark.parametrize(
    "options", [{}, {"profile": "compact"}, {"profile": "resident"}, {"transposed": True}, {"threads": 8}], ids=str
)
def test_every_key_comes_back_by_the_command_line_alone(
    options: dict[str, Any], real: tuple[Tensor, ...], tmp_path: Path
) -> None:
    with Tiers(frames(tmp_path, **options)) as tiers:
        store(tiers, tmp_path, real)
        check_loads(tiers, real)
    ratio = sum(each.nbytes for each in real) / sum(file.stat().st_size for file in files(tmp_path))
    assert ratio > (1.3 if options.get("profile") == "resident" else 1.47)


def test_another_server_loads_what_is_there_with_other_options(real: tuple[Tensor, ...], tmp_path: Path) -> None:
    with Tiers(frames(tmp_path, transposed=True)) as tiers:
        store(tiers, tmp_path, real)
    with Tiers(frames(tmp_path, profile="resident", threads=2)) as tiers:
        check_loads(tiers, real)


def test_files_with_the_length_of_their_frames_need_our_adapter(real: tuple[Tensor, ...], tmp_path: Path) -> None:
    """A release of LMCache whose own adapter loads them makes `Frames` needless."""
    with Tiers({**dense(tmp_path), "serde": {"type": "tensorwire"}}) as tiers:
        store(tiers, tmp_path, real)
        assert not tiers.load(NAMES, real[0])


@pytest.mark.parametrize(("profile", "max_ratio"), [("fast", 0.7), ("resident", 0.77)])
def test_slots_have_exactly_the_promised_size(
    profile: str, max_ratio: float, real: tuple[Tensor, ...], tmp_path: Path
) -> None:
    with Tiers(slots(tmp_path, profile=profile, max_ratio=max_ratio)) as tiers:
        store(tiers, tmp_path, real)
        check_loads(tiers, real)
    (size,) = {file.stat().st_size for file in files(tmp_path)}
    assert int(real[0].nbytes * max_ratio) <= size < real[0].nbytes * max_ratio + 4096


def test_what_does_not_fit_its_slot_is_not_cached(
    real: tuple[Tensor, ...], tmp_path: Path, counts: Callable[[], dict[str, int]]
) -> None:
    """Nor is the rest of what LMCache stores at once, and all goes on."""
    with Tiers(slots(tmp_path, max_ratio=0.7)) as tiers:
        tiers.store(NAMES, [*real[:3], random(real[3]), *real[4:]], lambda: counts()["not_cached"] == 1)
        tiers.forget()
        assert not files(tmp_path)
        assert not tiers.load(NAMES, real[0])
        assert tiers.status("l1_manager")["memory_used_bytes"] == 0
        store(tiers, tmp_path, real)
        check_loads(tiers, real)


def test_what_does_not_shrink_comes_back_too(real: tuple[Tensor, ...], tmp_path: Path) -> None:
    objects = [random(each, seed) for seed, each in enumerate(real)]
    with Tiers(frames(tmp_path)) as tiers:
        store(tiers, tmp_path, objects)
        check_loads(tiers, objects)
    assert all(file.stat().st_size < real[0].nbytes * 1.01 for file in files(tmp_path))


def flipped(place: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = int(place * len(data))
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return change


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "the first byte": flipped(0),
    "the header": flipped(0.0001),
    "a block": flipped(0.5),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "other bytes": lambda data: bytes(range(256)) * (len(data) // 256),
    "larger than any object": lambda data: b"\xff" * (4 * len(data)),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_a_miss_once(
    change: Callable[[bytes], bytes], real: tuple[Tensor, ...], tmp_path: Path, counts: Callable[[], dict[str, int]]
) -> None:
    with Tiers(frames(tmp_path)) as tiers:
        store(tiers, tmp_path, real)
        damaged = file_of(tmp_path, 3)
        damaged.write_bytes(change(damaged.read_bytes()))
        assert not tiers.load(NAMES, real[0]), "LMCache takes what it loads at once as missed"
        assert counts() == tiers.adapter()["tensorwire"] == {"not_cached": 0, "not_loaded": 1}
        assert not damaged.exists()
        assert len(files(tmp_path)) == COUNT - 1
        assert tiers.status("l1_manager")["memory_used_bytes"] == 0
        assert len(tiers.load(NAMES, real[0])) == 3
        tiers.forget()
        store(tiers, tmp_path, real)
        check_loads(tiers, real)


@pytest.mark.parametrize("adapter", [frames, partial(slots, max_ratio=0.7)], ids=["frames", "slots"])
@pytest.mark.parametrize(
    ("facts", "others"),
    [
        ({}, {"chunk_hash": bytes(32)}),
        ({"cache_salt": "a user"}, {"cache_salt": "another"}),
        ({}, {"model_name": "another model"}),
        ({}, {"kv_rank": 1}),
    ],
    ids=["chunk", "user", "model", "rank"],
)
def test_the_object_of_another_key_is_a_miss(
    adapter: Callable[..., dict[str, Any]],
    facts: dict[str, Any],
    others: dict[str, Any],
    real: tuple[Tensor, ...],
    tmp_path: Path,
) -> None:
    with Tiers(adapter(tmp_path)) as tiers:
        name = replace(NAMES[1], **facts)
        tiers.store([name], real[:1], lambda: len(files(tmp_path)) == 1)
        (first,) = files(tmp_path)
        tiers.store([replace(NAMES[1], **others)], real[1:2], lambda: len(files(tmp_path)) == 2)
        (second,) = set(files(tmp_path)) - {first}
        shutil.copyfile(second, first)
        tiers.forget()
        assert not tiers.load([name], real[0])


def test_a_damaged_slot_is_a_miss(real: tuple[Tensor, ...], tmp_path: Path) -> None:
    with Tiers(slots(tmp_path, max_ratio=0.7)) as tiers:
        store(tiers, tmp_path, real)
        file_of(tmp_path, 0).write_bytes(flipped(0.5)(file_of(tmp_path, 0).read_bytes()))
        assert not tiers.load(NAMES, real[0])
        assert len(tiers.load(NAMES[1:], real[0])) == COUNT - 1


@pytest.mark.parametrize(
    "other",
    [
        lambda tensor: tensor.view(torch.float16),
        lambda tensor: tensor.view(torch.uint8).view(*tensor.shape[:-1], -1),
        lambda tensor: tensor.view(2, 6, 32, 768),
        lambda tensor: tensor[:, :, :32],
    ],
    ids=["dtype", "size of elements", "shape", "fewer tokens"],
)
def test_an_object_of_another_layout_is_a_miss(
    other: Callable[[Tensor], Tensor], real: tuple[Tensor, ...], tmp_path: Path, counts: Callable[[], dict[str, int]]
) -> None:
    with Tiers(frames(tmp_path)) as tiers:
        store(tiers, tmp_path, real[:1])
        assert not tiers.load(NAMES[:1], other(real[0]))
        assert counts()["not_loaded"] == 1


def test_another_model_has_other_keys(
    real: tuple[Tensor, ...], tmp_path: Path, counts: Callable[[], dict[str, int]]
) -> None:
    with Tiers(frames(tmp_path)) as tiers:
        store(tiers, tmp_path, real)
        assert not tiers.load(keys(range(COUNT), model="other/model"), real[0])
        assert counts() == {"not_cached": 0, "not_loaded": 0}
        check_loads(tiers, real)


DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "uint8", "int8", "int64", "complex64")


@pytest.mark.parametrize("options", [{}, {"transposed": True}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_objects_of_every_dtype(options: dict[str, Any], dtype: str, real: tuple[Tensor, ...], tmp_path: Path) -> None:
    objects = [each[:, :, :16].contiguous().view(getattr(torch, dtype)) for each in real]
    with Tiers(frames(tmp_path, **options)) as tiers:
        store(tiers, tmp_path, objects)
        check_loads(tiers, objects)


@pytest.mark.parametrize("make", [frames, lambda folder, **options: slots(folder, max_ratio=1.0, **options)])
@pytest.mark.parametrize("options", [{}, {"transposed": True}], ids=str)
def test_objects_of_several_tensors(
    make: Callable[..., dict[str, Any]], options: dict[str, Any], real: tuple[Tensor, ...], tmp_path: Path
) -> None:
    """A model that has layers of several kinds has such objects."""
    objects = [
        (each, each[0, :3].float(), each[1, 0].contiguous().view(torch.float8_e4m3fn), torch.arange(5)) for each in real
    ]
    with Tiers(make(tmp_path, **options)) as tiers:
        if make is not frames:  # what is random, or too short, fits no slot of its own size
            objects = [each[:2] for each in objects]
        store(tiers, tmp_path, objects)
        found = tiers.load(NAMES, objects[0])
        assert [bits(each) for each in found] == [bits(each) for each in objects]


def test_a_file_is_a_frame_zeros_and_a_label(real: tuple[Tensor, ...], tmp_path: Path) -> None:
    """Nothing of what the memory held before: that may be another user's."""
    with Tiers(frames(tmp_path)) as tiers:
        store(tiers, tmp_path, [random(each, seed) for seed, each in enumerate(real)])
        for file in files(tmp_path):
            file.unlink()
        store(tiers, tmp_path, real)
    for number, tensor in enumerate(real):
        data = file_of(tmp_path, number).read_bytes()
        info = tensorwire.frame_info(data)
        assert (info.dtype, info.shape) == ("BF16", tuple(tensor.shape))
        assert len(data) % 4096 == 0
        assert not any(data[info.frame_nbytes : -32]), "the label of the key is behind"
        assert bits([tensorwire.decompress(data, framework="pt")]) == bits([tensor])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_a_folder_that_takes_nothing_loses_nothing_else(
    number: int, real: tuple[Tensor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(path: Path, *_: Any) -> None:
        tried.append(path)
        raise OSError(number, "refused", str(path))

    with Tiers(frames(tmp_path)) as tiers:
        with monkeypatch.context() as patched:
            patched.setattr(fs_l2_adapter.aiofiles, "open", refuse)
            tiers.store(NAMES, real, lambda: len(tried) == COUNT)
        tiers.forget()
        assert list(tmp_path.iterdir()) == []
        assert not tiers.load(NAMES, real[0])
        assert tiers.adapter()["is_healthy"]
        store(tiers, tmp_path, real)
        check_loads(tiers, real)


def test_a_folder_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Tiers(frames(tmp_path / "file" / "folder"))


def test_eight_threads(real: tuple[Tensor, ...], tmp_path: Path, counts: Callable[[], dict[str, int]]) -> None:
    with Tiers(frames(tmp_path, threads=8)) as tiers, ThreadPoolExecutor(8) as pool:

        def store_and_load(thread: int) -> None:
            names = keys(range(100 * thread, 100 * thread + COUNT))
            objects = [*real[thread:], *real[:thread]]
            there = [tmp_path / fs_l2_adapter._object_key_to_filename(name) for name in names]
            tiers.store(names, objects, lambda: all(path.exists() for path in there))
            tiers.manager.clear()
            found = tiers.load(names, real[0])
            assert [bits(each) for each in found] == [bits([each]) for each in objects]

        list(pool.map(store_and_load, range(8)))
        wait_for(lambda: not tiers.status("store_controller")["in_flight_task_count"])
    assert counts() == {"not_cached": 0, "not_loaded": 0}


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (frames(Path("x"), level=3), "expected options of the serde among profile, transposed, threads, got level"),
        (frames(Path("x"), max_ratio=0.7), "got max_ratio"),
        (frames(Path("x"), profile="zstd"), "expected one of the profiles"),
        (slots(Path("x")), "expected max_ratio"),
        (slots(Path("x"), max_ratio=1.5), "expected a max_ratio above 0 and at most 1"),
        ({**slots(Path("x"), max_ratio=0.7), "adapter_params": {}}, 'adapter_params with the "type"'),
        ({**slots(Path("x"), max_ratio=0.7), "adapter_params": {"type": "tape"}}, "tape"),
        ({**frames(Path("x")), "adapter_params": {}}, "base_path"),
    ],
)
def test_wrong_options_are_refused_at_the_start(
    adapter: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        Tiers(adapter)


def test_later_releases_are_told_whether_sizes_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of what is in LMCache's sources behind 0.5.6: `SerdeSizeContract`, and the argument that takes it."""
    told = {}

    class FakeContract(enum.Enum):
        EXACT = enum.auto()
        UPPER_BOUND = enum.auto()

    def fake_register(name: str, factory: object, *, size_contract: FakeContract) -> None:
        told[name] = size_contract

    monkeypatch.setattr(lmcache_serde, "SerdeSizeContract", FakeContract, raising=False)
    monkeypatch.setattr(ours, "register_serde_factory", fake_register)
    ours.register()
    assert told == {"tensorwire": FakeContract.UPPER_BOUND, "tensorwire-fixed": FakeContract.EXACT}
