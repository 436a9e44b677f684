"""The Triton decoder, in Triton's interpreter or on a device (tests/support/devices.py): bit for bit what the reference
and the core encode.

That the kernels compile for devices that are not here is checked at the end, in a process of its own.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.2")

import tensorwire  # noqa: E402
from reference.tensorwire_reference import Cascade, Enec, Trimmed, Verbatim, decode, encode  # noqa: E402
from tensorwire import CorruptDataError, FormatError, UnsupportedTensorError  # noqa: E402
from tensorwire.codec import FrameReader  # noqa: E402
from tensorwire.torch.device import plan as device_plan  # noqa: E402
from tensorwire.torch.device.frame import DeviceFrame  # noqa: E402
from tensorwire.torch.device.triton import decode as triton_decode  # noqa: E402
from tests.support import golden, registry  # noqa: E402
from tests.support.cases import small_integers  # noqa: E402
from tests.support.conformance import CASES, Case, floats  # noqa: E402
from tests.support.devices import DEVICE, INTERPRETED, on_device  # noqa: E402
from tests.support.frame_surgery import Surgery  # noqa: E402
from tests.support.interpreter import hurry  # noqa: E402
from tests.support.malformed import MALFORMED, Malformed  # noqa: E402
from tests.support.registry import FLOATS, Input  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OF_THE_HOST = re.compile("entropy|bytes|plain|trimmed-run|modal|zeros")
LARGE = re.compile("most-counted|block-words-(768|1280)|whole-blocks-F8|aligned-(32|64)-|cascade-3-a1")
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def some_of_each_kind() -> list[Case]:
    """The interpreter is slow. If conformance cases differ by dtype alone, one is taken, its dtype in turn; if they
    differ by numbers alone, or the host decodes them, every eighth. Labels that contradict the bits are left out."""
    alike: dict[str, dict[str, list[Case]]] = {}
    for case in CASES:
        plain = case.base is None and not case.name.startswith("every-pattern")
        if case.dtype in FLOATS and plain and case.bits in (None, 8 * FLOATS[case.dtype].numpy.itemsize):
            name = case.name.replace(case.dtype, "")
            family = "of the host" if OF_THE_HOST.search(name) else re.sub(r"\d+", "", name)
            alike.setdefault(family, {}).setdefault(name, []).append(case)
    chosen = [
        cases
        for kind, family in alike.items()
        for place, cases in enumerate(family.values())
        if place % 8 == 0 or len(family) < 8 or kind.startswith("size")
    ]
    return [cases[k % len(cases)] for k, cases in enumerate(chosen)]


def host_kind(case: Case) -> str | None:
    """The kind of block, or of its rest, that the host decodes; None if there is none. By the reference's codings."""
    for coding in decode(case.build()).codings:
        kind = golden.kind_of(coding).split("/")[0]
        if kind not in ("stored", "constant", "enec", "cascade", "cascade2"):
            return kind
        if coding.endswith(("+trimmed-run", "]")):
            return golden.rest_of(coding)
    return None


CHOSEN = some_of_each_kind()


WITH_LARGE_NUMBERS = {"test_core_frames", "test_malformed_frames", "test_streams_that_contradict_their_counts"}


