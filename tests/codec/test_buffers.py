"""Buffers in and out: what their formats say, dtype names that others use, a caller's memory, what pickles."""

from __future__ import annotations

import array
import copy
import ctypes
import math
import mmap
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorwire
from tensorwire import DoesNotFit, UnsupportedTensorError, codec
from tests.support import registry

torch = pytest.importorskip("torch")

WEIGHTS = registry.weights("BF16", 40_000).tobytes()

# What the format of a buffer says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buffer", "dtype", "shape"),
    [
        (b"abc", "U8", (3,)),
        (memoryview(b"abcd").cast("c"), "U8", (4,)),
        (array.array("b", [-1]), "I8", (1,)),
        (array.array("f", [1.5, -0.0]), "F32", (2,)),
        (array.array("d", [1.5]), "F64", (1,)),
        (array.array("h", [1]), "I16", (1,)),
        (array.array("I", [1]), "U32", (1,)),
        (array.array("q", [1]), "I64", (1,)),
        (array.array("L", [1]), "U64" if array.array("L").itemsize == 8 else "U32", (1,)),
        (memoryview(bytes(24)).cast("f", (2, 3)), "F32", (2, 3)),
        (memoryview(np.zeros(2, np.float16)), "F16", (2,)),
        (memoryview(bytes(4)).cast("?"), "BOOL", (4,)),
        (memoryview(bytes(16)).cast("N"), f"U{8 * ctypes.sizeof(ctypes.c_size_t)}", (2,)),
        ((ctypes.c_float * 3)(1, 2, 3), "F32", (3,)),
        (((ctypes.c_int16 * 3) * 2)(), "I16", (2, 3)),
        (ctypes.c_double(2), "F64", ()),
        (ctypes.create_string_buffer(b"abc"), "U8", (4,)),
        (memoryview(np.zeros((2, 3), np.complex64)), "C64", (2, 3)),
        (memoryview(np.zeros((2, 3), np.complex128)), "C128", (2, 3)),
        (memoryview(np.zeros((2, 3), "<i4")), "I32", (2, 3)),
        (memoryview(np.arange(12, dtype=np.float32).reshape(3, 4))[::2], "F32", (2, 4)),
    ],
    ids=lambda value: getattr(value, "format", type(value).__name__),
)
def test_the_format_of_a_buffer_is_its_dtype(buffer: object, dtype: str, shape: tuple[int, ...]) -> None:
    frame = tensorwire.compress(buffer)
    info = tensorwire.frame_info(frame)
    assert (info.dtype, info.shape) == (dtype, shape)
    assert tensorwire.decompress(frame, framework="bytes") == memoryview(buffer).tobytes()


@pytest.mark.parametrize(
    "buffer",
    [
        memoryview(np.zeros(3, ">f4")),
        array.array("u", "abc") if sys.version_info < (3, 13) else array.array("w", "abc"),
        (ctypes.c_void_p * 2)(),
        memoryview(np.zeros(3, np.clongdouble)),
        memoryview(np.zeros(3, [("a", "<f4"), ("b", "<f4")])),
    ],
    ids=["big-endian", "characters", "pointers", "long complex", "structures"],
)
def test_a_format_that_says_no_dtype_needs_one(buffer: object) -> None:
    with pytest.raises(UnsupportedTensorError, match="buffer of format") as caught:
        tensorwire.compress(buffer)
    assert "dtype=" in caught.value.advice
    frame = tensorwire.compress(buffer, dtype="U8")
    assert tensorwire.decompress(frame, framework="bytes") == memoryview(buffer).tobytes()


def test_a_dtype_that_is_given_wins_over_the_format() -> None:
    words = memoryview(bytes(24)).cast("H", (3, 4))
    info = tensorwire.frame_info(tensorwire.compress(words, dtype="BF16"))
    assert (info.dtype, info.shape) == ("BF16", (12,))
    info = tensorwire.frame_info(tensorwire.compress(words, dtype="BF16", shape=(3, 4)))
    assert info.shape == (3, 4)


# Names of dtypes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *[("FP32", "F32"), ("float32", "F32"), ("torch.float32", "F32"), ("f32", "F32"), ("Float", "F32")],
        *[("FP16", "F16"), ("half", "F16"), ("np.float16", "F16"), ("bfloat16", "BF16"), ("BFLOAT16", "BF16")],
        *[("bf16", "BF16"), ("INT8", "I8"), ("uint8", "U8"), ("torch.int64", "I64"), ("bool", "BOOL")],
        *[("F8_E4M3FN", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"), ("FP8_E4M3", "F8_E4M3"), ("F_32", "F32")],
        *[("float4_e2m1fn_x2", "F4"), ("complex64", "C64"), ("flaot32", "F32")],
        *[("E4M3", "F8_E4M3"), ("E5M2", "F8_E5M2"), ("E8M0", "F8_E8M0"), ("F4_E2M1", "F4"), ("TORCH_BFLOAT16", "BF16")],
    ],
)
def test_a_name_of_another_library_is_refused_with_ours(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match="dtype") as caught:
        tensorwire.compress(bytes(64), dtype=name)
    assert f'"{meant}"' in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, np.dtype("float32")], ids=["torch", "class", "numpy"])
