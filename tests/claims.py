"""Every measured figure in prose, made from benchmarks/results; tests/test_claims.py holds the prose against it.

To write a figure into README, a page of docs/, a help text or a docstring: add the words around it to `CLAIMS` below as
an f-string that takes the figure from the results (tests/support/figures.py has the words for that), run
`python -m pytest tests/test_claims.py`, and copy what the test expects. Line breaks do not matter. Keys are paths; one
that ends in a slash stands for all files below it, `--help` for the help texts of all commands. A number that nobody
measured (a definition, a threshold, a rule of the format) goes into `NOT_MEASURED` with the words around it.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from benchmarks.codecs import targets
from benchmarks.codecs.targets import KNOWN_RATIOS
from tests.support import delta_figures, device_figures
from tests.support.figures import (
    Row,
    above_bound,
    epyc,
    form,
    geometry,
    inference,
    remote,
    reshard,
    saved,
    second_read,
    served,
    share,
    shipped,
    span,
    traffic_bits,
    traffic_step,
    trainer,
    trainer_row,
    xeon,
)

if TYPE_CHECKING:
    from tests.support.figures import Run

BF16, F16, F32, IN_F32 = "minilm-bf16", "minilm-f16", "minilm-f32", "minilm-bf16-in-f32"
F8 = ("minilm-f8-e4m3", "minilm-f8-e5m2")
SMALL = (BF16, F16, F32, IN_F32, *F8)
LARGE = "synthetic-bf16"
BIG_F8 = ("synthetic-f8-e4m3", "synthetic-f8-e5m2")
BIG = (LARGE, "synthetic-f16", "synthetic-f32", *BIG_F8)
EXACT, FUSED = ("exact, fast", "exact, resident"), ("fused, fast", "fused, resident")
ALL, ALL_F8 = SMALL + BIG, F8 + BIG_F8
CHOICE = ("fast", "compact", "resident")
# Rows of the page that helps to choose, and the data or codec of each.
BY_DTYPE = {"BF16": BF16, "F16": F16, "F32": F32, "F32 that holds BF16 values": IN_F32}
BY_DTYPE |= {"F8_E4M3": F8[0], "F8_E5M2": F8[1]}
MADE_UP = {"BF16, half of the words zero": "zeros 50 %", "AdamW's `exp_avg_sq` in F32": "exp_avg_sq"}
FORMS = {"int8, a scale for each row": "int8", "int4 as GPTQ stores it": "int4", "2:4 sparse BF16": "2:4"}
BESIDE = {"tensorwire `fast`": "fast", "tensorwire `compact`": "compact", "ZipNN 0.5.4": "zipnn"}
BESIDE |= {"zstd, level 3": "zstandard 3"}
PCODEC = {BF16: "pcodec 12 int", F8[0]: "pcodec 12 int", F8[1]: "pcodec 12 int"}


def _table_row(name: str, row: Row, form: str = "{} | {} | {}") -> str:
    return f"{name} | " + form.format(f"{row.ratio:.3f}", f"{row.compress.gbs:.2f}", f"{row.decompress.gbs:.2f}")


def _ratios(name: str, ratios: list[float]) -> str:
    """The beginning of a row of the table by dtype."""
    return f"| {name} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |"


def _decode_spans() -> list[float]:
    """Parts of memcpy's speed at which `fast` decodes BF16 in two sizes, on the best CPU target and with AVX2."""
    return [epyc(data, "fast", cpu=cpu).decompress.of_memcpy for data in (BF16, LARGE) for cpu in (None, "avx2")]


def _smaller_percent(run: Run) -> list[float]:
    """By how many percent pcodec's result is smaller than that of `compact`, tensor by tensor."""
    pairs = [(run(data, peer), run(data, "compact")) for data, peer in PCODEC.items()]
    return [100 * (1 - ours.ratio_by_tensor / peer.ratio_by_tensor) for peer, ours in pairs]


def _decode_of_memcpy(data: str, *, verify: bool = True, cpu: str | None = None) -> str:
    return f"{epyc(data, 'fast', verify=verify, cpu=cpu).decompress.of_memcpy:.2f}"


def _decodes(codec: str, data: str = BF16, *, cpu: str | None = None) -> str:
    """GB/s."""
    return f"{epyc(data, codec, cpu=cpu).decompress.gbs:.1f}"


