"""Frames that between them take every path of a decoder, made with the reference encoder from seeded inputs.

`CASES` is for every decoder: build the frame, decode it, compare with `data`.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from reference.tensorwire_reference import (
    Bytes,
    Cascade,
    Constant,
    Enec,
    Entropy,
    Kind,
    Plain,
    Stored,
    Trimmed,
    Verbatim,
)
from tests.support.cases import (
    ALL_PROFILES,
    FLOATS,
    INTEGERS,
    OPAQUE,
    PROFILES,
    RESTS,
    SPLIT_INTEGERS,
    Case,
    case,
    exponent_bits,
    floats,
    generator,
    integers,
    rest_bits,
    small_integers,
    to_bytes,
    words_nbytes,
    words_of,
)
from tests.support.conformance_headers import HEADER_CASES
from tests.support.conformance_layouts import LAYOUT_CASES
from tests.support.conformance_parts import PARTS_CASES
from tests.support.conformance_relative import RELATIVE_CASES
from tests.support.conformance_scaled import SCALED_CASES
from tests.support.conformance_zeros import ZEROS_CASES

__all__ = ["CASES", "SPLIT", "Case", "floats"]

SPLIT = (*FLOATS, *SPLIT_INTEGERS)
BYTES_MODES = ("verbatim", "constant", "entropy")
KIND_OF_PROFILE = {"enec": Enec(), "fast": Cascade(), "compact": Entropy(), "resident": Cascade(table=2)}
NO_GAIN = ("verbatim", "trimmed", "trimmed-run", "bytes-verbatim")  # with these, 4 bits in place of 4 save nothing


def _sizes() -> Iterator[Case]:
    for dtype, n in itertools.product((*FLOATS, *INTEGERS), (0, 1, 255, 256, 257, 511, 512, 513)):
        name = f"size-{dtype}-{n}"
        data = floats(dtype, n, name) if dtype in FLOATS and n else integers(dtype, n, name, words_nbytes(dtype) * 5)
        # A block of 512 words: one short of it, exactly it, one more.
        profile = ALL_PROFILES[n % 4]
        golden = n in (1, 257, 513) if dtype in FLOATS else n == 255 and words_nbytes(dtype) < 8
        yield case(name, data, dtype, block_words=512, profile=profile, golden=golden)
    for n in range(2, 32, 7):  # fewer words than states, or than bits of a 32-bit word
        yield case(f"few-{n}", floats("BF16", n, f"few-{n}"), "BF16", block_words=256)
    for block_words in (256, 768, 1280):  # no power of two
        data = floats("F16", 2 * block_words + 77, f"block-words-{block_words}")
        options = {"block_words": block_words, "golden": block_words < 1280}
        yield case(f"block-words-{block_words}", data, "F16", profile="fast", **options)
    yield case("scalar-F32", b"\x01\x00\xc0\x7f", "F32", shape=())
    yield case("empty-huge", b"", "U8", shape=(1 << 63, 0, 1 << 63))
    yield case("ndim-64", bytes(range(24)), "I16", shape=(1,) * 61 + (3, 2, 2))
    yield case("shape-3-5-7", floats("BF16", 105, "shape-3-5-7"), "BF16", shape=(3, 5, 7), block_words=256)


def _every_pattern() -> Iterator[Case]:
    for d, dtype in enumerate(FLOATS):
        nbytes, *_ = FLOATS[dtype]
        patterns = np.arange(1 << min(16, 8 * nbytes), dtype=np.uint64) << np.uint64(16 if nbytes == 4 else 0)
        for profile in ALL_PROFILES if nbytes == 1 else ALL_PROFILES[d % 2 :: 2]:
            of_large = None if nbytes == 1 else KIND_OF_PROFILE[profile]  # to try several takes long
            yield case(
                f"every-pattern-{dtype}-{profile}",
                to_bytes(patterns | np.uint64(nbytes == 4), dtype),
                dtype,
                profile=profile,
                kind=of_large,
                golden=nbytes == 1 and profile == "compact",
            )


def _stored_and_constant() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        nbytes = words_nbytes(dtype)
        noise = generator(f"stored-{dtype}").bytes(nbytes * (300 if nbytes == 1 else 40))
        yield case(f"stored-{dtype}", noise, dtype, block_words=256, kind=Stored(), coding=("stored", ""))
        word = b"\x81\x7f\xa5\x5a\xc3\x3c\x99\xfe"[:nbytes]
        yield case(
            f"constant-{dtype}",
            word * 300,
            dtype,
            block_words=256,
            kind=Constant(),
            profile=ALL_PROFILES[nbytes % 4],
            coding=("constant", ""),
        )
        yield case(f"constant-zero-{dtype}", bytes(nbytes * 1025), dtype, block_words=1024, coding=("constant", ""))
    yield case("constant-largest-blocks", bytes(8 * 262145), "I64", block_words=262144, coding=("constant", ""))
    for dtype, bits in OPAQUE.items():
        numel = 1 if bits == 1024 else 3
        data = generator(f"opaque-{dtype}").bytes((numel * bits + 7) // 8)
        yield case(f"opaque-{dtype}", data, dtype, shape=(numel,), bits=bits, kind=Stored(), coding=("stored", ""))


def split_words(dtype: str, n: int, name: str, *, zero_bits: int = 0, calm: bool = False) -> bytes:
    """Words with an exponent. calm: no rare exponents."""
    if dtype not in FLOATS:
        return small_integers(dtype, n, name, mean=8, sigma=3)
    top = (1 << FLOATS[dtype][1]) - 1
    exponents = top * 3 // 4 - np.minimum(generator(f"{name} calm").geometric(0.75, n), 6) if calm else None
    return floats(dtype, n, name, exponents=exponents, zero_bits=zero_bits)


def bytes_input(dtype: str, n: int, name: str, mode: str) -> bytes:
    """Words whose rests have slices that suit the mode."""
    data = split_words(dtype, n, name, calm=True)
    low = rest_bits(dtype) - (dtype in FLOATS)
    if mode == "constant":  # all signs equal, and all that is below the exponent
        exponents = words_of(data, dtype) >> np.uint64(low) << np.uint64(low)
        if dtype in FLOATS:
            exponents |= np.uint64(1 << 8 * words_nbytes(dtype) - 1)
        return to_bytes(exponents | np.uint64(1), dtype)
    if mode == "entropy":  # few bits set
        words, rng = words_of(data, dtype), generator(f"{name} bits")
        few = rng.integers(0, 1 << low, n, dtype=np.uint64) & rng.integers(0, 1 << low, n, dtype=np.uint64)
        return to_bytes(words & ~np.uint64((1 << low) - 1) | words & few, dtype)
    return data


def _every_coding() -> Iterator[Case]:
    """Every kind with an exponent, with each of its variants and each rest; of BF16 all pairs, of others in turn."""
    by_name: dict[str, tuple[Kind, str]] = {
        **{f"enec/{4 << i}": (Enec(group=4 << i), PROFILES[i % 3]) for i in range(4)},
        **{f"cascade/{i}": (Cascade(variant=i), "fast") for i in range(8)},
        **{f"cascade2/{i}": (Cascade(variant=i, table=2), ("fast", "resident")[i]) for i in range(2)},
        **{f"entropy/{k}": (Entropy(k=k), "compact") for k in range(4)},
        **{f"cascade2/{i}": (Cascade(variant=i, table=2), "fast") for i in range(2, 6)},
    }
    for d, dtype in enumerate(SPLIT):
        for i, (coding, (kind, profile)) in enumerate(by_name.items()):
            if isinstance(kind, Entropy) and kind.k >= rest_bits(dtype):
                continue
            n = 900 if words_nbytes(dtype) == 1 else 580
            k = kind.k if isinstance(kind, Entropy) else 0
            for j, rest_name in enumerate((*RESTS, *(f"bytes-{mode}" for mode in BYTES_MODES))):
                if coding == "cascade2/0" and exponent_bits(dtype) == 4 and rest_name in NO_GAIN:
                    continue
                if coding == "cascade2/2" and exponent_bits(dtype) < 8:  # it names 36 exponents
                    continue
                name = f"coding-{coding.replace('/', '-')}-{rest_name}-{dtype}"
                if rest_name in RESTS:
                    rest, label = RESTS[rest_name], f"+{rest_name}"
                    data = split_words(dtype, n, name, zero_bits=int(rest_name == "trimmed"), calm=True)
                    allowed = "fast" if j and profile == "resident" else profile
                else:
                    modes = (rest_name.removeprefix("bytes-"),) * -(-(rest_bits(dtype) - k) // 8)
                    rest, label = Bytes(modes), f"+bytes[{','.join(modes)}]"
                    data = bytes_input(dtype, n, name, modes[0])
                    allowed = "compact"
                golden = (d + i + j) % (6 if dtype == "BF16" else 10) == 0
                options = {"profile": allowed, "kind": kind, "rest": rest, "golden": golden}
                yield case(name, data, dtype, coding=(f"{coding}(", label), **options)


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
            s = np.where(rng.random(800) < 0.01, rng.integers(-half, half, 800), rng.integers(0, 1 << (m - 1), 800))
            s[[5, 6]] = -half, half - 1
            b = 1 if i % 2 else top * 3 // 4
            data = floats(dtype, 800, name, exponents=(b - s) % (top + 1))
            rest_name = tuple(RESTS)[i % 2]
            yield case(
                name,
                data,
                dtype,
                profile=PROFILES[i % 3],
                kind=Enec(group=group, b=b, m=m, nb=nb),
                rest=RESTS[rest_name],
                coding=(f"enec/{group}(b={b},m={m},nb={nb})", f"+{rest_name}"),
                golden=nb == e_bits and m % 2 == 1 and dtype != "F32",
            )


def _cascade() -> Iterator[Case]:
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
            golden=sum(below) % 16 == 0,
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
            exponents = np.where(rng.random(700) < 0.1, rng.integers(0, top + 1, 700), rng.integers(lo, lo + 3, 700))
            exponents[:16] = np.clip(np.arange(16) + (0 if end == "lowest" else top - 15), 0, top)
            yield case(
                name,
                floats(dtype, 700, name, exponents=exponents),
                dtype,
                profile="fast",
                kind=Cascade(variant=variant, lo=lo, below=below),
                rest=Verbatim(),
                coding=(f"cascade/{variant}(lo={lo},a={','.join(map(str, below))},", "+verbatim"),
                golden=variant == 3 and dtype == "F16" and tier % 2 == 0,
            )
    for dtype, row, lo in itertools.product(("F8_E4M3", "F8_E5M2"), range(2), (0, 1)):
        top = (1 << FLOATS[dtype][1]) - 1
        first = lo * (top + 1 - (15, 7)[row])  # the interval begins with exponent 0, or ends with the highest one
        name = f"cascade2-{dtype}-{row}-{first}"
        exponents = np.clip(first + generator(name).geometric(0.4, 700) - 1, 0, top)
        data = floats(dtype, 700, name, exponents=exponents, zero_bits=1)
        kind, coding = Cascade(variant=row, lo=first, table=2), (f"cascade2/{row}(lo={first},", "+trimmed")
        yield case(name, data, dtype, profile="fast", kind=kind, rest=Trimmed(), coding=coding)
    yield case(
        "cascade-no-escape",
        floats("F32", 700, "cascade-no-escape", exponents=generator("no escape").integers(90, 93, 700)),
        "F32",
        profile="fast",
        kind=Cascade(variant=1),
        coding=("cascade/1(", "escapes=0,0,0,0,0)+trimmed"),
    )


def _entropy() -> Iterator[Case]:
    for k, lo in ((0, 1), (1, 100), (3, 300)):  # escapes on both sides of the window
        name = f"entropy-escapes-{k}"
        exponents = np.where(generator(name).random(1500) < 0.03, generator(name).choice([0, 1, 254, 255], 1500), 60)
        exponents[:2] = 0, 255
        data = floats("BF16", 1500, name, exponents=exponents)
        options = {"kind": Entropy(k=k, lo=lo), "golden": k == 1}
        yield case(name, data, "BF16", coding=(f"entropy/{k}(lo={lo}", ""), **options)
    for dtype in SPLIT:  # escapes of every width, of values that are in the window as well
        for k in range(min(3, rest_bits(dtype) - 1) + 1):
            name = f"entropy-rare-{dtype}-{k}"
            options = {"kind": Entropy(k=k, rare=3), "rest": Verbatim(), "golden": k == 1 and dtype != "F32"}
            yield case(name, split_words(dtype, 1501, name), dtype, coding=(f"entropy/{k}(", "+verbatim"), **options)
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
        golden = nbytes == 1
        options = {"profile": "fast", "block_words": 8192, "kind": kind, "rest": rest, "golden": golden}
        yield case(name, data, dtype, coding=coding, **options)


def _bytes_rest() -> Iterator[Case]:
    for dtype in SPLIT:
        slices = -(-rest_bits(dtype) // 8)
        for mode, kind in itertools.product(BYTES_MODES, (Enec(group=8), Cascade(variant=2), Entropy())):
            name = f"bytes-{mode}-{dtype}-{type(kind).__name__.lower()}"
            data = bytes_input(dtype, 1500, name, mode)
            label = f"+bytes[{','.join([mode] * slices)}]"
            coding = (type(kind).__name__.lower(), label)
            yield case(name, data, dtype, kind=kind, rest=Bytes((mode,) * slices), coding=coding, golden=False)
    mixed = floats("F32", 1500, "bytes-mixed", zero_bits=8, skew=True)
    coding = ("entropy/0", "+bytes[constant,verbatim,entropy]")
    rest = Bytes(("constant", "verbatim", "entropy"))
    yield case("bytes-mixed", mixed, "F32", kind=Entropy(), rest=rest, coding=coding)
    yield case("bytes-auto", mixed, "F32", kind=Entropy(k=2), rest=Bytes(), coding=("entropy/2", "]"), golden=False)


def _plain() -> Iterator[Case]:
    for dtype in (*INTEGERS, *FLOATS, *OPAQUE):
        nbytes = words_nbytes(dtype)
        for profile, (rest_name, rest) in itertools.product(PROFILES, list(RESTS.items())[1:]):
            name = f"plain-{dtype}-{rest_name}-{profile}"
            data = integers(dtype, 640, name, min(5 * nbytes, 62), shift=nbytes)
            if rest_name == "trimmed-run":  # one run keeps all its bits, one is zero
                data = data[: 256 * nbytes] + bytes(256 * nbytes) + data[512 * nbytes :]
            coding = (f"plain+{rest_name}", rest_name)
            golden = profile == "fast" and dtype not in (*FLOATS, "U64") and rest_name == "trimmed-run"
            yield case(name, data, dtype, profile=profile, kind=Plain(), rest=rest, coding=coding, golden=golden)
        modes = ("verbatim", "constant", "entropy", "verbatim", "constant", "entropy", "constant", "constant")
        modes = ("entropy",) if nbytes == 1 else modes[:nbytes]
        name = f"plain-{dtype}-bytes"
        words = np.frombuffer(integers(dtype, 1280, name, 6 * nbytes - 4), f"<u{nbytes}").astype(np.uint64)
        for i, mode in enumerate(modes):
            if mode == "constant":
                words = words & ~np.uint64(255 << 8 * i) | np.uint64((0xA0 + i) << 8 * i)
        coding = (f"plain+bytes[{','.join(modes)}]", "")
        golden = dtype in (*FLOATS, "BOOL", "F6_E2M3", "U64")
        yield case(name, to_bytes(words, dtype), dtype, kind=Plain(), rest=Bytes(modes), coding=coding, golden=golden)


def _whole_blocks() -> Iterator[Case]:
    for i, profile in enumerate(ALL_PROFILES):
        dtype, block_words = (("BF16", 1 << 18), ("F8_E4M3", 1 << 16))[i % 2]
        name = f"whole-blocks-{dtype}-{profile}"
        data = floats(dtype, block_words + 1, name)
        kind, rest = KIND_OF_PROFILE[profile], Verbatim()
        options = {"profile": profile, "block_words": block_words, "kind": kind, "rest": rest, "golden": False}
        yield case(name, data, dtype, **options)


def _most_that_two_bytes_count() -> Iterator[Case]:
    """65535 escapes of every tier, words with a high part, escaped symbols."""
    n = (1 << 18) - 1
    exponents = np.full(n, 100)
    exponents[-65535:] = 255  # whole groups of four, of which the last has three words
    most_of_all_tiers = ",".join(["65535"] * 5)
    kinds: tuple[tuple[Kind, tuple[str, str]], ...] = (
        (Cascade(variant=3, lo=100, below=(0, 0, 0, 0)), ("cascade/3(", f"escapes={most_of_all_tiers})+verbatim")),
        (Enec(group=4, b=100, m=1, nb=8), ("enec/4(b=100,m=1,nb=8)", "+verbatim")),
        (Entropy(lo=0), ("entropy/0(", "escapes=65535)+verbatim")),
    )
    for kind, coding in kinds:
        name = f"most-counted-{type(kind).__name__.lower()}"
        data = floats("BF16", n, name, exponents=exponents)
        yield case(name, data, "BF16", block_words=262144, kind=kind, rest=Verbatim(), coding=coding, golden=False)


CASES = (
    *_sizes(),
    *_every_pattern(),
    *_stored_and_constant(),
    *_every_coding(),
    *_enec(),
    *_cascade(),
    *_entropy(),
    *_trimmed_rest(),
    *_bytes_rest(),
    *_plain(),
    *_whole_blocks(),
    *_most_that_two_bytes_count(),
    *ZEROS_CASES,
    *RELATIVE_CASES,
    *PARTS_CASES,
    *SCALED_CASES,
    *LAYOUT_CASES,
    *HEADER_CASES,
)