def test_a_dtype_that_is_no_string(dtype: object) -> None:
    with pytest.raises(TypeError, match='did you mean "F32"'):
        tensorwire.compress(bytes(64), dtype=dtype)


@pytest.mark.parametrize("name", ["MY_TYPE", "F8_E3M4", "INT4", "X", "Q4_K", "NF4"])
def test_a_name_that_nobody_means_as_another_is_kept(name: str) -> None:
    assert tensorwire.frame_info(tensorwire.compress(bytes(64), dtype=name)).dtype == name


def test_a_name_of_its_own_is_written_in_capitals() -> None:
    with pytest.raises(ValueError, match="got 'f16_e6'; did you mean \"F16_E6\""):
        tensorwire.compress(bytes(64), dtype="f16_e6")


# A caller's memory ---------------------------------------------------------------------------------------------------

OUTS = {
    "bytearray": bytearray,
    "memoryview": lambda nbytes: memoryview(bytearray(nbytes)),
    "mmap": lambda nbytes: mmap.mmap(-1, nbytes),
    "numpy": lambda nbytes: np.zeros(nbytes, np.uint8),
    "numpy, bfloat16": lambda nbytes: np.zeros(-(-nbytes // 2), ml_dtypes.bfloat16),
    "big-endian view": lambda nbytes: memoryview(np.zeros(-(-nbytes // 4), ">f4")),
    "ctypes": lambda nbytes: (ctypes.c_float * -(-nbytes // 4))(),
    "torch": lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8),
    "torch, bfloat16": lambda nbytes: torch.zeros(-(-nbytes // 2), dtype=torch.bfloat16),
}


def bytes_of(out: object) -> bytes:
    values = out.view(torch.uint8).numpy() if isinstance(out, torch.Tensor) else out
    return values.view(np.uint8).tobytes() if isinstance(values, np.ndarray) else bytes(memoryview(values))


@pytest.mark.parametrize("kind", OUTS)
@pytest.mark.parametrize("profile", registry.PROFILES)
def test_compress_and_decompress_into_the_memory_of_the_caller(kind: str, profile: str) -> None:
    expected = tensorwire.compress(WEIGHTS, dtype="BF16", profile=profile)
    out = OUTS[kind](tensorwire.compress_bound(WEIGHTS, dtype="BF16", profile=profile))
    written = tensorwire.compress(WEIGHTS, dtype="BF16", profile=profile, out=out)
    assert type(written) is memoryview
    assert (written.format, written.ndim) == ("B", 1)
    assert written == expected
    written[0] ^= 0xFF  # it is the caller's memory, not a copy
    content = bytes_of(out)
    assert content[0] == expected[0] ^ 0xFF
    assert content[1 : len(expected)] == expected[1:]
    del out, content
    assert written[1:] == expected[1:]  # and keeps it alive
    out = OUTS[kind](len(WEIGHTS))
    assert tensorwire.decompress(expected, out=out) is out
    assert bytes_of(out) == WEIGHTS


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_an_output_needs_room_for_the_frame_and_no_more(profile: Any, threads: int) -> None:
    content = WEIGHTS * (1 if profile == "compact" else 8)  # of one tile, and of several
    options: Any = {"dtype": "BF16", "profile": profile, "threads": threads}
    frame = tensorwire.compress(content, **options)
    assert len(frame) < tensorwire.compress_bound(content, dtype="BF16", profile=profile)
    assert tensorwire.compress(content, out=bytearray(len(frame)), **options) == frame
    for room in (0, 1, 100, len(frame) // 2, len(frame) - 1):
        memory = bytearray(b"\xaa" * (room + 64))
        with pytest.raises(DoesNotFit, match=f"^expected a frame of at most {room} bytes, got a larger one; .*bound"):
            tensorwire.compress(content, out=memoryview(memory)[:room], **options)
        assert memory[room:] == b"\xaa" * 64


def test_a_relative_frame_that_changes_nothing_fits_where_its_index_would_not() -> None:
    content = bytes(WEIGHTS) * 40
    frame = tensorwire.compress(content, dtype="BF16", base=content)
    out = bytearray(len(frame))
    assert tensorwire.compress(content, dtype="BF16", base=content, out=out) == frame
    with pytest.raises(DoesNotFit):
        tensorwire.compress(content, dtype="BF16", base=content, out=memoryview(out)[1:])


def test_a_bound_follows_from_dtype_and_shape() -> None:
    for profile in ("fast", "compact", "resident", "enec"):
        for dtype, shape in (("BF16", (300, 70)), ("F32", ()), ("U8", (0, 3)), ("F4", (5, 3)), ("F6_E2M3", (8,))):
            nbytes = -(-math.prod(shape) * codec.dtype_bits(dtype) // 8)
            options: Any = {"dtype": dtype, "shape": shape, "profile": profile}
            assert tensorwire.compress_bound(**options) == tensorwire.compress_bound(bytes(nbytes), **options)
    layout = tensorwire.Layout(2, 6, 10, "float", True)
    own: Any = {"dtype": "OWN", "shape": (300, 70), "layout": layout}
    assert tensorwire.compress_bound(**own) == tensorwire.compress_bound(bytes(42000), **own)
    with pytest.raises(TypeError, match="expected an array, or dtype= and shape="):
        tensorwire.compress_bound(dtype="BF16")
    with pytest.raises(ValueError, match='did you mean "BF16"'):
        tensorwire.compress_bound(dtype="bf16", shape=(3,))
    with pytest.raises(ValueError, match="sizes from 0"):
        tensorwire.compress_bound(dtype="BF16", shape=(-3,))


def test_what_is_behind_a_frame_is_not_read() -> None:
    frame = tensorwire.compress(WEIGHTS, dtype="BF16")
    for slot in (frame + b"\xff", frame + bytes(5000), frame + frame, np.frombuffer(frame + b"x" * 77, np.uint8)):
        assert tensorwire.decompress(slot, framework="bytes") == WEIGHTS
        assert tensorwire.decompress_range(slot, 10, 5000) == WEIGHTS[10:5000]
    memory = bytearray(frame + bytes(len(WEIGHTS)))
    tensorwire.decompress(memory, out=memoryview(memory)[len(frame) :])  # the rest of the slot is other memory
    assert memory[len(frame) :] == WEIGHTS


@pytest.mark.parametrize(
    ("out", "error", "reason"),
    [
        (bytes(200_000), ValueError, "read-only"),
        (np.zeros((100_000, 2), np.uint16)[:, 0], ValueError, "contiguous"),
        (torch.zeros(200_000, device="meta"), UnsupportedTensorError, "meta"),
        ([0] * 200_000, UnsupportedTensorError, "list"),
    ],
    ids=["read-only", "strided", "meta", "list"],
)
def test_outputs_that_do_not_fit(out: object, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        tensorwire.compress(WEIGHTS, dtype="BF16", out=out)


def test_an_output_stays_where_it_is_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, out = tensorwire.compress(bytes(1000), dtype="U8"), bytearray(1000)
    monkeypatch.setattr(codec.FrameReader, "decode", lambda *_, **options: out.clear())
    with pytest.raises(BufferError):
        tensorwire.decompress(frame, out=out)


def test_an_output_within_the_array() -> None:
    memory = bytearray(WEIGHTS) + bytearray(tensorwire.compress_bound(WEIGHTS, dtype="BF16"))
    before = bytes(memory)
    content = memoryview(memory)[: len(WEIGHTS)]
    with pytest.raises(ValueError, match="overlaps"):
        tensorwire.compress(content, dtype="BF16", out=memoryview(memory)[len(WEIGHTS) - 1 :])
    assert memory == before
    written = tensorwire.compress(content, dtype="BF16", out=memoryview(memory)[len(WEIGHTS) :])
    assert tensorwire.decompress(written, framework="bytes") == WEIGHTS


# What comes out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numel", [0, 1, 4096, 3_000_000])
def test_frames_and_bytes_are_plain_objects(numel: int) -> None:
    content = registry.weights("BF16", numel).tobytes()
    frame = tensorwire.compress(content, dtype="BF16")
    restored = tensorwire.decompress(frame, framework="bytes")
    part = tensorwire.decompress_range(frame, 0, numel)
    assert type(frame) is type(restored) is type(part) is bytes
    assert restored == content
    assert part == content[:numel]
    plain = bytes(bytearray(b"abc"))
    assert sys.getrefcount(frame) == sys.getrefcount(plain)  # so the memory goes when the variable does
    assert hash(restored) == hash(content)
    assert len({frame: 1} | {bytes(memoryview(frame)): 2}) == 1


def test_memory_of_frames_is_freed() -> None:
    content = bytes(40 << 20)
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        sizes = []
        for _ in range(20):
            tensorwire.decompress(tensorwire.compress(content), framework="bytes")
            statm.seek(0)
            sizes.append(int(statm.read().split()[1]) * mmap.PAGESIZE)
    assert max(sizes) - sizes[0] < 200 << 20  # 20 of them would be 800 MiB


def test_a_failed_call_frees_what_it_has_begun() -> None:
    frame = bytearray(tensorwire.compress(WEIGHTS, dtype="BF16"))
    frame[-100] ^= 1
    for _ in range(3):
        with pytest.raises(tensorwire.CorruptDataError):
            tensorwire.decompress(frame, framework="bytes")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_results_pickle_and_copy(duplicate: object) -> None:
    values = np.frombuffer(WEIGHTS, ml_dtypes.bfloat16).reshape(200, 200)
    frame = tensorwire.compress(values)
    for result in (frame, tensorwire.frame_info(frame), tensorwire.decompress_range(frame, 5, 50)):
        assert duplicate(result) == result
    assert duplicate(tensorwire.decompress(frame)).tobytes() == WEIGHTS
    tensor = duplicate(tensorwire.decompress(frame, framework="pt"))
    assert tensor.view(torch.uint8).numpy().tobytes() == WEIGHTS
    error = duplicate(tensorwire.CorruptDataError("expected 1, got 2", file="f", tensor="t", block=3, byte=4))
    assert str(error) == str(tensorwire.CorruptDataError("expected 1, got 2", file="f", tensor="t", block=3, byte=4))


# Dtypes that a framework lacks ---------------------------------------------------------------------------------------


def test_f4_is_a_dtype_of_torch() -> None:
    content = registry.rng("F4").bytes(48)
    tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(6, 8)
    frame = tensorwire.compress(tensor)
    info = tensorwire.frame_info(frame)
    assert (info.dtype, info.bits, info.shape) == ("F4", 4, (6, 16))  # as safetensors counts
    assert tensorwire.compress(content, dtype="F4", shape=(6, 16)) == frame
    result = tensorwire.decompress(frame, framework="pt")
    assert (result.dtype, result.shape) == (torch.float4_e2m1fn_x2, (6, 8))
    assert result.view(torch.uint8).numpy().tobytes() == content


def test_words_for_frameworks() -> None:
    frame = tensorwire.compress(b"abc")
    for word, meant in {"numpy": "np", "torch": "pt", "pytorch": "pt", "buffer": "bytes"}.items():
        with pytest.raises(ValueError, match=f'got {word!r}; write "{meant}"'):
            tensorwire.decompress(frame, framework=word)


# Memory that lives as long as what looks at it -----------------------------------------------------------------------


def strided() -> torch.Tensor:
    return torch.arange(50_000.0).reshape(100, 500).T


@pytest.mark.parametrize(
    "make",
    [
        strided,
        lambda: strided().contiguous(),
        lambda: strided().numpy(),
        lambda: strided().contiguous().numpy(),
        lambda: strided().numpy().astype(">f4"),
        lambda: bytearray(strided().contiguous().numpy().tobytes()),
        lambda: memoryview(strided().contiguous().numpy())[::2],
    ],
)
def test_the_data_of_a_view_outlives_the_view_and_the_array(make: Callable[[], object]) -> None:
    expected = bytes(codec.tensor_view(make()).data)
    data = codec.tensor_view(make()).data[4:]
    rest = [torch.full((100, 500), 7.0) for _ in range(20)]  # what would come into the place of freed memory
    assert bytes(data) == expected[4:]
    assert len(rest) == 20


@pytest.mark.parametrize(
    "array",
    [strided(), strided().numpy(), np.zeros(4, ">f4"), np.float32(1), torch.zeros(2, 2, dtype=torch.cfloat).conj()],
)
def test_what_is_written_to_a_copy_would_be_lost_so_it_is_read_only(array: object) -> None:
    view = codec.tensor_view(array)
    assert view.data.readonly
    with pytest.raises(ValueError, match="writable"):
        codec.decompress(codec.compress(array), out=view.data)


def test_content_that_is_changed_in_place_is_in_the_array_at_the_end() -> None:
    array = np.zeros((2, 3), ">i2", order="F")
    with codec.changed_in_place(array) as content:
        content[:] = np.arange(6, dtype="<i2").tobytes()
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    with suppress(RuntimeError), codec.changed_in_place(array) as content:
        content[:] = bytes(12)
        raise RuntimeError("the frame is damaged")
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
