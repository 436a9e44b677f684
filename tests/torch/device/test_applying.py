"""Relative frames applied in place by kernels, and by the core where tensors are on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from benchmarks.synthetic_pairs import synthetic_pair  # noqa: E402
from reference.tensorwire_reference import Constant, Dense, Kind, Same, Sparse, Stored, encode  # noqa: E402
from tensorwire import UnsupportedTensorError  # noqa: E402
from tensorwire.codec import torch_name  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.device import Status, apply_, encode_into, raise_for  # noqa: E402
from tensorwire.torch.device.writing import applying, encoding  # noqa: E402
from tensorwire.torch.device.writing.applying import Batch  # noqa: E402
from tests.support.conformance_relative import base_of, step, steps_of  # noqa: E402
from tests.support.frame_surgery import Surgery  # noqa: E402
from tests.support.golden import base_of as golden_base  # noqa: E402
from tests.support.golden import frame_of, manifest  # noqa: E402

from .opened import bytes_tensor  # noqa: E402
from .stand_in import StandIn, missing, stand_in_for_a_gpu  # noqa: E402

if TYPE_CHECKING:
    from tensorwire.codec import Profile

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

Case = tuple[bytes, bytes, str]
"""A frame, a base, and its dtype."""


def tensor_of(data: bytes, dtype: str) -> torch.Tensor:
    return bytes_tensor(data).view(getattr(torch, str(torch_name(dtype))))


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.view(torch.uint8).numpy())


def applied(cases: Sequence[Case], *, verify: bool = True, seed: int = 1) -> tuple[list[bytes], list[int]]:
    """What kernels make of the bases, and their statuses."""
    driver = StandIn(checked=True, seed=seed)
    frames = [bytes_tensor(frame) for frame, _, _ in cases]
    tensors = [tensor_of(base, dtype) for _, base, dtype in cases]
    status = torch.full((len(cases),), -1, dtype=torch.int32)
    driver.watch(*frames)
    driver.watch(*tensors, writable=True)
    Batch(driver, frames, tensors, status, verify=verify).apply()
    return [bits(each) for each in tensors], status.tolist()


def pair_of(
    dtype: str, n: int, share: float, largest: int = 3, profile: Profile = "fast"
) -> tuple[bytes, bytes, bytes]:
    """Frame, base and content of `n` words, of which about `share` changed, by the core."""
    base = base_of(dtype, n)
    data = step(base, dtype, steps_of(n, f"applied {dtype} {n} {share}", share, largest=largest))
    return bytes(tensorwire.compress(data, dtype=dtype, base=base, profile=profile)), base, data


@pytest.mark.parametrize("verify", [True, False])
def test_applied(verify: bool) -> None:
    """Frames of the core in one batch: odd sizes, several blocks and leaves, steps of many sizes, several dtypes."""
    small = [("BF16", 3000, 0.02, 3), ("F16", 3001, 0.02, 5), ("F8_E4M3", 5003, 0.02, 3), ("BF16", 1, 1.0, 1)]
    dense = [("BF16", 9001, 0.4, 3), ("F16", 4096, 0.9, 900), ("F8_E5M2", 5003, 0.6, 9), ("I16", 2011, 0.7, 30)]
    made = {shape: pair_of(*shape) for shape in [*small, *dense, ("BF16", 70_001, 0.002, 40), ("F32", 700, 0.0, 1)]}
    found, status = applied([(f, base, key[0]) for key, (f, base, _) in made.items()], verify=verify)
    assert status == [Status.DONE] * len(made)
    assert found == [data for _, _, data in made.values()]


def test_weights_before_and_after_a_step() -> None:
    old, new = (bytes(each.reshape(-1)) for each in synthetic_pair(1 << 15, 5e-6))
    frame = bytes(tensorwire.compress(new, dtype="BF16", base=old))
    assert applied([(frame, old, "BF16")]) == ([new], [Status.DONE])


def test_what_kernels_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that were made on a device as well: few changes, many, and none."""
    driver = StandIn(seed=1)
    stand_in_for_a_gpu(monkeypatch, encoding, driver)
    shapes = [("BF16", 5000, 0.02), ("F16", 3000, 0.05), ("F8_E4M3", 5003, 0.02), ("BF16", 2000, 0.0)]
    shapes += [("BF16", 6001, 0.4), ("F16", 5000, 1.0), ("F8_E5M2", 5003, 0.3)]
    pairs = [(dtype, *pair_of(dtype, n, share)[1:]) for dtype, n, share in shapes]
    tensors, bases = ([tensor_of(pair[side], pair[0]) for pair in pairs] for side in (2, 1))
    slots = [torch.zeros(2 * each.nbytes + 512, dtype=torch.uint8) for each in tensors]
    sizes = torch.zeros(len(pairs), dtype=torch.int64)
    encode_into(tensors, slots, sizes, profile="fast", base=bases)
    cases = [(bits(slot), base, dtype) for slot, (dtype, base, _) in zip(slots, pairs, strict=True)]
    assert applied(cases) == ([data for _, _, data in pairs], [Status.DONE] * len(pairs))


