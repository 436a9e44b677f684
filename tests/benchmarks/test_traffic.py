"""The benchmark of training traffic: what it computes itself, and that a run alone changes its own table only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import numpy as np  # noqa: E402

from benchmarks import gpt, tables, verdicts  # noqa: E402
from benchmarks.results_page import Page, of_tables  # noqa: E402
from benchmarks.tables import Table  # noqa: E402
from benchmarks.traffic import (  # noqa: E402
    curves,
    differences,
    errors,
    experts,
    masters,
    paired,
    recommendation,
    run,
    steps,
    targets,
)
from benchmarks.traffic.loss import BASELINE, RUNS, Direct, Open  # noqa: E402
from tensorwire.torch.traffic import Grid  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

COARSE = Grid(4, 8)


def test_the_rate_grows_stays_and_falls() -> None:
    assert gpt.rate_at(25, 1e-3) == pytest.approx(5e-4)
    assert gpt.rate_at(50, 1e-3) == gpt.rate_at(900, 1e-3) == 1e-3
    assert gpt.rate_at(250, 1e-3, (200, 300)) == pytest.approx(5.5e-4)
    assert gpt.rate_at(300, 1e-3, (200, 300)) == pytest.approx(1e-4)


def test_batches_differ_by_step_seed_and_rank_and_come_again() -> None:
    first = gpt.batch(1, 2)
    assert torch.equal(first, gpt.batch(1, 2))
    for other in (gpt.batch(2, 2), gpt.batch(1, 2, seed=1), gpt.batch(1, 2, rank=1)):
        assert not torch.equal(first, other)


def test_neighbouring_values_have_neighbouring_numbers() -> None:
    bits = np.concatenate([np.arange(0xFF7F, 0x8000, -1), np.arange(0x0000, 0x7F80)])  # -max to -0 and 0 to max
    values = torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16)
    numbers = differences._ordered(values)
    zero = int(np.flatnonzero(bits == 0)[0])
    assert (np.diff(numbers[:zero]) == 1).all()
    assert (np.diff(numbers[zero:]) == 1).all()
    assert numbers[zero] == 0 == numbers[zero - 1] + 1


def test_the_bound_is_the_entropy_given_the_exponent() -> None:
    old = torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=torch.bfloat16)
    new = torch.tensor([1.0, 1.0, 2.015625, 2.015625], dtype=torch.bfloat16)  # one step where the exponent is larger
    assert differences._bounds(old, new) == (0.0, 4.0)


def test_shards_are_the_parts_of_each_parameter() -> None:
    weights = {"a": torch.arange(8.0).view(4, 2), "b": torch.arange(10.0, 14.0)}
    assert masters.shards(weights, ["a", "b"], 2)[1].tolist() == [4, 5, 6, 7, 12, 13]


def test_an_open_loop_adds_its_errors_up_and_a_closed_one_does_not() -> None:
    master = torch.zeros(8)
    closed, opened = torch.zeros(8), torch.zeros(8)
    codec = Open(COARSE)
    for step in range(1, 51):
        master = torch.linspace(0, 1, 8) * (0.013 * step) + 0.01 * step
        codec.decode(codec.encode(master, opened), opened, opened)
        COARSE.decode(COARSE.encode(master, closed), closed, closed)
    assert (closed - master).abs().max() < 0.01
    assert (opened - master).abs().max() > 3 * (closed - master).abs().max()


def test_direct_weights_do_not_see_what_the_receiver_has() -> None:
    weights, out = torch.linspace(-1, 1, 8), torch.full((8,), 5.0)
    codec = Direct(COARSE)
    assert torch.equal(codec.encode(weights, torch.ones(8)), codec.encode(weights))
    codec.decode(codec.encode(weights), out, torch.ones(8))
    assert (out - weights).abs().max() < 1 / 7


def turn(contender: str, seconds: float, rate: float | None = 50) -> dict[str, object]:
    counted = {"cpu_seconds": 1.0, "interface_nbytes": 100 * seconds, "counted_nbytes": 0, "kept": 0, "bits": 32}
    return {"rate": rate, "contender": contender, "seconds": seconds, **counted}


def test_quotients_are_those_of_one_round() -> None:
    turns = [turn("FSDP2", 1), turn("ours", 0.5), turn("FSDP2", 4), turn("ours", 1), turn("FSDP2", 2), turn("ours", 1)]
    baseline, ours = steps.rows_of(turns)
    assert (baseline["of FSDP2"], ours["of FSDP2"], ours["bytes of FSDP2"]) == (1, 0.5, 0.5)
    assert (ours["link"], ours["seconds"], ours["of raw messages"]) == ("50 Mbit/s", 1, None)


def test_a_run_is_compared_with_the_first_one_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: dict[tuple[str, object], float] = {
        ("raw", 0): 2.0,
        ("ours", 0): 2.5,
        ("once", 0): 1.0,
        ("raw", 1): 4.0,
        ("ours", 1): 4.25,
    }

    def trained(settings: dict[str, Any]) -> dict[str, object]:
        name = settings["name"]
        loss = losses[name, settings["seed"]]
        return {"loss": loss, "nbytes": 8 if name == "raw" else 2, "digest": name in ("raw", "once")}

    monkeypatch.setattr(paired.job, "run", lambda rank, given: list(map(trained, given["settings"])))
    rows = paired.measured(trained, ["raw", "ours", "once"], {"seeds": [0, 1]}, once=["once"])
    assert [(row["run"], row["seed"], row["gap"], row["part"], row["same"]) for row in rows] == [
        ("raw", 0, 0, 1, True), ("ours", 0, 0.5, 0.25, False), ("once", 0, -1, 0.25, True),
        ("raw", 1, 0, 1, True), ("ours", 1, 0.25, 0.25, False),
    ]  # fmt: skip


def test_gaps_are_compared_with_their_spread() -> None:
    rows = [{"run": "ours", "gap": gap} for gap in (-0.01, 0.02, 0.05)]
    assert targets._standard_error(rows) == pytest.approx(0.03 / 3**0.5)
    assert targets._standard_errors(rows) == pytest.approx(0.02 / (0.03 / 3**0.5))
    assert targets._standard_errors(rows[:1]) is None


@pytest.mark.parametrize(("gap", "leak", "missed"), [(0.0, 0.0, 0), (0.02, 0.0, 1), (0.0, 0.5, 1)])
def test_a_codec_for_experts_may_neither_lose_nor_leak(gap: float, leak: float, missed: int) -> None:
    row = {"same": True, "part": 0.27, "gap": 0.0, "leak": 0.0}
    rows = [row | {"run": name} for name in (experts.EXACT, experts.INT8, experts.INT8)]
    rows += [
        row | {"run": experts.INT4, "gap": gap, "leak": leak},
        row | {"run": experts.CLUSTERS, "gap": 1, "leak": 1},
    ]
    assert sum(each.met is False for each in targets.evaluate({"experts": rows})) == missed


def test_tacos_first_scale_travels_and_changes_hardly_a_value() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.01, 10, 1000)
    restored = {}
    for name, nbytes in ((errors.HADAMARD, 132), (errors.TACO, 136)):
        message = errors.ACTIVATIONS[name].encode(values)
        assert len(message) == 8 * nbytes
        restored[name] = torch.empty_like(values)
        errors.ACTIVATIONS[name].decode(message, restored[name])
        assert (restored[name] - values).norm() < 0.05 * values.norm()
    assert (restored[errors.TACO] - restored[errors.HADAMARD]).norm() < 0.005 * values.norm()


def test_repeated_rows_travel_once_and_come_back_in_all_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 16, generator=generator)
    values = rows[torch.randint(20, (512,), generator=generator)].reshape(-1)
    codec, out = recommendation.Repeated(16), torch.empty_like(values)
    message = codec.encode(values)
    assert message is not None
    assert rows.nbytes < len(message) < rows.nbytes + 640  # 512 numbers of up to 5 bits, and the heads
    codec.decode(message, out)
    assert torch.equal(out, values)


@pytest.mark.parametrize("name", recommendation.DRAWN)
def test_a_wrong_element_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendation, "MESSAGE", 1 << 12)
    fine = recommendation._violations(name, 0.03, 1 << 12)
    assert (fine["elements"], fine["violations"], fine["lossless"]) == (1 << 12, 0, 0)
    decode = recommendation.Bounded.decode

    def spoil(self: recommendation.Bounded, message: torch.Tensor, out: torch.Tensor) -> None:
        decode(self, message, out)
        out[7] += out.max() - out.min()

    monkeypatch.setattr(recommendation.Bounded, "decode", spoil)
    assert recommendation._violations(name, 0.03, 1 << 12)["violations"] == 1


def test_a_table_is_measured_alone(tmp_path: Path) -> None:
    columns = (("a", "a", "d"), ("b", "b", ".1f"))

    def fail(quick: bool) -> list[dict[str, object]]:
        raise RuntimeError("a rank has failed")

    found = iter([[{"a": 1, "b": [0.25, 0.5]}], [{"a": 2, "b": None}]])
    alone = Table("alone", "Title", "Text.", columns, lambda quick: next(found))
    none = "this test has no links"
    linked = Table("linked", "Title", "Text.", columns, lambda quick: pytest.fail(none), missing=lambda: none)
    other = Table("other", "Title", "Text.", columns, lambda quick: [{"a": 3, "b": 1.0}])
    failing = Table("failing", "Title", "Text.", columns, fail)
    for chosen, expected in (([alone, linked, failing, other], ["failing"]), ([alone], [])):
        results, failed = tables.measure(chosen, tmp_path / "traffic.json", quick=True, command="make traffic")
        assert failed == expected
    assert (results["alone"], results["other"]) == ([{"a": 2, "b": None}], [{"a": 3, "b": 1.0}])
    assert "linked" not in results
    assert [each["table"] for each in results["runs"]] == ["other", "alone"]
    parts = of_tables("# Results", (alone, linked, other), targets.evaluate)
    page = Page("traffic", parts).render(results, tmp_path)
    assert "| 2 | - |" in page
    assert "| 3 | 1.0 |" in page


@pytest.mark.parametrize("quick", [True, False])
def test_a_run_prints_the_page(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"what": "ours", "with": "raw", "how": "so", "expected": "same", "same": False}]
    columns = (("what", "what", ""), ("same", "same", ""))
    table = Table("equality", "Bits", "Text.", columns, lambda quick: rows)
    monkeypatch.setattr(run, "TABLES", (table,))
    monkeypatch.setattr(run, "PAGE", Page("traffic", of_tables("# Results", (table,), targets.evaluate)))
    monkeypatch.setattr(tables.environment, "folder", lambda quick: tmp_path)
    monkeypatch.setattr("sys.argv", ["traffic", "equality", *["--quick"] * quick])
    run.main()
    printed = capsys.readouterr().out
    assert "## Bits" in printed
    assert "| ours | no |" in printed
    assert "targets met" in printed
    assert printed == (tmp_path / "traffic.md").read_text()
    assert "`make traffic TRAFFIC='equality'`" in printed


def test_what_is_so_or_not_is_a_target_without_a_margin() -> None:
    row = {"what": "ours", "with": "raw", "how": "so", "expected": "same"}
    page = verdicts.render(targets.evaluate({"equality": [row | {"same": same} for same in (True, False)]}))
    assert "| ours: bits of raw | so | yes | yes | met |" in page
    assert "| ours: bits of raw | so | yes | no | **missed** |" in page


def test_the_picture_has_all_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"run": name, "seed": 0, "curve": [5.0, 4.0, 3.5]} for name in RUNS]
    curves.write(rows, tmp_path / "loss.svg")
    picture = (tmp_path / "loss.svg").read_text()
    assert all(name in picture for name in RUNS)
    assert BASELINE in RUNS