@pytest.fixture(autouse=True)
def large_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes as long for a small tile as for a large one. Where numbers are large, or anything, it looks
    that they fit; in slow items too."""
    if not INTERPRETED:
        return
    assert globals().keys() >= WITH_LARGE_NUMBERS
    is_slow = request.node.get_closest_marker("slow") is not None
    hurry(monkeypatch, overflows=is_slow or request.function.__name__ in WITH_LARGE_NUMBERS)
    monkeypatch.setattr(triton_decode, "_RUNS_OF_WORDS", 64)
    monkeypatch.setattr(triton_decode, "_LATER_RUNS", 32)
    monkeypatch.setattr(triton_decode, "_MOST_PARTS", 2)


def content(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def check(frame: bytes | memoryview, item: Input) -> DeviceFrame:
    opened = DeviceFrame(on_device(frame), driver=None)
    tensor = opened.decode_all()
    assert (tensor.dtype, tuple(tensor.shape)) == (TORCH_DTYPES[item.dtype], item.shape)
    assert content(tensor) == item.data
    return opened


def by_triton(frame: bytes | memoryview) -> torch.Tensor:
    return DeviceFrame(on_device(frame), driver=None).decode_all()


def kinds(frame: bytes | memoryview) -> list[tuple[str, str, int]]:
    reader = FrameReader(frame)
    return [(block.kind, block.rest, block.variant) for block in reader.block_infos(frame[reader.info.header_nbytes :])]


@pytest.mark.parametrize(
    "case",
    [
        (slow if number % 3 or LARGE.search(case.name) else pytest.param)(case, id=case.name)
        for number, case in enumerate(CHOSEN)
    ],
)
def test_reference_frames(case: Case) -> None:
    """Every path of a decoder, and the rule of what is left to the host."""
    opened = check(case.build(), Input(case.name, case.dtype, case.shape, case.data))
    assert bool(opened.held.plan.host_blocks) == (host_kind(case) is not None)


def test_every_kind_of_the_host_is_met() -> None:
    met = {host_kind(case) for case in CHOSEN if OF_THE_HOST.search(case.name)}
    assert met == {"entropy", "plain", "zeros", "modal", "parts", "trimmed-run", "bytes"}


@pytest.mark.parametrize(
    ("variant", "dtype", "runs"),
    [
        (pytest.param if case[0] in (2, 7) else slow)(*case)
        for case in zip(range(8), itertools.cycle(FLOATS), itertools.cycle([8, 8, 1]))
    ],
)
def test_cascade_across_tiles_and_blocks(variant: int, dtype: str, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes in every run; the last block ends within a run and within a byte of each plane."""
    monkeypatch.setattr(triton_decode, "_RUNS_OF_WORDS", runs)
    monkeypatch.setattr(triton_decode, "_LATER_RUNS", runs)
    n = 768 + 768 - 256 - 3
    item = Input("", dtype, (n,), floats(dtype, n, f"segments {variant}"))
    options = {"kind": Cascade(variant=variant), "rest": Verbatim(), "profile": "fast", "block_words": 768}
    frame = encode(item.data, dtype, item.shape, **options)
    assert kinds(frame) == [("cascade", "verbatim", variant)] * 2
    check(frame, item)


@pytest.mark.parametrize(
    ("group", "dtype", "runs"),
    [slow(4, "F16", 8), slow(8, "BF16", 1), (16, "F8_E5M2", 8), slow(32, "F32", 8), (32, "F8_E4M3", 1)],
)
def test_enec_across_tiles_and_blocks(group: int, dtype: str, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last group is short and has high parts."""
    monkeypatch.setattr(triton_decode, "_RUNS_OF_WORDS", runs)
    monkeypatch.setattr(triton_decode, "_LATER_RUNS", runs)
    n = 1024 + 512 + 256 + 35
    exponents = np.full(n, (1 << FLOATS[dtype].exponent_bits) - 3) - np.arange(n) % 2
    exponents[::97] = 0
    exponents[-1] = 0
    item = Input("", dtype, (n,), floats(dtype, n, f"segments {group}", exponents=exponents))
    options = {"kind": Enec(group=group), "rest": Verbatim(), "profile": "enec", "block_words": 1024}
    frame = encode(item.data, dtype, item.shape, **options)
    assert kinds(frame) == [("enec", "verbatim", group.bit_length() - 1)] * 2
    check(frame, item)


@pytest.mark.parametrize("kind", [slow(Cascade(variant=3)), Enec(group=4)], ids=str)
def test_later_runs_that_no_32_bits_count(kind: Cascade | Enec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host decodes their blocks."""
    n = 3 * 512
    item = Input("", "BF16", (n,), floats("BF16", n, f"later {kind}"))
    frame = encode(item.data, "BF16", item.shape, kind=kind, rest=Verbatim(), profile="fast", block_words=512)
    most = check(frame, item).held.plan.later_runs // 2
    monkeypatch.setattr(device_plan, "_MOST_LATER_RUNS", most)
    opened = check(frame, item)
    assert opened.held.plan.host_blocks
    assert 0 < opened.held.plan.later_runs <= most


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *(
            (pytest.param if variant in (1, 5, 7) else slow)(Cascade(variant=variant), dtype)
            for variant, dtype in zip(range(8), itertools.cycle(FLOATS))
        ),
        *(
            (pytest.param if variant == 2 else slow)(Cascade(variant=variant, table=2), "BF16")
            for variant in range(6)
        ),
        (Enec(group=4), "F32"), slow(Enec(group=8), "BF16"), (Enec(group=16), "F8_E5M2"), (Enec(group=32), "F16"),
    ],
    ids=str,
)  # fmt: skip
def test_tiles_by_group(kind: Cascade | Enec, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an NPU: the host decodes the last block, which is short, and such as end too near to the frame's end."""
    monkeypatch.setattr(triton_decode, "_is_vector_processor", lambda device: True)
    monkeypatch.setattr(triton_decode, "_RUNS_OF_WORDS", 2)
    monkeypatch.setattr(triton_decode, "_LATER_RUNS", 2)
    n = 2 * 1280 + 1000
    item = Input("", dtype, (n,), floats(dtype, n, f"by group {kind}"))
    options = {"kind": kind, "rest": Verbatim(), "profile": "fast", "block_words": 1280}
    frame = encode(item.data, dtype, item.shape, **options)
    assert len({name for name, _, _ in kinds(frame)} & {"cascade", "cascade2", "enec"}) == 1
    opened = check(frame, item)
    assert opened.held.plan.host_blocks in ([2], [1, 2])


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Cascade(variant=1), "BF16"), (Enec(group=8), "F16"), slow(Cascade(variant=0), "F32")], ids=str
)
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


