"""Every measured figure in prose, made from benchmarks/results; tests/test_claims.py holds the prose against it.

To write a figure into README, a page of docs/, a help text or a docstring: add the words around it to `CLAIMS` below as
an f-string that takes the figure from the results (tests/support/figures.py has the words for that), run
`python -m pytest tests/test_claims.py`, and copy what the test expects. Line breaks do not matter. Keys are paths; one
that ends in a slash stands for all files below it, `--help` for the help texts of all commands. A number that nobody
measured (a definition, a threshold, a rule of the format) goes into `NOT_MEASURED` with the words around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.deltas.pairs import FAR, NEAR
from benchmarks.targets import KNOWN_RATIOS
from tests.support.figures import Row, cycles, deltas, epyc, faults, geometry, share, span, xeon

if TYPE_CHECKING:
    from tests.support.figures import Run

BF16, F16, F32, IN_F32 = "minilm-bf16", "minilm-f16", "minilm-f32", "minilm-bf16-in-f32"
F8 = ("minilm-f8-e4m3", "minilm-f8-e5m2")
LARGE = "synthetic-bf16"
DATA = (BF16, F16, F32, IN_F32, *F8, LARGE)
PCODEC = {BF16: "pcodec 12 int", F16: "pcodec 12 float", F8[0]: "pcodec 12 int", F8[1]: "pcodec 12 int"}


def _table_row(name: str, row: Row, form: str = "{} | {} | {}") -> str:
    return f"{name} | " + form.format(f"{row.ratio:.3f}", f"{row.compress.gbs:.2f}", f"{row.decompress.gbs:.2f}")


def _smaller_percent(run: Run) -> list[float]:
    """By how many percent pcodec's result is smaller than that of `compact`, tensor by tensor."""
    pairs = [(run(data, peer), run(data, "compact")) for data, peer in PCODEC.items()]
    return [100 * (1 - ours.ratio_by_tensor / peer.ratio_by_tensor) for peer, ours in pairs]


def _decode_of_memcpy(data: str, codec: str = "fast", **setting: bool) -> str:
    return f"{epyc(data, codec, **setting).decompress.of_memcpy:.2f}"


def _two_threads(codec: str) -> list[float]:
    """How much faster two threads compress than one."""
    return [epyc(data, codec, threads=2).compress.times_one_thread for data in DATA]


def _changes(exponent: int) -> str:
    """A row of the table of what training changes; `exponent` is that of the smallest weights of its class."""
    shares = " | ".join(f"{deltas.share(pair, exponent + 127):.2f} %" for pair in NEAR)
    return f"| 2^{exponent} to 2^{exponent + 1} | {shares} |"


def _delta_bits(name: str, codec: str, pairs: tuple[str, ...], per: str) -> str:
    """A row of a table of sizes; in brackets with a frame for each matrix."""
    cells = (deltas.bits(pair, codec, per) for pair in pairs)
    return f"| {name} | " + " | ".join(f"{whole:.2f} ({tensor:.2f})" for whole, tensor in cells) + " |"


def _delta_bounds(pairs: tuple[str, ...], per: str) -> str:
    return "| bound | " + " | ".join(f"({deltas.bound(pair, per):.2f})" for pair in pairs) + " |"


NEAR_FORMS = {
    "**relative `compact`**": "relative compact",
    "**relative `fast`**": "relative fast",
    **{name: name for name in ("hdiffpatch", "gap + XOR, zstd 1", "BitX", "XOR, zstd 1", "XOR, zstd 3", "xdelta3")},
    **{name: name for name in ("index + value", "XOR, ZipNN")},
    "plain `compact`": "plain compact",
}
FAR_FORMS = {name: codec for name, codec in NEAR_FORMS.items() if codec not in ("hdiffpatch", "xdelta3")}
RIGHT, RUNS = faults.count()

