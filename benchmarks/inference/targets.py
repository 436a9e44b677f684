"""The figures that inference is to reach: python -m benchmarks.inference.targets benchmarks/results/inference.json."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.inference.model import SIZES
from benchmarks.inference.plan import LOADED, LOADED_COMPRESSED, OWN, PLANS, REFERENCE
from benchmarks.verdicts import Verdict, command

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]
SPEED, LIMITED, THREADS = "1b", "12b", 2
AHEAD, MAPPED = "decode ahead, fast", "dense, mmap"
STREAMING = "streaming, fast"
EXACT = ("exact, fast", "exact, resident", AHEAD)
FUSED = ("fused, fast", "fused, resident")
IN_MEMORY = (*EXACT, *FUSED)
# Times that of dense torch, on the best CPU target and held to AVX2.
EXACT_TOKEN = {"": 1.6, "avx2": 2.0}
FUSED_TOKEN = 1.0
# Times that of our own dense kernel, held to AVX2.
FUSED_OF_OWN = {"resident": 0.95, "fast": 1.7}
OWN_OF_READING = 0.9
PREFILL, BATCH = 1.15, 1.3
LOAD = 1.1
TIMES_MAPPED = 4.0
MEMORY_MARGIN = 1.05


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    """Every target; `results` as `benchmarks.inference.run` gives them."""
    return list(_Targets(results).verdicts())


class _Targets:
    def __init__(self, results: dict[str, Any]) -> None:
        self._turns: list[Row] = results["turns"]
        self._alone: list[Row] = results["alone"]
        self._bandwidth: list[Row] = results["bandwidth"]
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
        for cpu, bound in EXACT_TOKEN.items():
            for name in EXACT if cpu == "" else EXACT[:2]:
                figure = self._turn(name, "token", "vs_dense", cpu)
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
        for what, title, bound in (("prefill", "prefill of 512 tokens", PREFILL), ("batch", "batch of 8", BATCH)):
            for name in IN_MEMORY:
                figure = self._turn(name, what, "vs_dense")
                yield Verdict(f"{title}, of dense torch", name, figure, bound, at_most=True)

    def _memory(self) -> Iterator[Verdict]:
        for model in (SPEED, LIMITED):
            for name in IN_MEMORY:
                if name in PLANS[model].alone:
                    row = self._alone_row(model, name)
                    share = row["peak_nbytes"] / self._allowed(model, name) if row else None
                    yield Verdict("peak memory, of what is allowed", f"{model}, {name}", share, 1, at_most=True)

    def _allowed(self, model: str, name: str) -> float:
        """Compressed bytes, the two largest layers, activations with keys and values as dense torch needs them."""
        size, facts = SIZES[model], self._models[model]
        dense = self._alone_row(model, REFERENCE)
        plan = PLANS[model]
        activations = dense["activations_nbytes"] if dense else size.kv_nbytes(plan.prompt + plan.tokens)
        profile = name.rpartition(" ")[2]
        held = facts["compressed_nbytes"][profile] + sum(sorted(size.part_nbytes())[-2:]) + activations
        return float(MEMORY_MARGIN * held)

    def _limited(self) -> Iterator[Verdict]:
        mapped = self._alone_row(LIMITED, MAPPED)
        for name in PLANS[LIMITED].alone:
            if name in (*IN_MEMORY, STREAMING):
                row = self._alone_row(LIMITED, name)
                speedup = mapped["token"]["median"] / row["token"]["median"] if row and mapped else None
                yield Verdict("token, times the speed of dense with mmap", f"{LIMITED}, {name}", speedup, TIMES_MAPPED)

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
        row = self._turn_row(name, cpu, what)
        return row and row[what].get(key)

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


if __name__ == "__main__":
    command(__doc__, evaluate)
