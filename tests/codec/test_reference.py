"""The reference decoder and encoder: round trips, damage, and facts worked out by hand from docs/format.md."""

import itertools
import re
from hashlib import sha256

import numpy as np
import pytest

from reference.tensorwire_reference import (
    BaseMismatchError,
    Cascade,
    Constant,
    Dense,
    Enec,
    Entropy,
    FormatError,
    Layout,
    Modal,
    Parts,
    Plain,
    Sparse,
    Stored,
    Trimmed,
    TruncatedDataError,
    Verbatim,
    Zeros,
    cascade,
    decode,
    encode,
    enec,
    rans,
)
from reference.tensorwire_reference.layouts import TABLE
from reference.tensorwire_reference.planes import Reader, field_nbytes, pack_field, pack_plane, unpack_field
from reference.tensorwire_reference.words import join, ordinals, split
from tests.support import golden
from tests.support.cases import FLOATS, INTEGERS, RESTS
from tests.support.conformance import CASES, SPLIT
from tests.support.conformance_layouts import ODD, name_of
from tests.support.families import each_of
from tests.support.golden import kind_of, rest_of
from tests.support.malformed import MALFORMED, Malformed
from tests.support.malforming import bit_string


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_cases_have_distinct_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@each_of(MALFORMED)
def test_malformed_raises_the_named_error(malformed: Malformed) -> None:
    with pytest.raises((FormatError, BaseMismatchError)) as raised:
        decode(malformed.build(), malformed.base)
    assert type(raised.value).__name__ == malformed.error
    # A decoder that overlooked the rule would be caught here, if at all; only the frame made for it may end there.
    assert ("content hash" in str(raised.value)) == (malformed.name == "header-content-hash")


def test_golden_frames_decode() -> None:
    entries = golden.manifest("frames")
    assert len(entries) > 300
    for entry in entries:
        frame = decode(golden.frame_of(entry), golden.base_of(entry))
        assert len(frame.data) == entry["nbytes"], entry["name"]
        assert sha256(frame.data).hexdigest() == entry["sha256"], entry["name"]
        assert list(frame.codings) == entry["codings"], entry["name"]
        for key in (*golden.HEADER_KEYS, "optional_features"):
            actual = getattr(frame.header, key)
            assert (list(actual) if isinstance(actual, tuple) else actual) == entry[key], (entry["name"], key)
        extensions = {str(tag): content.hex() for tag, content in frame.header.extensions.items()}
        assert extensions == entry["extensions"], entry["name"]
        assert frame.header.content_hash.hex() == entry["content_hash"], entry["name"]
        assert list(golden.frame_of(entry)[24:29]) == entry["layout"], entry["name"]


