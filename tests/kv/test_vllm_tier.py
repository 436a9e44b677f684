"""The compressed tier under vLLM's key-value cache, by vLLM's factory and manager. ``make vllm`` has the environment.

Neither a model nor a GPU takes part: the connector that fills the first tier raises on CPUs.
"""

from __future__ import annotations

import logging
import os
import resource
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is missing, which make vllm installs apart from everything else")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    from tests.support.vllm_chunks import CHUNK_NBYTES, ENTRY, REQUEST, Tier, chunks, config, files, key_of

from tests.support.processes import OTHER_USER, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


def test_chunks_come_back_into_other_slots(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    tier, given = make_tier(8, **place), chunks(6)
    stored = tier.store(given)
    assert (stored.success, stored.successful_keys, stored.transfer_bytes) == (True, None, 6 * CHUNK_NBYTES)
    tier.memory[:] = 0
    loaded = tier.load([0, 1, 2, 3, 4, 5], [7, 6, 5, 4, 3, 2])
    assert loaded.success
    assert set(loaded.successful_keys) == {key_of(number) for number in range(6)}
    assert (tier.slots([7, 6, 5, 4, 3, 2]) == given).all()
    assert not tier.slots([0, 1]).any()


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_it_holds_more_chunks_than_fit_dense(
    make_tier: Callable[..., Tier], place: dict[str, Any], profile: str
) -> None:
    """The last ones are held: eviction goes by compressed bytes."""
    room, given = 20, chunks(60)
    tier = make_tier(60, capacity_bytes=room * CHUNK_NBYTES, profile=profile, **place)
    assert tier.store(given).success
    held = tier.held(range(60))
    stats = tier.stats()
    assert len(held) >= 1.4 * room
    assert stats["chunks"] == len(held)
    assert stats["evicted"] == 60 - len(held)
    assert stats["dense_bytes"] == len(held) * CHUNK_NBYTES
    assert room * CHUNK_NBYTES - CHUNK_NBYTES < stats["bytes"] <= room * CHUNK_NBYTES
    tier.memory[:] = 0
    assert tier.load(held, held).success
    assert (tier.slots(held) == given[held]).all()


def test_what_was_used_last_stays(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    tier = make_tier(4, capacity_bytes=4 * CHUNK_NBYTES, threads=1, **place)
    tier.store(chunks(4))
    tier.tier.touch([key_of(1)], REQUEST)
    tier.load([0], [0])
    tier.store(chunks(3, seed=1), first=10)
    assert tier.held(range(4)) == [0, 1]


def test_what_is_there_is_not_stored_again(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    tier = make_tier(4, **place)
    tier.store(chunks(2))
    again = tier.store(chunks(2))
    assert (again.success, again.transfer_bytes) == (True, 0)
    assert tier.counted("chunks") == 2


def test_a_key_that_is_not_there_fails_alone(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    tier, given = make_tier(4, **place), chunks(2)
    tier.store(given)
    loaded = tier.load([0, 9, 1], [3, 2, 1])
    assert not loaded.success
    assert set(loaded.successful_keys) == {key_of(0), key_of(1)}
    assert (tier.slots([3, 1]) == given).all()
    assert tier.counted("damaged") == 0


def damage(tier: Tier, number: int, change: Callable[[np.ndarray], None]) -> None:
    """Change the frame of a chunk where it lies."""
    frames: Any = tier.tier._frames
    entry = frames._entries[key_of(number)]
    if entry.units:
        frame = frames._rows[list(entry.units)].ravel()
        change(frame[: entry.nbytes])
        frames._rows[list(entry.units)] = frame.reshape(len(entry.units), -1)
    else:
        path = frames._path(key_of(number))
        frame = np.fromfile(path, np.uint8)
        change(frame)
        frame.tofile(path)


@pytest.mark.parametrize("where", [0, 9, 40, 130, 0.3, 0.5, 0.9, -1])
def test_a_damaged_frame_is_a_miss_and_goes(
    make_tier: Callable[..., Tier], place: dict[str, Any], caplog: pytest.LogCaptureFixture, where: float
) -> None:
    tier, given = make_tier(8, **place), chunks(6)
    tier.store(given)

    def flip(frame: np.ndarray) -> None:
        frame[int(where * len(frame)) if isinstance(where, float) else where] ^= 4

    damage(tier, 2, flip)
    damage(tier, 4, flip)
    tier.memory[:] = 0
    loaded = tier.load([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0])
    assert not loaded.success
    assert set(loaded.successful_keys) == {key_of(number) for number in (0, 1, 3, 5)}
    assert (tier.slots([5, 4, 2, 0]) == given[[0, 1, 3, 5]]).all()
    assert tier.held(range(6)) == [0, 1, 3, 5]
    assert tier.counted("damaged") == 2
    assert len([each for each in caplog.records if "damaged" in each.message]) == 1  # told once
    assert tier.store(given[2:3], first=2).success
    assert tier.load([2], [7]).success
    assert (tier.slots([7]) == given[2]).all()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def grow(path: Path) -> None:
    path.write_bytes(bytes(1 << 20))


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def put_other(path: Path) -> None:
    """A whole frame, of another dtype and shape."""
    import tensorwire

    path.write_bytes(tensorwire.compress(np.arange(5000, dtype=np.float32)))


@pytest.mark.parametrize("change", [cut, grow, put_folder, put_pipe, put_link, put_other, lambda path: path.unlink()])
@pytest.mark.parametrize("restart", [False, True])
def test_files_that_others_changed_are_a_miss(
    make_tier: Callable[..., Tier], tmp_path: Path, change: Callable[[Path], None], restart: bool
) -> None:
    options = {"directory": str(tmp_path), "capacity_bytes": 8 << 20}
    tier, given = make_tier(4, **options), chunks(3)
    tier.store(given)
    changed: Any = tier.tier._frames
    change(changed._path(key_of(1)))
    if restart:
        tier = make_tier(4, **options)
    tier.memory[:] = 0
    loaded = tier.load([0, 1, 2], [0, 1, 2])
    assert set(loaded.successful_keys) == {key_of(0), key_of(2)}
    assert (tier.slots([0, 2]) == given[[0, 2]]).all()
    assert tier.held(range(3)) == [0, 2]


def test_a_directory_is_found_again(make_tier: Callable[..., Tier], tmp_path: Path) -> None:
    """Each time with less room: what was written last stays."""
    given = chunks(6)
    first = make_tier(8, directory=str(tmp_path), threads=1)
    for number in range(6):
        first.store(given[number : number + 1], first=number)
    first.tier.shutdown()
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / ".tensorwire-0123456789abcdef").write_bytes(b"left by a process that was killed")
    for path in files(folder):
        number = int(path.name[:64], 16) if path.name[0] != "." else 0
        os.utime(path, (1000 + number, 1000 + number))

    second = make_tier(8, directory=str(tmp_path))
    assert second.held(range(6)) == list(range(6))
    assert second.load([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]).success
    assert (second.slots(list(range(6))) == given).all()
    third = make_tier(8, directory=str(tmp_path), capacity_bytes=3 * CHUNK_NBYTES)
    assert third.held(range(6)) == [2, 3, 4, 5]
    assert len(files(folder)) == 4
    assert {path.stat().st_mode & 0o777 for path in files(folder)} == {0o600}


def test_other_models_dtypes_and_weights_are_kept_apart(make_tier: Callable[..., Tier], tmp_path: Path) -> None:
    weights, cache = tmp_path / "model", str(tmp_path / "cache")
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"old")
    make_tier(4, directory=cache, given=config(model=str(weights))).store(chunks(2))
    for other in ({"model": "another"}, {"model": str(weights), "dtype": "float16"}):
        assert make_tier(4, directory=cache, given=config(**other)).held(range(2)) == []
    assert make_tier(4, directory=cache, given=config(model=str(weights))).held(range(2)) == [0, 1]
    (weights / "model.safetensors").write_bytes(b"newer")
    assert make_tier(4, directory=cache, given=config(model=str(weights))).held(range(2)) == []
    assert files(tmp_path / "cache") == []  # nothing asks for them any more


@pytest.mark.parametrize(
    ("name", "dtype"), [("bfloat16", "BF16"), ("float16", "F16"), ("fp8", "F8_E4M3"), ("fp8_e5m2", "F8_E5M2")]
)
def test_the_dtype_of_the_cache_says_how_it_is_coded(make_tier: Callable[..., Tier], name: str, dtype: str) -> None:
    import tensorwire

    tier = make_tier(2, given=config(dtype=name))
    tier.store(chunks(1))
    frame = bytearray(CHUNK_NBYTES)
    assert tier.tier._frames.read(key_of(0), memoryview(frame))
    assert tensorwire.frame_info(frame).dtype == dtype


def test_a_packed_cache_is_coded_as_bytes(make_tier: Callable[..., Tier], caplog: pytest.LogCaptureFixture) -> None:
    tier, given = make_tier(4, given=config(dtype="nvfp4")), chunks(2)
    assert "nvfp4" in caplog.text
    assert tier.store(given).success
    assert tier.load([0, 1], [3, 2]).success
    assert (tier.slots([3, 2]) == given).all()


def test_random_bits_are_kept_too(make_tier: Callable[..., Tier], place: dict[str, Any]) -> None:
    tier = make_tier(4, **place)
    given = np.random.default_rng(3).integers(0, 256, (2, CHUNK_NBYTES), np.uint8)
    assert tier.store(given).success
    assert tier.load([0, 1], [3, 2]).success
    assert (tier.slots([3, 2]) == given).all()


def test_a_chunk_that_never_fits_is_not_stored(
    make_tier: Callable[..., Tier], place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tier = make_tier(4, capacity_bytes=CHUNK_NBYTES // 2, **place)
    given = chunks(4)
    given[0] = 0
    assert not tier.store(given).success
    assert tier.held(range(4)) == [0]  # whose frame is small, and which went for none of the others
    assert tier.counted("refused") == 3
    assert len([each for each in caplog.records if "refused" in each.message]) == 1


def test_a_directory_that_takes_no_more(
    make_tier: Callable[..., Tier], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The system ends each write midway, as that of a full disk does."""
    tier, given = make_tier(4, directory=str(tmp_path)), chunks(4)
    tier.store(given[:1])
    before = files(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK_NBYTES // 3, hard))
        stored = tier.store(given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not stored.success
    assert tier.held(range(4)) == [0]
    assert files(tmp_path) == before
    stats = tier.stats()
    assert (stats["failed"], stats["chunks"]) == (3, 1)
    told = [each.message for each in caplog.records if "failed" in each.message]
    assert len(told) == 1
    assert "File too large" in told[0]
    assert tier.store(given).success  # room again
    assert tier.held(range(4)) == [0, 1, 2, 3]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that another user may write to, if this one may write anywhere."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        if os.geteuid() == 0:
            os.chown(path, OTHER_USER, OTHER_USER)
        yield path


@pytest.mark.parametrize("since", ["before vLLM started", "after it"])
def test_a_read_only_directory_is_a_miss(shared: Path, since: str) -> None:
    cache = shared / "cache"

    def run() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
        cache.mkdir(0o700 if since == "after it" else 0o500)
        tier = Tier(4, directory=str(cache))
        for each in (cache, *cache.glob("*")):
            each.chmod(0o500)
        for _ in range(2):
            assert not tier.store(chunks(3)).success
        assert tier.held(range(3)) == []
        assert tier.stats()["failed"] == 6
        assert not tier.load([0], [0]).success
        tier.tier.shutdown()
        assert files(cache) == []
        for each in (cache, *cache.glob("*")):
            each.chmod(0o700)

    assert exit_code(run) == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"capacity_bytes": 0}, "expected capacity_bytes of a secondary tier to be a number from 1 on, got 0"),
        ({"capacity_bytes": "1 GB"}, "capacity_bytes"),
        ({"threads": 0}, "threads"),
        ({"profile": "smallest"}, "smallest"),
        ({"locality": "NEAR"}, "NEAR"),
    ],
)
def test_bad_options_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tier(2, **option)


def test_vllm_takes_it_by_its_config_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """vLLM's own manager and first tier, with a tier in memory before one in a directory."""
    entries = [
        {**ENTRY, "capacity_bytes": 8 * CHUNK_NBYTES},
        {**ENTRY, "capacity_bytes": 1 << 24, "directory": str(tmp_path)},
    ]
    given = config(cpu_bytes_to_use=8 * CHUNK_NBYTES, secondary_tiers=entries)
    assert TieringOffloadingSpec.build_metric_definitions(given.extra_config).keys() >= {
        f"vllm:kv_offload_tensorwire_{name}" for name in ("bytes", "evicted", "damaged")
    }
    spec = TieringOffloadingSpec(given)
    manager: Any = spec.get_manager()
    step = ScheduleEndContext((), ())
    data = chunks(24)
    memory: Any = np.asarray(manager.primary_tier.get_kv_memoryview()).view(np.uint8)
    try:
        manager.on_new_request(REQUEST)
        for first in range(0, 24, 4):
            keys = [key_of(number) for number in range(first, first + 4)]
            prepared = manager.prepare_store(keys, REQUEST)
            memory[prepared.store_spec.chunk_ids] = data[first : first + 4]
            manager.complete_store(keys, REQUEST)
            for tier in manager.secondary_tiers:
                tier.drain_jobs()
            manager.on_schedule_end(step)
        manager.reset_cache()
        memory[:] = 0
        for number in (23, 0, 20, 5):
            key = key_of(number)
            assert manager.lookup(key, REQUEST) is LookupResult.HIT_PENDING
            manager.on_schedule_end(step)
            for tier in manager.secondary_tiers:
                tier.drain_jobs()
            assert manager.lookup(key, REQUEST) is LookupResult.HIT
            loaded = manager.prepare_load([key], REQUEST)
            assert (memory[loaded.chunk_ids[0]] == data[number]).all()
            manager.complete_load([key], REQUEST)
        assert manager.lookup(key_of(99), REQUEST) is LookupResult.MISS
        sources = [manager.get_load_source(key_of(number), REQUEST).name for number in (23, 0)]
        assert sources == ["HOST", "DISK"]
        stats = manager.get_stats().reduce()
        assert stats["vllm:kv_offload_tensorwire_chunks:('STORAGE',)"] == 24
        assert 11 <= stats["vllm:kv_offload_tensorwire_chunks:('CPU',)"] < 24
        manager.on_request_finished(REQUEST)
    finally:
        memory = None  # else vLLM cannot unmap it
        manager.shutdown()
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
