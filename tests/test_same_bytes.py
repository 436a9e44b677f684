"""Equal content gives equal bytes, whatever makes the frame: any CPU, threads, pieces, memory, process, file.

Hubs store equal payloads once by it, a step of a training is small by it, and a file can be compared by its SHA-256.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
from tensorwire import FrameEncoder, compress_checkpoint, save_file
from tensorwire.codec import compress_over, content_hash, cpu_target, dtype_bits
from tensorwire.files.reader import StoredFile
from tests.support import encode_registry, registry
from tests.support.checkpoint_models import container
from tests.support.encode_registry import RELATIVE_PROFILES, digests, stepped
from tests.support.frames import compress, decompress
from tests.support.processes import exit_code
from tests.support.registry import Input

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
NUMEL = 648_000
ROWS = (1000, 1, 27_000)
"""Lengths of rows: blocks hold whole ones of some, and parts of others."""
PIECES = {
    # Nothing, parts of a word, of a block and of a leaf of the content hash, several blocks.
    "odd pieces": (0, 1, 131_071, 200_000, 32_768, 1, 131_072, 5, 1_500_000),
    "equal pieces": (100_003,) * 60,
    "one piece": (),
}
CODINGS = [*((profile, False) for profile in registry.PROFILES), *((profile, True) for profile in RELATIVE_PROFILES)]
NUMPY = {name: each.numpy for name, each in registry.FLOATS.items()} | {
    f"{kind}{bits}": np.dtype(f"{'u' * (kind == 'U')}int{bits}") for kind in "IU" for bits in (8, 16, 32, 64)
}
QUICK = ("BF16", "F32", "F8_E5M2", "I32", "MXINT_12")


# CPU targets and processes ------------------------------------------------------------------------------------------


def other_targets() -> list[str]:
    """What this CPU may have besides the target that runs."""
    foreign = ("neon",) if os.uname().machine == "x86_64" else ("avx2", "avx512")
    return [target for target in registry.CPU_TARGETS if target not in (cpu_target(), *foreign)]


@pytest.mark.parametrize("frames", ["some", pytest.param("everything", marks=pytest.mark.slow)])
def test_every_cpu_target_in_a_process_of_its_own(frames: str) -> None:
    """A target that the CPU lacks gives way to the best one, which is compared too."""
    own = digests(encode_registry.SETS[frames]())
    found = {cpu_target(): own}
    for target in other_targets():
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.support.encode_registry", frames],
            env={**os.environ, "TENSORWIRE_CPU": target}, cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        ran, result = json.loads(run.stdout)
        found[ran] = result
        assert result == own, ran
    assert "scalar" in found


def test_a_forked_process() -> None:
    item = next(iter(encode_registry.some()))
    expected = [compress(item, profile, threads=2) for profile in registry.PROFILES]  # no child misses these threads

    def child() -> None:
        assert [compress(item, profile, threads=2) for profile in registry.PROFILES] == expected
        assert all(decompress(frame, threads=2) == item.data for frame in expected)

    assert exit_code(child) == 0


# Ways to make one frame ---------------------------------------------------------------------------------------------


def of_dtype(dtype: str, row: int) -> Input:
    """Rows of this length; with 0 many small matrices and their biases, of which compact makes rows of parts."""
    if row == 0:
        return registry.mixed_input(dtype)
    if dtype in registry.OPAQUE:
        item = registry.opaque_input(dtype, NUMEL)
    else:
        words = registry.weights(dtype, NUMEL, "same bytes")
        item = Input("", dtype, (NUMEL,), words.tobytes())
    return item._replace(shape=(NUMEL // row, row))


def array_of(item: Input) -> Any:
    return np.frombuffer(item.data, NUMPY[item.dtype]).reshape(item.shape)


def in_pieces(item: Input, base: bytes | None, sizes: Sequence[int], **options: Any) -> bytes:
    bits = registry.OPAQUE[item.dtype][0] if item.dtype in registry.OPAQUE else 0
    encoder = FrameEncoder(item.dtype, item.shape, bits=bits, relative=base is not None, **options)
    assert encoder.uncompressed_nbytes == len(item.data)
    blocks, position = b"", 0
    for size in (*sizes, len(item.data)):
        piece = item.data[position : position + size]
        out = bytearray(encoder.data_bound(len(piece)))
        old = None if base is None else base[position : position + size]
        blocks += out[: encoder.encode(piece, out, base=old)]
        position += len(piece)
        assert encoder.consumed_nbytes == position
    frame = encoder.finish() + blocks
    assert encoder.info == tensorwire.frame_info(frame)
    assert encoder.data_nbytes == encoder.info.data_nbytes
    return frame


def ways(item: Input, profile: str, base: bytes | None) -> Iterator[tuple[str, bytes]]:
    """The frame of an item, made in all ways."""
    layout: dict[str, Any] = {"dtype": item.dtype, "shape": item.shape, "profile": profile}
    for threads in (2, 3, 16):
        yield f"{threads} threads", compress(item, profile, base=base, threads=threads)
    for more in (0, 1000):
        room = bytearray(tensorwire.compress_bound(item.data, **layout) + more)
        yield (
            f"into a buffer, with {more} bytes more",
            bytes(tensorwire.compress(item.data, base=base, out=room, **layout)),
        )
    moved = memoryview(bytearray(b"x" + item.data))[1:]
    yield "of memory at an odd address", bytes(tensorwire.compress(moved, base=base, **layout))
    if item.dtype in NUMPY:
        old = None if base is None else array_of(item._replace(data=base))
        yield "of an array", bytes(tensorwire.compress(array_of(item), profile=profile, base=old))
    for name, sizes in PIECES.items():
        yield name, in_pieces(item, base, sizes, profile=profile, threads=1 + (name != "one piece"))
    if base is not None:
        known = content_hash(base)
        yield "of a base whose hash is known", compress(item, profile, base=base, base_hash=known)
        if dtype_bits(item.dtype):
            yield (
                "over its base",
                compress_over(memoryview(bytearray(base)), memoryview(item.data), base_hash=known, threads=2, **layout),
            )


def cases() -> Iterator[Any]:
    """The quick ones have each dtype of QUICK with one row, each profile with several."""
    for dtype in registry.DTYPES:
        for profile, relative in CODINGS:
            for row in ROWS:
                turn = QUICK.index(dtype) + registry.PROFILES.index(profile) if dtype in QUICK else None
                quick = turn is not None and row == ROWS[turn % len(ROWS)]
                name = f"{dtype}-rows of {row}-{profile}{' relative' * relative}"
                yield pytest.param(dtype, row, profile, relative, id=name, marks=[] if quick else pytest.mark.slow)
    for dtype in (*registry.FLOATS, "I8", "I16", "F64"):
        for relative in (False, True):
            name, quick = f"{dtype}-mixed-compact{' relative' * relative}", dtype in ("BF16", "F8_E4M3")
            yield pytest.param(dtype, 0, "compact", relative, id=name, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("dtype", "row", "profile", "relative"), [*cases()])
def test_every_way_to_make_a_frame(dtype: str, row: int, profile: str, relative: bool) -> None:
    item = of_dtype(dtype, row)
    base = stepped(item) if relative else None
    expected = compress(item, profile, base=base, threads=1)
    for name, frame in ways(item, profile, base):
        assert frame == expected, name


# Files --------------------------------------------------------------------------------------------------------------


def payload(path: Path, name: str) -> bytes:
    with StoredFile(path) as file:
        entry = file.tensors[name].entry
        return file.file.read(file.header.data_start + entry.start, entry.nbytes)


def test_a_payload_depends_on_its_tensor_alone(tmp_path: Path) -> None:
    """Not on the tensors around it, their order, the threads, or the 8 MiB in which content is read."""
    large, a, z = (
        Input(name, "BF16", (count,), registry.weights("BF16", count, name).tobytes())
        for name, count in (("large", 5_000_001), ("a", 9000), ("z", 300))
    )
    expected = compress(large)
    for order, threads in (([large], 1), ([z, large, a], 3)):
        path = tmp_path / "model.safetensors"
        path.write_bytes(container([tuple(item) for item in order]))
        compress_checkpoint(path, tmp_path / f"out-{threads}", threads=threads)
        assert payload(tmp_path / f"out-{threads}", "large") == expected
        save_file({item.name: array_of(item) for item in order}, tmp_path / "saved", threads=threads)
        assert payload(tmp_path / "saved", "large") == expected


def test_files_are_the_same_whatever_the_threads(tmp_path: Path) -> None:
    tensors = {f"layer.{number}": registry.weights("I32", 20_000, f"{number}").view(np.int32) for number in range(9)}
    for threads in (1, 4):
        save_file(tensors, tmp_path / str(threads), threads=threads)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "4").read_bytes()
