"""Tables of figures in README and docs: ``python -m tests.tables`` writes their cells anew from the results.

A table behind ``<!-- table NAME -->`` has the cells that the function NAME gives for each row, behind the row's label.
A row that the page lacks is added at the end. The header, further cells and other rows are the page's own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.deltas.pairs import FAR, NEAR
from benchmarks.deltas.targets import PROFILES
from benchmarks.device import model
from benchmarks.device.counts import KERNELS, PAGE
from benchmarks.engines.delta import NEAR as STEPS
from benchmarks.engines.pictures import PAGES as PICTURED
from tests.support.figures import (
    BF16,
    CODECS,
    F8,
    F16,
    F32,
    IN_F32,
    LARGE,
    ZEN5,
    alone,
    applied,
    coded,
    epyc,
    results,
    row,
    span,
    step,
    turn,
    verdicts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.verdicts import Verdict

    Rows = dict[str, str]

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "job" / "docs").glob("*.md")))
MARKED = re.compile(r"(?<=<!-- table )(\S+) -->\n((?:\|.*\n)+)")
DTYPES = {"BF16": BF16, "F16": F16, "F32": F32, "F32 that holds BF16 values": IN_F32}
DTYPES |= {"F8_E4M3": F8[0], "F8_E5M2": F8[1]}
MACHINES = ("inference", ZEN5)
MODES = {f"*{mode}*, `{each}`": f"{mode}, {each}" for mode in ("exact", "fused") for each in ("fast", "resident")}


def tools() -> Rows:
    names = {"tensorwire `fast`": "tensorwire fast", "tensorwire `compact`": "tensorwire compact", "memcpy": "memcpy"}
    return _speeds(names | {"ZipNN 0.5.4": "zipnn", "zstd 0.25.0, level 3": "zstandard 3"})


def other_tools() -> Rows:
    names = {"lmzip 1.3.0": "lmzip", "glyd 0.32.1, level max": "glyd max"}
    return tools() | _speeds(names | {"z4ai 0.2.0": "z4ai", "BigSmall 4.0.0": "bigsmall"})


def _speeds(names: dict[str, str]) -> Rows:
    form = "{ratio:.3f} | {compress[median]:.2f} | {decompress[median]:.2f}"
    return {name: form.format_map(epyc(BF16, codec)) for name, codec in names.items()}


def ratios() -> Rows:
    profiles = ("fast", "compact", "resident")
    found = {name: [epyc(data, f"tensorwire {each}") for each in profiles] for name, data in DTYPES.items()}
    made_up = {"BF16, half of the words zero": "zeros 50 %", "AdamW's `exp_avg_sq` in F32": "exp_avg_sq"}
    for name, data in made_up.items():
        found[name] = [row("codecs", "sparsity", dataset=data, codec=f"tensorwire {each}") for each in profiles]
    forms = {"int8, a scale for each row": "int8", "int4 as GPTQ stores it": "int4", "2:4 sparse BF16": "2:4"}
    return {name: " | ".join(f"{each['ratio']:.3f}" for each in rows) for name, rows in found.items()} | {
        name: "{fast:.3f} | {compact:.3f}".format_map(row("forms", "rows", form=form)) for name, form in forms.items()
    }


def fast() -> Rows:
    """`fast` beside memcpy and ZipNN; in brackets with AVX-512."""
    form = "{compress[%s]:.2f} ({avx512[compress][%s]:.2f}) | {decompress[%s]:.2f} ({avx512[decompress][%s]:.2f})"
    form = " | ".join(form.replace("%s", each) for each in ("vs_memcpy", "vs_zipnn"))
    rows = {}
    for name, data in {**DTYPES, "BF16, 548 MiB": LARGE}.items():
        avx2, avx512 = (epyc(data, "tensorwire fast", cpu=cpu) for cpu in CODECS)
        rows[name] = form.format_map(avx2 | {"avx512": avx512})
    return rows


def missed() -> Rows:
    """Targets of codecs that some data miss: what is asked for, what those have, and how many they are."""
    groups: dict[str, list[Verdict]] = {}
    for each in (each for each in verdicts("codecs", "codecs") if each.met is not None):
        groups.setdefault(f"{each.target} | {each.cpu or '-'}", []).append(each)
    rows = {}
    for name, every in groups.items():
        if found := [each for each in every if each.met is False]:
            measured = span((each.measured or 0 for each in found), ".4g")
            bound = f"at {'most' if found[0].at_most else 'least'} {span((each.bound for each in found), 'g')}"
            rows[name] = f"{bound} | {measured} | {len(found)} of {len(every)}"
    return rows


def limited() -> Rows:
    """A model that is larger than the memory."""
    names = {"dense, mapped": "dense, mmap", "dense, accelerate's disk offload": "accelerate, disk offload"}
    names |= {"all weights streamed, *exact*": "streaming all, fast"}
    names |= {"a fifth of them streamed, *exact*": "streaming, fast", "in memory, decode ahead": "decode ahead, fast"}
    names |= {"in memory, *exact*": "exact, fast", "in memory, *fused*": "fused, fast"}
    form = "{load_to_first[median]:.1f} | {token[median]:.2f} | {gigabytes:.1f}"
    return {name: form.format_map(alone(each, "12b")) for name, each in names.items()}


def in_memory() -> Rows:
    """A model that the memory holds: GB, and times dense torch's time; in brackets on Zen 5 with AVX512_BF16."""
    facts = row("inference", "models", name="1b")
    sizes = {"dense": facts["dense_nbytes"], **facts["compressed_nbytes"]}
    names = {"dense": "dense", **MODES, "*exact*, `fast`, decode ahead": "decode ahead, fast"}
    rows = {}
    for name, each in names.items():
        held = [f"{sizes[each.split()[-1]] / 1e9:.2f}", f"{alone(each)['gigabytes']:.2f}"]
        own = [alone(each, name=of)["token"]["median"] / alone("dense", name=of)["token"]["median"] for of in MACHINES]
        by_itself = "{:.2f} ({:.2f})".format(*own)
        token, *others = [f"{turn(each, of)} ({turn(each, of, ZEN5, '')})" for of in ("token", "batch", "prefill")]
        rows[name] = " | ".join([*held, token, by_itself, *others])
    return rows


