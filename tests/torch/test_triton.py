"""The Triton decoder, in Triton's interpreter: bit for bit what the reference and the core encode.

Nothing here runs on a device; that the kernels compile for some is checked at the end, in a process of its own.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are imported

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import tensorwire  # noqa: E402
from reference.tensorwire_reference import Cascade, Enec, Trimmed, Verbatim, decode, encode  # noqa: E402
from tensorwire import CorruptDataError, FormatError, TruncatedDataError, UnsupportedTensorError  # noqa: E402
from tensorwire.codec import FrameReader  # noqa: E402
from tensorwire.torch import triton_decode  # noqa: E402
from tests.support import golden, registry  # noqa: E402
from tests.support.cases import small_integers  # noqa: E402
from tests.support.conformance import CASES, Case, floats  # noqa: E402
from tests.support.frame_surgery import Surgery  # noqa: E402
from tests.support.malformed import MALFORMED, Malformed  # noqa: E402
from tests.support.registry import FLOATS, Input  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def dtypes_in_turn() -> list[Case]:
    """One case where the conformance cases differ by dtype alone, here and there another: the interpreter is slow."""
    alike: dict[str, list[Case]] = {}
    for case in CASES:
        if case.dtype in FLOATS and case.base is None and not case.name.startswith("every-pattern"):
            alike.setdefault(case.name.replace(case.dtype, ""), []).append(case)
    return [cases[k % len(cases)] for k, cases in enumerate(alike.values())]


def refused(case: Case) -> str | None:
    """The kind of block for which a frame is refused; None if it is decoded. By the reference's names of codings."""
    for coding in decode(case.build()).codings:
        kind = golden.kind_of(coding).split("/")[0]
        if kind not in ("stored", "constant", "enec", "cascade", "cascade2"):
            return kind
        if coding.endswith(("+trimmed-run", "]")):
            return golden.rest_of(coding)
    return None


CASES_BY_REFUSAL: dict[str | None, list[Case]] = {}
for each in dtypes_in_turn():
    CASES_BY_REFUSAL.setdefault(refused(each), []).append(each)
REFUSED = {kind: cases[0] for kind, cases in CASES_BY_REFUSAL.items() if kind is not None}


def on_device(frame: bytes | memoryview) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(frame, np.uint8).copy())


