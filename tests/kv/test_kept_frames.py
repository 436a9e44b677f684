"""Frames by key in at most so many bytes, in memory and in a directory: what engines' caches of ours are made of."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire import CorruptDataError
from tensorwire.kv.kept_frames import BUFFER_NBYTES, FramesInDirectory, FramesInMemory, KeptFrames

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["memory", "directory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], KeptFrames]:
    """With room for so many units."""

    def made(num_units: int) -> KeptFrames:
        if request.param == "memory":
            return FramesInMemory(num_units * FramesInMemory.UNIT)
        return FramesInDirectory(tmp_path / "frames", "mark", num_units * FramesInDirectory.UNIT)

    return made


def frame(number: int, nbytes: int) -> bytes:
    return np.random.default_rng(number).bytes(nbytes)


def add(frames: KeptFrames, number: int, nbytes: int) -> bool:
    content = frame(number, nbytes)
    padded = content + bytes(-nbytes % BUFFER_NBYTES)
    return frames.add(bytes([number]), memoryview(padded), nbytes)


def read(frames: KeptFrames, number: int) -> bytes | None:
    buffer = memoryview(bytearray(8 * BUFFER_NBYTES))
    nbytes = frames.read(bytes([number]), buffer)
    return None if nbytes is None else bytes(buffer[:nbytes])


def there(frames: KeptFrames) -> list[int]:
    return [number for number in range(256) if bytes([number]) in frames]


def test_units_count_and_what_was_used_least_recently_goes(make: Callable[[int], KeptFrames]) -> None:
    frames = make(6)
    unit = frames.UNIT
    for number, nbytes in enumerate((1, unit, unit + 1, 2 * unit - 1)):
        assert add(frames, number, nbytes)
    assert frames.size() == (4, 6 * unit)
    frames.touch([b"\x00", b"\x63"])
    assert read(frames, 1) == frame(1, unit)
    assert add(frames, 4, 3 * unit)  # in the place of two frames that have two units each
    assert there(frames) == [0, 1, 4]
    assert [read(frames, number) for number in (0, 1, 4)] == [frame(0, 1), frame(1, unit), frame(4, 3 * unit)]
    assert frames.num_evicted == 2
    assert add(frames, 4, 100)  # another one under the same key
    assert read(frames, 4) == frame(4, 100)
    assert frames.size() == (3, 3 * unit)
    frames.drop(b"\x04")
    frames.drop(b"\x04")
    assert (there(frames), read(frames, 4)) == ([0, 1], None)


def test_what_never_fits_puts_nothing_out(make: Callable[[int], KeptFrames]) -> None:
    frames = make(3)
    assert add(frames, 0, 2 * frames.UNIT)
    assert not add(frames, 1, 3 * frames.UNIT + 1)
    assert there(frames) == [0]
    nothing = make(0)
    assert not add(nothing, 5, 1)
    assert there(nothing) == []


def test_a_frame_that_is_read_keeps_its_place() -> None:
    """Others go in its stead; if it is dropped meanwhile, its room is free when the reader is done."""
    unit = FramesInMemory.UNIT
    frames = FramesInMemory(4 * unit)
    for number in range(4):
        add(frames, number, 100)
    original = frames._read

    def slow_read(key: bytes, entry: Any, buffer: memoryview) -> None:
        assert add(frames, 9, 3 * unit)
        frames.drop(b"\x00")
        assert not add(frames, 8, 4 * unit)
        original(key, entry, buffer)

    frames._read = slow_read  # type: ignore[method-assign]
    assert read(frames, 0) == frame(0, 100)
    del frames._read
    assert frames.size() == (1, 3 * unit)
    assert there(frames) == [9]
    assert add(frames, 8, 4 * unit)
    assert read(frames, 8) == frame(8, 4 * unit)


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    frames = FramesInDirectory(tmp_path, "mark", 8 * FramesInDirectory.UNIT)
    assert add(frames, 0, 5000)
    (tmp_path / "02.mark.tensorwire").mkdir()
    (tmp_path / "02.mark.tensorwire" / "file").touch()
    with pytest.raises(IsADirectoryError):
        add(frames, 2, 5000)
    assert there(frames) == [0]
    assert frames.size() == (1, 2 * FramesInDirectory.UNIT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00.mark.tensorwire", "02.mark.tensorwire"]


def test_a_directory_is_found_again_by_its_mark(tmp_path: Path) -> None:
    frames = FramesInDirectory(tmp_path, "mark", 8 * FramesInDirectory.UNIT)
    for number in range(3):
        add(frames, number, 5000)
    others = {"not a key.mark.tensorwire", "another's", "00.tensorwire", "weights.other.tensorwire"}
    for name in (*others, "00.other.tensorwire"):
        (tmp_path / name).touch()
    again = FramesInDirectory(tmp_path, "mark", 8 * FramesInDirectory.UNIT)
    assert there(again) == [0, 1, 2]
    assert again.size() == (3, 6 * FramesInDirectory.UNIT)
    assert read(again, 1) == frame(1, 5000)
    assert {path.name for path in tmp_path.iterdir()} == others | {f"0{number}.mark.tensorwire" for number in range(3)}
    assert there(FramesInDirectory(tmp_path, "other", 8 * FramesInDirectory.UNIT)) == []


def test_a_file_under_another_name_or_in_another_directory_is_damaged(tmp_path: Path) -> None:
    unit = FramesInDirectory.UNIT
    frames = FramesInDirectory(tmp_path / "frames", "mark", 8 * unit)
    others = FramesInDirectory(tmp_path / "others", "mark", 8 * unit)
    for number in range(4):
        add(frames, number, 5000)
    add(others, 2, 5000)
    names = [f"{number:02x}.mark.tensorwire" for number in range(4)]
    first, second, third, last = (tmp_path / "frames" / name for name in names)
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)
    (tmp_path / "others" / names[2]).replace(third)
    last.write_bytes(last.read_bytes()[:-1])
    for number in range(4):
        with pytest.raises(CorruptDataError, match="expected the file that was written under this name"):
            read(frames, number)


def test_no_link_in_the_directory_leads_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "00.mark.tensorwire").touch()
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "00").symlink_to(elsewhere)
    (tmp_path / "frames" / "01.mark.tensorwire").symlink_to(elsewhere / "00.mark.tensorwire")
    frames = FramesInDirectory(tmp_path / "frames", "mark", 8 * FramesInDirectory.UNIT)
    assert there(frames) == []
    add(frames, 0, 5000)
    assert [path.name for path in elsewhere.iterdir()] == ["00.mark.tensorwire"]
    assert (elsewhere / "00.mark.tensorwire").stat().st_size == 0


def test_threads_never_read_a_mixture(make: Callable[[int], KeptFrames]) -> None:
    """More frames than have room, each of one number throughout: units change hands while others are read."""
    frames, errors = make(12), list[str]()

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        buffer = memoryview(bytearray(4 * BUFFER_NBYTES))
        for _ in range(60):
            number = int(generator.integers(8))
            buffer[:] = bytes([number]) * len(buffer)
            frames.add(bytes([number]), buffer, 1000 + 1800 * number)
            number = int(generator.integers(8))
            nbytes = frames.read(bytes([number]), buffer)
            if nbytes is not None and set(buffer[:nbytes]) != {number}:
                errors.append(f"{number}: {set(buffer[:nbytes])}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors


def test_more_memory_than_there_is_is_told_with_its_size() -> None:
    with pytest.raises(MemoryError, match=f"no memory for {1 << 60} bytes"):
        FramesInMemory(1 << 60)