def test_the_page_of_goldens_names_every_field() -> None:
    section = (golden.FOLDER.parent / "README.md").read_text().split("### An entry of `frames`")[1].split("\n### ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    named = {field for row in rows for field in re.findall(r"`(\w+)`", row)}
    assert {frozenset(entry) for entry in golden.manifest("frames")} == {frozenset(named)}
    assert {frozenset(entry) for entry in golden.manifest("invalid")} == {frozenset({"name", "error", "base"})}


def test_golden_frames_have_every_coding() -> None:
    """Kinds with each variant and each rest, and each dtype with each kind that it can have."""
    codings = {(entry["dtype"], coding) for entry in golden.manifest("frames") for coding in entry["codings"]}
    variants = {kind_of(coding) for _, coding in codings}
    wanted = {
        *(f"enec/{group}" for group in (4, 8, 16, 32)),
        *(f"cascade/{row}" for row in range(8)),
        *(f"cascade2/{row}" for row in range(6)),
        *(f"entropy/{k}" for k in range(4)),
        *(f"{kind}/{mask}" for kind in ("zeros", "modal") for mask in range(7)),
        *(f"scaled/{codes}" for codes in range(2)),
        *("constant", "stored", "plain", "same", "sparse", "dense", "parts"),
    }
    assert variants == wanted
    rests = {(kind_of(coding).split("/")[0], rest_of(coding)) for _, coding in codings}
    with_rest = {*itertools.product(("enec", "cascade", "cascade2", "entropy"), (*RESTS, "bytes"))}
    assert rests >= with_rest | {("plain", rest) for rest in ("trimmed", "trimmed-run", "bytes")}
    kinds = {(dtype, kind_of(coding).split("/")[0]) for dtype, coding in codings}
    assert kinds >= {*itertools.product((*FLOATS, *INTEGERS), ("constant", "stored", "plain", "zeros", "sparse"))}
    assert kinds >= {*itertools.product(SPLIT, ("enec", "cascade", "cascade2", "entropy", "modal"))}


def test_golden_frames_have_every_header() -> None:
    """Dtypes, words, splits and alignments of every sort; extensions that are known, unknown and private; padding."""
    entries = golden.manifest("frames")
    assert {entry["dtype"] for entry in entries} >= {*TABLE, *map(name_of, ODD)}
    layouts = {tuple(entry["layout"]) for entry in entries}
    assert {(w, split) for w, _, _, split, _ in layouts} == {*itertools.product((1, 2, 4, 8), range(4))}
    assert {e for _, e, *_ in layouts} == {*range(9)}
    alignments = {(entry["block_alignment"], entry["frame_alignment"]) for entry in entries}
    assert alignments >= {(32, 512), (512, 512), (4096, 4096)}
    tags = {int(tag) for entry in entries for tag in entry["extensions"]}
    assert tags >= {1, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1}
    assert any(entry["optional_features"] for entry in entries)
    assert any(entry["padding_nbytes"] >= entry["frame_alignment"] for entry in entries)


@pytest.mark.parametrize("part", ["frames", "invalid"])
def test_golden_files_are_those_of_the_encoder(part: str) -> None:
    """Nothing in the folder is stale: what the cases make today is what lies there."""
    made = {case.name: case for case in (CASES if part == "frames" else MALFORMED) if getattr(case, "golden", True)}
    entries = golden.manifest(part)
    assert {entry["name"] for entry in entries} == made.keys()
    for entry in entries:
        case = made[entry["name"]]
        assert (case.build(), case.base) == (golden.frame_of(entry), golden.base_of(entry)), entry["name"]
        assert getattr(case, "error", None) == entry.get("error"), entry["name"]


def small_frames() -> list[tuple[str, bytes, bytes | None]]:
    """One frame of each kind, small enough to damage every bit of it, and its base."""
    rng = np.random.default_rng(5)
    words = (rng.geometric(0.7, 300) + 110 << 7 | rng.integers(0, 64, 300) << 1).astype("<u2")
    sparse = np.where(np.arange(300) % 4 == 0, words, 0x8000 * (np.arange(300) % 3 == 0)).astype("<u2")
    one_exponent = np.where(np.arange(300) % 99 == 7, words, 110 << 7).astype("<u2")
    bytes_300 = (rng.geometric(0.7, 300).astype("u1") + 3).tobytes()
    base = words.tobytes()
    few = (words + (np.arange(300) % 70 == 9) * 5).astype("<u2").tobytes()
    many = (words + rng.integers(0, 2, 300)).astype("<u2").tobytes()
    extensions = {1: b"\7\0\0\0", 9: b"abc"}
    aligned = {"block_alignment": 64, "frame_alignment": 128, "padding_nbytes": 40, "extensions": extensions}
    frames = [
        ("empty", b"", "F32", {}),
        ("stored", rng.bytes(70), "U8", {"kind": Stored()}),
        ("constant", bytes_300[:1] * 300, "U8", {"kind": Constant()}),
        ("enec", words[:150].tobytes(), "BF16", {"kind": Enec(), "rest": Trimmed()}),
        ("cascade", words[:150].tobytes(), "BF16", {"kind": Cascade(), "rest": Verbatim(), "profile": "fast"}),
        ("entropy", words.tobytes(), "BF16", {"kind": Entropy(k=1)}),
        ("plain", words.astype("<u4").tobytes()[:500], "I32", {"kind": Plain(), "rest": Trimmed(per_run=True)}),
        ("zeros", sparse.tobytes(), "BF16", {"kind": Zeros(Cascade(), variant=2), "rest": Verbatim()}),
        ("modal", one_exponent.tobytes(), "BF16", {"kind": Modal(variant=1), "rest": Verbatim(), "profile": "fast"}),
        ("sparse", few, "BF16", {"kind": Sparse((112,)), "base": base}),
        ("dense", many, "BF16", {"kind": Dense((112,)), "base": base}),
        ("parts", words.tobytes(), "BF16", {"kind": Parts((Cascade(), Stored())), "rest": Verbatim()}),
        ("parts", few, "BF16", {"kind": Parts((Sparse((112,)), Sparse())), "base": base}),
        ("same", base, "BF16", {"base": base}),
        ("cascade", words.tobytes(), "BF16", {"kind": Cascade(), "rest": Verbatim(), **aligned}),
        ("same", base, "BF16", {"base": base, **aligned}),
    ]
    sizes = {"U8": 1, "BF16": 2, "F32": 4, "I32": 4}
    return [
        (name, encode(data, dtype, (len(data) // sizes[dtype],), block_words=1024, **options), options.get("base"))
        for name, data, dtype, options in frames
    ]


SMALL = small_frames()
RELATIVE = [(name, frame, base) for name, frame, base in SMALL if base is not None]
small = pytest.mark.parametrize(("name", "frame", "base"), SMALL, ids=[name for name, *_ in SMALL])


@small
def test_small_frame_is_of_its_kind(name: str, frame: bytes, base: bytes | None) -> None:
    codings = decode(frame, base).codings
    assert codings[0].startswith(name) if codings else name == "empty"


@small
def test_truncation_at_every_byte(name: str, frame: bytes, base: bytes | None) -> None:
    for length in range(len(frame)):
        with pytest.raises(TruncatedDataError):
            decode(frame[:length], base)


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@small
def test_every_bit_flip(name: str, frame: bytes, base: bytes | None, stride: int) -> None:
    """Each bit of a frame without blocks, and of each other byte another one in turn; in the slow test each bit."""
    for i in range(0, 8 * len(frame), 1 if name == "empty" else stride):
        damaged = bytearray(frame)
        damaged[i // 8] ^= 1 << i % 8
        with pytest.raises(FormatError):
            decode(bytes(damaged), base)


@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "frame", "base"), RELATIVE, ids=[name for name, *_ in RELATIVE])
def test_every_bit_flip_of_a_base(name: str, frame: bytes, base: bytes, stride: int) -> None:
    for i in range(0, 8 * len(base), stride):
        damaged = bytearray(base)
        damaged[i // 8] ^= 1 << i % 8
        with pytest.raises(BaseMismatchError):
            decode(frame, bytes(damaged))


def test_planes_by_hand() -> None:
    # Five numbers of 4 bits in S = 4 bytes: numbers 0 and 4 share byte 0.
    assert pack_plane(numbers(1, 2, 3, 4, 5), 4) == b"\x51\x02\x03\x04"
    # A full run of single bits: byte l holds numbers l, l + 32, l + 64, ...
    ones = np.zeros(256, np.uint64)
    ones[[3, 3 + 32, 3 + 7 * 32]] = 1
    assert pack_plane(ones, 1) == bytes(3) + b"\x83" + bytes(28)
    # 257 numbers of 2 bits: 64 bytes of a full run, then a run of one number.
    assert pack_plane(np.full(257, 2, np.uint64), 2) == b"\xaa" * 64 + b"\x02\0\0\0"
    assert pack_plane(numbers(0x0201, 0x0403, 0x0605), 16) == b"\x01\x02\x03\x04\x05\x06\0\0"
    assert pack_plane(numbers(7, 8, 9, 10, 11), 8) == b"\x07\x08\x09\x0a\x0b\0\0\0"


def test_fields_by_hand() -> None:
    # w = 3: bits 0-1 in a 2-bit plane, bit 2 in a 1-bit plane; 5 numbers take 4 bytes each.
    # S = 4 for both: numbers 0 and 4 share byte 0.
    assert pack_field(numbers(1, 2, 3, 4, 7), 3) == bytes([1 | 3 << 2, 2, 3, 0]) + bytes([0 | 1 << 1, 0, 0, 1])
    # w = 24: the low 16 bits, then the high 8; w = 11: 8, 2, 1.
    assert pack_field(numbers(0x030201, 0x060504), 24) == b"\x01\x02\x04\x05" + b"\x03\x06\0\0"
    assert pack_field(numbers(0b1_01_11111110), 11) == b"\xfe\0\0\0\x01\0\0\0\x01\0\0\0"
    assert [field_nbytes(257, w) for w in (0, 1, 3, 11, 24, 64)] == [0, 36, 104, 364, 776, 2056]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 255, 256, 257, 511, 513])
def test_fields_round_trip(n: int) -> None:
    rng = np.random.default_rng(n)
    for w in range(65):
        values = rng.integers(0, 1 << 64, n, dtype=np.uint64) >> np.uint64(64 - w) if w else np.zeros(n, np.uint64)
        packed = pack_field(values, w)
        assert len(packed) == field_nbytes(n, w)
        assert (unpack_field(packed, n, w) == values).all()


def test_extensions_by_hand() -> None:
    frame = encode(b"", "U8", (0,), extensions={1 << 31: b"12345678", 6: b"", 1: b"\7\0\0\0"})
    area = (
        *(b"\1\0\0\0", b"\4\0\0\0", b"\7\0\0\0", bytes(4)),
        *(b"\6\0\0\0", bytes(4)),
        *(b"\0\0\0\x80", b"\x08\0\0\0", b"12345678"),
    )
    assert frame[136:] == b"".join(area) + bytes(16)  # 136 + 40 bytes, to a multiple of 32


@pytest.mark.parametrize(
    ("layout", "word", "exponent", "rest"),
    [
        (Layout(2, 6, 10, "float", True), 0b1_010011_110000001, 0b010011, 0b1_110000001),
        (Layout(2, 8, 8, "unsigned", False), 0x8123, 0x81, 0x23),
        (Layout(2, 8, 8, "signed", False), 0x8123, 0x01, 0x23),
        (Layout(1, 8, 0, "unsigned", True), 0x9C, 0x9C, 0),
        (Layout(1, 8, 0, "signed", False), 0x9C, 0x1C, 0),
        (Layout(1, 7, 1, "float", False), 0b1_0110100, 0b0110100, 1),
        (Layout(8, 8, 56, "float", True), 0xBFF1_2345_6789_ABCD, 0x7F, 0xF1_2345_6789_ABCD),
        (Layout(8, 1, 63, "signed", True), 0x8000_0000_0000_0005, 0, 5),
    ],
)
def test_splits_by_hand(layout: Layout, word: int, exponent: int, rest: int) -> None:
    x, rests = split(numbers(word), layout)
    assert (int(x[0]), int(rests[0])) == (exponent, rest)
    assert join(x, rests, layout).tolist() == [word]


def test_ordinals_by_hand() -> None:
    ordered, plain = Layout(2, 8, 8, "float", True), Layout(2, 8, 8, "signed", False)
    assert ordinals(numbers(0x8001, 0x8000, 0, 1, 0xFFFF), ordered).tolist() == [0x7FFE, 0x7FFF, 0x8000, 0x8001, 0]
    assert ordinals(numbers(0x8001, 0), plain).tolist() == [0x8001, 0]


def test_enec_by_hand() -> None:
    # b = 100, m = 1, nb = 3: s = 0, 1, -1, -4, 3 of y = 0, 1, 7, 4, 3; L = 4, so the last word is a group of its own.
    low = pack_plane(numbers(0, 1, 1, 0, 1), 1)
    high = pack_field(numbers(0, 0, 3, 2, 1), 2)
    reader = Reader(low + b"\x01\x01\0\0" + high)
    x, _ = enec.decode(bytes([100, 1 << 4 | 3, 5, 0]), 2, reader, 5, 8)
    assert x.tolist() == [100, 99, 101, 104, 97]


def test_cascade_of_five_tiers_by_hand() -> None:
    # Widths 2, 1, 1, 2, 3, lo = 100, a2 = 1, a3 = 0, a4 = 2, a5 = 5. Tier 1 names 100-102, tier 2 names 99, tier 3
    # names 103, tier 4 names 97, 98, 104, tier 5 names 92-96, then 105, 106. The last word is a byte.
    expected = [101, 99, 103, 97, 104, 92, 96, 105, 106, 7]
    tiers = (
        pack_field(numbers(1, 3, 3, 3, 3, 3, 3, 3, 3, 3), 2)
        + pack_field(numbers(0, 1, 1, 1, 1, 1, 1, 1, 1), 1)
        + pack_field(numbers(0, 1, 1, 1, 1, 1, 1, 1), 1)
        + pack_field(numbers(0, 2, 3, 3, 3, 3, 3), 2)
        + pack_field(numbers(0, 4, 5, 6, 7), 3)
        + bytes([7, 0, 0, 0])
    )
    # 1 | 0 << 4 | 2 << 8 | 5 << 12 = 0x5201
    params = bytes([100, 0x01, 0x52, 9, 0, 8, 0, 7, 0, 5, 0, 1, 0])
    x, _ = cascade.decode(params, (2, 1, 1, 2, 3), Reader(tiers), 10, 8)
    assert x.tolist() == expected


def test_entropy_stream_by_hand() -> None:
    # Symbol 1 has frequency 1 (bit length 1: z = 2), symbol 0 the implied 4095. Symbols 0 and 32 share state 0.
    # Symbol 32 is 1:  x = 2^16 * 4096 + 4095 = 0x10000fff. Symbol 0 is 1: unit 0x0fff is split off, which leaves
    # 0x1000, and x = 0x1000 * 4096 + 4095 = 0x1000fff. A symbol 0 takes 2^16 to 16 * 4096 + 16.
    table = bytes([0, 1, 0]) + bit_string("001")
    states = np.array([0x1000FFF] + [16 * 4096 + 16] * 31, "<u4").tobytes()
    stream = b"\x01\x00\x00\x00" + table + states + b"\xff\x0f\0\0"
    symbols = [1] + [0] * 31 + [1]
    assert rans.read_symbols(Reader(stream), 33).tolist() == symbols


@pytest.mark.parametrize(
    "kind",
    [Cascade(variant=0, lo=100, below=(0, 0)), Enec(group=4, b=100, m=1, nb=8), Entropy(lo=0)],
    ids=lambda kind: type(kind).__name__.lower(),
)
def test_a_count_beyond_two_bytes_is_coded_in_another_way(kind: Cascade | Enec | Entropy) -> None:
    # One more than the most that two bytes count, which tests/support/conformance.py has; the block would shrink.
    words = np.full(1 << 18, 100 << 7, "<u2")
    words[-65536:] = 255 << 7
    frame = decode(encode(words.tobytes(), "BF16", (1 << 18,), block_words=1 << 18, kind=kind, rest=Verbatim()))
    assert frame.codings == ("stored",)
    assert frame.data == words.tobytes()


def test_inner_units_beyond_two_bytes() -> None:
    # One word of 2^18 is zero: the others, stored, take 2 MiB, and 65536 units do not fit two bytes.
    words = np.arange(1 << 18, dtype="<u8") * np.uint64(0x9E3779B97F4A7C15)
    kind = Zeros(Stored(), variant=0)
    assert decode(encode(words.tobytes(), "U64", (1 << 18,), block_words=1 << 18, kind=kind)).codings == ("stored",)


def test_parts_of_the_longest_length_and_beyond() -> None:
    # A stored part of 511 runs takes 2^15 - 64 units, and one of 512 runs 2^15, which do not fit 15 bits.
    n = 1023 * 256
    words = np.arange(n, dtype="<u8") * np.uint64(0x9E3779B97F4A7C15)
    words[511 * 256 :] = 5
    constants = (Constant(), Constant())
    for part_runs, coding in ((511, "parts(stored;constant;constant)"), (512, "stored")):
        kind = Parts((Stored(), *constants[: -(-1023 // part_runs) - 1]), part_runs)
        frame = decode(encode(words.tobytes(), "U64", (n,), block_words=1 << 18, kind=kind))
        assert frame.codings == (coding,)
        assert frame.data == words.tobytes()


def test_more_or_fewer_parts_than_there_may_be() -> None:
    for n, num_parts in ((256, 1), (17 * 256, 17), (16 * 256 + 1, 17)):
        kind = Parts((Constant(),) * num_parts)
        assert decode(encode(bytes([7]) * n, "U8", (n,), block_words=8192, kind=kind)).codings == ("stored",)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="bytes"):
        encode(bytes(5), "BF16", (2,))
    with pytest.raises(ValueError, match="bits"):
        encode(bytes(6), "F6_E2M3", (8,))
    with pytest.raises(ValueError, match="16 bits, not 32"):
        encode(bytes(6), "BF16", (3,), bits=32)
    with pytest.raises(ValueError, match="words of 32"):
        encode(bytes(6), "X", (3,), bits=16, layout=Layout(4, 8, 24, "float", True))
    for layout in (Layout(2, 8, 7, "float", True), Layout(1, 8, 0, "float", False), Layout(2, 0, 0, "signed", False)):
        with pytest.raises(ValueError, match=r"bits|split|float"):
            encode(bytes(6), "X", (3,), bits=16, layout=layout)
    with pytest.raises(ValueError, match="exponents"):
        encode(bytes(400) + b"\1", "BOOL", (401,), kind=Entropy())
    for lo, below in ((14, (0, 0)), (13, (2, 7)), (2, (3, 0))):
        with pytest.raises(ValueError, match=r"name more than 0\.\.15"):
            encode(bytes(399) + b"\1", "F8_E4M3", (400,), kind=Cascade(variant=0, lo=lo, below=below))