def missed_inference() -> Rows:
    rows = {}
    for each in (each for each in verdicts("inference", "inference") if each.met is False):
        bound = f"at {'most' if each.at_most else 'least'} {each.bound:g}"
        rows[f"{each.target} | {each.subject}{each.cpu and f', {each.cpu}'}"] = f"{bound} | {each.measured:.4g}"
    return rows


def served() -> Rows:
    form = " | {tokens_per_second:.1f} | {of_dense:.2f} | {equal} of 200"
    rows = {}
    for each in results("served")["rows"]:
        if "seconds" in each:
            sizes = (each["weights_nbytes"], each["peak_nbytes"])
            held = " | ".join("-" if size is None else f"{size / 1e9:.2f}" for size in sizes)
            rows[f"{each['server']}, {each['weights']}"] = held + form.format_map(each)
    return rows


def changes() -> Rows:
    """Words that training changes, by the exponent of the weight before."""
    counts = [{each[0]: each[1:] for each in row("deltas", "pairs", name=pair)["by_exponent"]} for pair in NEAR]
    return {
        f"2^{exponent} to 2^{exponent + 1}": " | ".join(
            f"{100 * changed / words:.2f} %" for words, changed in (each[exponent + 127] for each in counts)
        )
        for exponent in range(-15, -1, 2)
    } | {"all": _changed(NEAR)}


def _changed(pairs: tuple[str, ...]) -> str:
    found = (row("deltas", "pairs", name=pair) for pair in pairs)
    return " | ".join(f"{100 * each['changed'] / each['words']:.2f} %" for each in found)


FORMS: tuple[str, ...] = ("relative compact", "relative fast", "plain compact", "BitX", "gap + XOR, zstd 1")
FORMS += ("XOR, zstd 1", "XOR, zstd 3", "XOR, ZipNN", "index + value")