CLAIMS: dict[str, list[str]] = {
    "src/tensorwire/diagnosis/words.py": ['"120 ms"'],
    "src/tensorwire/diagnosis/report/codes.py": ["right in 25 of 25 recorded faults"],  # a form; a test holds RECORDED
    "README.md": [
        f"decodes BF16 at {epyc(BF16, 'fast').decompress.gbs:.1f} GB/s on one core, where memcpy copies at "
        f"{epyc(BF16, 'memcpy').decompress.gbs:.1f}.",
        f"| memcpy | 1 | {epyc(BF16, 'memcpy').compress.gbs:.2f} | {epyc(BF16, 'memcpy').decompress.gbs:.2f} |",
        _table_row("**tensorwire `fast`**, the default", epyc(BF16, "fast"), "**{}** | **{}** | **{}**"),
        _table_row("**tensorwire `compact`**", epyc(BF16, "compact"), "**{}** | {} | **{}**"),
        _table_row("ZipNN 0.5.4", epyc(BF16, "zipnn")),
        _table_row("zstd (zstandard 0.25.0), level 3", epyc(BF16, "zstandard 3")),
        f"Of {RUNS} runs of real gloo jobs of four ranks, {RIGHT} were judged right",
    ],
    "docs/performance.md": [
        f"on which {epyc.targets} targets are met",
        f"with older code, it was {xeon.targets.split()[0]};",
        "Decompression: "
        + span([epyc.target("fast decompress, times ZipNN", data) for data in (BF16, LARGE)], ".1f")
        + f" times on BF16 (Xeon {xeon.target('fast decompress, times ZipNN', BF16):.1f}); ZipNN, with memory that it "
        "may reuse, does "
        + span([epyc(data, "zipnn").decompress.gbs for data in (BF16, F16, LARGE)], ".1f")
        + f" GB/s here and {xeon(BF16, 'zipnn').decompress.gbs:.1f} there",
        "Compression: "
        + span([epyc.target("fast compress, times ZipNN", data) for data in (BF16, F16, *F8, LARGE)], ".1f")
        + " times on BF16, F16 and F8 (Xeon "
        + f"{max(xeon.target('fast compress, times ZipNN', data) for data in (BF16, F16, *F8, LARGE)):.1f}), "
        + span([epyc.target("fast compress, times ZipNN", data) for data in (F32, IN_F32)], ".1f", " and ")
        + " on F32",
        f"splitting words, which fetches them, {share('encode', 'split')}; hashing content and blocks "
        f"{share('encode', 'accumulate')}; counting exponents "
        f"{share('encode', 'count_values', 'count_groups', 'byte_histogram_vector')}; writing tiers "
        f"{share('encode', 'pack_plane', 'pack_field')}; choosing {share('encode', 'cascade_choose')}.",
        "putting words together and writing them around the caches "
        f"{share('decode', 'weave', 'assemble', 'stream_copy')}, expanding escapes {share('decode', 'expand')}, "
        f"checking hashes {share('decode', 'accumulate')}, unpacking fields "
        f"{share('decode', 'unpack_field', 'unpack_plane')}.",
        f"BF16 {_decode_of_memcpy(BF16)} of memcpy on MiniLM, but {_decode_of_memcpy(LARGE)} on 548 MiB "
        f"({_decode_of_memcpy(LARGE, verify=False)} without checksums), where memcpy goes around the caches and "
        f"reaches {epyc(LARGE, 'memcpy').decompress.gbs:.0f} GB/s. F16 {_decode_of_memcpy(F16)}, F32 "
        f"{_decode_of_memcpy(F32)}, F8 {span([epyc(data, 'fast').decompress.of_memcpy for data in F8])}.",
        f"Two threads decode 548 MiB at {epyc(LARGE, 'fast', threads=2).decompress.of_memcpy:.2f} of two-thread memcpy",
        f"`enec` likewise: {_decode_of_memcpy(LARGE, 'enec')} on 548 MiB, F16 {_decode_of_memcpy(F16, 'enec')}",
        f"{span([xeon(data, 'fast').decompress.of_memcpy for data in F8])} of memcpy on the Xeon",
        f"548 MiB {epyc(LARGE, 'fast').compress.of_memcpy:.2f}, F16 {epyc(F16, 'fast').compress.of_memcpy:.2f}, F8 "
        + span([epyc(data, "fast").compress.of_memcpy for data in F8])
        + ".",
        f"`fast` reaches {min(_two_threads('fast')):.1f} to {sorted(_two_threads('fast'))[4]:.2f} on five of seven",
        f"({epyc(BF16, 'memcpy', threads=2).compress.gbs:.1f} against {epyc(BF16, 'memcpy').compress.gbs:.1f} GB/s)",
        f"`compact` {span(_two_threads('compact'), '.1f')}, `enec` {min(_two_threads('enec')):.2f} to "
        f"{max(_two_threads('enec')):.1f}",
        f"pcodec is {span(_smaller_percent(epyc))} % smaller on BF16, F16 and F8, on both machines, and compresses at "
        f"{epyc(BF16, 'pcodec 12 int').compress.gbs:.2f} GB/s",
        f"{epyc(IN_F32, 'compact').ratio_by_tensor:.3f}, not {KNOWN_RATIOS[IN_F32]:.2f}.** "
        f"{KNOWN_RATIOS[IN_F32]:.2f} was pcodec's figure, rounded; in this run pcodec reaches "
        f"{epyc(IN_F32, 'pcodec 12 float').ratio_by_tensor:.4f}",
        f"({epyc.target('compact decompress, times ZipNN', F32):.1f} times ZipNN; Xeon "
        f"{xeon.target('compact decompress, times ZipNN', F32):.2f})",
        f"{cycles('entropy', 'F32', 'verify'):.1f} cycles an element where BF16 takes "
        f"{cycles('entropy', 'BF16', 'verify'):.0f}",
        f"is {span([epyc.target('compact decompress, times ZipNN', data) for data in DATA], '.1f')} times as fast as "
        "ZipNN",
        f"{epyc.file('tensorwire decompress'):.1f} times the time of cp, not 4",
    ],
    "docs/decisions.md": [
        f"the size changes by {geometry.row_blocks()} %",
        f"a ratio of {geometry.shape(BF16, 3):.3f} against {geometry.shape(BF16, 4):.3f}, where `fast` has "
        f"{geometry.fast(BF16):.3f}. But {geometry.escapes(BF16, 3):.1f} % of the words escape from shape (3), and "
        f"{geometry.escapes(BF16, 4):.2f} % from shape (4).",
        f"{geometry.any_of_32_escapes(BF16, 3):.0f} % of all cases with shape (3), and in "
        f"{geometry.any_of_32_escapes(BF16, 4):.1f} % with shape (4)",
        f"a ratio of {geometry.shape(F16, 4):.3f} where shape (3) reaches {geometry.shape(F16, 3):.3f}",
    ],
    "docs/deltas.md": [
        *map(_changes, (-15, -13, -11, -9, -7, -5, -3)),
        "| all | " + " | ".join(f"{deltas.share(pair):.2f} %" for pair in NEAR) + " |",
        "| changed | " + " | ".join(f"{deltas.share(pair):.2f} %" for pair in FAR) + " |",
        *(_delta_bits(name, codec, NEAR, "changed") for name, codec in NEAR_FORMS.items()),
        _delta_bounds(NEAR, "changed"),
        *(_delta_bits(name, codec, FAR, "words") for name, codec in FAR_FORMS.items()),
        _delta_bounds(FAR, "words"),
    ],
    "docs/job/findings.md": [
        f"{faults.recorded('high')} with high confidence and {faults.recorded('medium')} with medium"
    ],
    "docs/job/limits.md": [
        f"Of {RUNS} runs, {RIGHT} were right: {faults.share('lost')} with a lost process, {faults.share('hang')} with "
        f"a hang, {faults.share('slow')} with a slow rank or link, and {faults.share('none')} with nothing wrong",
    ],
}

# Definitions, thresholds, versions, and what a program prints: nobody measured them.
NOT_MEASURED: dict[str, list[str]] = {
    "docs/benchmarks.md": ["16 x 2048 embeddings", "standard deviation 0.02", "up to 99.9 % are zeros"],
    "docs/checkpoints.md": ["have at most 16 times the bytes of"],
    "docs/deltas.md": ["betas of 0.9 and 0.999, and a weight decay of 0.01"],
    "docs/job/nccl.md": ["| 2.22 and", "| 2.23 to 2.25 |", "| 2.26 |", "| 2.27 |", "| 2.28 |", "| 2.29 and"],
    "docs/performance.md": [
        "**Two threads compressing at 1.7 times one.**",
        "**Four times ZipNN decompressing, and 3.5 times compressing.**",
        "0.05 % of a tensor of 147,456 elements",
    ],
    "docs/terminology.md": ["every 0.05 s"],
    "src/": ["(2.24 and later)", "CPU times to 10 ms", "1 GB/s is 10^9 uncompressed bytes per second"],
    "--help": ["1 GB/s is 10^9 uncompressed bytes per second"],
}
