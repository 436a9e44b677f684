"""Frames that between them take every path of a decoder, made with the reference encoder from seeded inputs.

`CASES` is for every decoder: build the frame, decode it, compare with `data`. Inputs are made of integers only.
"""

import itertools
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from reference.tensorwire_reference import (
    Bytes,
    Cascade,
    Constant,
    Enec,
    Entropy,
    Kind,
    Plain,
    Rest,
    Stored,
    Trimmed,
    Verbatim,
    ZeroGroups,
    encode,
)

PROFILES = ("enec", "fast", "compact")
# dtype: (bytes of a word, exponent bits, mantissa bits)
FLOATS = {"BF16": (2, 8, 7), "F16": (2, 5, 10), "F32": (4, 8, 23), "F8_E4M3": (1, 4, 3), "F8_E5M2": (1, 5, 2)}
INTEGERS = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
OPAQUE = {"C64": 64, "F4": 4, "F6_E2M3": 6, "F8_E8M0": 8, "LONGEST_NAME_016": 1024}
RESTS: dict[str, Rest] = {"verbatim": Verbatim(), "trimmed": Trimmed(), "trimmed-run": Trimmed(per_run=True)}


class Case(NamedTuple):
    """One frame. `coding` is (start, end) of the reference's name of the first block's coding."""

    name: str
    build: Callable[[], bytes]
    data: bytes
    dtype: str
    shape: tuple[int, ...]
    bits: int | None
    profile: str
    coding: tuple[str, str]
    golden: bool


def words_nbytes(dtype: str) -> int:
    return FLOATS[dtype][0] if dtype in FLOATS else INTEGERS.get(dtype, 1)


def generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def to_bytes(words: np.ndarray, dtype: str) -> bytes:
    return words.astype(f"<u{words_nbytes(dtype)}").tobytes()


