"""What benchmarks/results says, in the words that a claim about it needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.codecs import targets
from benchmarks.deltas import targets as delta_targets
from benchmarks.inference import targets as inference_targets

if TYPE_CHECKING:
    from benchmarks.verdicts import Verdict

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def _load(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def _met(verdicts: list[Verdict]) -> str:
    met = [verdict.met for verdict in verdicts if verdict.met is not None]
    return f"{sum(met)} of {len(met)}"


@dataclass(frozen=True)
class Speed:
    """A codec's speed in one direction: GB/s, and the medians of its quotients; None for what was not measured."""

    gbs: float
    of_memcpy: float
    times_zipnn: float
    times_one_thread: float


class Row:
    """One codec on one data set."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row
        self.ratio: float = row["ratio"]
        self.ratio_by_tensor: float = row["by_tensor"]["ratio"] if "by_tensor" in row else row["ratio"]
        self.compress = self._speed("compress")
        self.decompress = self._speed("decompress")

    def _speed(self, direction: str) -> Speed:
        figure = self._row[direction]
        relative = [figure.get(name) for name in ("vs_memcpy", "vs_zipnn", "vs_one_thread")]
        return Speed(figure["median"], *relative)


class Run:
    """One run of `make bench`."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _results(self) -> Any:
        return _load(self._name)

    def __call__(self, data: str, codec: str, *, threads: int = 1, verify: bool = True, cpu: str | None = None) -> Row:
        """`codec` is one of our profiles or a peer's name in the results; `verify` holds for what has checksums; `cpu`
        is a target that was forced."""
        names = (codec, f"tensorwire {codec}")
        for row in self._results["rows"]:
            same = row["dataset"] == data and row["codec"] in names and row["threads"] == threads
            if same and row["verify"] in (verify, None) and row.get("forced_cpu") == cpu:
                return Row(row)
        raise LookupError(f"{self._name} has no row of {codec} on {data} with {threads} threads")

    def bound(self, data: str) -> float:
        """The order-0 bound, tensor by tensor."""
        return float(next(facts["bound_by_tensor"] for facts in self._results["datasets"] if facts["name"] == data))

    def target(self, name: str, data: str, cpu: str | None = None) -> float:
        """What was measured for a target, on the best CPU target or a forced one: where it compares with a peer, the
        peer's better way counts."""
        verdicts = targets.evaluate(self._results)
        wanted = (name, data) if cpu is None else (name, data, cpu)
        found = next(
            verdict.measured
            for verdict in verdicts
            if wanted == (verdict.target, verdict.subject, verdict.cpu)[: len(wanted)]
        )
        assert found is not None, f"{name} of {data} was not measured"
        return found

    @property
    def targets(self) -> str:
        """How many were met, as `72 of 116`."""
        return _met(targets.evaluate(self._results))

    def sparse(self, data: str, profile: str) -> float:
        """The ratio on one of the data of benchmarks.sparsity, which is that of every CPU target."""
        rows = self._results["sparsity"]
        return next(row["ratio"] for row in rows if (row["dataset"], row["codec"]) == (data, f"tensorwire {profile}"))

    def command(self, name: str) -> float:
        """GB/s of a command on a whole file, with all cores."""
        files = self._results["files"]
        seconds = next(row["seconds"]["median"] for row in files["commands"] if row["name"] == name)
        return float(files["nbytes"] / 1e9 / seconds)

    def file(self, name: str) -> float:
        """Whole files: how many times the baseline's time it takes."""
        rows = self._results["files"]["commands"] + self._results["files"]["loading"]
        return float(next(row["vs_baseline"]["median"] for row in rows if row["name"] == name))