def kind_names(entry: dict[str, Any]) -> set[str]:
    return {coding.split("/")[0].split("(")[0].split("+")[0] for coding in entry["codings"]}


def is_for_kernels(entry: dict[str, Any]) -> bool:
    """Whether kernels apply a golden, or find nothing to do."""
    kinds = {"same", "stored", "constant"} | ({"sparse", "dense"} if entry["layout"][0] <= 2 else set())
    return entry["content_hash"] == entry["base"] or kind_names(entry) <= kinds


def test_goldens() -> None:
    """Every valid relative one of a dtype of this torch is applied, or left to the host with its base as it was."""
    goldens = [each for each in manifest("frames") if each["base"] and hasattr(torch, torch_name(each["dtype"]) or "")]
    cases = [(frame_of(entry), golden_base(entry) or b"", entry["dtype"]) for entry in goldens]
    found, status = applied(cases)
    for entry, (frame, base, _), result, number in zip(goldens, cases, found, status, strict=True):
        assert number == (Status.DONE if is_for_kernels(entry) else Status.HOST_ONLY), entry["name"]
        expected = tensorwire.decompress(frame, base=base, framework="bytes") if number == Status.DONE else base
        assert result == expected, entry["name"]
    assert sum(map(is_for_kernels, goldens)) > 30


def test_invalid_goldens() -> None:
    """None of a relative frame changes its base; none is called right unless the base is the content already."""
    goldens = [e for e in manifest("invalid") if e["base"] and torch_name(frame_of(e)[32:48].rstrip(b"\0").decode())]
    cases = [(frame_of(e), golden_base(e) or b"", frame_of(e)[32:48].rstrip(b"\0").decode()) for e in goldens]
    found, status = applied(cases)
    for entry, (frame, base, _), result, number in zip(goldens, cases, found, status, strict=True):
        assert result == base, entry["name"]
        assert number or frame[80:96].hex() == entry["base"], entry["name"]


def test_the_example_of_the_format() -> None:
    """docs/format.md, "A block of kind sparse"."""
    block = bytes.fromhex("05400d8113f0012f" + "00" * 21 + "780327")
    base = np.array([0x3B00 + i for i in range(20)] + [0x3D00 + i for i in range(20)], np.uint16)
    data = base.copy()
    data[[3, 4, 25]] += np.array([1, 6, 0xFFFE], np.uint16)
    frame = encode(data.tobytes(), "BF16", (40,), base=base.tobytes(), kind=Sparse((120,)), profile="fast")
    assert frame.endswith(block)
    assert applied([(frame, base.tobytes(), "BF16")]) == ([data.tobytes()], [Status.DONE])


