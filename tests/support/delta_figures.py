"""What benchmarks/results says of deltas, in the words that a claim about it needs."""

from __future__ import annotations

from benchmarks.deltas.pairs import FAR, NEAR
from benchmarks.deltas.targets import PROFILES
from tests.support.figures import deltas, span

NEAR_FORMS = {
    "**relative `compact`**": "relative compact",
    "**relative `fast`**": "relative fast",
    **{name: name for name in ("hdiffpatch", "gap + XOR, zstd 1", "BitX", "XOR, zstd 1", "XOR, zstd 3", "xdelta3")},
    **{name: name for name in ("index + value", "XOR, ZipNN")},
    "plain `compact`": "plain compact",
}
FAR_FORMS = {name: codec for name, codec in NEAR_FORMS.items() if codec not in ("hdiffpatch", "xdelta3")}


def page() -> list[str]:
    """The claims of docs/deltas.md."""
    return [
        *map(_changes, (-15, -13, -11, -9, -7, -5, -3)),
        "| all | " + " | ".join(f"{deltas.share(pair):.2f} %" for pair in NEAR) + " |",
        "| changed | " + " | ".join(f"{deltas.share(pair):.2f} %" for pair in FAR) + " |",
        *(_bits(name, codec, NEAR, "changed") for name, codec in NEAR_FORMS.items()),
        _bounds(NEAR, "changed"),
        *(_bits(name, codec, FAR, "words") for name, codec in FAR_FORMS.items()),
        _bounds(FAR, "words"),
        *(_speeds(profile, pair) for profile in PROFILES for pair in (*NEAR[:2], "synthetic-sparse")),
        f"{deltas.targets} targets are met",
        f"`fast` with AVX2 misses applying unchecked at 1e-6 by {_near_miss():.3f}",
        f"encodes at {_dense('encode')} GB/s and applies at {_dense('apply')}",
        f"`fast` applies it at {_of_memcpy('apply', 'synthetic-same', 'fast')} of memcpy with checks and at "
        f"{_of_memcpy('apply', 'synthetic-same', 'fast', verify=False)} without",
        f"encodes {_bitx('encode')} times as fast as BitX and applies {_bitx('apply')} times as fast",
        f"({deltas.row(NEAR[1], 'index + value')['in_place']['median']:.0f} GB/s at 5e-6, where `fast` does "
        f"{deltas.row(NEAR[1], 'relative fast')['in_place']['median']:.0f})",
    ]


def _changes(exponent: int) -> str:
    """A row of the table of what training changes; `exponent` is that of the smallest weights of its class."""
    shares = " | ".join(f"{deltas.share(pair, exponent + 127):.2f} %" for pair in NEAR)
    return f"| 2^{exponent} to 2^{exponent + 1} | {shares} |"


def _bits(name: str, codec: str, pairs: tuple[str, ...], per: str) -> str:
    """A row of a table of sizes; in brackets with a frame for each matrix."""
    cells = (deltas.bits(pair, codec, per) for pair in pairs)
    return f"| {name} | " + " | ".join(f"{whole:.2f} ({tensor:.2f})" for whole, tensor in cells) + " |"


def _bounds(pairs: tuple[str, ...], per: str) -> str:
    return "| bound | " + " | ".join(f"({deltas.bound(pair, per):.2f})" for pair in pairs) + " |"


def _of_memcpy(what: str, pair: str, profile: str, *, verify: bool = True, cpu: str | None = None) -> str:
    return f"{deltas.row(pair, f'relative {profile}', verify=verify, cpu=cpu)[what]['vs_memcpy']:.2f}"


def _near_miss() -> float:
    """What `fast` lacks to apply unchecked at 0.6 of memcpy with AVX2, on the nearest pair."""
    return 0.6 - float(deltas.row(NEAR[0], "relative fast", verify=False, cpu="avx2")["apply"]["vs_memcpy"])


def _speeds(profile: str, pair: str) -> str:
    """A row of the table of speeds; in brackets with AVX2."""
    cells = []
    for what, verify in (("encode", True), ("apply", True), ("apply", False)):
        best, avx2 = (_of_memcpy(what, pair, profile, verify=verify, cpu=cpu) for cpu in (None, "avx2"))
        cells.append(f"{best} ({avx2})")
    return f"| `{profile}`, {pair} | {' | '.join(cells)} |"


def _dense(what: str) -> str:
    """GB/s where most words change, on both CPU targets and in both profiles."""
    rows = (deltas.row("synthetic-dense", f"relative {name}", cpu=cpu) for name in PROFILES for cpu in (None, "avx2"))
    return span([row[what]["median"] for row in rows])


def _bitx(what: str) -> str:
    return span([deltas.row(pair, "relative compact")[what]["vs_bitx"] for pair in FAR])