class Deltas:
    """The run of `make deltas`."""

    @cached_property
    def _results(self) -> Any:
        return _load("deltas.json")

    def facts(self, pair: str) -> dict[str, Any]:
        return dict(next(facts for facts in self._results["pairs"] if facts["name"] == pair))

    def row(self, pair: str, codec: str, *, verify: bool = True, cpu: str | None = None) -> dict[str, Any]:
        """`verify` holds for what has checksums; `cpu` is a target that was forced."""
        for row in self._results["rows"]:
            same = (row["pair"], row["codec"], row.get("forced_cpu")) == (pair, codec, cpu)
            if same and row["verify"] in (verify, None):
                return dict(row)
        raise LookupError(f"deltas.json has no row of {codec} on {pair}")

    def bits(self, pair: str, codec: str, per: str = "changed") -> tuple[float, float]:
        """Bits for each changed word, or each of the "words": of all tensors in one, and of one each."""
        row, count = self.row(pair, codec), self.facts(pair)[per]
        return 8 * row["nbytes"] / count, 8 * row["by_tensor"]["nbytes"] / count

    @property
    def targets(self) -> str:
        """How many were met."""
        return _met(delta_targets.evaluate(self._results))

    def bound(self, pair: str, per: str = "changed") -> float:
        facts = self.facts(pair)
        return float(facts["bound_bits"] / facts[per])

    def share(self, pair: str, exponent: int | None = None) -> float:
        """The percentage of words that changed: of all, or of those with this exponent in the base."""
        facts = self.facts(pair)
        if exponent is None:
            return float(100 * facts["changed"] / facts["words"])
        return next(100 * changed / words for each, words, changed in facts["by_exponent"] if each == exponent)


class Geometry:
    """The run of `python -m benchmarks.codecs.geometry`."""

    @cached_property
    def _results(self) -> Any:
        return _load("geometry.json")

    def _row(self, data: str) -> dict[str, Any]:
        return next(dict(row) for row in self._results["shapes"] if row["data"] == data)

    def row_blocks(self) -> str:
        """By how many percent blocks of whole rows change the size, least and most."""
        return span([row["change_percent"] for row in self._results["blocks"]], "+.3f")

    def shape(self, data: str, width: int) -> float:
        """The ratio with one tier of this width."""
        return float(self._row(data)[f"ratio_{width}"])

    def fast(self, data: str) -> float:
        return float(self._row(data)["fast"])

    def escapes(self, data: str, width: int) -> float:
        """The percentage of words that escape such a tier."""
        return float(self._row(data)[f"escapes_{width}_percent"])

    def any_of_32_escapes(self, data: str, width: int) -> float:
        """The percentage of 32 words each of which at least one escapes, were escapes independent."""
        return float(100 * (1 - (1 - self.escapes(data, width) / 100) ** 32))


class Inference:
    """The run of `make inference`."""

    @cached_property
    def _results(self) -> Any:
        return _load("inference.json")

    @property
    def targets(self) -> str:
        """How many were met."""
        return _met(inference_targets.evaluate(self._results))

    def missed_rows(self) -> list[str]:
        """Rows of the table of targets that were missed, but for the reason."""
        return [
            f"| {each.target} | {each.subject}{each.cpu and f', {each.cpu}'} | at most {each.bound:g} "
            f"| {each.measured:.4g} |"
            for each in inference_targets.evaluate(self._results)
            if each.met is False
        ]

    def target(self, name: str, on: str, cpu: str = "") -> float:
        """What was measured for a target."""
        verdicts = inference_targets.evaluate(self._results)
        wanted = (name, on, cpu)
        found = next(each.measured for each in verdicts if (each.target, each.subject, each.cpu) == wanted)
        assert found is not None, f"{name} of {on} was not measured"
        return found

    def of_dense(self, what: str, *contenders: str, cpu: str = "") -> str:
        """By what part of the time of dense torch, by turns; least and most."""
        found = sorted({f"{self.target(f'{what}, of dense torch', each, cpu):.2f}" for each in contenders})
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    def alone_of_dense(self, contender: str) -> str:
        """A token of one that has the machine alone, over that of dense torch alone."""
        return f"{self.alone('1b', contender) / self.alone('1b', 'dense'):.2f}"

    def limited_row(self, name: str, contender: str) -> str:
        """A row of the table of a model that is larger than the memory."""
        seconds = [self.alone("12b", contender, figure) for figure in ("load_to_first", "token")]
        return f"| {name} | {seconds[0]:.1f} | {seconds[1]:.2f} | {self.peak('12b', contender):.1f} |"

    def alone(self, model: str, contender: str, figure: str = "token") -> float:
        """Seconds, the median."""
        for row in self._results["alone"]:
            if (row["model"], row["contender"]) == (model, contender):
                return float(row[figure]["median"])
        raise LookupError(f"inference.json has no row of {contender} with {model}")

    def turn(self, contender: str, figure: str = "vs_dense", what: str = "token") -> float:
        """With the model 1b, two threads, by turns: times that of dense torch, or the median in seconds."""
        for row in self._results["turns"]:
            if (row["contender"], row["cpu"], row["threads"]) == (contender, "", 2) and what in row:
                return float(row[what][figure])
        raise LookupError(f"inference.json has no turns of {contender}")

    def single_turn(self, contender: str) -> float:
        """Times that of dense torch for a token, held to AVX2, in the group that has one round."""
        rows = self._results["turns"]
        found = [
            row["token"]["vs_dense"]
            for row in rows
            if (row["contender"], row["cpu"], row["threads"]) == (contender, "avx2", 2)
        ]
        return float(found[-1])

    def weights(self, profile: str | None = None) -> float:
        """GB of the model 1b's, dense or in a profile."""
        facts = next(facts for facts in self._results["models"] if facts["name"] == "1b")
        return float(facts["compressed_nbytes"][profile] if profile else facts["dense_nbytes"]) / 1e9

    def peak(self, model: str, contender: str) -> float:
        """GB beyond what the process had after imports."""
        rows = self._results["alone"]
        return next(row["peak_nbytes"] / 1e9 for row in rows if (row["model"], row["contender"]) == (model, contender))