SHAPES: list[tuple[str, int, int, Kind, float, int]] = [
    ("BF16", 700, 256, Sparse(()), 0.06, 3),
    ("BF16", 2000, 1024, Sparse((186, 190)), 0.05, 5),
    ("BF16", 3000, 3072, Sparse((150, 186, 188, 190, 191)), 0.1, 9),
    ("F16", 1500, 768, Sparse((20, 22)), 0.08, 4),
    ("F8_E4M3", 900, 512, Sparse((9,)), 0.05, 3),
    ("F8_E5M2", 1200, 256, Sparse((15, 20, 22)), 0.04, 6),
    ("BF16", 9000, 16384, Sparse((180, 184, 186, 188, 190)), 0.05, 4),
    ("BF16", 5000, 8192, Sparse((0, 188)), 0.9, 3),
    ("U8", 3000, 1024, Sparse(()), 0.05, 3),
    ("I16", 2000, 512, Sparse(()), 0.05, 300),
    ("BF16", 700, 256, Dense(), 0.5, 3),
    ("BF16", 5000, 8192, Dense((150, 184, 186, 187, 188, 190, 191)), 0.3, 90),
    ("F16", 2500, 2560, Dense((20, 22)), 0.9, 32768),
    ("F8_E4M3", 900, 512, Dense((9,)), 0.7, 128),
    ("F8_E5M2", 4133, 4352, Dense((15, 20, 22)), 0.4, 6),
    ("I16", 300, 256, Dense(), 1.0, 300),
]
"""Dtype, words, words of a block, kind with thresholds, share of changed words, largest size of a step: few classes and
changes, and more than lists have room for."""


@functools.cache
def shaped(number: int) -> tuple[bytes, bytes, bytes, str]:
    """A frame of one kind by the reference, its base and content."""
    dtype, n, block_words, kind, share, largest = SHAPES[number]
    base = base_of(dtype, n)
    data = step(base, dtype, steps_of(n, f"shaped {number}", share, largest=largest))
    frame = encode(data, dtype, (n,), base=base, kind=kind, block_words=block_words, profile="fast")
    return frame, base, data, dtype