@pytest.mark.parametrize(
    ("profile", "dtype"),
    [
        ("enec", "BF16"), ("resident", "BF16"),
        slow("fast", "BF16"), slow("fast", "F8_E4M3"), slow("enec", "F32"), slow("enec", "F8_E5M2"),
        slow("resident", "F16"),
    ],
)  # fmt: skip
def test_core_frames(dtype: str, profile: str) -> None:
    """A full block of the default size and a partial one, both coded by exponent."""
    block_words = tensorwire.frame_info(tensorwire.compress(b"", dtype=dtype, profile=profile)).block_words
    words = registry.weights(dtype, block_words + 1000)
    item = Input("", dtype, words.shape, words.tobytes())
    frame = tensorwire.compress(item.data, dtype=dtype, shape=item.shape, profile=profile)
    coded = {"fast": {"cascade", "cascade2"}, "resident": {"cascade2"}, "enec": {"enec"}}
    assert {kind for kind, _, _ in kinds(frame)} <= coded[profile]
    opened = check(frame, item)
    assert not opened.held.plan.host_blocks


@pytest.mark.parametrize(
    ("first", "count"), [slow(0, 2000), (300, 7), slow(700, 100), slow(767, 1000), (767, 2), (1999, 1), (40, 0)]
)
def test_ranges(first: int, count: int) -> None:
    """Only their blocks are decoded; the result is not written beyond its end."""
    words = registry.weights("BF16", 2000)
    frame = encode(words.tobytes(), "BF16", (2000,), kind=Cascade(variant=0), rest=Verbatim(), block_words=768)
    opened = DeviceFrame(on_device(frame), driver=None)
    around = torch.full((count + 16,), 7, dtype=torch.bfloat16, device=DEVICE)
    opened.decode(first, around[8 : 8 + count])
    assert content(around[8 : 8 + count]) == words[first : first + count].tobytes()
    assert (around[:8] == 7).all()
    assert (around[8 + count :] == 7).all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("nan-payloads", "BF16"), slow("infinities", "F16"), slow("signed-zeros", "F32"), ("subnormals", "F8_E4M3"),
        slow("outliers", "F8_E5M2"),
    ],
)  # fmt: skip
def test_special_values(name: str, dtype: str) -> None:
    (item,) = [item for item in registry.small_inputs() if (item.name, item.dtype) == (name, dtype)]
    for kind in (Cascade(), Enec()):
        check(encode(item.data, dtype, item.shape, kind=kind, rest=Verbatim(), profile="fast", block_words=2048), item)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (pytest.param if dtype.startswith("F8") else slow)(dtype, kind)
        for dtype, kind in zip(FLOATS, [Cascade(), Enec(), Enec(), Cascade(), Enec()], strict=True)
    ],
    ids=str,
)
def test_every_pattern_in_coded_blocks(kind: Cascade | Enec, dtype: str) -> None:
    """Every pattern of a word's highest 16 bits; those of 8-bit words among common ones, which let the block shrink."""
    words = registry.every_pattern(dtype)
    if words.itemsize == 1:
        top = (1 << FLOATS[dtype].exponent_bits) - 1
        common = np.frombuffer(floats(dtype, 3840, "common", exponents=top - 3 + np.arange(3840) % 2), words.dtype)
        words = np.concatenate([common, words])
    item = Input("", dtype, words.shape, words.tobytes())
    block_words = {"F16": 8192, "F8_E4M3": 4096, "F8_E5M2": 4096}.get(dtype, 2048)
    frame = encode(item.data, dtype, item.shape, kind=kind, rest=Verbatim(), profile="fast", block_words=block_words)
    assert {name for name, _, _ in kinds(frame)} == {type(kind).__name__.lower()}
    check(frame, item)


