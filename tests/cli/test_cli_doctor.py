"""tensorwire doctor: what it proves, what it finds, and what its report keeps to itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorwire.cli import doctor, machine, proof
from tensorwire.cli.machine import Gpu, Nvrtc, advice
from tensorwire.codec import cpu_target, decompress, dtype_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.command_line import Run

H200 = Gpu("NVIDIA H200", "9.0", 132, 150 * 10**9, "570.86")
NUM_CASES = 38
X = "\N{MULTIPLICATION SIGN}"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)


def lines_of(target: str) -> tuple[list, str]:
    """What the process of a target prints if all is well."""
    rows = [dict.fromkeys(proof.PROFILES, f"{index}") for index in range(NUM_CASES)]
    return [target, *rows], ""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[list, str]]:
    """What the processes of the targets print, for a test to change; the CPU has AVX2."""
    by_target = {target: lines_of(target) for target in ("scalar", "avx2")}
    by_target |= {"avx512": (["avx2"], ""), "neon": (["avx2"], "")}
    monkeypatch.setattr(proof, "_run", by_target.__getitem__)
    return by_target


def test_the_odd_tensors_are_the_same_each_time() -> None:
    cases = proof.cases()
    assert cases == proof.cases()
    assert len(cases) == NUM_CASES
    assert len({(case.name, case.dtype, case.shape) for case in cases}) == NUM_CASES
    for case in cases:
        assert 8 * len(case.data) == prod(case.shape) * dtype_bits(case.dtype), case[:3]
    assert {"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"} <= {case.dtype for case in cases}


def test_every_target_of_this_machine_is_proved(run: Run) -> None:
    found = run("doctor", "--json")
    assert (found.code, found.err) == (0, "")
    report = found.json
    assert report["ok"]
    assert Counter(result["verdict"] for result in report["results"]).keys() == {"ok"}
    by_target = Counter(result["engine"] for result in report["results"])
    assert list(by_target) == report["cpu_targets"]
    assert set(by_target.values()) == {NUM_CASES}
    assert {"scalar", cpu_target()} <= set(by_target)
    assert report["version"] == report["core_version"]


def test_a_child_that_runs_another_target_proves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tensorwire.cli.proof"],
        env={**os.environ, "TENSORWIRE_CPU": "avx1024"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) != "avx1024"


@pytest.mark.usefixtures("ran")
def test_the_report(run: Run) -> None:
    found = run("doctor")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    titles = [line.split()[0] for line in lines[: lines.index("")]]
    assert titles == ["tensorwire", "system", "CPU", "target", "memory", "packages", "GPU", "profile"]
    assert lines[-1] == "ok: 38 tensors in 4 profiles, every bit on scalar, avx2"
    assert re.search(rf"^weights +BF16 +3{X}7{X}1111 +ok +ok$", found.out, re.MULTILINE)
    assert "\x1b" not in found.out


@pytest.mark.usefixtures("ran")
def test_the_report_names_nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/data/alice")
    out = run("doctor").out + run("doctor", "--json").out
    for private in ("alice", str(Path.cwd()), sys.prefix):
        assert private not in out


def test_another_frame_is_named_with_its_shape(run: Run, ran: dict[str, tuple[list, str]]) -> None:
    ran["avx2"][0][7]["compact"] = "other"
    found = run("doctor")
    assert found.code == 3
    assert (
        found.out.splitlines()[-1] == f"differs: avx2: weights, BF16, 3{X}7{X}1111: other frame than scalar's (compact)"
    )
    assert re.search(rf"^weights +BF16 +3{X}7{X}1111 +ok +differs$", found.out, re.MULTILINE)
    assert "ok: " not in found.out


def test_a_broken_round_trip_is_named(run: Run, ran: dict[str, tuple[list, str]]) -> None:
    ran["scalar"][0][1]["enec"] = "other bytes after a round trip"
    found = run("doctor")
    assert found.code == 3
    assert "differs: scalar: weights, BF16, scalar: other bytes after a round trip (enec)\n" in found.out


def test_a_target_that_ends_the_process_is_named(run: Run, ran: dict[str, tuple[list, str]]) -> None:
    ran["avx2"] = (ran["avx2"][0][:3], "ended by SIGILL")
    found = run("doctor")
    assert found.code == 3
    assert f"differs: avx2: weights, BF16, 0{X}5: ended by SIGILL\n" in found.out
    assert re.search(r"^weights +BF16 +255 +ok +not run$", found.out, re.MULTILINE)


def test_a_process_that_dies_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; print('\"scalar\"', flush=True); "
    for end, said in (
        ("os.kill(os.getpid(), 4)", "ended by SIGILL"),
        ("raise ImportError('no /data/alice/lib/x.so')", "ImportError: no .../x.so"),
        ("sys.exit(7)", "exit code 7"),
        (
            "print('a line of sitecustomize', 7, sep='\\n'); print('{\"fast\": \"cut', end=''); sys.exit(7)",
            "exit code 7",
        ),
        ("os.kill(os.getpid(), 40)", "ended by signal 40"),
        ("sys.stderr.buffer.write(b'\\xff\\n'); sys.exit(7)", "\ufffd"),
    ):
        monkeypatch.setattr(proof, "_command", lambda end=end: [sys.executable, "-c", program + end])
        assert proof._run("scalar") == (["scalar"], said)
    monkeypatch.setattr(proof, "_command", lambda: ["/nonexistent"])
    assert proof._run("scalar") == ([], "cannot be started: No such file or directory")


def right(frame: bytes) -> bytes:
    return decompress(frame, framework="bytes")


def damaging(frame: bytes) -> bytes:
    data = right(frame)
    return data[:-1] + bytes([data[-1] ^ 1]) if len(data) == 10_000 else data


def failing(frame: bytes) -> bytes:
    raise RuntimeError("CUDA error in /data/alice/x.py: misaligned\nsecond line")


@pytest.mark.parametrize(
    ("engine", "verdicts"),
    [
        (right, {"ok": 38}),
        (lambda frame: None, {"-": 38}),
        # 5000 words: NaN and infinity, and subnormal
        (damaging, {"ok": 36, "other bytes (fast, compact, resident, enec)": 2}),
        (failing, {"RuntimeError: CUDA error in .../x.py: misaligned (fast, compact, resident, enec)": 38}),
    ],
    ids=["right", "unknown", "damaging", "failing"],
)  # fmt: skip
def test_engines_against_the_core(engine: Callable[[bytes], bytes | None], verdicts: dict[str, int]) -> None:
    results = proof.prove_engines({"CUDA": engine})
    assert Counter(result.verdict for result in results) == verdicts


@pytest.mark.usefixtures("ran")
def test_a_gpu_and_its_engines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [H200])
    nvrtc = Nvrtc("12.8", "site-packages/nvidia/x/libnvrtc.so.12", "~/.cache/tensorwire/kernels", False)
    monkeypatch.setattr(doctor, "_on_device", lambda: ({"CUDA": right, "Triton": damaging}, nvrtc))
    found = run("doctor")
    assert found.code == 3
    assert "NVRTC       12.8, site-packages/nvidia/x/libnvrtc.so.12\n" in found.out
    assert "kernels     kept in ~/.cache/tensorwire/kernels, which cannot be written: each process" in found.out
    assert "GPU 0       NVIDIA H200, compute capability 9.0, 132 processors, 150 GB, driver 570.86\n" in found.out
    assert "profile     resident (modelled: the card has HBM)\n" in found.out
    assert "differs: Triton: subnormal, BF16, 5000: other bytes (fast, " in found.out
    assert "differs: CUDA" not in found.out


@pytest.mark.usefixtures("ran")
def test_a_gpu_that_nothing_can_use(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [H200])
    monkeypatch.setattr(doctor, "_on_device", lambda: ({}, Nvrtc(None, "cannot be loaded", None, False)))
    found = run("doctor")
    assert found.code == 0
    assert "nothing decodes there: torch cannot use it, or NVRTC and Triton are missing\n" in found.out
    assert "NVRTC       not found: cannot be loaded\n" in found.out


@pytest.mark.usefixtures("ran")
def test_a_core_of_another_version(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.codec.library_version", lambda: "0.0.1")
    found = run("doctor")
    assert found.code == 3
    assert "with a core of 0.0.1: install it anew\n" in found.out


def test_gpus_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real function
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA L4, 8.9, 23034, 550.1'\necho 'NVIDIA X, 9.0, [N/A], 550.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "_of_torch", lambda driver: [])
    assert machine.gpus() == [Gpu("NVIDIA L4", "8.9", None, 23034 << 20, "550.1")]
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA \\377, 9.0, 1, 550.1\\n'\n")
    assert machine._of_driver() == [Gpu("NVIDIA \ufffd", "9.0", None, 1 << 20, "550.1")]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert machine._of_driver() == []
    tool.unlink()
    assert machine._of_driver() == []


@pytest.mark.parametrize(
    ("name", "profile", "reason"),
    [
        ("NVIDIA H200", "resident", "the card has HBM"),
        ("NVIDIA A100-SXM4-80GB", "resident", "the card has HBM"),
        ("AMD Instinct MI300X", "resident", "the card has HBM"),
        ("NVIDIA GeForce RTX 4070", "fast", "the card has GDDR"),
        ("NVIDIA RTX A3000 Laptop GPU", "fast", "the card has GDDR"),
        ("NVIDIA A10G", "fast", "the card has GDDR"),
        ("NVIDIA Z9", "fast", "the memory of this card is not known here: resident is for HBM, fast for GDDR"),
    ],
)
def test_the_profile_of_a_card(name: str, profile: str, reason: str) -> None:
    found = advice(Gpu(name, None, None, 1, None), "avx512")
    assert (found.profile, found.reason, found.modelled) == (profile, reason, True)


def test_the_profile_of_a_cpu() -> None:
    assert [advice(None, target).profile for target in proof.TARGETS] == ["fast", "resident", "fast", "fast"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no /data/alice/lib/x.so: build", "no .../x.so: build"),
        ("'~/a/b.py', 3/4 and CUDA", "'.../b.py', 3/4 and CUDA"),
        ("https://example.org/a", "https:/.../a"),
    ],
)
def test_directories_are_private(text: str, said: str) -> None:
    assert machine.public(text) == said


def test_known_directories_are_private_whatever_is_in_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "Alice's (new) disk: A"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", "/data/Alice A. Doe")
    monkeypatch.setattr(sys, "prefix", "/opt/Alice A/venv")
    said = machine.public(f"no {here}/x.so, /data/Alice A. Doe/y.so or /opt/Alice A/venv/lib/z.so: build")
    assert said == "no .../x.so, .../y.so or .../z.so: build"
