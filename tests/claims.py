"""Every measured figure in prose, made from benchmarks/results; tests/test_claims.py holds the prose against it.

A figure belongs into a table (tests/tables.py). To write one into prose all the same, add the words around it to
`CLAIMS` as an f-string that takes the figure from the results (tests/support/figures.py), run `python -m pytest
tests/test_claims.py`, and copy what the test expects. Line breaks do not matter. Keys are paths; one that ends in a
slash stands for all files below it, `--help` for the help texts of all commands. A number that was not measured (a
definition, a threshold, a rule of the format) goes into `NOT_MEASURED` with the words around it.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.deltas.pairs import FAR, NEAR
from benchmarks.deltas.targets import PROFILES
from benchmarks.engines.kv import ZSTD
from tests.support.figures import (
    BF16,
    CODECS,
    F16,
    LARGE,
    ZEN5,
    alone,
    applied,
    coded,
    epyc,
    met,
    results,
    row,
    span,
    step,
    turn,
    verdicts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.verdicts import Verdict

BOTH = "exact differences and gradients"


def _command(name: str) -> str:
    """GB/s of a command on a whole file, with all cores."""
    files = results("codecs")["files"]
    seconds = next(each["seconds"]["median"] for each in files["commands"] if each["name"] == name)
    return f"{files['nbytes'] / 1e9 / seconds:.2f}"


def _second_read(*shares: float) -> str:
    """How many times as long `compress` takes with a base that it reads twice, where these shares of words changed."""
    found = results("second-read")
    return span(each["times"][found["changed"].index(share)] for each in found["rows"] for share in shares)


def _on_h200(what: str) -> str:
    """How many times as long a token takes as with dense weights."""
    dense, ours = (row("device-h200", "models", what=each)["tokens"] for each in ("dense", what))
    return f"{dense / ours:.1f}"


def _reshard(storage: str) -> str:
    """How often the bytes of a BF16 checkpoint are read by another number of ranks."""
    found = (row("dcp", "loads", dtype="bfloat16", ranks=ranks, storage=storage) for ranks in ("4 to 2", "2 to 4"))
    return " and ".join(f"{each['part']:.2f}" for each in found)


def _of_pages(name: str) -> str:
    """Percent of the bytes of keys and values."""
    return f"{100 / row('engines', 'ratios', **{'dtype': 'BF16', 'with': name})['both, 64']:.0f}"


def _run(dtype: str) -> str:
    """What the callback leaves of the bytes of a training run."""
    return f"{row('training', 'run', form='callback', dtype=dtype)['of dense']:.2f}"


def _sync(table: str, ours: str = "tensorwire, fast", suffix: str = "", **wanted: object) -> list[float]:
    """Without a pipeline and with one."""
    found = row("sync", table, **{"with": ours}, **wanted)
    return [found[how + suffix] for how in ("serial", "pipelined")]


def _dense(what: str) -> str:
    """GB/s where most words change, in both profiles."""
    found = (coded("deltas", pair="synthetic-dense", codec=f"relative {each}") for each in PROFILES)
    return span(each[what]["median"] for each in found)


def _bitx(what: str) -> str:
    return span(coded("deltas", pair=pair, codec="relative compact")[what]["vs_bitx"] for pair in FAR)


def _states(figure: Callable[[dict[str, Any]], float]) -> str:
    """What `fast` does with weights and states of AdamW in F64 and C128, in the layout of the table."""
    rows = results("doubles")["rows"]
    return span(figure(each) for each in rows if (each["profile"], each["layout"]) == ("fast", "of the table"))


def _missed(target: str, on: str = "", *, or_met: bool = False) -> list[Verdict]:
    """What misses a target, on data whose names contain `on`."""
    found = (each for each in verdicts("codecs", "codecs") if each.target == target and on in each.subject)
    return [each for each in found if or_met or not each.met]


def _measured(found: list[Verdict]) -> list[float]:
    return [each.measured for each in found if each.measured is not None]


BYTES = f"{1 / step('200 Mbit/s', BOTH)['bytes of FSDP2']:.1f}"
AVX2, AVX512 = (
    [epyc(data, "tensorwire fast", cpu=cpu)["decompress"]["vs_memcpy"] for data in (BF16, LARGE)] for cpu in CODECS
)
AT_MEMCPY = f"decodes BF16 on one core at {span(AVX2 + AVX512)} of memcpy's speed"
TWELVE = ("exact, fast", "streaming all, fast", "dense, mmap")
F16_OF_MEMCPY, LARGE_OF_MEMCPY = (_missed("fast decompress, verified, of memcpy", on) for on in ("-f16", LARGE))
RESIDENT, SLOWER = _missed("resident decompress, times fast", or_met=True), _missed("resident decompress, times fast")
BY_PCODEC = [100 * (1 - each) for each in _measured(_missed("compact ratio, of the best peer in this run"))]
FIRST_TOKENS = [alone(f"{each}, from_pretrained")["load_to_first_by_run"] for each in ("exact", "dense")]
FIRST_TOKEN = median(ours / theirs for ours, theirs in zip(*FIRST_TOKENS, strict=True))
SLOW, FASTER = (step(link, BOTH, "minilm") for link in ("200 Mbit/s", "1000 Mbit/s"))
LINK, EVEN = _sync("links", suffix=", of dense", link=1), _sync("break-even")
FILES = _sync("break-even", "Publisher and Follower")
FIRST, LAST = (row("sync", "minilm", version=version) for version in (1, 11))
SHAPES, F16_SHAPES = (row("geometry", "shapes", data=data) for data in (BF16, F16))
IN_32 = {width: 100 * (1 - (1 - SHAPES[f"escapes_{width}_percent"] / 100) ** 32) for width in (3, 4)}

CLAIMS: dict[str, list[str]] = {
    "README.md": [
        f"{BYTES} times fewer bytes between ranks",
        f"12 in BF16 took {_run('bfloat16')} of their bytes, 12 in FP32 took {_run('float32')}.",
        AT_MEMCPY,
        f"By turns `fast` decodes them at {AVX2[0]:.2f} of memcpy's speed, and 548 MiB [at {AVX2[1]:.2f}]",
        f"at {AVX512[0]:.2f} and {AVX512[1]:.2f} with AVX-512, by older code",
        f"on F16 ({span(_measured(F16_OF_MEMCPY))} of memcpy's, target {F16_OF_MEMCPY[0].bound}) and on those 548 MiB "
        f"(target {LARGE_OF_MEMCPY[0].bound})",
        f"`resident`, slower than `fast` on {len(SLOWER)} of {len(RESIDENT)} sets",
        f"BF16 and FP8, of which pcodec's slowest level makes {span(BY_PCODEC)} % less",
        f"two cores compress at {_command('tensorwire compress')} GB/s and decompress at "
        f"{_command('tensorwire decompress')}.",
        f"stores keys and values as frames, at [{_of_pages('`fast`')} % of BF16]",
        f"token takes {turn('exact, resident')} times as long as with dense torch in `resident` and "
        f"{turn('exact, fast')} times in `fast`",
        f"a token takes {_on_h200('exact, fast')} times as long as with dense weights in `fast`, "
        f"{_on_h200('fused, resident')} times in `resident` and *fused*",
        "{:.1f} s a token with all weights in memory, {:.1f} s with all on the disk. The mapped dense model takes "
        "{:.0f} s".format(*(alone(each, "12b")["token"]["median"] for each in TWELVE)),
    ],
    "docs/index.md": [AT_MEMCPY],
    "docs/kv.md": [
        f"At 64 tokens in a frame `fast` leaves {_of_pages('`fast`')} % of the bytes, and zstd {_of_pages(ZSTD)} %"
    ],
    "docs/inference.md": [
        f"The model has {results('served')['model']['parameters'] / 1e9:.2f} billion",
        f"{met('inference')} targets are met",
        f"takes {FIRST_TOKEN:.1f} times as",
        f"It met {met('inference', ZEN5)}",
        f"*exact* took {turn('exact, resident', name=ZEN5, held_to='avx2')} times as long as dense torch in `resident`"
        f", and {turn('exact, fast', name=ZEN5, held_to='avx2')} times in `fast`",
        f"llama.cpp took {turn('llama.cpp', name=ZEN5)} times as long for a token and "
        f"{turn('llama.cpp', 'prefill', ZEN5)} times for a prompt",
    ],
    "docs/performance.md": [
        f"`compress` takes {_second_read(0.001, 0.018)} times as long as an encoder that trusts its base, if up to "
        f"1.8 % of the words changed, and {_second_read(0.5)} times if half of them did",
        f"{met('codecs')} targets are met",
        f"It met {met('codecs', 'zen5-avx512/codecs')}",
        f"and compresses at {epyc(BF16, 'pcodec 12 int')['compress']['median']:.2f} GB/s",
    ],
    "docs/decisions.md": [
        f"become {_states(lambda row: row['ratio'])} times smaller; one core compresses them at "
        f"{_states(lambda row: row['compress']['median'])} GB/s and decompresses them at "
        f"{_states(lambda row: row['decompress']['median'])}",
        f"the size changes by {span((each['change_percent'] for each in results('geometry')['blocks']), '+.3f')} %",
        "a ratio of {ratio_3:.3f} against {ratio_4:.3f}, where `fast` has {fast:.3f}. But {escapes_3_percent:.1f} % of "
        "the words escape from shape (3), and {escapes_4_percent:.2f} % from shape (4).".format_map(SHAPES),
        f"{IN_32[3]:.0f} % of all cases with shape (3), and in {IN_32[4]:.1f} % with shape (4)",
        "a ratio of {ratio_4:.3f} where shape (3) reaches {ratio_3:.3f}".format_map(F16_SHAPES),
    ],
    "docs/dcp.md": [
        "together have at most 16 times its bytes",
        f"read {_reshard('TensorwireWriter')} times; torch's reader reads its own files "
        f"{_reshard('FileSystemWriter')} times",
    ],
    "docs/sync.md": [
        f"{100 * row('sync', 'cost')['changed']:.1f} % of the words change from one version",
        f"arrive {LINK[0]:.1f} times sooner than all weights, and {LINK[1]:.1f} times if the stages are pipelined",
        f"From {EVEN[0]:.0f} Gbit/s on ({EVEN[1]:.0f} pipelined) all weights arrive sooner, through files from "
        f"{FILES[0]:.0f} Gbit/s on ({FILES[1]:.0f})",
        f"A commit for 100 shards takes {1e3 * row('sync', 'commit')['seconds']:.0f} ms",
        f"The first step takes {FIRST['nbytes'] / 1e3:.0f} kB of {FIRST['dense'] / 1e6:.1f} MB, the last one "
        f"{LAST['nbytes'] / 1e3:.0f} kB",
    ],
    "docs/traffic.md": [
        f"takes {step('50 Mbit/s', BOTH)['of FSDP2']:.2f} times as long as under FSDP2 alone behind links of 50 Mbit/s",
        f"its all-gathers take {SLOW['bits']:.2f} bits a weight",
        f"step takes {SLOW['of FSDP2']:.2f} times as long as under FSDP2 alone at 200 Mbit/s and "
        f"{FASTER['of FSDP2']:.2f} times at 1 Gbit/s, and sends {1 / SLOW['bytes of FSDP2']:.1f} times fewer bytes",
    ],
    "docs/devices.md": [
        f"Llama with {row('device-h200', 'models', what='dense')['weights']:.1f} billion weights",
        f"Copies move {results('device-h200')['device']['copy'] / 1e12:.2f} TB/s on the H200, as measured",
        f"To open frames takes {row('device-h200', 'models', what='exact, fast')['opening']:.0f} ms for each GB",
    ],
    "docs/deltas.md": [
        f"{met('deltas')} targets are met",
        f"encodes at {_dense('encode')} GB/s and applies at {_dense('apply')}",
        f"`fast` applies it at {applied('apply', 'synthetic-same', 'fast'):.2f} of memcpy with checks and at "
        f"{applied('apply', 'synthetic-same', 'fast', verify=False):.2f} without",
        f"encodes {_bitx('encode')} times as fast as BitX and applies {_bitx('apply')} times as fast",
        f"({coded('deltas', pair=NEAR[1], codec='index + value')['in_place']['median']:.0f} GB/s at 5e-6, where `fast` "
        f"does {coded('deltas', pair=NEAR[1], codec='relative fast')['in_place']['median']:.0f})",
    ],
}

# Definitions, thresholds, versions, and what a program prints: none of it was measured.
NOT_MEASURED: dict[str, list[str]] = {
    "docs/benchmarks.md": ["16 x 2048 embeddings", "standard deviation 0.02", "up to 99.9 % are zeros"],
    "docs/checkpoints.md": ["have at most 16 times the bytes of", "at most 1,024 times the bytes of its frame"],
    "docs/dcp.md": [
        "The target for BF16 was 0.64",
        # a bound, which tests/torch/dcp/test_conversion.py holds
        "a tensor in columns the bytes read are at most 1.05 of the files",
        # bounds, which tests/checkpoint/test_distributed_pickles.py holds
        "A forged JSON takes at most 40 times its size, and a forged pickle at most 100 times",
    ],
    "docs/decisions.md": ["where *exact* is within 5 % of it"],
    "docs/deltas.md": ["betas of 0.9 and 0.999, and a weight decay of 0.01"],
    "docs/traffic.md": ["4.016 bits a weight at every rate", "only if the shortest step became 5 % shorter"],
    "docs/sync.md": ["at most [52,429 times] the bytes that were fetched"],
    "docs/format.md": ["more than 52,429 times N bytes", "at most 1,024 times the bytes of the frame"],
    "docs/inference-benchmark.md": ["with 4 GB/s a core"],
    "docs/devices.md": [
        "28672 x 8192 | 14336 x 4096 | 4096 x 4096",
        "50 to 70 % are used",
        "46 at 2.475 GHz",
        "3.0 and 0.452 on the others are what others report",
    ],
    "docs/performance.md": ["0.05 % of a tensor of 147,456 elements", "on 99.9 % zeros"],
    "docs/api-torch.md": ["| Python | 3.10 | 3.11 |"],
    "src/": [
        "and has 1.41 times the error",
        "Hugging Face Transformers 5.16 and later",
        "1 GB/s is 10^9 uncompressed bytes per second",
    ],
    "--help": ["1 GB/s is 10^9 uncompressed bytes per second"],
}
