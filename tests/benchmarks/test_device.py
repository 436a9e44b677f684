"""The benchmark of a GPU: its sections on a CPU, what the model expects, and the page of the committed results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.2")

from benchmarks import environment  # noqa: E402
from benchmarks.device import page, runner  # noqa: E402
from benchmarks.device.model import INSTRUCTIONS, counted, instructions, modelled, times_dense  # noqa: E402
from benchmarks.device.run import main  # noqa: E402
from benchmarks.device.sections import FIRST, SECTIONS, counters  # noqa: E402
from benchmarks.device.sections.products import check  # noqa: E402
from benchmarks.device.splitzip import SplitZip  # noqa: E402
from tests.support.fake_sections import sections  # noqa: E402
from tests.support.figures import RESULTS, results  # noqa: E402

DEVICE = results("device-h200")
ON_A_CPU = (*(section.name for section in FIRST), "writing", "offload", "generate")


def measure(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """What the command does, whose process that measures is forked from this one, and imports nothing anew."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # as it was afterwards
    monkeypatch.setattr("sys.argv", ["benchmarks.device", "--device", "cpu", *arguments])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP of GNU does not survive a fork otherwise
    try:
        main()
    finally:
        torch.set_num_threads(threads)


AS_A_PROGRAM = """
import os, runpy, sys
def watch(event, arguments):
    if event == "import" and arguments[0] == "triton":
        assert os.environ.get("TRITON_INTERPRET") == "1", "Triton is imported too early"
sys.addaudithook(watch)
runpy.run_module("benchmarks.device", run_name="__main__", alter_sys=True)
assert "triton" in sys.modules
"""


@pytest.mark.slow
def test_the_program_has_triton_interpret_kernels_on_a_cpu() -> None:
    """As `python -m` runs it, where the environment does not say so already."""
    variables = environment.child()
    variables.pop("TRITON_INTERPRET", None)
    line = [sys.executable, "-c", AS_A_PROGRAM, "--device", "cpu", "--list"]
    listed = subprocess.run(line, capture_output=True, text=True, check=False, env=variables)
    assert listed.returncode == 0, listed.stderr
    assert [row.split()[0] for row in listed.stdout.splitlines()] == [section.name for section in SECTIONS]


def test_the_page_is_that_of_the_results() -> None:
    assert (RESULTS / "device-h200.md").read_text() == page.page_of(DEVICE, SECTIONS).render(DEVICE, RESULTS)


def test_all_sections_fit_into_three_runs() -> None:
    """What is loaded before takes some seconds, too. The last one is that of NCCL, which has a program of its own."""
    assert sum(section.seconds for section in FIRST) <= 330 - 15
    assert sum(section.seconds for section in (SECTIONS[0], *SECTIONS[len(FIRST) : -1])) <= 300 - 15
    assert SECTIONS[-1].name == "nccl"
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)


