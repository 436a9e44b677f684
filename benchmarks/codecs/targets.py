"""The figures that codecs are to reach."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Row = dict[str, Any]
COMPRESSES_AT_ALL = 1.01
# Whole files, the best of what was known of the peers when the targets were set.
KNOWN_RATIOS = {"minilm-bf16": 1.5088, "minilm-f16": 1.1786, "minilm-f32": 1.2205, "minilm-bf16-in-f32": 3.04}
PROFILES = ("fast", "compact", "resident", "enec")
# For benchmarks.codecs.sparsity: ratios, parts of the order-0 bound, and the buffer of many small tensors.
RATIOS = {"exp_avg_sq": {"fast": 1.14, "compact": 1.16}, "int8, sigma 20": {"fast": 1.15, "compact": 1.25}}
OF_ORDER_0 = {
    **dict.fromkeys(("Laplace convolutions", "columns of lognormal scale", "uniform", "F8 with block scales"), 0.99),
    "F16 subnormals": 0.97,
}
MIXED = "small mixed tensors"
# What `fast` reaches of memcpy, checksums checked, by dtype.
DECOMPRESS_OF_MEMCPY = {"BF16": 0.55, "F16": 0.6, "F32": 0.6, "F8_E4M3": 0.5, "F8_E5M2": 0.5}


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    """Every target on everything that it speaks of; `results` as `summary.summarize` gives them."""
    verdicts: list[Verdict] = []
    for facts in results["datasets"]:
        verdicts += _Dataset(facts, results["rows"]).verdicts()
        for target in sorted({row["forced_cpu"] for row in results["rows"] if row.get("forced_cpu")}):
            verdicts += _Dataset(facts, results["rows"], target).speeds()
    verdicts += _enec(results.get("enec"))
    verdicts += _calls(results.get("calls"))
    verdicts += _commands(results.get("files"))
    verdicts += _sparsity(results.get("sparsity"))
    return verdicts


class _Dataset:
    """The rows of one data set: those with the best CPU target, or ours on one that was forced."""

    def __init__(self, facts: dict[str, Any], rows: Iterable[Row], forced: str | None = None) -> None:
        self.facts = facts
        self.name: str = facts["name"]
        self.rows = [row for row in rows if row["dataset"] == self.name and row.get("forced_cpu") == forced]
        self.cpu = forced or next((row["cpu"] for row in self.rows if row["cpu"]), "")

    def verdicts(self) -> Iterator[Verdict]:
        yield from self.speeds()
        yield from self._ratios()
        if any(row["threads"] == 2 for row in self.rows):
            yield from self._two_threads()

    def speeds(self) -> Iterator[Verdict]:
        """One thread; nothing if there is no row."""
        if not self.rows:
            return
        dtype = self.facts["dtype"]
        fast, unverified = self._ours("fast"), self._ours("fast", verify=False)
        bound = DECOMPRESS_OF_MEMCPY[dtype]
        yield self._verdict("fast decompress, verified, of memcpy", fast, "decompress", "vs_memcpy", bound)
        if dtype == "BF16":
            yield self._verdict("fast decompress, unverified, of memcpy", unverified, "decompress", "vs_memcpy", 0.75)
            yield self._times_zipnn("fast decompress, times ZipNN", fast, "decompress", 4)
        elif any(self._peers()):
            measured = _median(fast, "decompress")
            yield self._against_peers("fast decompress, GB/s", measured, "decompress")
        yield self._verdict("fast compress, of memcpy", fast, "compress", "vs_memcpy", 0.25)
        yield self._times_zipnn("fast compress, times ZipNN", fast, "compress", 3.5)
        yield self._times_zipnn("compact decompress, times ZipNN", self._ours("compact"), "decompress", 1.5)
        yield self._verdict("enec decompress, of memcpy", self._ours("enec"), "decompress", "vs_memcpy", 0.6)
        resident, least = _median(self._ours("resident"), "decompress"), _median(fast, "decompress")
        if resident and least:
            yield Verdict("resident decompress, times fast", self.name, resident / least, 1, cpu=self.cpu)

    def _ratios(self) -> Iterator[Verdict]:
        fast, compact = self._ratio("tensorwire fast"), self._ratio("tensorwire compact")
        yield Verdict(
            "fast ratio, of the order-0 bound", self.name, fast and fast / self.facts["bound_by_tensor"], 0.99
        )
        yield self._against_peers("compact ratio, of the best peer in this run", compact, None)
        if self.name in KNOWN_RATIOS:
            yield Verdict("compact ratio, known figure to beat", self.name, compact, KNOWN_RATIOS[self.name])
        yield from _among_ours(self.name, fast, compact, self._ratio("tensorwire enec"))

    def _two_threads(self) -> Iterator[Verdict]:
        for profile in PROFILES:
            row = self._ours(profile, threads=2)
            target = f"{profile} compress, 2 threads, times 1"
            yield self._verdict(target, row, "compress", "vs_one_thread", 1.7)
        row = self._ours("compact", threads=2)
        yield self._verdict("compact decompress, 2 threads, times 1", row, "decompress", "vs_one_thread", 1.7)
        row = self._ours("fast", threads=2)
        yield self._verdict("fast decompress, 2 threads, of memcpy on 2", row, "decompress", "vs_memcpy", 0.7)

    def _ours(self, profile: str, *, threads: int = 1, verify: bool = True) -> Row | None:
        wanted = {"codec": f"tensorwire {profile}", "threads": threads, "verify": verify}
        return next((row for row in self.rows if wanted.items() <= row.items()), None)

    def _peers(self) -> Iterator[Row]:
        for row in self.rows:
            if row["threads"] == 1 and row["codec"] != "memcpy" and not row["codec"].startswith("tensorwire"):
                yield row

    def _ratio(self, codec: str) -> float | None:
        """The better one of both units."""
        return max(
            (figure for row in self.rows if row["codec"] == codec for figure in figures(row, "ratio")), default=None
        )

    def _verdict(self, target: str, row: Row | None, direction: str, yardstick: str, bound: float) -> Verdict:
        return Verdict(target, self.name, row and row[direction].get(yardstick), bound, cpu=self.cpu)

    def _times_zipnn(self, target: str, row: Row | None, direction: str, bound: float) -> Verdict:
        """Round by round on the whole buffer; where ZipNN is faster tensor by tensor, that much less."""
        verdict = self._verdict(target, row, direction, "vs_zipnn", bound)
        speeds = [figures(peer, direction) for peer in self._peers() if peer["codec"] == "zipnn"]
        if verdict.measured is None or not speeds:
            return verdict
        return replace(verdict, measured=verdict.measured * speeds[0][0] / max(speeds[0]))

    def _against_peers(self, target: str, measured: float | None, direction: str | None) -> Verdict:
        """Against the best peer, both units, with or without checksums: in ratio (direction None), or in speed, of
        those that compress at all."""
        race = [
            (figure, row["codec"])
            for row in self._peers()
            for figure, ratio in zip(figures(row, direction or "ratio"), figures(row, "ratio"), strict=True)
            if direction is None or ratio >= COMPRESSES_AT_ALL
        ]
        if not race:
            return Verdict(target, self.name, None, 1)
        bound, codec = max(race)
        if direction is None:
            return Verdict(target, self.name, measured and measured / bound, 1, note=f"{codec}: {bound:.4f}")
        return Verdict(target, self.name, measured, bound, note=codec, cpu=self.cpu)


def figures(row: Row, what: str) -> list[float]:
    """The ratio or the median speeds of a row: on the whole buffer, and tensor by tensor where that was measured."""
    found = [row["ratio"] if what == "ratio" else row[what]["median"]]
    return found + ([row["by_tensor"][what]] if "by_tensor" in row else [])


def _enec(facts: dict[str, Any] | None) -> Iterator[Verdict]:
    """`facts`: by data set what benchmarks.codecs.enec.sizes gives."""
    for name, sizes in (facts or {"all": {}}).items():
        size = sizes.get("nbytes")
        exact = size and size / sizes["exact_nbytes"]
        yield Verdict("enec exponent streams, of the least that exact group counts give", name, exact, 1, at_most=True)
        fixed = size and size / sizes["fixed_nbytes"]
        yield Verdict("enec exponent streams, of the least at L = 16", name, fixed, 1, at_most=True)


def _commands(facts: dict[str, Any] | None) -> Iterator[Verdict]:
    rows = {row["name"]: row for row in (facts["commands"] + facts["loading"] if facts else [])}
    subject = facts["dataset"] if facts else "file"
    limits = {
        "tensorwire compress": ("time, of cp", 8.0),
        "tensorwire decompress": ("time, of cp", 4.0),
        "tensorwire --version": ("seconds", 0.15),
        "tensorwire.load_file": ("time, of safetensors.numpy", 1.0),
        "tensorwire.load_file, torch": ("time, of safetensors.torch and clone", 1.0),
    }
    for name, (what, limit) in limits.items():
        row = rows.get(name)
        figure = row and (row["vs_baseline"] or row["seconds"])["median"]
        yield Verdict(f"{name}, {what}", subject, figure, limit, at_most=True)


def _calls(rows: list[Row] | None) -> Iterator[Verdict]:
    """`rows`: those of benchmarks.codecs.calls. A twentieth is what such a run scatters by."""
    for row in rows or []:
        target = f"public {row['direction']}(out=), of the core's speed, {row['profile']}"
        yield Verdict(target, row["dataset"], row["of_core"], 0.95, cpu=row["cpu"])


def _sparsity(rows: list[Row] | None) -> Iterator[Verdict]:
    """`rows`: those of benchmarks.codecs.sparsity, on each CPU target. Ratios are the same on all."""
    found = {(row["dataset"], row["target"], row["codec"].removeprefix("tensorwire ")): row for row in rows or []}
    ratios = {(name, codec): row["ratio"] for (name, _, codec), row in found.items()}
    for name in dict.fromkeys(name for name, _ in ratios):
        ours = (ratios.get((name, codec)) for codec in ("fast", "compact", "enec"))
        yield from _among_ours(name, *ours)
        yield from _sparse_ratios(name, {codec: row for (data, _, codec), row in found.items() if data == name})
    for (name, cpu, codec), row in found.items():
        if codec != "fast" or not name.startswith(("zeros", "int8")):
            continue
        decompress, compress = row["decompress"], row["compress"]
        yield Verdict("fast decompress, of memcpy", name, decompress.get("vs_memcpy"), 0.35, cpu=cpu)
        if name.startswith("zeros"):
            yield Verdict("fast decompress, times ZipNN", name, decompress.get("vs_zipnn"), 1, cpu=cpu)
            yield Verdict("fast compress, of memcpy", name, compress.get("vs_memcpy"), 0.12, cpu=cpu)


def _sparse_ratios(name: str, rows: dict[str, Row]) -> Iterator[Verdict]:
    """`rows`: by codec."""
    share = float(name.split()[1]) if name.startswith("zeros") else None
    for codec in ("fast", "compact"):
        if codec not in rows:
            continue
        if share is not None:
            dense, sparse = (0.9, 0.6 if share <= 99 else 0.4) if codec == "fast" else (0.97, 0.9)
            least = dense if share <= 90 else sparse
            yield Verdict(f"{codec} ratio, of the ideal", name, rows[codec]["of_ideal"], least)
        elif codec in RATIOS.get(name, {}):
            yield Verdict(f"{codec} ratio", name, rows[codec]["ratio"], RATIOS[name][codec])
        elif codec == "fast" and name in OF_ORDER_0:
            yield Verdict("fast ratio, of the order-0 bound", name, rows[codec]["of_ideal"], OF_ORDER_0[name])
    if name == MIXED and {"compact", "zipnn"} <= rows.keys():
        yield Verdict("compact ratio, of ZipNN's", name, rows["compact"]["ratio"] / rows["zipnn"]["ratio"], 1)


def _among_ours(name: str, fast: float | None, compact: float | None, enec: float | None) -> Iterator[Verdict]:
    """Ratios of our own profiles: each is at least as small as the one that it is to improve on."""
    if fast and enec:
        yield Verdict("fast ratio, of that of enec", name, fast / enec, 0.995)
    if compact and fast:
        yield Verdict("compact ratio, of that of fast", name, compact / fast, 1)


def _median(row: Row | None, direction: str) -> float | None:
    return None if row is None else float(row[direction]["median"])