epyc = Run("codecs.json")
xeon = Run("xeon-avx512/codecs.json")
deltas = Deltas()
geometry = Geometry()
inference = Inference()


def form(name: str, profile: str) -> float:
    """The ratio of weights that are quantized or pruned."""
    return float(next(row[profile] for row in _load("forms.json")["rows"] if row["form"] == name))


def served() -> list[str]:
    """The size of the model that was served, and the rows of the table of servers."""
    found = _load("served.json")
    claims = [f"The model has {found['model']['parameters'] / 1e9:.2f} billion"]
    for row in found["rows"]:
        if "seconds" in row:
            held = "-" if row["weights_nbytes"] is None else f"{row['weights_nbytes'] / 1e9:.2f}"
            claims.append(
                f"| {row['server']}, {row['weights']} | {held} | {row['peak_nbytes'] / 1e9:.2f} | "
                f"{row['tokens_per_second']:.1f} | {row['of_dense']:.2f} | {row['equal']} of 200 |"
            )
    return claims


def traffic_bits(peak: float, step: int) -> tuple[float, float, float, float]:
    """Exact differences of layers: percent that change, bits a weight, times fewer bytes than BF16, and the bound."""
    for row in _load("traffic.json")["differences"]:
        if (row["weights"], row["peak"], row["step"]) == ("layers", peak, step):
            return 100 * row["changed"], row["relative fast"], row["times"], row["bound"]
    raise LookupError(f"traffic.json has no row of step {step} at {peak:g}")


def traffic_step(link: str, contender: str, figure: str = "of FSDP2", table: str = "steps") -> float:
    """A figure of a training step behind a link."""
    rows = _load("traffic.json")[table]
    return float(next(row[figure] for row in rows if (row["link"], row["contender"]) == (link, contender)))


def saved(figure: str, digits: int, writer: str = "TensorwireWriter") -> list[str]:
    """A figure of distributed checkpoints of BF16 and of FP32, of those that torch's own writer has saved."""
    found = {row["dtype"]: row[figure] for row in _load("dcp.json")["saves"] if row["writer"] == writer}
    return [f"{found[dtype]:.{digits}f}" for dtype in ("bfloat16", "float32")]


def above_bound() -> float:
    """By which part our checkpoints are larger than the entropy bound, most."""
    rows = _load("dcp.json")["saves"]
    found = {(row["dtype"], row["writer"]): row["nbytes"] for row in rows}
    return max(found[dtype, "TensorwireWriter"] / found[dtype, "entropy bound"] for dtype, _ in found) - 1