def near() -> Rows:
    return _sizes(NEAR, (*FORMS, "hdiffpatch", "xdelta3"), "changed")


def far() -> Rows:
    return {"changed": _changed(FAR)} | _sizes(FAR, FORMS, "words")


def _sizes(pairs: tuple[str, ...], forms: tuple[str, ...], per: str) -> Rows:
    """Bits for each word; in brackets with a frame for each matrix."""
    facts = {pair: row("deltas", "pairs", name=pair) for pair in pairs}
    rows = {"bound": " | ".join(f"({each['bound_bits'] / each[per]:.2f})" for each in facts.values())}
    for form in forms:
        found = [(coded("deltas", pair=pair, codec=form), facts[pair][per] / 8) for pair in pairs]
        cells = [f"{each['nbytes'] / count:.2f} ({each['by_tensor']['nbytes'] / count:.2f})" for each, count in found]
        rows[form] = " | ".join(cells)
    return rows


def applying() -> Rows:
    """Parts of memcpy's speed."""
    rows = {}
    for name, pair in ((name, pair) for name in PROFILES for pair in (*NEAR[:2], "synthetic-sparse")):
        ways = (("encode", True), ("apply", True), ("apply", False))
        found = (applied(what, pair, name, verify=verify) for what, verify in ways)
        rows[f"`{name}`, {pair}"] = " | ".join(f"{each:.2f}" for each in found)
    return rows


def trainer() -> Rows:
    form = "{tensors_ratio:.3f} | {directory_ratio:.3f} | {model_alone_ratio:.3f}"
    return {each["dtype"]: form.format_map(each) for each in results("trainer")["rows"]}


def installed() -> Rows:
    names = {"`import tensorwire.torch`, behind `import torch`": "import tensorwire.torch"}
    for name, what in (("all-MiniLM-L6-v2 in F32", "MiniLM"), ("a file of 8 numbers", "8 numbers")):
        names |= {f"`{call}` of {name}": f"{call}, {what}" for call in ("load_file", "torch.load")}
    form = "{without_ms:.2f} | {with_ms:.2f}"
    return {name: form.format_map(row("installed", "rows", what=what)) for name, what in names.items()}


def dcp() -> Rows:
    """Checkpoints of BF16 and of FP32, as parts of torch's."""
    names = {"bytes": "TensorwireWriter", "bytes, by `compact`": "TensorwireWriter, compact"}
    names |= {"bytes, by the entropy bound": "entropy bound", "CPU time of a save": "TensorwireWriter"}
    rows = {}
    for name, writer in names.items():
        figure = f"{'bytes' if 'bytes' in name else 'cpu_seconds'} of torch"
        found = (row("dcp", "saves", writer=writer, dtype=dtype) for dtype in ("bfloat16", "float32"))
        rows[name] = " | ".join(f"{each[figure]:.3f}" for each in found)
    return rows


PRECISIONS = ("bfloat16", "float32")


def training() -> Rows:
    """A run of Trainer, as parts of its dense checkpoints."""
    names = {"each compressed by itself": "each alone", "by the callback": "callback", "entropy bound": "entropy bound"}
    rows = {}
    for name, form in names.items():
        found = (row("training", "run", form=form, dtype=each) for each in PRECISIONS)
        rows[name] = " | ".join(f"{each['of dense']:.3f}" for each in found)
    return rows


def tensors() -> Rows:
    names = {"weights": "weights", "mean of gradients": "AdamW's mean of gradients"}
    names |= {"mean of squares": "AdamW's mean of squares"}
    form = "{plain:.3f} | {relative:.3f}"
    return {
        name: " | ".join(form.format_map(row("training", "kinds", kind=kind, dtype=each)) for each in PRECISIONS)
        for name, kind in names.items()
    }