def content(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def check(frame: bytes | memoryview, item: Input) -> None:
    tensor = triton_decode.decode_frame(on_device(frame))
    assert (tensor.dtype, tuple(tensor.shape)) == (TORCH_DTYPES[item.dtype], item.shape)
    assert content(tensor) == item.data


def kinds(frame: bytes | memoryview) -> list[tuple[str, str, int]]:
    reader = FrameReader(frame)
    return [(block.kind, block.rest, block.variant) for block in reader.block_infos(frame[reader.info.header_nbytes :])]


@pytest.mark.parametrize("case", CASES_BY_REFUSAL[None], ids=lambda case: case.name)
def test_reference_frames(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path of a decoder."""
    monkeypatch.setattr(triton_decode, "_SEGMENT", 1024 if len(case.data) < 10_000 else 65536)  # else it is slow
    check(case.build(), Input(case.name, case.dtype, case.shape, case.data))


NAMES = {"trimmed-run": "trimmed", "bytes": "bytes"}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_blocks_are_named(kind: str) -> None:
    with pytest.raises(UnsupportedTensorError, match=NAMES.get(kind, f"kind {kind}")):
        triton_decode.decode_frame(on_device(REFUSED[kind].build()))


def test_every_other_kind_is_met() -> None:
    assert set(REFUSED) == {"entropy", "plain", "zeros", "modal", "trimmed-run", "bytes"}


@pytest.mark.parametrize("segment", [256, 2048])
@pytest.mark.parametrize(("variant", "dtype"), [*zip(range(8), itertools.cycle(FLOATS))])
def test_cascade_across_segments_and_blocks(
    variant: int, dtype: str, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escapes in every segment; the last block ends within a run and within a byte of each plane."""
    monkeypatch.setattr(triton_decode, "_SEGMENT", segment)
    n = 1024 + 1024 - 256 - 3
    item = Input("", dtype, (n,), floats(dtype, n, f"segments {variant}"))
    options = {"kind": Cascade(variant=variant), "rest": Verbatim(), "profile": "fast", "block_words": 1024}
    frame = encode(item.data, dtype, item.shape, **options)
    assert kinds(frame) == [("cascade", "verbatim", variant)] * 2
    check(frame, item)


@pytest.mark.parametrize("segment", [256, 2048])
@pytest.mark.parametrize(("group", "dtype"), [(4, "F16"), (8, "BF16"), (16, "F8_E5M2"), (32, "F32"), (32, "F8_E4M3")])
def test_enec_across_segments_and_blocks(group: int, dtype: str, segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last group is short and has high parts."""
    monkeypatch.setattr(triton_decode, "_SEGMENT", segment)
    n = 1024 + 512 + 256 + 35
    exponents = np.full(n, (1 << FLOATS[dtype].exponent_bits) - 3) - np.arange(n) % 2
    exponents[::97] = 0
    exponents[-1] = 0
    item = Input("", dtype, (n,), floats(dtype, n, f"segments {group}", exponents=exponents))
    options = {"kind": Enec(group=group), "rest": Verbatim(), "profile": "enec", "block_words": 1024}
    frame = encode(item.data, dtype, item.shape, **options)
    assert kinds(frame) == [("enec", "verbatim", group.bit_length() - 1)] * 2
    check(frame, item)


@pytest.mark.parametrize("kind", [Cascade(variant=1), Enec(group=8)], ids=["cascade", "enec"])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_trimmed_rests(dtype: str, kind: Cascade | Enec) -> None:
    word, _, mantissa_bits, _ = FLOATS[dtype]
    words = registry.weights(dtype, 1000) & word(~7 & (1 << (8 * np.dtype(word).itemsize - 1)) - 1)
    item = Input("", dtype, words.shape, words.tobytes())
    frame = encode(item.data, dtype, item.shape, kind=kind, rest=Trimmed(), profile="fast", block_words=512)
    assert {rest for _, rest, _ in kinds(frame)} == {"trimmed"}
    assert all(b"\x01\x03" in block_tail(frame, k) for k in range(2)), f"{mantissa_bits + 1} bits: 1 above, 3 below"
    check(frame, item)


def block_tail(frame: bytes, block: int) -> bytes:
    _, stop = Surgery(frame).block_span(block)
    return frame[stop - 16 : stop]


@pytest.mark.parametrize("profile", ["fast", "enec", "resident"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_core_frames(dtype: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full block of the default size and a partial one, both coded by exponent."""
    monkeypatch.setattr(triton_decode, "_SEGMENT", 8192)
    block_words = tensorwire.frame_info(tensorwire.compress(b"", dtype=dtype, profile=profile)).block_words
    words = registry.weights(dtype, block_words + 1000)
    item = Input("", dtype, words.shape, words.tobytes())
    frame = tensorwire.compress(item.data, dtype=dtype, shape=item.shape, profile=profile)
    coded = {"fast": {"cascade", "cascade2"}, "resident": {"cascade2"}, "enec": {"enec"}}
    assert {kind for kind, _, _ in kinds(frame)} <= coded[profile]
    check(frame, item)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*zip(["nan-payloads", "infinities", "signed-zeros", "subnormals", "outliers"], FLOATS, strict=True)],
)
def test_special_values(name: str, dtype: str) -> None:
    (item,) = [item for item in registry.small_inputs() if (item.name, item.dtype) == (name, dtype)]
    for kind in (Cascade(), Enec()):
        check(encode(item.data, dtype, item.shape, kind=kind, rest=Verbatim(), profile="fast", block_words=2048), item)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [Cascade(), Enec()], ids=["cascade", "enec"])
