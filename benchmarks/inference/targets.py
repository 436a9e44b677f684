"""The figures that inference is to reach."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.inference.model import SIZES, WORD_NBYTES
from benchmarks.inference.plan import LOADED, LOADED_COMPRESSED, OWN, PLANS, REFERENCE
from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]
SPEED, LIMITED, THREADS = "1b", "12b", 2
AHEAD, MAPPED = "decode ahead, fast", "dense, mmap"
STREAMING, DISK = "streaming, fast", "streaming all, fast"
EXACT = ("exact, fast", "exact, resident", AHEAD)
FUSED = ("fused, fast", "fused, resident")
IN_MEMORY = (*EXACT, *FUSED)
BEST = "exact, best profile"
# Times that of dense torch, on a CPU with AVX512_BF16 and held to AVX2. A token is a product with one row of input.
EXACT_TOKEN = {"": dict.fromkeys(EXACT, 1.0), "avx2": {BEST: 1.2, "exact, fast": 1.3}}
FUSED_TOKEN = 1.0
BATCH = {"": 1.0, "avx2": 0.7}
PREFILL = 1.0
# Times that of our own dense kernel, held to AVX2.
FUSED_OF_OWN = {"resident": 0.95, "fast": 1.7}
OWN_OF_READING = 0.9
LOAD = 1.2
TIMES_MAPPED = 4.0
PER_GB = 1.1
OF_THE_DISK = 1.1
MEMORY_MARGIN = 1.05


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    """Every target; `results` as `benchmarks.inference.run` gives them."""
    return list(_Targets(results).verdicts())


class _Targets:
    def __init__(self, results: dict[str, Any]) -> None:
        self._turns: list[Row] = results["turns"]
        self._alone: list[Row] = results["alone"]
        self._bandwidth: list[Row] = results["bandwidth"]
        # Results without the field are of a CPU that has it.
        self._bf16 = all(row.get("avx512_bf16", True) for row in results["environment"] if row["model"] == SPEED)
        self._models = {facts["name"]: facts for facts in results["models"]}

    def verdicts(self) -> Iterator[Verdict]:
        yield from self._bits()
        yield from self._tokens()
        yield from self._avx2()
        yield from self._many_rows()
        yield from self._memory()
        yield from self._limited()
        yield from self._loading()

    def _bits(self) -> Iterator[Verdict]:
        """Whether logits are those that they have to be, everywhere that they were compared."""
        for name in (*IN_MEMORY, STREAMING, LOADED_COMPRESSED):
            rows = [row for row in self._turns if row["contender"] == name]
            if name not in FUSED:
                rows += [row for row in self._alone if row["contender"] == name]
            compared = [row["same_logits"] for row in rows if row.get("same_logits") is not None]
            whose = OWN if name in FUSED else "dense torch"
            share = sum(compared) / len(compared) if compared else None
            yield Verdict(f"logits of {whose}, share of runs", name, share, 1)

    def _tokens(self) -> Iterator[Verdict]:
        yield Verdict(
            "token, of dense torch", "fused, fast", self._turn("fused, fast", "token", "vs_dense"), FUSED_TOKEN, True
        )
        for cpu, bounds in EXACT_TOKEN.items():
            for name, bound in bounds.items():
                figures = [
                    self._turn(each, "token", "vs_dense", cpu) for each in (EXACT[:2] if name == BEST else (name,))
                ]
                figure = min((each for each in figures if each is not None), default=None)
                yield Verdict("token, of dense torch", name, figure, bound, at_most=True, cpu=cpu)

    def _avx2(self) -> Iterator[Verdict]:
        for profile, bound in FUSED_OF_OWN.items():
            figure = self._turn(f"fused, {profile}", "token", "vs_own", "avx2")
            yield Verdict(
                "token, of our own dense kernel", f"fused, {profile}", figure, bound, at_most=True, cpu="avx2"
            )
        row = self._turn_row(OWN, "avx2")
        read = self._read("avx2")
        share = row["products_gbs"] / read if row and read else None
        yield Verdict("reading of memory, of its bandwidth", OWN, share, OWN_OF_READING, cpu="avx2")

    def _many_rows(self) -> Iterator[Verdict]:
        for name in IN_MEMORY:
            for cpu in BATCH if name in EXACT[:2] else ("",):
                figure = self._turn(name, "prefill", "vs_dense", cpu)
                yield Verdict("prefill of 512 tokens, of dense torch", name, figure, PREFILL, at_most=True, cpu=cpu)
                figure, own = (self._turn(each, "batch", "vs_dense", cpu) for each in (name, OWN))
                note = f"{OWN}: {own:.2f}" if own is not None else ""
                yield Verdict("batch of 8, of dense torch", name, figure, BATCH[cpu], at_most=True, note=note, cpu=cpu)

    def _memory(self) -> Iterator[Verdict]:
        for model in (SPEED, LIMITED):
            for name in IN_MEMORY:
                if name in PLANS[model].alone:
                    row = self._alone_row(model, name)
                    share = row["peak_nbytes"] / self._allowed(model, name) if row else None
                    yield Verdict("peak memory, of what is allowed", f"{model}, {name}", share, 1, at_most=True)

    def _allowed(self, model: str, name: str) -> float:
        """Compressed bytes, activations with keys and values as dense torch needs them, what is decoded ahead."""
        size, facts = SIZES[model], self._models[model]
        dense = self._alone_row(model, REFERENCE)
        plan = PLANS[model]
        activations = dense["activations_nbytes"] if dense else size.kv_nbytes(plan.prompt + plan.tokens)
        profile = name.rpartition(" ")[2]
        decoded = sum(sorted(size.part_nbytes())[-2:]) if name == AHEAD else 0
        held = facts["compressed_nbytes"][profile] + decoded + activations
        return float(MEMORY_MARGIN * held)

    def _limited(self) -> Iterator[Verdict]:
        mapped = self._alone_row(LIMITED, MAPPED)
        for name in PLANS[LIMITED].alone:
            if name in (*IN_MEMORY, STREAMING):
                row = self._alone_row(LIMITED, name)
                speedup = mapped["token"]["median"] / row["token"]["median"] if row and mapped else None
                yield Verdict("token, times the speed of dense with mmap", f"{LIMITED}, {name}", speedup, TIMES_MAPPED)
        for name in PLANS[LIMITED].alone:
            if name in IN_MEMORY:
                large, small = self._per_gb(LIMITED, name), self._per_gb(SPEED, name)
                figure = large / small if large and small else None
                yield Verdict("token per GB, of that of 1b", f"{LIMITED}, {name}", figure, PER_GB, at_most=True)
        yield Verdict("token, of reading or decoding", f"{LIMITED}, {DISK}", self._of_the_disk(), OF_THE_DISK, True)

    def _per_gb(self, model: str, name: str) -> float | None:
        """Seconds of a token over the dense bytes of the matrices that it is multiplied by."""
        row, size = self._alone_row(model, name), SIZES[model]
        looked_up = 0 if size.tied else size.vocabulary * size.hidden
        return float(row["token"]["median"] / (WORD_NBYTES * (size.numel - looked_up))) if row else None

    def _of_the_disk(self) -> float | None:
        """With all weights on the disk: a token over the time to read its bytes, or to decode them if that is more."""
        row, memory = self._alone_row(LIMITED, DISK), self._alone_row(LIMITED, "exact, fast")
        rate = next((row["gbs"] for row in self._bandwidth if (row["model"], row["kind"]) == (LIMITED, "disk")), None)
        if not (row and memory and rate):
            return None
        return float(row["token"]["median"] / max(row["read_nbytes_a_token"] / rate / 1e9, memory["token"]["median"]))

    def _loading(self) -> Iterator[Verdict]:
        dense = self._alone_row(SPEED, LOADED)
        for name in (LOADED_COMPRESSED, "exact, fast", "exact, resident", "fused, fast"):
            row = self._alone_row(SPEED, name)
            figure = None
            if row and dense:
                pairs = zip(row["load_to_first_by_run"], dense["load_to_first_by_run"], strict=False)
                figure = median(ours / theirs for ours, theirs in pairs)
            yield Verdict("load to first token, of from_pretrained", name, figure, LOAD, at_most=True)

    def _turn(self, name: str, what: str, key: str, cpu: str = "") -> float | None:
        if cpu == "" and not self._bf16:
            return None
        row = self._turn_row(name, cpu, what)
        return row[what].get(key) if row else None

    def _turn_row(self, name: str, cpu: str, what: str = "products") -> Row | None:
        for row in self._turns:
            same = (row["model"], row["contender"], row["cpu"], row["threads"]) == (SPEED, name, cpu, THREADS)
            if same and what in row:
                return row
        return None

    def _alone_row(self, model: str, name: str) -> Row | None:
        for row in self._alone:
            if (row["model"], row["contender"]) == (model, name) and "error" not in row:
                return row
        return None

    def _read(self, cpu: str) -> float | None:
        for row in self._bandwidth:
            if (row["model"], row["kind"], row.get("cpu"), row.get("threads")) == (SPEED, "memory", cpu, THREADS):
                return float(row["median"])
        return None