def remote() -> Rows:
    shard, real = {"file": "a shard, BF16"}, {"file": "all-MiniLM-L6-v2, F32"}
    names = {"a shard of 54 MB is opened": {**shard, "what": "open"}}
    names |= {"all-MiniLM-L6-v2 is opened, whose header is larger": {**real, "what": "open"}}
    names |= {"a row of the shard is read, after the first row of its tensor": {**shard, "what": "another row"}}
    names |= {"all of the shard is read": {**shard, "what": "load all"}}
    found = {name: row("remote", "files", **{"with": "tensorwire"}, **wanted) for name, wanted in names.items()}
    return {name: "{requests} | {received:,}".format_map(each) for name, each in found.items()}


def _kv_ratios(dtype: str) -> Rows:
    """Ratios by the tokens in a frame."""
    rows = {each["with"]: each for each in results("engines")["ratios"] if each["dtype"] == dtype}
    form = "{both, 16:.3f} | {both, 64:.3f} | {both, 256:.3f} | {both, 4096:.3f}"
    return {name: form.format_map(each) for name, each in rows.items()}


def kv() -> Rows:
    return _kv_ratios("BF16")


def kv_fp8() -> Rows:
    return _kv_ratios("F8_E4M3")


def wires() -> Rows:
    """Bits a changed word at two learning rates; the first row has the part of the words that change."""
    steps = [row("engines", "wires", pair=pair) for pair in STEPS]
    names = {"tensorwire, `fast`": "ours", "tensorwire, `compact`": "ours_compact", "a version, `fast`": "version"}
    names |= {"XOR, zstd 3": "xor_zstd", "XOR, zstd 1": "xor_zstd_1", "index + value": "index_value"}
    names |= {"all words": "dense"}
    found = {name: " | ".join(f"{step[key]:,.1f}" for step in steps) for name, key in names.items()}
    return {"words that change": " | ".join(f"{100 * step['changed']:.1f} %" for step in steps), **found}


def pages() -> Rows:
    """Ratios of frames of 64 tokens, by the names in the picture."""
    found = {each["with"]: each["both, 64"] for each in results("engines")["ratios"] if each["dtype"] == "BF16"}
    names = {f"tensorwire, {name}" if name.startswith("`") else name: name for name in PICTURED}
    return {name: f"{found[key]:.3f}" for name, key in names.items()}


def kv_speed() -> Rows:
    """Speeds as multiples of zstd's, of frames with all layers and with one."""
    found: dict[str, list[str]] = {}
    for frame in ("all layers, keys and values", "one layer's keys or values"):
        for each in results("engines")["speeds"]:
            if each["frame"] == f"64 tokens, {frame}" and each["with"].startswith("`"):
                cells = [f"{each[f'{way}, of zstd']:.1f}" for way in ("encode", "decode")]
                found.setdefault(each["with"], []).extend(cells)
    return {name: " | ".join(cells) for name, cells in found.items()}


def sync() -> Rows:
    """CPU seconds to publish and to apply a gigabyte, and the MB between."""
    names = {each: each for each in ("tensorwire, fast", "xor, zstd 1", "overwrite, zstd 1")}
    names |= {"through files": "Publisher and Follower"}
    found = {name: row("sync", "cost", **{"with": each}) for name, each in names.items()}
    form = "{publish:.2f} | {apply:.2f} | "
    return {name: form.format_map(each) + f"{each['nbytes'] / 1e6:.1f}" for name, each in found.items()}


def traffic() -> Rows:
    """Times of a step as parts of that of FSDP2, and how many times fewer bytes."""
    names = {"raw messages of our exchange": "raw messages", "exact differences": "exact differences"}
    names |= {"exact differences, and gradients as BF16 frames": "exact differences and gradients"}
    names |= {"SDP4Bit": "SDP4Bit"}
    rows = {}
    for name, contender in names.items():
        steps = [step(link, contender) for link in ("50 Mbit/s", "200 Mbit/s", "1000 Mbit/s", "not shaped")]
        cells = [f"{each['of FSDP2']:.2f}" for each in steps]
        rows[name] = " | ".join([*cells, f"{1 / steps[1]['bytes of FSDP2']:.2f}"])
    return rows