def _targets(name: str, data: tuple[str, ...], form: str = ".2f", cpu: str | None = None) -> str:
    """What a target's figure is on these sets, least and most."""
    return span([epyc.target(name, each, cpu) for each in data], form)


def _two_threads(data: tuple[str, ...]) -> list[float]:
    """How much faster two threads are than one, wherever a target says 1.7."""
    compress = [f"{profile} compress" for profile in targets.PROFILES]
    return [
        epyc.target(f"{what}, 2 threads, times 1", each) for what in (*compress, "compact decompress") for each in data
    ]


def _slower_resident() -> list[float]:
    """Where `resident` decodes more slowly than `fast`: how much."""
    return [part for part in (epyc.target("resident decompress, times fast", data) for data in ALL) if part < 1]


_of_dense = inference.of_dense


def _traffic(name: str, peak: float, step: int) -> str:
    """A row of the table of exact differences."""
    changed, bits, times, bound = traffic_bits(peak, step)
    return f"| {name} | {changed:.1f} % | {bits:.2f} | {bound:.2f} | {times:.2f} |"


LINKS = ("50 Mbit/s", "200 Mbit/s", "1000 Mbit/s", "not shaped")
BOTH = "exact differences and gradients"


def _traffic_times(name: str, contender: str) -> str:
    """A row of the table of step times, as parts of that of FSDP2; bytes last."""
    times = " | ".join(f"{traffic_step(link, contender):.2f}" for link in LINKS)
    return f"| {name} | {times} | {1 / traffic_step(LINKS[1], contender, 'bytes of FSDP2'):.2f} |"


def _pays() -> list[str]:
    """Up to which rate the parts pay."""
    both, lossy = ([f"{traffic_step(link, each):.2f}" for link in LINKS[:3]] for each in (BOTH, "SDP4Bit"))
    return [
        f"takes {both[0]} times as long as under FSDP2 alone behind links of 50 Mbit/s a rank, {both[1]} times at "
        f"200 Mbit/s and {both[2]} times at 1 Gbit/s",
        f"SDP4Bit's codecs take {lossy[0]}, {lossy[1]} and {lossy[2]} times as long",
    ]


def _distributed() -> list[str]:
    """Distributed checkpoints beside torch's own."""
    nbytes, bound = saved("bytes of torch", 3), saved("bytes of torch", 3, "entropy bound")
    small, cpu = saved("bytes of torch", 3, "TensorwireWriter, compact"), saved("cpu_seconds of torch", 2)
    ours, torchs = (
        [f"{reshard(ranks, storage):.2f}" for ranks in ("4 to 2", "2 to 4")]
        for storage in ("TensorwireWriter", "FileSystemWriter")
    )
    return [
        f"takes {nbytes[0]} of the bytes of torch's where all is BF16, and {nbytes[1]} where all is FP32",
        f"takes {cpu[0]} and {cpu[1]} times the CPU",
        f"bound of the same tensors is within {ceil(100 * above_bound())} % of that: {bound[0]} and {bound[1]}",
        f"the checkpoints take {small[0]} and {small[1]}",
        f"read {ours[0]} and {ours[1]} times",
        f"its own files {torchs[0]} and {torchs[1]} times",
    ]


def _in_s3() -> list[str]:
    """What a shard in S3 takes, and what it takes to open a real model."""
    requests, received = (remote("open", figure, "all-MiniLM-L6-v2, F32") for figure in ("requests", "received"))
    return [
        f"takes {requests:.0f} and {received / 1e3:.0f} kB",
        f"a shard of {remote('open', 'size') / 1e6:.0f} MB opens with {remote('open', 'requests'):.0f} requests and "
        f"{remote('open', 'received'):,.0f} bytes",
        f"a row of the shard takes one request and {remote('another row', 'received') / 1e3:.0f} kB",
        f"all of it {remote('load all', 'requests'):.0f} requests and {remote('load all', 'part'):.4f} of its bytes",
    ]