def reshard(ranks: str, storage: str) -> float:
    """How often the bytes of a BF16 checkpoint are read by another number of ranks."""
    rows = _load("dcp.json")["loads"]
    wanted = ("bfloat16", ranks, storage)
    return float(next(row["part"] for row in rows if (row["dtype"], row["ranks"], row["storage"]) == wanted))


def remote(what: str, figure: str, file: str = "a shard, BF16") -> float:
    """A figure of a file in S3."""
    rows = _load("remote.json")["files"]
    wanted = (file, "tensorwire", what)
    return float(next(row[figure] for row in rows if (row["file"], row["with"], row["what"]) == wanted))


def _sync(table: str, figure: str, **wanted: object) -> float:
    """A figure of the row that `wanted` describes, of publishing and following."""
    found = (row for row in _load("sync.json")[table] if wanted.items() <= row.items())
    return float(next(found)[figure])


def _cost_of(name: str) -> tuple[str, str, str]:
    """CPU seconds to publish and to apply a gigabyte, and the MB between."""
    publish, apply, nbytes = (_sync("cost", figure, **{"with": name}) for figure in ("publish", "apply", "nbytes"))
    return f"{publish:.2f}", f"{apply:.2f}", f"{nbytes / 1e6:.1f}"


def shipped() -> list[str]:
    """What a version costs, and where dense weights arrive sooner."""
    rows = {name: " | ".join(_cost_of(name)) for name in ("tensorwire, fast", "xor, zstd 1", "overwrite, zstd 1")}
    rows |= {"through files": " | ".join(_cost_of("Publisher and Follower"))}
    one = [
        _sync("links", f"{how}, of dense", link=1, **{"with": "tensorwire, fast"}) for how in ("serial", "pipelined")
    ]
    even = [_sync("break-even", how, **{"with": "tensorwire, fast"}) for how in ("serial", "pipelined")]
    files = [_sync("break-even", how, **{"with": "Publisher and Follower"}) for how in ("serial", "pipelined")]
    first, last = (_sync("minilm", "nbytes", version=version) for version in (1, 11))
    return [
        *(f"| {name} | {row} |" for name, row in rows.items()),
        f"{100 * _sync('cost', 'changed'):.1f} % of the words change from one version",
        f"arrive {one[0]:.1f} times sooner than all weights, and {one[1]:.1f} times if the stages are pipelined",
        f"From {even[0]:.0f} Gbit/s on ({even[1]:.0f} pipelined) all weights arrive sooner, through files from "
        f"{files[0]:.0f} Gbit/s on ({files[1]:.0f})",
        f"A commit for 100 shards takes {1e3 * _sync('commit', 'seconds'):.0f} ms",
        f"The first step takes {first / 1e3:.0f} kB of {_sync('minilm', 'dense') / 1e6:.1f} MB, the last one "
        f"{last / 1e3:.0f} kB",
    ]


def trainer(dtype: str, ratio: str) -> str:
    """A ratio of a trainer's directory with model and optimizer in a dtype."""
    row = next(row for row in _load("trainer.json")["rows"] if row["dtype"] == dtype)
    return f"{row[f'{ratio}_ratio']:.3f}"


def trainer_row(dtype: str) -> str:
    """A row of the table of such directories."""
    return f"| {dtype} | " + " | ".join(trainer(dtype, each) for each in ("tensors", "directory", "model_alone")) + " |"


def second_read(*shares: float) -> str:
    """How many times as long `compress` takes with a base that it reads twice, where these shares of words changed."""
    found = _load("second-read.json")
    times = sorted(f"{row['times'][found['changed'].index(share)]:.2f}" for row in found["rows"] for share in shares)
    return times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"


def share(direction: str, *functions: str, profile: str = "fast") -> str:
    """The part of its time that a profile spends in functions whose names begin so, in percent."""
    shares = _load("functions.json")[profile][direction]
    return f"{100 * sum(part for name, part in shares.items() if name.startswith(functions)):.0f} %"


def span(values: Any, form: str = ".2f", link: str = " to ") -> str:
    """The least and the greatest, as `0.45 to 0.9`."""
    return f"{min(values):{form}}{link}{max(values):{form}}"
