"""The Python face of the codec: what it takes, what it gives, what it refuses, what it imports."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorwire
from tensorwire import LimitExceededError, UnsupportedTensorError, codec
from tensorwire.codec.frame import core
from tests.support import registry

torch = pytest.importorskip("torch")

NAMES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
NAMES += ["float16", "float32", "float64", "complex64", "complex128"]
NUMPY_DTYPES = {name[0].upper() + name.lstrip(ascii_lowercase): np.dtype(name) for name in NAMES}
NUMPY_DTYPES |= {name: dtype.numpy for name, dtype in registry.FLOATS.items()}
NUMPY_DTYPES |= {f"{name}FNUZ": np.dtype(f"float{name.lower()[1:]}fnuz") for name in ("F8_E4M3", "F8_E5M2")}
NUMPY_DTYPES |= {"BOOL": np.dtype(bool), "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu)}


def random_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = NUMPY_DTYPES[name]
    content = registry.rng(name).bytes(int(np.prod(shape)) * dtype.itemsize)
    if name == "BOOL":
        content = bytes(byte & 1 for byte in content)
    return np.frombuffer(content, np.uint8).view(dtype).reshape(shape).copy()


def raw(values: np.ndarray) -> bytes:
    return values.tobytes()


# Arrays in and out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_numpy_array_and_torch_tensor(name: str) -> None:
    for shape in [(), (0,), (5,), (2, 3, 4), (4, 0, 2), (1000, 30)]:
        values = random_array(name, shape)
        frame = tensorwire.compress(values)
        assert tensorwire.frame_info(frame).dtype == name
        result = tensorwire.decompress(frame)
        assert type(result) is np.ndarray
        assert (result.dtype, result.shape) == (values.dtype, shape)
        assert result.flags.writeable
        assert raw(result) == raw(values)
        dtype = getattr(torch, values.dtype.name)
        tensor = torch.from_numpy(values.reshape(-1).view(np.uint8)).view(dtype).reshape(shape)
        assert tensorwire.compress(tensor) == frame
        tensor = tensorwire.decompress(frame, framework="pt")
        assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)
        assert raw(tensor.reshape(-1).view(torch.uint8).numpy()) == raw(values)


def test_frameworks_agree() -> None:
    values = random_array("BF16", (30, 40))
    tensor = torch.from_numpy(values.view(np.uint16)).view(torch.bfloat16)
    frame = tensorwire.compress(values)
    assert tensorwire.compress(tensor) == frame
    assert tensorwire.compress(values.tobytes(), dtype="BF16", shape=(30, 40)) == frame
    assert tensorwire.compress(values.view(np.uint16), dtype="BF16") == frame
    assert tensorwire.decompress(frame, framework="bytes") == values.tobytes()


@pytest.mark.parametrize(
    "cut",
    [
        lambda a: a.T,
        lambda a: a[::2],
        lambda a: a[:, 3:9],
        lambda a: a[::-1, ::-1],
        lambda a: np.broadcast_to(a[0], (5, 40)),
        lambda a: np.asfortranarray(a),
    ],
    ids=["transposed", "strided", "columns", "reversed", "broadcast", "fortran"],
)
def test_non_contiguous_array(cut: object) -> None:
    values = cut(random_array("F32", (30, 40)))
    result = tensorwire.decompress(tensorwire.compress(values))
    assert result.shape == values.shape
    assert raw(result) == raw(values)


def test_non_contiguous_tensor_and_buffer() -> None:
    values = random_array("F32", (30, 40))
    frame = tensorwire.compress(np.ascontiguousarray(values.T))
    assert tensorwire.compress(torch.from_numpy(values).T) == frame
    strided = memoryview(bytes(range(100)))[::3]
    assert tensorwire.decompress(tensorwire.compress(strided), framework="bytes") == bytes(strided)


@pytest.mark.parametrize("name", ["F32", "F16", "I64", "C64"])
def test_big_endian_array_keeps_its_values_bit_by_bit(name: str) -> None:
    values = random_array(name, (31, 7))  # with NaN payloads
    swapped = values.astype(values.dtype.newbyteorder(">"))
    swapped.view(np.uint8)[:] = values.byteswap().view(np.uint8)
    for big, little in ((swapped, values), (swapped.T, values.T)):
        result = tensorwire.decompress(tensorwire.compress(big))
        assert result.dtype == values.dtype
        assert raw(result) == raw(little)


@pytest.mark.parametrize("offset", [1, 2, 3, 13])
def test_unaligned_read_only_input_and_unaligned_output(offset: int) -> None:
    content = registry.weights("BF16", 40_000).tobytes()
    memory = np.zeros(len(content) + 64, np.uint8)
    memory[offset : offset + len(content)] = np.frombuffer(content, np.uint8)
    source = memory[offset : offset + len(content)]
    source.flags.writeable = False
    for profile in registry.PROFILES:
        frame = tensorwire.compress(source, dtype="BF16", shape=(40_000,), profile=profile)
        assert frame == tensorwire.compress(content, dtype="BF16", shape=(40_000,), profile=profile)
        moved = np.zeros(len(frame) + 64, np.uint8)
        moved[offset : offset + len(frame)] = np.frombuffer(frame, np.uint8)
        out = np.full(len(content) + 64, 0xA5, np.uint8)
        tensorwire.decompress(moved[offset : offset + len(frame)], out=out[offset : offset + len(content)])
        assert raw(out[offset : offset + len(content)]) == content
        assert set(out[:offset]) | set(out[offset + len(content) :]) == {0xA5}


def test_result_is_page_aligned_and_owns_its_memory() -> None:
    values = random_array("F32", (1000, 100))
    frame = tensorwire.compress(values)
    result = tensorwire.decompress(frame)
    assert result.ctypes.data % mmap.PAGESIZE == 0
    expected = raw(values)
    values[:] = 0
    del frame
    assert raw(result) == expected


# Buffers, dtypes, shapes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes", "bits"),
    [
        ("F4", (4, 6), 12, 4),
        ("F4", (7,), 4, 4),
        ("F6_E2M3", (4,), 3, 6),
        ("MY_TYPE", (3, 4), 24, 16),
        ("MY_TYPE", (8,), 3, 3),
        ("MY_TYPE", None, 5, 8),
        ("MY_TYPE", (0, 9), 0, 8),
        ("X", (1,), 128, 1024),
        ("A234567890123456", (2,), 2, 8),
    ],
)
def test_opaque_dtype(dtype: str, shape: tuple[int, ...] | None, nbytes: int, bits: int) -> None:
    content = registry.rng(dtype).bytes(nbytes)
    frame = tensorwire.compress(content, dtype=dtype, shape=shape)
    info = tensorwire.frame_info(frame)
    assert (info.dtype, info.bits, info.shape) == (dtype, bits, (nbytes,) if shape is None else shape)
    assert tensorwire.decompress(frame, framework="bytes") == content
    for framework in ("np", "pt"):
        if (dtype, shape, framework) != ("F4", (4, 6), "pt"):  # of which torch has half as many
            with pytest.raises(UnsupportedTensorError, match=rf"(no dtype|two elements of) {dtype}") as caught:
                tensorwire.decompress(frame, framework=framework)
            assert 'framework="bytes"' in caught.value.advice
    out = bytearray(nbytes)
    assert tensorwire.decompress(frame, out=out) is out
    assert out == content


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        ("BF16", (3,), 7),
        ("BF16", None, 7),
        ("BF16", (2**40, 2**40), 8),
        ("F4", (4,), 3),
        ("MY_TYPE", (7,), 3),
        ("MY_TYPE", (1,), 129),
        ("U8", (-3,), 3),
        ("U8", (2**64,), 3),
        ("U8", (1,) * 65, 1),
        ("bf16", None, 2),
        ("", None, 2),
        ("A2345678901234567", None, 2),
        ("U8\0", None, 2),
        ("Ü8", None, 2),
    ],
)
def test_dtype_and_shape_that_do_not_fit(dtype: str, shape: tuple[int, ...] | None, nbytes: int) -> None:
    with pytest.raises(ValueError, match=r"dtype|shape"):
        tensorwire.compress(bytes(nbytes), dtype=dtype, shape=shape)


def test_tensor_with_gradient_conjugation_and_negation() -> None:
    leaf = torch.randn(20, 30, requires_grad=True)
    assert raw(tensorwire.decompress(tensorwire.compress(leaf))) == raw(leaf.detach().numpy())
    values = torch.randn(20, 30, dtype=torch.complex64)
    for lazy in (values.conj(), values.conj().imag):
        expected = raw(lazy.resolve_conj().resolve_neg().contiguous().numpy())
        assert raw(tensorwire.decompress(tensorwire.compress(lazy))) == expected


def test_numpy_scalar() -> None:
    result = tensorwire.decompress(tensorwire.compress(np.float32(1.5)))
    assert (result.shape, result.dtype, raw(result)) == ((), np.float32, np.float32(1.5).tobytes())


# Options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (bytearray(599), "bytes"),
        (bytearray(601), "bytes"),
        (bytes(600), "read-only"),
        (np.zeros((300, 2), np.uint16)[:, 0], "contiguous"),
        (np.zeros(300, ">u2"), "little-endian"),
        (torch.zeros(600, dtype=torch.uint8)[::2], "contiguous"),
    ],
    ids=["short", "long", "read-only", "strided", "big-endian", "strided-tensor"],
)
def test_out_that_does_not_fit(out: object, reason: str) -> None:
    frame = tensorwire.compress(registry.tiny_input("BF16").data, dtype="BF16")
    with pytest.raises(ValueError, match=reason):
        tensorwire.decompress(frame, out=out)


def test_out_must_be_on_the_cpu() -> None:
    with pytest.raises(UnsupportedTensorError, match="meta"):
        tensorwire.decompress(tensorwire.compress(b"abc"), out=torch.zeros(3, dtype=torch.uint8, device="meta"))


def test_out_within_the_frame() -> None:
    frame = bytearray(tensorwire.compress(registry.random_words("BF16", 5000).tobytes(), dtype="BF16"))
    before = bytes(frame)
    for start in (len(frame) - 10_000, 100):
        with pytest.raises(ValueError, match="overlaps"):
            tensorwire.decompress(frame, out=memoryview(frame)[start : start + 10_000])
    assert frame == before


def test_max_nbytes() -> None:
    frame = tensorwire.compress(bytes(1000))
    assert tensorwire.decompress(frame, max_nbytes=1000, framework="bytes") == bytes(1000)
    with pytest.raises(LimitExceededError, match="expected a tensor of at most 999 bytes, got one of 1000"):
        tensorwire.decompress(frame, max_nbytes=999)


@pytest.mark.parametrize(
    ("limit", "error"), [(-1, ValueError), (math.nan, TypeError), ("1GB", TypeError), (True, TypeError)]
)
def test_max_nbytes_is_a_number_of_bytes(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="expected max_nbytes to be"):
        tensorwire.decompress(tensorwire.compress(b"abc"), max_nbytes=limit)


@pytest.mark.parametrize("threads", [0, -1, 1025, 2**32 + 1])
def test_threads_out_of_range(threads: int) -> None:
    frame, delta = tensorwire.compress(b"abc"), tensorwire.compress(b"abd", base=b"abc")
    for call in (
        lambda: tensorwire.compress(b"abc", threads=threads),
        lambda: tensorwire.decompress(frame, threads=threads),
        lambda: tensorwire.decompress_range(frame, 0, 1, threads=threads),
        lambda: tensorwire.compose(b"abc", delta, threads=threads),
    ):
        with pytest.raises(ValueError, match="threads"):
            call()


def test_a_range_is_verified_unless_that_is_declined() -> None:
    content = bytes(range(256))
    frame = tensorwire.compress(content)
    at = frame.index(content)  # a stored block
    damaged = frame[:at] + b"\xff" + frame[at + 1 :]
    with pytest.raises(tensorwire.CorruptDataError):
        tensorwire.decompress_range(damaged, 0, 2)
    assert tensorwire.decompress_range(damaged, 0, 2, verify=False) == b"\xff\x01"


def test_unknown_profile_and_framework() -> None:
    with pytest.raises(ValueError, match="expected one of the profiles enec, fast, compact, resident, got 'best'"):
        tensorwire.compress(b"abc", profile="best")
    with pytest.raises(ValueError, match="got 'jax'"):
        tensorwire.decompress(tensorwire.compress(b"abc"), framework="jax")


def test_options_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        tensorwire.compress(b"abc", "fast")
    with pytest.raises(TypeError):
        tensorwire.decompress(tensorwire.compress(b"abc"), None)


def test_threads_default_to_the_usable_cores() -> None:
    assert codec.num_threads(None) == len(os.sched_getaffinity(0))


# Facts and imports --------------------------------------------------------------------------------------------------


def test_frame_info() -> None:
    frame = tensorwire.compress(np.zeros((300, 200), np.float32), profile="compact")
    info = tensorwire.frame_info(frame)
    assert (info.dtype, info.bits, info.shape, info.profile) == ("F32", 32, (300, 200), "compact")
    assert info.uncompressed_nbytes == 240_000
    assert info.frame_nbytes == len(frame)
    assert info.ratio == 240_000 / len(frame) > 100
    needed = bytearray(frame[: 128 + 8 * 2])
    assert tensorwire.frame_info(needed) == info
    for length in range(len(needed)):
        with pytest.raises(tensorwire.TruncatedDataError):
            tensorwire.frame_info(needed[:length])
    for bit in range(8 * len(needed)):
        needed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(tensorwire.FormatError):
            tensorwire.frame_info(needed)
        needed[bit // 8] ^= 1 << bit % 8


def test_versions_agree() -> None:
    assert core.version() == tensorwire.__version__


def test_every_public_name_exists() -> None:
    for name in tensorwire.__all__:
        assert getattr(tensorwire, name) is not None
    assert dir(tensorwire) == tensorwire.__all__
    with pytest.raises(AttributeError, match="no_such_name"):
        tensorwire.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import tensorwire", {"torch", "numpy", "ctypes", "tensorwire.codec.frame.core", "typing", "inspect"}),
        ("import tensorwire", {"rich", "click", "ml_dtypes"}),
        ("import tensorwire.errors", {"torch", "numpy", "ctypes", "tensorwire.codec.frame.core"}),
        ("import tensorwire; tensorwire.compress(b'abc')", {"torch", "numpy", "ml_dtypes"}),
        (
            "import tensorwire; tensorwire.decompress(tensorwire.compress(b'abc'), framework='bytes')",
            {"torch", "numpy"},
        ),
        ("import tensorwire; tensorwire.decompress(tensorwire.compress(b'abc'))", {"torch", "ml_dtypes"}),
    ],
)
def test_imports_are_lazy(code: str, absent: set[str]) -> None:
    # Isolated from site-packages' startup files, which may import anything.
    script = f"import sys; sys.path[:0] = {sys.path!r}; {code}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert not absent & set(run.stdout.split())


def test_missing_library_is_explained(tmp_path: Path) -> None:
    package = Path(tensorwire.__file__).parent
    shutil.copytree(package, tmp_path / "tensorwire", ignore=shutil.ignore_patterns("*.so"))
    run = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import tensorwire.codec"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "build or reinstall tensorwire" in run.stderr


@pytest.mark.parametrize("forced", ["", "scalar", "avx1024"])
def test_a_forced_cpu_target_is_taken_or_a_warning_says_so(forced: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from tensorwire import codec; print(codec.cpu_target())"],
        env={**os.environ, "TENSORWIRE_CPU": forced},
        capture_output=True,
        text=True,
        check=True,
    )
    if forced == "scalar":
        assert run.stdout == "scalar\n"
    else:
        assert run.stdout.strip() in registry.CPU_TARGETS
    assert ("RuntimeWarning: TENSORWIRE_CPU is 'avx1024'" in run.stderr) == (forced == "avx1024")
    assert (run.stderr == "") == (forced != "avx1024")