def rates() -> Rows:
    """Exact differences of layers, by the learning rate."""
    names = {"1e-3": (1e-3, 150), "3e-4": (3e-4, 200), "1e-4": (1e-4, 100), "3e-5, the end of a cosine": (3e-4, 300)}
    form = " | {relative fast:.2f} | {bound:.2f} | {times:.2f}"
    rows = {}
    for name, (peak, number) in names.items():
        found = row("traffic", "differences", weights="layers", peak=peak, step=number)
        rows[name] = f"{100 * found['changed']:.1f} %" + form.format_map(found)
    return rows


def instructions() -> Rows:
    """Counted, and the limit."""
    limits = {each.what: each.most for each in KERNELS if each.most is not None}
    found = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {each[0]: f"{each[1]} | {each[2]} | {limits[each[0]]}" for each in found if each[0] in limits}


def modelled() -> Rows:
    return {each[0]: " | ".join(each[1:]) for each in model.rows()}


SHAPES = ("28672 x 8192", "14336 x 4096", "4096 x 4096")


def decoding() -> Rows:
    """What the model expects, and what was measured."""
    rows = {}
    for name, count in model.INSTRUCTIONS.items():
        found = [row("device-h200", "decoding", what=name, shape=shape) for shape in SHAPES]
        expected = span(model.modelled(count, found[0]["ratio"], results("device-h200")["device"]))
        rows[f"`{name}`, {count} instructions"] = " | ".join([expected, *(f"{each['output']:.2f}" for each in found)])
    return rows


def products() -> Rows:
    rows = {}
    for name, what in MODES.items():
        if what != "exact, resident":
            found = [row("device-h200", "products", what=what, shape=SHAPES[1], inputs=count) for count in (1, 2, 4)]
            rows[name] = " | ".join(f"{each['of_dense']:.2f}" for each in found)
    return rows


def models() -> Rows:
    names = {"dense": "dense", **MODES}
    form = "{tokens:.0f} | {resting:.2f} | {peak:.2f}"
    return {name: form.format_map(row("device-h200", "models", what=what)) for name, what in names.items()}


def dequantized() -> Rows:
    """Ratios, and GB/s of the last one."""
    ratios = "{fast:.2f} | {zipnn:.2f} | {other kinds:.2f} | {compact:.2f}"
    form = f"{ratios} | {{compact compress:.2f}} | {{compact decompress:.1f}}"
    return {f"{each['form']}, {each['data']}": form.format_map(each) for each in results("dequantized")["rows"]}


def dumps() -> Rows:
    """What two readers tell of dumps of Flight Recorders, by reader."""
    found = json.loads((ROOT / "job" / "benchmarks" / "results" / "diagnosis-dumps.json").read_text())
    return {reader: " | ".join(map(str, told.values())) for reader, told in found["counts"].items()}


LISTED: list[Callable[[], Rows]] = [tools, other_tools, ratios, fast, missed, limited, in_memory, missed_inference]
LISTED += [served, changes, near, far, applying, trainer, installed, dcp, training, tensors, remote, sync, traffic]
LISTED += [rates, instructions, kv, kv_fp8, kv_speed, wires, pages, dequantized, dumps, modelled, decoding, products]
LISTED += [models]
TABLES = {each.__name__: each for each in LISTED}


def rendered(text: str) -> str:
    """A page with the cells of its tables as the results have them."""
    return MARKED.sub(lambda match: f"{match[1]} -->\n" + "\n".join(_table(match[1], match[2])) + "\n", text)


def _table(name: str, text: str) -> Iterator[str]:
    rows = TABLES[name]()
    for line in text.splitlines():
        label = next((each for each in rows if line.startswith(f"| {each} | ")), None)
        if label is None:
            yield line
        else:
            cells = f"| {label} | {rows.pop(label)} |"
            yield cells + "|".join(line.split("|")[cells.count("|") :])
    yield from (f"| {label} | {cells} |" for label, cells in rows.items())


def known(text: str) -> list[str]:
    """The cells of a page's tables that results give, row by row."""
    names = [match[1] for match in MARKED.finditer(text)]
    return [f"| {label} | {cells} |" for name in names for label, cells in TABLES[name]().items()]


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