def floats(
    dtype: str, n: int, name: str, *, exponents: np.ndarray | None = None, zero_bits: int = 0, skew: bool = False
) -> bytes:
    """`n` floats. exponents: default a few common, some of all. zero_bits: lowest ones. skew: few bits set."""
    rng = generator(name)
    _, e_bits, m_bits = FLOATS[dtype]
    top = (1 << e_bits) - 1
    if exponents is None:
        common = np.maximum(top * 3 // 4 - rng.geometric(0.75, n), 0)
        exponents = np.where(rng.random(n) < 0.06, rng.integers(0, top, n, endpoint=True), common)
        exponents[n // 2] = top
    mantissas = rng.integers(0, 1 << m_bits, n)
    if skew:
        mantissas &= rng.integers(0, 1 << m_bits, n) & rng.integers(0, 1 << m_bits, n) & rng.integers(0, 1 << m_bits, n)
    signs = rng.integers(0, 2, n)
    words = (signs << (e_bits + m_bits)) | (exponents << m_bits) | (mantissas >> zero_bits << zero_bits)
    return to_bytes(words, dtype)


def integers(dtype: str, n: int, name: str, bits: int, shift: int = 0) -> bytes:
    """`n` words of `bits` random bits, `shift` zeros below them; rare bits are the higher ones."""
    rng = generator(name)
    words = rng.integers(0, 1 << bits, n, dtype=np.uint64)
    rare = rng.random(n) < 0.9
    words[rare] >>= np.uint64(bits // 2)
    return to_bytes(words << np.uint64(shift), dtype)


def sparse(data: bytes, dtype: str, name: str, group: int) -> bytes:
    """`data` with most groups of words set to zero, the first and the last not."""
    words = np.frombuffer(data, f"<u{words_nbytes(dtype)}").copy()
    keep = generator(f"{name} groups").random(-(-len(words) // group)) < 0.3
    keep[[0, -1]] = True
    words[~np.repeat(keep, group)[: len(words)]] = 0
    return words.tobytes()


def case(
    name: str,
    data: bytes,
    dtype: str,
    *,
    coding: tuple[str, str] = ("", ""),
    shape: tuple[int, ...] | None = None,
    bits: int | None = None,
    profile: str = "compact",
    block_log2: int = 11,
    kind: Kind | None = None,
    rest: Rest | None = None,
    golden: bool = True,
) -> Case:
    if dtype in OPAQUE:
        bits = OPAQUE[dtype]
    if shape is None:
        shape = (len(data) * 8 // bits if bits else len(data) // words_nbytes(dtype),)
    options = {"bits": bits, "profile": profile, "block_log2": block_log2, "kind": kind, "rest": rest}
    build = partial(encode, data, dtype, shape, **options)
    return Case(name, build, data, dtype, shape, bits, profile, coding, golden)


def _sizes() -> Iterator[Case]:
    for dtype, n in itertools.product((*FLOATS, *INTEGERS), (0, 1, 255, 256, 257, 511, 512, 513)):
        name = f"size-{dtype}-{n}"
        data = floats(dtype, n, name) if dtype in FLOATS and n else integers(dtype, n, name, words_nbytes(dtype) * 5)
        # A block of 512 words: one short of it, exactly it, one more.
        profile = PROFILES[n % 3]
        yield case(name, data, dtype, block_log2=9, profile=profile, golden=n in (0, 1, 257, 513) and dtype in FLOATS)
    yield case("scalar-F32", b"\x01\x00\xc0\x7f", "F32", shape=())
    yield case("empty-huge", b"", "U8", shape=(1 << 63, 0, 1 << 63))
    yield case("ndim-64", bytes(range(24)), "I16", shape=(1,) * 61 + (3, 2, 2))
    yield case("shape-3-5-7", floats("BF16", 105, "shape-3-5-7"), "BF16", shape=(3, 5, 7), block_log2=8)


def _every_pattern() -> Iterator[Case]:
    for dtype in FLOATS:
        nbytes, *_ = FLOATS[dtype]
        patterns = np.arange(1 << min(16, 8 * nbytes), dtype=np.uint64) << np.uint64(16 if nbytes == 4 else 0)
        for profile in PROFILES:
            yield case(
                f"every-pattern-{dtype}-{profile}",
                to_bytes(patterns | np.uint64(nbytes == 4), dtype),
                dtype,
                profile=profile,
                golden=nbytes == 1,
            )


def _stored_and_constant() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        nbytes = words_nbytes(dtype)
        noise = generator(f"stored-{dtype}").bytes(nbytes * 300)
        yield case(f"stored-{dtype}", noise, dtype, block_log2=8, kind=Stored(), coding=("stored", ""))
        word = b"\x81\x7f\xa5\x5a\xc3\x3c\x99\xfe"[:nbytes]
        yield case(
            f"constant-{dtype}",
            word * 300,
            dtype,
            block_log2=8,
            kind=Constant(),
            profile=PROFILES[nbytes % 3],
            coding=("constant", ""),
        )
        yield case(f"constant-zero-{dtype}", bytes(nbytes * 262145), dtype, block_log2=18, coding=("constant", ""))
    for dtype, bits in OPAQUE.items():
        numel = 1 if bits == 1024 else 3
        data = generator(f"opaque-{dtype}").bytes((numel * bits + 7) // 8)
        yield case(f"opaque-{dtype}", data, dtype, shape=(numel,), bits=bits, coding=("stored", ""))


def _enec() -> Iterator[Case]:
    for dtype, (_, e_bits, _) in FLOATS.items():
        top = (1 << e_bits) - 1
        pairs = [(m, nb) for nb in range(2, e_bits + 1) for m in range(1, nb)]
        for i, (m, nb) in enumerate(pairs):
            name = f"enec-{dtype}-m{m}-nb{nb}"
            group = 4 << i % 4
            rng = generator(f"{name} exponents")
            half = 1 << (nb - 1)
            # Every value that nb bits reach, both ends included; few words have a high part. b wraps around for odd i.
            s = np.where(rng.random(1400) < 0.01, rng.integers(-half, half, 1400), rng.integers(0, 1 << (m - 1), 1400))
            s[[5, 6]] = -half, half - 1
            b = 1 if i % 2 else top * 3 // 4
            data = floats(dtype, 1400, name, exponents=(b - s) % (top + 1))
            rest_name = tuple(RESTS)[i % 2]
            yield case(
                name,
                data,
                dtype,
                profile=PROFILES[i % 3],
                kind=Enec(group=group, b=b, m=m, nb=nb),
                rest=RESTS[rest_name],
                coding=(f"enec/{group}(b={b},m={m},nb={nb})", f"+{rest_name}"),
                golden=dtype == "BF16" or nb == e_bits,
            )


def _cascade() -> Iterator[Case]:
    for dtype, variant in itertools.product(FLOATS, range(8)):
        rest_name = tuple(RESTS)[variant % 3]
        name = f"cascade-{dtype}-{variant}"
        yield case(
            name,
            floats(dtype, 1100, name, zero_bits=variant % 3 % 2),
            dtype,
            profile=PROFILES[1 + variant % 2],
            kind=Cascade(variant=variant),
            rest=RESTS[rest_name],
            coding=(f"cascade/{variant}(", f"+{rest_name}"),
        )
    all_of_three: list[tuple[int, ...]] = list(itertools.product(range(4), range(8)))
    all_of_five: list[tuple[int, ...]] = list(itertools.product(range(2), range(2), range(4), range(8)))
    half_of_five = [below for below in all_of_five if sum(below) % 4 < 2]
    for variant, below in (*((0, below) for below in all_of_three), *((3, below) for below in half_of_five)):
        name = f"cascade-{variant}-a{'-'.join(map(str, below))}"
        yield case(
            name,
            floats("BF16", 700, name, exponents=generator(name).binomial(14, 0.5, 700) + 120),
            "BF16",
            profile="fast",
            kind=Cascade(variant=variant, lo=126, below=below),
            rest=Verbatim(),
            coding=(f"cascade/{variant}(lo=126,a={','.join(map(str, below))},", "+verbatim"),
            golden=sum(below) % 8 == 0,
        )
    # Tiers that begin with exponent 0 or end with the highest one, and every exponent of the range.
    shapes = ((0, (3, 7)), (3, (1, 1, 3, 7)))  # variant; c of its tiers behind the first, where c is 3
    for dtype, end, (variant, cs) in itertools.product(("BF16", "F16", "F8_E4M3"), ("lowest", "highest"), shapes):
        top = (1 << FLOATS[dtype][1]) - 1
        for tier in range(len(cs) + 1):  # the tiers up to this one begin with exponent 0, later ones lie above
            lo, below = sum(cs[:tier]), cs[:tier] + (0,) * (len(cs) - tier)
            if end == "highest":
                lo, below = top - 2 - lo, tuple(c - a for c, a in zip(cs, below, strict=True))
            name = f"cascade-{end}-{dtype}-{variant}-{lo}"
            rng = generator(name)
            exponents = np.where(rng.random(1100) < 0.1, rng.integers(0, top + 1, 1100), rng.integers(lo, lo + 3, 1100))
            exponents[:16] = np.clip(np.arange(16) + (0 if end == "lowest" else top - 15), 0, top)
            yield case(
                name,
                floats(dtype, 1100, name, exponents=exponents),
                dtype,
                profile="fast",
                kind=Cascade(variant=variant, lo=lo, below=below),
                rest=Verbatim(),
                coding=(f"cascade/{variant}(lo={lo},a={','.join(map(str, below))},", "+verbatim"),
                golden=variant == 3,
            )
    yield case(
        "cascade-no-escape",
        floats("F32", 700, "cascade-no-escape", exponents=generator("no escape").integers(90, 93, 700)),
        "F32",
        profile="fast",
        kind=Cascade(variant=1),
        coding=("cascade/1(", "escapes=0,0,0,0,0)+trimmed"),
    )


def _entropy() -> Iterator[Case]:
    for dtype, (_, _, m_bits) in FLOATS.items():
        for k in range(min(3, m_bits) + 1):
            for rest_name, rest in RESTS.items():
                name = f"entropy-{dtype}-{k}-{rest_name}"
                data = floats(dtype, 1500, name, zero_bits=int(rest_name != "verbatim" and k < m_bits))
                coding = (f"entropy/{k}(", f"+{rest_name}")
                golden = rest_name == tuple(RESTS)[k % 3]
                yield case(name, data, dtype, kind=Entropy(k=k), rest=rest, coding=coding, golden=golden)
    for k, base in ((0, 1), (1, 100), (3, 300)):  # escapes on both sides of the window
        name = f"entropy-escapes-{k}"
        exponents = np.where(generator(name).random(1500) < 0.03, generator(name).choice([0, 1, 254, 255], 1500), 60)
        exponents[:2] = 0, 255
        data = floats("BF16", 1500, name, exponents=exponents)
        yield case(name, data, "BF16", kind=Entropy(k=k, base=base), coding=(f"entropy/{k}(base={base}", ""))
    for dtype, (_, _, m_bits) in FLOATS.items():  # escapes of every width, of values that are in the window as well
        for k in range(min(3, m_bits) + 1):
            name = f"entropy-rare-{dtype}-{k}"
            kind, coding = Entropy(k=k, rare=3), (f"entropy/{k}(", "+verbatim")
            yield case(name, floats(dtype, 1501, name), dtype, kind=kind, rest=Verbatim(), coding=coding, golden=k == 1)
    one = floats("BF16", 1500, "entropy-one-symbol", exponents=np.full(1500, 77))
    yield case("entropy-one-symbol", one, "BF16", kind=Entropy(), rest=Verbatim(), coding=("entropy/0", "+verbatim"))
    full = integers("U8", 2048, "entropy-all-symbols", 8)[:-256] + bytes(range(256))
    rest = Bytes(modes=("entropy",))
    yield case("entropy-all-symbols", full, "U8", kind=Plain(), rest=rest, coding=("plain+bytes[entropy]", ""))
    for n in (31, 32, 33, 63, 65):  # fewer symbols than states, and a few more
        data = to_bytes(generator(f"few {n}").integers(5, 7, n).astype(np.uint64), "I64")
        modes = ("entropy",) + ("constant",) * 7
        yield case(f"entropy-{n}-symbols", data, "I64", kind=Plain(), rest=Bytes(modes), coding=("plain+bytes", ""))


def _trimmed_rest() -> Iterator[Case]:
    """Runs that keep fewer and fewer bits, the last run none; signs everywhere or nowhere."""
    for dtype, positive in itertools.product(FLOATS, (False, True)):
        nbytes, e_bits, m_bits = FLOATS[dtype]
        name = f"trimmed-run-{dtype}-{'positive' if positive else 'signed'}"
        runs = [floats(dtype, 256, f"{name} {t}", zero_bits=t) for t in range(m_bits + 1)]
        words = np.frombuffer(b"".join(runs), f"<u{nbytes}").astype(np.int64)
        words[-256:] &= ((1 << e_bits) - 1) << m_bits
        if positive:
            words &= (1 << (8 * nbytes - 1)) - 1
        coding = ("cascade/1(", "+trimmed-run")
        kind, rest = Cascade(variant=1), Trimmed(per_run=True)
        data = to_bytes(words, dtype)
        golden = nbytes < 4
        yield case(name, data, dtype, profile="fast", block_log2=13, kind=kind, rest=rest, coding=coding, golden=golden)


def _bytes_rest() -> Iterator[Case]:
    modes = ("verbatim", "constant", "entropy")
    for dtype, (_, _, m_bits) in FLOATS.items():
        slices = (m_bits + 8) // 8
        for mode, kind in itertools.product(modes, (Enec(group=8), Cascade(variant=2), Entropy())):
            name = f"bytes-{mode}-{dtype}-{type(kind).__name__.lower()}"
            data = floats(dtype, 1500, name, skew=mode == "entropy")
            if mode == "constant":  # all signs and mantissas equal
                words = np.frombuffer(data, f"<u{words_nbytes(dtype)}").astype(np.int64)
                exponents = words & (((1 << FLOATS[dtype][1]) - 1) << m_bits)
                data = to_bytes(exponents | 1 << (8 * words_nbytes(dtype) - 1) | 1, dtype)
            label = f"+bytes[{','.join([mode] * slices)}]"
            coding = (type(kind).__name__.lower(), label)
            yield case(name, data, dtype, kind=kind, rest=Bytes((mode,) * slices), coding=coding, golden=slices < 3)
    mixed = floats("F32", 1500, "bytes-mixed", zero_bits=8, skew=True)
    coding = ("entropy/0", "+bytes[constant,verbatim,entropy]")
    rest = Bytes(("constant", "verbatim", "entropy"))
    yield case("bytes-mixed", mixed, "F32", kind=Entropy(), rest=rest, coding=coding)
    yield case("bytes-auto", mixed, "F32", kind=Entropy(k=2), rest=Bytes(), coding=("entropy/2", "]"))


def _plain() -> Iterator[Case]:
    for dtype in (*INTEGERS, *FLOATS, *OPAQUE):
        nbytes = words_nbytes(dtype)
        for profile, (rest_name, rest) in itertools.product(PROFILES, list(RESTS.items())[1:]):
            name = f"plain-{dtype}-{rest_name}-{profile}"
            data = integers(dtype, 640, name, min(5 * nbytes, 62), shift=nbytes)
            if rest_name == "trimmed-run":  # one run keeps all its bits, one is zero
                data = data[: 256 * nbytes] + bytes(256 * nbytes) + data[512 * nbytes :]
            coding = (f"plain+{rest_name}", rest_name)
            golden = profile == "fast"
            yield case(name, data, dtype, profile=profile, kind=Plain(), rest=rest, coding=coding, golden=golden)
        modes = ("verbatim", "constant", "entropy", "verbatim", "constant", "entropy", "constant", "constant")
        modes = ("entropy",) if nbytes == 1 else modes[:nbytes]
        name = f"plain-{dtype}-bytes"
        words = np.frombuffer(integers(dtype, 1280, name, 6 * nbytes - 4), f"<u{nbytes}").astype(np.uint64)
        for i, mode in enumerate(modes):
            if mode == "constant":
                words = words & ~np.uint64(255 << 8 * i) | np.uint64((0xA0 + i) << 8 * i)
        coding = (f"plain+bytes[{','.join(modes)}]", "")
        yield case(name, to_bytes(words, dtype), dtype, kind=Plain(), rest=Bytes(modes), coding=coding)


def _zero_groups() -> Iterator[Case]:
    inners = (Enec(), Cascade(variant=0), Entropy(), Plain(), Stored())
    for i, (dtype, log2) in enumerate(itertools.product(FLOATS, range(8))):
        group, inner = 1 << log2, inners[i % 5]
        name = f"zero-groups-{dtype}-{group}"
        words = 2021 if not isinstance(inner, Entropy) else 4095
        data = sparse(floats(dtype, words, name, zero_bits=int(isinstance(inner, Plain))), dtype, name, group)
        rest: Rest = Trimmed() if isinstance(inner, Plain) or i % 2 else Verbatim()
        yield case(
            name,
            data,
            dtype,
            block_log2=12,
            profile="compact" if isinstance(inner, Entropy) else PROFILES[1 + i % 2],
            kind=ZeroGroups(inner=inner, group=group),
            rest=rest,
            coding=(f"zero_groups/{group}({type(inner).__name__.lower()}", ")"),
            golden=len(data) < 5000,
        )
    for dtype in (*INTEGERS, "F4"):
        name = f"zero-groups-{dtype}"
        data = sparse(integers(dtype, 1001, name, 4), dtype, name, 16)
        kind = ZeroGroups(inner=Plain(), group=16)
        coding = ("zero_groups/16(plain+trimmed", ")")
        yield case(name, data, dtype, profile="fast", kind=kind, rest=Trimmed(), coding=coding)
    lone = bytearray(4 * 999)
    lone[4 * 500 : 4 * 501] = b"\x00\x00\x00\x80"
    kind = ZeroGroups(inner=Stored(), group=1)
    yield case("zero-groups-one-word", bytes(lone), "F32", kind=kind, coding=("zero_groups/1(stored", ")"))
    equal = sparse(b"\x80\x3f" * 1000, "BF16", "equal", 4)
    kind = ZeroGroups(inner=Constant(), group=4)
    yield case("zero-groups-constant", equal, "BF16", kind=kind, coding=("zero_groups/4(constant", ")"))


def _whole_blocks() -> Iterator[Case]:
    for (dtype, block_log2), profile in itertools.product((("BF16", 18), ("F8_E4M3", 16)), PROFILES):
        name = f"whole-blocks-{dtype}-{profile}"
        n = (1 << block_log2) + 1
        yield case(name, floats(dtype, n, name), dtype, profile=profile, block_log2=block_log2, golden=False)


def _most_that_two_bytes_count() -> Iterator[Case]:
    """65535 escapes of every tier, words with a high part, escaped symbols."""
    n = (1 << 18) - 1
    exponents = np.full(n, 100)
    exponents[-65535:] = 255  # whole groups of four, of which the last has three words
    most_of_all_tiers = ",".join(["65535"] * 5)
    kinds: tuple[tuple[Kind, tuple[str, str]], ...] = (
        (Cascade(variant=3, lo=100, below=(0, 0, 0, 0)), ("cascade/3(", f"escapes={most_of_all_tiers})+verbatim")),
        (Enec(group=4, b=100, m=1, nb=8), ("enec/4(b=100,m=1,nb=8)", "+verbatim")),
        (Entropy(base=0), ("entropy/0(", "escapes=65535)+verbatim")),
    )
    for kind, coding in kinds:
        name = f"most-counted-{type(kind).__name__.lower()}"
        data = floats("BF16", n, name, exponents=exponents)
        yield case(name, data, "BF16", block_log2=18, kind=kind, rest=Verbatim(), coding=coding, golden=False)


CASES = (
    *_sizes(),
    *_every_pattern(),
    *_stored_and_constant(),
    *_enec(),
    *_cascade(),
    *_entropy(),
    *_trimmed_rest(),
    *_bytes_rest(),
    *_plain(),
    *_zero_groups(),
    *_whole_blocks(),
    *_most_that_two_bytes_count(),
)