def test_nan_payloads_in_coded_blocks(kind: Cascade | Enec, dtype: str) -> None:
    """Every payload of up to 8 bits with both signs, the quiet bit among them."""
    word, exponent_bits, mantissa_bits, _ = FLOATS[dtype]
    top = (1 << exponent_bits) - 1
    words = np.frombuffer(floats(dtype, 4096, "nan", exponents=top - 3 + np.arange(4096) % 2), word).copy()
    payloads = np.arange(1 << min(mantissa_bits, 8), dtype=np.uint64) << np.uint64(max(mantissa_bits - 8, 0))
    nans = (payloads | np.uint64(top << mantissa_bits)).astype(word)
    nans = np.concatenate([nans, nans | word(1 << (exponent_bits + mantissa_bits))])
    words[1003 : 1003 + len(nans)] = nans
    item = Input("", dtype, (64, 64), words.tobytes())
    frame = encode(item.data, dtype, item.shape, kind=kind, rest=Verbatim(), profile="fast", block_words=4096)
    assert [name for name, _, _ in kinds(frame)] == [type(kind).__name__.lower()]
    check(frame, item)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [Cascade(), Enec()], ids=["cascade", "enec"])
def test_every_pattern_in_coded_blocks(kind: Cascade | Enec, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pattern of a word's highest 16 bits; those of 8-bit words among common ones, which let the block shrink."""
    words = registry.every_pattern(dtype)
    if words.itemsize == 1:
        top = (1 << FLOATS[dtype].exponent_bits) - 1
        common = np.frombuffer(floats(dtype, 3840, "common", exponents=top - 3 + np.arange(3840) % 2), words.dtype)
        words = np.concatenate([common, words])
    item = Input("", dtype, words.shape, words.tobytes())
    block_words = {"F16": 8192, "F8_E4M3": 4096, "F8_E5M2": 4096}.get(dtype, 2048)
    monkeypatch.setattr(triton_decode, "_SEGMENT", block_words)
    frame = encode(item.data, dtype, item.shape, kind=kind, rest=Verbatim(), profile="fast", block_words=block_words)
    assert {name for name, _, _ in kinds(frame)} == {type(kind).__name__.lower()}
    check(frame, item)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (1,), (3, 5, 7)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    data = registry.weights(dtype, int(np.prod(shape, dtype=int))).tobytes()
    check(tensorwire.compress(data, dtype=dtype, shape=shape), Input("", dtype, shape, data))


def small_frame() -> bytes:
    words = registry.weights("BF16", 1000)
    return encode(words.tobytes(), "BF16", (1000,), kind=Cascade(variant=0), rest=Verbatim(), block_words=512)


@pytest.mark.parametrize("nbytes", [0, 1, 127, 128, 150, 191, 192, 500, -64, -1])
def test_truncated(nbytes: int) -> None:
    with pytest.raises(TruncatedDataError):
        triton_decode.decode_frame(on_device(small_frame()[:nbytes]))


def test_trailing_bytes() -> None:
    with pytest.raises(CorruptDataError, match="expected a frame of"):
        triton_decode.decode_frame(on_device(small_frame() + bytes(64)))


def test_streams_that_do_not_fill_the_block() -> None:
    surgery = Surgery(small_frame())
    _, stop = surgery.block_span(1)
    surgery.bytes[stop - 6] += 1  # the high byte of n4, the number of bytes
    with pytest.raises(CorruptDataError, match="by its descriptor") as caught:
        triton_decode.decode_frame(on_device(surgery.close()))
    assert caught.value.block == 1


@pytest.mark.parametrize(
    ("back", "bits"),
    [(14, 0xFF), (13, 0x04), (13, 0x80), (12, 0x01), (12, 0x10), (2, 1)],
    ids=["lo", "a2", "a3", "a4", "a5", "n6"],
)
def test_parameters_of_cascade(back: int, bits: int) -> None:
    """Variant 0 has tiers of 2, 2 and 3 bits: no a4, a5 or n6, a2 is at most 3, a3 at most 7."""
    surgery = Surgery(small_frame())
    _, stop = surgery.block_span(1)
    surgery.bytes[stop - back] |= bits
    with pytest.raises(CorruptDataError, match=r"tier|zeros") as caught:
        triton_decode.decode_frame(on_device(surgery.close()))
    assert caught.value.block == 1


@pytest.mark.parametrize("value", [0, 255])
def test_damage_stays_in_its_block(value: int) -> None:
    """Streams that contradict their counts: other blocks decode as ever."""
    words = registry.weights("BF16", 1500).tobytes()
    options = {"rest": Verbatim(), "profile": "fast", "block_words": 512}
    for kind in (Cascade(variant=0), Enec(group=4)):
        surgery = Surgery(encode(words, "BF16", (1500,), kind=kind, **options))
        start, stop = surgery.block_span(1)
        surgery.bytes[start : stop - 14] = bytes([value]) * (stop - 14 - start)
        decoded = content(triton_decode.decode_frame(on_device(surgery.close())))
        assert decoded != words
        assert decoded[:1024] == words[:1024]
        assert decoded[2048:] == words[2048:]


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_malformed_frames(case: Malformed) -> None:
    """Checksums of blocks and counts of escapes are not checked, so some of these decode; none does anything else."""
    frame = case.build()
    try:
        tensor = triton_decode.decode_frame(on_device(frame))
    except (FormatError, UnsupportedTensorError):
        return
    assert tensor.nbytes == tensorwire.frame_info(frame).uncompressed_nbytes


@pytest.mark.parametrize("numel", [1000, 2**46])
def test_relative_frames(numel: int) -> None:
    """All blocks are the base's. 160 bytes can claim any number of them: none is gone through."""
    content = registry.weights("BF16", 1000).tobytes()
    surgery = Surgery(encode(content, "BF16", (1000,), base=content))
    surgery.set_shape(numel)
    surgery.set("uncompressed_nbytes", 2 * numel)
    surgery.set("num_blocks", -(-numel // surgery.get("block_words")))
    with pytest.raises(UnsupportedTensorError, match="relative to a base"):
        triton_decode.decode_frame(on_device(surgery.close()))


@pytest.mark.parametrize("dtype", ["I32", "F64", "I8", "U8", "F8_E8M0"])
def test_other_dtypes(dtype: str) -> None:
    """I8 and U8 among them, whose blocks may be of kinds that the decoder knows."""
    data = small_integers(dtype, 8192, "split")
    with pytest.raises(UnsupportedTensorError, match=f"expected dtype BF16, .* got {dtype}"):
        triton_decode.decode_frame(on_device(tensorwire.compress(data, dtype=dtype)))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.view(torch.int8), lambda x: x.reshape(2, -1), lambda x: x[::2], lambda x: x.roll(1)[1:]],
    ids=["dtype", "dimensions", "strides", "address"],
)
def test_other_arguments(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="contiguous tensor of uint8"):
        triton_decode.decode_frame(change(on_device(small_frame())))


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tensorwire.torch.triton_kernels import cascade_kernel, constant_kernel, enec_kernel, stored_kernel

backend, arch, warp = sys.argv[1:]
if {"cuda": "nvidia", "hip": "amd"}[backend] not in triton.backends.backends:
    sys.exit(77)
target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))
sources = [
    (stored_kernel, "*i16", (1024,)),
    (constant_kernel, "*i32", (1024,)),
    (enec_kernel, "*i16", (8, 7, 8, 0, 16, 3, 6, 1024)),
    (enec_kernel, "*i32", (8, 23, 11, 13, 4, 1, 8, 1024)),
    (cascade_kernel, "*i16", (8, 7, 8, 0, 0x822212, 6, 1024)),
    (cascade_kernel, "*i32", (8, 23, 24, 0, 0x833, 3, 1024)),
    (cascade_kernel, "*u8", (4, 3, 4, 0, 0x81, 2, 1024)),
]
for kernel, words, constants in sources:
    names = kernel.arg_names[3:]
    assert len(names) == len(constants)
    signature = {"frame": "*u8", "table": "*i64", "words": words} | dict.fromkeys(names, "constexpr")
    compiled = triton.compile(ASTSource(kernel, signature, dict(zip(names, constants))), target=target)
    assert compiled.asm["cubin" if backend == "cuda" else "hsaco"][:4] == b"\\x7fELF"
"""


@pytest.mark.parametrize("target", ["cuda 90 32", "hip gfx942 64"])
def test_kernels_compile(target: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = tmp_path / "compile_kernels.py"
    script.write_text(COMPILE)
    run = subprocess.run(
        [sys.executable, str(script), *target.split()], env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode == 77:
        pytest.skip(f"this build of Triton has no backend for {target}")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("unwanted", ["torch", "triton"])
def test_import_is_lazy(unwanted: str) -> None:
    assert importlib.util.find_spec(unwanted)
    code = f"import sys, tensorwire.torch; sys.exit({unwanted!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