def damaged(seeds: range) -> Iterator[tuple[int, Case]]:
    """Some bits of a block are flipped, its checksum and the index's are right."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        frame, base, _, dtype = shaped(seed % len(SHAPES))
        surgery = Surgery(frame)
        block = int(rng.integers(surgery.num_blocks))
        start, stop = surgery.block_span(block)
        for _ in range(int(rng.integers(1, 4))):
            most = (stop - start) * 8 if rng.random() < 0.5 else min(200, (stop - start) * 8)
            bit = start * 8 + int(rng.integers(most))
            surgery.bytes[bit // 8] ^= 1 << bit % 8
        surgery.rehash_block(block)
        yield seed, (surgery.close(), base, dtype)


def on_host(case: Case) -> bytes | None:
    """What the host makes of a frame without a look at hashes; None if it refuses it."""
    try:
        return bytes(tensorwire.decompress(case[0], base=case[1], framework="bytes", verify=False))
    except tensorwire.TensorwireError:
        return None


@pytest.mark.parametrize(
    "seeds",
    [range(20), *(pytest.param(range(k, k + 100), marks=pytest.mark.slow) for k in range(20, 2720, 100))],
    ids=lambda seeds: f"{seeds.start}-{seeds.stop}",
)
def test_damaged_strings(seeds: range) -> None:
    """The host and kernels refuse the same ones. A tensor that is checked stays as it was, unless the string is valid
    by itself: then the host would make the same of it, and the content's hash tells whether that is the content, as
    where a threshold changed and no class. The frames themselves are right.
    """
    whole = [shaped(number) for number in range(len(SHAPES) if seeds.start == 0 else 0)]
    found, status = applied([(frame, base, dtype) for frame, base, _, dtype in whole])
    assert (found, status) == ([data for _, _, data, _ in whole], [Status.DONE] * len(whole))
    numbered = dict(damaged(seeds))
    cases = list(numbered.values())
    unchecked, checked = (applied(cases, verify=verify, seed=seeds.start) for verify in (False, True))
    for seed, case, found, status, checked_found, checked_status in zip(
        numbered, cases, *unchecked, *checked, strict=True
    ):
        expected = on_host(case)
        if expected is None or status == Status.HOST_ONLY:
            assert status, seed
            assert (checked_status, checked_found) == (status, case[1]), seed
        else:
            assert (status, found) == (Status.DONE, expected), seed
            is_content = expected == shaped(seed % len(SHAPES))[2]
            told = Status.DONE if is_content else Status.CORRUPT
            assert (checked_status, checked_found) == (told, expected), seed


def test_one_of_two_is_wrong() -> None:
    """Its tensor stays as it was; the other frame is applied. Bytes may follow a frame."""
    frame, base, data = pair_of("BF16", 3000, 0.02)
    other = step(base, "BF16", steps_of(3000, "another base", 0.01))
    torn = bytearray(frame)
    torn[-70] ^= 1
    wrong = [(frame, other), (bytes(torn), base), (frame[:-1], base), (frame[:100], base), (b"", base)]
    cases = [(frame, base, "BF16"), *((each, of, "BF16") for each, of in wrong), (frame + b"more", base, "BF16")]
    found, status = applied(cases)
    assert found == [data, *(of for _, of in wrong), data]
    truncated = [Status.TRUNCATED] * 3
    assert status == [Status.DONE, Status.BASE_MISMATCH, Status.CORRUPT, *truncated, Status.DONE]


def test_other_tensors_and_plain_frames() -> None:
    frame, base, _ = pair_of("BF16", 300, 0.02)
    plain = bytes(tensorwire.compress(base, dtype="BF16"))
    wide, wide_base, _ = pair_of("F32", 3000, 0.02)
    parts = bytes(tensorwire.compress(step(base, "BF16", steps_of(300, "far", 1.0, largest=999)), dtype="BF16"))
    cases = [(frame, base, "F16"), (frame, base + b"\0\0", "BF16"), (plain, base, "BF16"), (parts, base, "BF16")]
    found, status = applied([*cases, (wide, wide_base, "F32")])
    assert found == [*(of for _, of, _ in cases), wide_base]
    assert status == [*[Status.ANOTHER_TENSOR] * 2, *[Status.HOST_ONLY] * 3]


def test_applied_twice() -> None:
    """With checks nothing is done then. The launches of a batch look at what is there by then."""
    frame, base, data = pair_of("BF16", 3000, 0.02)
    place, tensor, status = bytes_tensor(frame), tensor_of(base, "BF16"), torch.zeros(1, dtype=torch.int32)
    driver = StandIn()
    batch = Batch(driver, [place], [tensor], status, verify=True)
    for _ in range(2):
        batch.apply()
        assert (bits(tensor), status.tolist()) == (data, [Status.DONE])
    assert len(driver.launches) == 10
    back = bytes(tensorwire.compress(base, dtype="BF16", base=data))
    assert len(back) <= len(frame)
    place[: len(back)] = bytes_tensor(back)
    batch.apply()
    assert (bits(tensor), status.tolist()) == (base, [Status.DONE])


def test_another_result_than_the_frame_says() -> None:
    """A wrong writer: only the content hash tells, once the blocks are applied."""
    frame, base, data = pair_of("BF16", 3000, 0.02)
    surgery = Surgery(frame)
    surgery.set("content_hash", bytes(16))
    wrong = (surgery.close(), base, "BF16")
    assert applied([wrong]) == ([data], [Status.CORRUPT])
    assert applied([wrong], verify=False) == ([data], [Status.DONE])


def test_blocks_of_every_kind() -> None:
    """Same, stored, constant and sparse ones in one frame, without and with checks; words of 32 bits too."""
    for dtype in ("BF16", "F32"):
        n = 256 * 5 + 40
        width = 2 if dtype == "BF16" else 4
        base = base_of(dtype, n)
        data = bytearray(step(base, dtype, steps_of(n, "of every kind", 0.05)))
        data[: 256 * width] = base[: 256 * width]
        data[512 * width : 768 * width] = data[512 * width : 513 * width] * 256
        fourth = Sparse((186,)) if dtype == "BF16" else Stored()
        kinds: list[Kind] = [Same(), Stored(), Constant(), fourth, Stored(), Stored()]
        made = encode(bytes(data), dtype, (n,), base=base, kind=kinds, block_words=256, profile="fast")
        for verify in (True, False):
            assert applied([(made, base, dtype)], verify=verify) == ([bytes(data)], [Status.DONE])


def test_on_the_cpu_the_core_applies() -> None:
    """Also what kernels leave to the host; with the same statuses."""
    sparse, base, data = pair_of("BF16", 3000, 0.02)
    dense, dense_base, dense_data = pair_of("BF16", 3000, 0.4)
    plain = bytes(tensorwire.compress(data, dtype="BF16"))
    frames = [bytes_tensor(each) for each in (sparse, dense, plain, sparse, sparse[:99], sparse)]
    tensors = [tensor_of(each, "BF16") for each in (base, dense_base, base, dense_data, base, data)]
    tensors.append(torch.nn.Parameter(tensors[0].clone()))
    status = torch.full((7,), -1, dtype=torch.int32)
    apply_([*frames, frames[0]], tensors, status)
    done, mismatch, truncated = Status.DONE, Status.BASE_MISMATCH, Status.TRUNCATED
    assert status.tolist() == [done, done, done, mismatch, truncated, done, done]
    assert [bits(each.detach()) for each in tensors[:3]] == [data, dense_data, data]
    with pytest.raises(tensorwire.BaseMismatchError, match="expected frame 3 to be read"):
        raise_for(status)
    apply_([frames[0]], [tensor_of(base, "F16")], status[:1])
    assert status[0] == Status.ANOTHER_TENSOR
    apply_([], [], status[:0])


def test_kernels_are_kept_for_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, base, data = pair_of("BF16", 3000, 0.02)
    driver = StandIn()
    stand_in_for_a_gpu(monkeypatch, applying, driver)
    place, tensor, status = bytes_tensor(frame), tensor_of(base, "BF16"), torch.zeros(1, dtype=torch.int32)
    for _ in range(2):
        apply_([place], [tensor], status)
        assert bits(tensor) == data
    assert sum(driver.compiled.values()) == 5
    with pytest.raises(ValueError, match="tensor 0 at a multiple of 16 bytes"):
        apply_([place], [tensor[1:]], status)


def test_arguments_are_checked() -> None:
    frame, tensor, status = torch.zeros(8, dtype=torch.uint8), torch.zeros(4, 4), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="expected 1 frames, one for each tensor, got 0"):
        apply_([], [tensor], status)
    with pytest.raises(ValueError, match=r"status as a contiguous tensor of torch.int32 and shape \(1,\)"):
        apply_([frame], [tensor], status.long())
    with pytest.raises(ValueError, match="frame 0 as a tensor of uint8 with one dimension"):
        apply_([frame.view(2, 4)], [tensor], status)
    with pytest.raises(ValueError, match=r"tensor 0 contiguous and on cpu.*strides \(1, 4\)"):
        apply_([frame], [tensor.T], status)
    with pytest.raises(ValueError, match="two that do; give each one once"):
        apply_([frame, frame], [tensor, tensor[1]], status.expand(2).contiguous())
    with pytest.raises(UnsupportedTensorError, match=r"torch\.sparse_coo"):
        apply_([frame], [tensor.to_sparse()], status)
    with pytest.raises(TypeError, match=r"a tensor of torch as frames\[0\], got bytes"):
        apply_([bytes(8)], [tensor], status)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="expected numbers of Status, 0 to 7, got 25088; give the status itself"):
        raise_for(torch.tensor([0, 25088]))


def test_a_tensor_without_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compressed one tells is no address."""
    driver = StandIn()
    stand_in_for_a_gpu(monkeypatch, applying, driver)
    frame, base, _ = pair_of("BF16", 300, 0.02)
    tensor = CompressedTensor.from_dense(bytes_tensor(base).view(torch.bfloat16))
    with pytest.raises(UnsupportedTensorError, match="expected a tensor with memory of its own, got CompressedTensor"):
        apply_([bytes_tensor(frame)], [tensor], torch.zeros(1, dtype=torch.int32))
    assert not driver.launches