@pytest.mark.parametrize(("dtype", "shape"), [*zip(FLOATS, [(), (0,), (3, 0, 5), (1,), (3, 5, 7)], strict=True)])
def test_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    data = registry.weights(dtype, int(np.prod(shape, dtype=int))).tobytes()
    check(tensorwire.compress(data, dtype=dtype, shape=shape), Input("", dtype, shape, data))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(Cascade(variant=0), 255, id="cascade-255"), pytest.param(Enec(group=4), 0, id="enec-0"),
        slow(Cascade(variant=0), 0, id="cascade-0"), slow(Enec(group=4), 255, id="enec-255"),
    ],
)  # fmt: skip
def test_streams_that_contradict_their_counts(kind: Cascade | Enec, value: int) -> None:
    """Kernels read by these counts, so the frame is refused before they do."""
    words = registry.weights("BF16", 1500).tobytes()
    surgery = Surgery(encode(words, "BF16", (1500,), kind=kind, rest=Verbatim(), profile="fast", block_words=512))
    start, stop = surgery.block_span(1)
    surgery.bytes[start : stop - 14] = bytes([value]) * (stop - 14 - start)
    with pytest.raises(CorruptDataError, match=r"escapes|high parts") as caught:
        by_triton(surgery.close())
    assert caught.value.block == 1


def test_damage_stays_in_its_block() -> None:
    words = registry.weights("BF16", 1500).tobytes()
    surgery = Surgery(encode(words, "BF16", (1500,), kind=Cascade(variant=0), rest=Verbatim(), block_words=512))
    start, _ = surgery.block_span(1)
    surgery.bytes[start] ^= 1
    decoded = content(by_triton(surgery.close()))
    assert decoded != words
    assert decoded[:1024] == words[:1024]
    assert decoded[2048:] == words[2048:]


@pytest.mark.parametrize(
    "case", [(slow if k % 8 else pytest.param)(case, id=case.name) for k, case in enumerate(MALFORMED) if k % 4 == 0]
)
def test_malformed_frames(case: Malformed) -> None:
    """Checksums of blocks are not checked, so some of these decode; none does anything else."""
    frame = case.build()
    try:
        tensor = by_triton(frame)
    except (FormatError, UnsupportedTensorError):
        return
    assert tensor.nbytes == tensorwire.frame_info(frame).uncompressed_nbytes


@pytest.mark.parametrize("dtype", ["I32", "F64", "I8", "U8", "F8_E8M0"])
def test_other_dtypes(dtype: str) -> None:
    """Their coded blocks are the host's."""
    data = small_integers(dtype, 8192, "split")
    tensor = by_triton(tensorwire.compress(data, dtype=dtype))
    assert content(tensor) == data


def test_dtypes_that_torch_lacks() -> None:
    with pytest.raises(UnsupportedTensorError, match="torch has no dtype for F6_E2M3"):
        by_triton(tensorwire.compress(bytes(768), dtype="F6_E2M3"))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda 80 32", "cuda 90 32", "hip gfx942 64", "hip gfx1100 32"])
def test_kernels_compile(target: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.torch.compile_kernels", *target.split()]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    if run.returncode == 77:
        pytest.skip(f"this build of Triton has no backend for {target}")
    assert run.returncode == 0, run.stderr