def _fine_tune() -> list[str]:
    """What a fine-tune of the real model gains."""
    seconds = [f"{traffic_step(link, BOTH, table='minilm'):.2f}" for link in LINKS[1:3]]
    times = 1 / traffic_step(LINKS[1], BOTH, "bytes of FSDP2", "minilm")
    return [
        f"its all-gathers take {traffic_step(LINKS[1], BOTH, 'bits', 'minilm'):.2f} bits a weight",
        f"step takes {seconds[0]} times as long as under FSDP2 alone at 200 Mbit/s and {seconds[1]} times at 1 Gbit/s",
        f"sends {times:.1f} times fewer bytes",
    ]


LIMITED = {  # names on the page
    "dense, mapped": "dense, mmap",
    "dense, accelerate's disk offload": "accelerate, disk offload",
    "all weights streamed, *exact*": "streaming all, fast",
    "a fifth of them streamed, *exact*": "streaming, fast",
    "in memory, decode ahead": "decode ahead, fast",
    "in memory, *exact*": "exact, fast",
    "in memory, *fused*": "fused, fast",
}

CLAIMS: dict[str, list[str]] = {
    "README.md": [
        f"{1 / traffic_step(LINKS[1], BOTH, 'bytes of FSDP2'):.1f} times fewer bytes between ranks",
        f"decodes BF16 on one core at {span(_decode_spans())} of memcpy's speed",
        f"two cores compress at {epyc.command('tensorwire compress'):.2f} GB/s and decompress at "
        f"{epyc.command('tensorwire decompress'):.2f}.",
        f"| memcpy | 1 | {epyc(BF16, 'memcpy').compress.gbs:.2f} | {epyc(BF16, 'memcpy').decompress.gbs:.2f} |",
        _table_row("**tensorwire `fast`**, the default", epyc(BF16, "fast"), "**{}** | **{}** | **{}**"),
        _table_row("**tensorwire `compact`**", epyc(BF16, "compact"), "**{}** | {} | **{}**"),
        _table_row("ZipNN 0.5.4", epyc(BF16, "zipnn")),
        _table_row("zstd (zstandard 0.25.0), level 3", epyc(BF16, "zstandard 3")),
        f"`fast` decodes at {_decode_of_memcpy(BF16)} of memcpy's speed, on 548 MiB at {_decode_of_memcpy(LARGE)} "
        f"({_decodes('fast', LARGE)} GB/s). With AVX2 forced it is {_decode_of_memcpy(BF16, cpu='avx2')}, and "
        f"{_decode_of_memcpy(LARGE, cpu='avx2')} on 548 MiB ({_decodes('fast', LARGE, cpu='avx2')} GB/s).",
        f"a token takes {device_figures.token('exact, fast')} times as long as with dense weights in `fast`, "
        f"{device_figures.token('fused, resident')} times in `resident` and *fused*",
        f"takes {_of_dense('token', 'exact, best profile', cpu='avx2')} times as long as with dense torch in "
        f"`resident`, {_of_dense('token', EXACT[0], cpu='avx2')} times in `fast`",
        f"With AVX512_BF16 it takes {_of_dense('token', *EXACT)} times as long by turns, "
        f"{inference.alone_of_dense('exact, resident')} to {inference.alone_of_dense('exact, fast')} alone",
        f"{inference.alone('12b', 'exact, fast'):.1f} s a token with all weights in memory, "
        f"{inference.alone('12b', 'streaming, fast'):.1f} s with a fifth of them on the disk, "
        f"{inference.alone('12b', 'streaming all, fast'):.1f} s with all on the disk. "
        f"The mapped dense model takes {inference.alone('12b', 'dense, mmap'):.0f} s",
    ],
    "docs/devices.md": device_figures.page(),
    "docs/choose.md": [
        f"{device_figures.resting('exact, fast')} GB in place of {device_figures.resting('dense')}, at most "
        f"{device_figures.peak('exact, fast')} in place of {device_figures.peak('dense')} while the model runs",
        f"on [an H200] a token takes {device_figures.token('exact, fast')} times as long as with dense weights, "
        f"{device_figures.token('fused, resident')} times in `resident` and *fused*",
        f"in F32 shrinks by a ratio of {trainer('F32', 'directory')}, in BF16 by {trainer('BF16', 'directory')}",
        f"encodes BF16 at {epyc(BF16, 'compact').compress.gbs:.2f} GB/s and decodes it at "
        f"{epyc(BF16, 'compact').decompress.gbs:.2f}",
        f"a token takes {_of_dense('token', *EXACT)} times as long as with dense weights, *fused* "
        f"{_of_dense('token', 'fused, fast')} times",
        f"*exact* takes {_of_dense('token', 'exact, best profile', cpu='avx2')} times as long as dense torch with "
        f"`resident`, {_of_dense('token', 'exact, fast', cpu='avx2')} times with `fast`",
        f"a peak of {inference.peak('12b', 'streaming all, fast'):.1f} GB, all weights on the disk",
        f"{inference.alone('12b', 'streaming all, fast'):.2f} s a token, {inference.alone('12b', 'exact, fast'):.2f} s "
        "with all weights in memory",
        f"With AVX-512 it decodes BF16 of MiniLM at {_decodes('fast')} GB/s and `resident` at {_decodes('resident')}, "
        f"with AVX2 at {_decodes('fast', cpu='avx2')} and {_decodes('resident', cpu='avx2')}",
        *(_ratios(name, [epyc(data, profile).ratio for profile in CHOICE]) for name, data in BY_DTYPE.items()),
        *(_ratios(name, [epyc.sparse(data, profile) for profile in CHOICE]) for name, data in MADE_UP.items()),
        *(_ratios(name, [form(data, profile) for profile in CHOICE[:2]]) for name, data in FORMS.items()),
        *(_table_row(name, epyc(BF16, codec)) for name, codec in BESIDE.items()),
    ],
    "docs/inference.md": [
        *served(),
        *(inference.limited_row(name, contender) for name, contender in LIMITED.items()),
        f"{inference.targets} targets are met",
        f"For a token *fused* takes {_of_dense('token', 'fused, fast')} times as long as dense torch, *exact* "
        f"{_of_dense('token', *EXACT)} times, and with decode ahead {_of_dense('token', 'decode ahead, fast')} times",
        f"With AVX2 forced *exact* takes {_of_dense('token', EXACT[0], 'exact, best profile', cpu='avx2')} times as",
        f"`resident` took {inference.single_turn('exact, resident'):.2f} times and `fast` "
        f"{inference.single_turn('exact, fast'):.2f} times as long",
        f"Dense weights take {inference.weights():.2f} GB, `fast` {inference.weights('fast'):.2f} GB and `resident` "
        f"{inference.weights('resident'):.2f} GB",
        f"is {inference.peak('1b', 'dense'):.2f} GB dense, {inference.peak('1b', 'exact, fast'):.2f} GB with `fast` "
        f"and {inference.peak('1b', 'exact, resident'):.2f} GB with `resident`, *exact*",
        *inference.missed_rows(),
        f"For eight sequences at a time *fused* takes {_of_dense('batch of 8', *FUSED)} times as long and *exact* "
        f"{_of_dense('batch of 8', *EXACT)} times; for a prompt of 512 tokens both take "
        f"{_of_dense('prefill of 512 tokens', *FUSED, *EXACT)} times as long",
        f"takes {inference.target('load to first token, of from_pretrained', 'exact, from_pretrained'):.1f} times as",
        f"{1e3 * inference.turn('dense', 'median'):.0f} ms against "
        f"{1e3 * inference.alone('1b', 'dense'):.0f} ms a token",
        f"takes {inference.alone_of_dense('exact, fast')} times as long as dense torch in `fast`, and "
        f"{inference.alone_of_dense('exact, resident')} times in `resident`",
        f"llama.cpp's BF16 takes {inference.turn('llama.cpp'):.2f} times as long as dense torch for a token, and "
        f"{inference.turn('llama.cpp', what='prefill'):.2f} times for a prompt",
    ],
    "docs/performance.md": [
        f"`compress` takes {second_read(0.001, 0.018)} times as long as an encoder that trusts its base, if up to "
        f"1.8 % of the words changed, and {second_read(0.5)} times if half of them did",
        f"{epyc.targets} targets are met",
        f"It met {xeon.targets}",
        f"BF16 {_decode_of_memcpy(BF16)} of memcpy on MiniLM and {_decode_of_memcpy(LARGE)} on 548 MiB "
        f"({_decode_of_memcpy(LARGE, verify=False)} without checksums), where memcpy reaches "
        f"{epyc(LARGE, 'memcpy').decompress.gbs:.0f} GB/s; F16 {_decode_of_memcpy(F16)}, F32 "
        f"{_decode_of_memcpy(F32)}, F8 {span([epyc(data, 'fast').decompress.of_memcpy for data in F8])}.",
        f"Two threads decode 548 MiB at {epyc(LARGE, 'fast', threads=2).decompress.of_memcpy:.2f} of two-thread memcpy",
        f"BF16 {_decode_of_memcpy(BF16, cpu='avx2')} and {_decode_of_memcpy(LARGE, cpu='avx2')}, F32 "
        f"{_decode_of_memcpy(F32, cpu='avx2')}.",
        f"AVX-512: {_targets('fast compress, of memcpy', ALL)} of memcpy",
        f"decompresses BF16 {_targets('fast decompress, times ZipNN', (BF16, LARGE), '.1f')} times as fast as ZipNN, "
        f"and compresses MiniLM {_targets('fast compress, times ZipNN', SMALL, '.1f')} times as fast",
        f"ZipNN compressed at {span([epyc(data, 'zipnn').compress.gbs for data in BIG], '.2f')} GB/s",
        f"with two threads at {epyc(LARGE, 'zipnn', threads=2).compress.gbs:.1f}.",
        f"takes {epyc.file('tensorwire.load_file'):.2f} of the time of safetensors.numpy, and "
        f"{epyc.file('tensorwire.load_file, torch'):.2f} of that of safetensors.torch",
        f"{_targets('compact decompress, times ZipNN', ALL, '.2f')} times with AVX-512, "
        f"{_targets('compact decompress, times ZipNN', ALL, '.2f', 'avx2')} with AVX2",
        f"{epyc(BF16, 'compact').decompress.gbs:.1f} GB/s, where ZipNN reaches "
        f"{epyc(BF16, 'zipnn').decompress.gbs:.1f}",
        f"`fast` decompresses at {_targets('fast decompress, verified, of memcpy', ALL_F8, '.2f', 'avx2')} of memcpy",
        f"compresses at {_targets('fast compress, of memcpy', ALL_F8, '.2f', 'avx2')}, not 0.25",
        f"it compresses {_targets('fast compress, times ZipNN', F8, '.1f', 'avx2')} times as fast as ZipNN, not 3.5",
        f"F16 of MiniLM decompresses at {epyc.target('fast decompress, verified, of memcpy', F16, 'avx2'):.3f}, "
        f"not 0.6",
        f"{_targets('fast decompress, times ZipNN', (BF16, LARGE), '.1f', 'avx2')} times with AVX2",
        f"at {epyc.target('fast decompress, unverified, of memcpy', LARGE, 'avx2'):.4f} of memcpy, not 0.75",
        f"splitting words, which fetches them, {share('encode', 'split')}; hashing content and blocks "
        f"{share('encode', 'accumulate')}; counting exponents "
        f"{share('encode', 'count_values', 'count_groups', 'byte_histogram_vector')}; writing tiers "
        f"{share('encode', 'pack_plane', 'pack_field')}; choosing {share('encode', 'cascade_choose')}.",
        "putting words together and writing them around the caches "
        f"{share('decode', 'weave', 'assemble', 'stream_copy')}, expanding escapes {share('decode', 'expand')}, "
        f"checking hashes {share('decode', 'accumulate')}, unpacking fields "
        f"{share('decode', 'unpack_field', 'unpack_plane')}.",
        f"{_targets('enec decompress, of memcpy', ALL_F8)} of memcpy with AVX-512, "
        f"{_targets('enec decompress, of memcpy', ALL_F8, '.2f', 'avx2')} with AVX2, not 0.6",
        f"F16 of MiniLM {epyc.target('enec decompress, of memcpy', F16, 'avx2'):.3f} with AVX2",
        f"{span(_slower_resident())} of its speed on {len(_slower_resident())} of {len(ALL)} sets with AVX-512",
        f"MiniLM reaches {span(_two_threads(SMALL))}",
        f"The large sets reach {span(_two_threads(BIG))}",
        f"F32 in `resident`, at {epyc.target('resident compress, 2 threads, times 1', 'synthetic-f32'):.3f}.",
        f"({epyc(BF16, 'memcpy', threads=2).compress.gbs:.1f} against {epyc(BF16, 'memcpy').compress.gbs:.1f} GB/s)",
        "ZipNN "
        + span([epyc(data, "zipnn", threads=2).compress.times_one_thread for data in SMALL])
        + " times as fast",
        "But `compact`, which is bound by computing, compresses MiniLM "
        + span([epyc(data, "compact", threads=2).compress.times_one_thread for data in SMALL])
        + " times as fast",
        f"pcodec is {span(_smaller_percent(epyc))} % smaller on BF16 and F8, and compresses at "
        f"{epyc(BF16, 'pcodec 12 int').compress.gbs:.2f} GB/s",
        f"{epyc(IN_F32, 'compact').ratio_by_tensor:.3f}, not {KNOWN_RATIOS[IN_F32]:.2f}.** "
        f"{KNOWN_RATIOS[IN_F32]:.2f} was pcodec's figure, rounded; in this run pcodec reaches "
        f"{epyc(IN_F32, 'pcodec 12 float').ratio_by_tensor:.4f}",
        f"{_targets('fast ratio, of the order-0 bound', BIG_F8, '.4f')} on the large sets of F8, "
        f"{epyc.target('fast ratio, of the order-0 bound', 'Laplace convolutions'):.4f} on Laplace-distributed "
        f"convolutions, {epyc.target('fast ratio, of the order-0 bound', 'uniform'):.4f} on uniform words",
        f"99.9 % zeros: {epyc.target('compact ratio, of the ideal', 'zeros 99.9 %'):.4f} of the ideal, not 0.9.**",
        f"{epyc.file('tensorwire decompress'):.2f} times the time of cp, not 4",
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
    "docs/pytorch-files.md": [trainer_row("F32"), trainer_row("BF16")],
    "docs/dcp.md": _distributed(),
    "docs/remote.md": _in_s3(),
    "docs/sync.md": shipped(),
    "docs/traffic.md": [
        *_fine_tune(),
        *_pays(),
        _traffic_times("raw messages of our exchange", "raw messages"),
        _traffic_times("exact differences", "exact differences"),
        _traffic_times("exact differences, and gradients as BF16 frames", BOTH),
        _traffic_times("SDP4Bit", "SDP4Bit"),
        _traffic("1e-3", 1e-3, 150),
        _traffic("3e-4", 3e-4, 200),
        _traffic("1e-4", 1e-4, 100),
        _traffic("3e-5, the end of a cosine", 3e-4, 300),
    ],
    "docs/deltas.md": delta_figures.page(),
}

# Definitions, thresholds, versions, and what a program prints: nobody measured them.
NOT_MEASURED: dict[str, list[str]] = {
    "docs/benchmarks.md": ["16 x 2048 embeddings", "standard deviation 0.02", "up to 99.9 % are zeros"],
    "docs/checkpoints.md": ["have at most 16 times the bytes of"],
    "docs/dcp.md": [
        "The target for BF16 was 0.64",
        # bounds, which tests/checkpoint/test_distributed_pickles.py holds
        "A forged JSON takes at most 40 times its size, and a forged pickle at most 100 times",
    ],
    "docs/decisions.md": ["where *exact* is within 5 % of it"],
    "docs/deltas.md": ["betas of 0.9 and 0.999, and a weight decay of 0.01"],
    "docs/traffic.md": ["4.016 bits a weight at every rate", "only if the shortest step became 5 % shorter"],
    "docs/inference-benchmark.md": ["with 4 GB/s a core"],
    "docs/devices.md": [
        "28672 x 8192 | 14336 x 4096 | 4096 x 4096",
        "50 to 70 % are used",
        "46 at 2.475 GHz",
        "3.0 and 0.452 on the others are what others report",
    ],
    "docs/performance.md": [
        "**Two threads at 1.7 times one.**",
        "**Four times ZipNN decompressing BF16",
        "**`compact` decompress at 1.5 times ZipNN.**",
        "the target is 0.99",
        "0.05 % of a tensor of 147,456 elements",
    ],
    "docs/api-torch.md": ["| Python | 3.10 | 3.11 |"],
    "src/": [
        "and has 1.41 times the error",
        "Hugging Face Transformers 5.16 and later",
        "1 GB/s is 10^9 uncompressed bytes per second",
    ],
    "--help": ["1 GB/s is 10^9 uncompressed bytes per second"],
}