def test_what_is_left_for_another_run_is_named(tmp_path: Path) -> None:
    """A section that was cut or broken, and one that never began."""
    lines = [
        {"section": "works", "row": {"what": "one"}},
        {"section": "works", "seconds": 1.0},
        {"section": "raises", "error": "cut after 1 seconds"},
        {"section": "raises", "seconds": 1.0},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert page.unfinished(tmp_path / "rows.jsonl", sections("works", "raises", "hangs")) == ["raises", "hangs"]


def test_every_section_runs_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it measures there is worth nothing; that it ends without an error is."""
    pytest.importorskip("transformers", minversion="5.16")
    measure(monkeypatch, "--quick", "--out", str(tmp_path), "--seconds", "1200", "--sections", ",".join(ON_A_CPU))
    lines = runner.lines(tmp_path / runner.FILE)
    assert [line for line in lines if "error" in line or "error" in line.get("row", {})] == []
    assert [line["section"] for line in lines if "seconds" in line] == list(ON_A_CPU)
    bits = [line["row"] for line in lines if line.get("section") == "bits" and "row" in line]
    assert all(row["frames"] == row["right"] for row in bits if "right" in row)
    for section in SECTIONS:
        keys = {key for line in lines if line.get("section") == section.name for key in line.get("row", {})}
        known = {key for _, key, _ in section.columns} | {"bytes", "name", "processors"}
        assert keys <= known, f"the page of {section.name} has no column for {keys - known}"
    assert (
        tmp_path / f"{page.file_name(page.results_of(tmp_path / runner.FILE))}.md"
    ).read_text() in capsys.readouterr().out


def test_an_unknown_section_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"expected sections among card, bits.*got decodings"):
        measure(monkeypatch, "--out", str(tmp_path), "--sections", "card,decodings")


def test_a_run_adds_to_what_is_known_of_a_card(tmp_path: Path) -> None:
    facts = json.loads((RESULTS / "device-h200.json").read_text())["runs"][0]["environment"]
    card = {"what": "card", "name": "NVIDIA H200", "processors": 7, "memory": 1e9, "l2": 1e6}
    card |= {"driver": "1", "torch": "2", "triton": "3"}

    def publish(*lines: Any) -> str:
        journal = "".join(json.dumps(line) + "\n" for line in ({"environment": facts}, *lines))
        (tmp_path / "rows.jsonl").write_text(journal)
        page.write(tmp_path / "rows.jsonl", tmp_path, sections("works", "raises"), add=True)
        return (tmp_path / "device-h200.md").read_text()

    first = {"section": "card", "row": card}
    text = publish(first, {"section": "works", "row": {"what": "old", "number": 1.0}})
    assert "| old | 1.0 |" in text
    text = publish(first, {"section": "raises", "row": {"what": "other"}}, {"section": "raises", "error": "a\nb"})
    assert "| old | 1.0 |" in text
    assert "| other |" in text
    assert "It did not end well: `a b`" in text
    text = publish(first, {"section": "works", "row": {"what": "new", "number": 2.0}})
    assert "old" not in text


@pytest.mark.parametrize(("name", "error"), [("exact, fast", 0.01), ("fused, fast", 0.5)])
def test_a_wrong_product_is_not_timed(name: str, error: float) -> None:
    weight, x = torch.full((2, 256), 0.5, dtype=torch.bfloat16), torch.ones(1, 256, dtype=torch.bfloat16)
    assert check(x, {"dense": [weight], name: [weight]}) == {}
    assert list(check(x, {"dense": [weight], name: [weight * (1 + error)]})) == [name]


def test_splitzip_gives_all_bits_back() -> None:
    words = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    coded = SplitZip(words.view(torch.bfloat16).view(256, 256))
    assert torch.equal(coded.decode().view(torch.int16).flatten(), words)
    assert len(coded.positions) == (1 << 16) * 240 // 256
    normal = (torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    coded = SplitZip(normal)
    assert torch.equal(coded.decode().view(torch.int16), normal.view(torch.int16))
    assert coded.nbytes / normal.nbytes == pytest.approx(0.75, abs=0.005)


def test_what_ncu_prints_is_read() -> None:
    """As its versions 2024 and 2025 print it: other lines, heads, units, a line for each kernel."""
    metrics = list(counters.METRICS.values())
    heads = ",".join(f'"{each}"' for each in ["ID", "Kernel Name", *metrics[:2], metrics[6]])
    kernel = '"0","words(unsigned char *, int)","61,440","81.5","1,000"'
    text = f'==PROF== Connected\n{heads}\n"","","ns","%","inst"\n{kernel}\n'
    assert counters.rows(text) == [{"kernel": "words", "microseconds": 61.44, "dram": 81.5, "instructions": 1000.0}]
    assert counters.rows("==ERROR== no permission\n") == []


def test_the_smaller_rate_counts() -> None:
    """A word of two bytes is read in one and written in two if the ratio is 2."""
    assert modelled(19.0, 2.0, {"copy": 3e9, "processors": 100}) == [pytest.approx(0.002)]
    slots = 128 * 1.7e9
    expected = [part * slots / 19.0 * 2 / 1e12 for part in (0.5, 0.7)]
    assert modelled(19.0, 2.0, {"copy": 3e15, "processors": 1}) == pytest.approx(expected)
    assert times_dense(19.0, 2.0, {"copy": 3e9, "processors": 100}) == [pytest.approx(2 / (1 + 2 / 256))]
    slow = {"copy": 2 * slots, "processors": 1}
    assert times_dense(2.0, 2.0, slow) == pytest.approx([0.25, 0.35])
    assert times_dense(2.0, 2.0, {**slow, "hertz": 2 * 1.7e9}) == pytest.approx([0.5, 0.7])


def test_the_model_goes_by_what_was_counted() -> None:
    assert instructions("fast", by_cuda=False) == INSTRUCTIONS["fast"]
    assert instructions("resident", by_cuda=True) == counted()["decode `resident`"] < INSTRUCTIONS["resident"]
    assert instructions("a copy", by_cuda=True) is instructions("enec", by_cuda=True) is None
