"""The command as a process: pipes, terminals, signals, start-up."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorwire.cli import output
from tests.support.command_line import COMMAND, forked, terminal

run = partial(forked, text=True)


def interrupted() -> None:
    """A signal comes with the first report of progress on any file but 1.safetensors."""

    @contextlib.contextmanager
    def progress(title: str, *, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
        def update(done: int, total: int, path: str) -> None:
            if path != "1.safetensors":
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(10)

        yield update

    output.progress = progress  # type: ignore[assignment]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    weights = np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32)
    save_file({f"layer.{i}.weight": weights + np.float32(i) for i in range(4)}, path)
    return path


def run_started(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A process as a shell starts it."""
    return subprocess.run([*COMMAND, *map(str, arguments)], check=False, text=True, capture_output=True, **options)


def test_pipes_stay_clean(file: Path) -> None:
    small = file.with_name("small.safetensors")
    for arguments in (("compress", file, small), ("verify", small), ("inspect", small), ("diff", file, small)):
        ran = run(*arguments)
        assert (ran.returncode, ran.stderr) == (0, ""), arguments
        assert "\x1b" not in ran.stdout, arguments
        assert "…" not in ran.stdout, arguments
        assert all(line == line.rstrip() for line in ran.stdout.splitlines()), arguments


def test_progress_takes_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.progress("compress") as update:
        update(0, 545_200_000, "model.safetensors.index.json")
        update(545_200_000, 545_200_000, "unet/diffusion_pytorch_model-00012-of-00030.safetensors")
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "545.2/545.2 MB" in line
    assert "unet/diff…00012-of-00030 " in line, "the number tells shards apart"


def test_progress_goes_to_a_terminal_on_stderr_only(file: Path) -> None:
    environment = {"TERM": "xterm-256color", "COLUMNS": "80"}
    with terminal() as (stderr, screen):
        streams = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": stderr}
        ran = run("compress", file, "--json", environment=environment, **streams)
    shown = screen.decode()
    assert json.loads(ran.stdout)["action"] == "compress"
    assert "compress" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor is shown again"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written(file: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ran = run("inspect", file, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == 1
    assert ran.stderr == "tensorwire: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["verify"], 0, b""), (["compress", "-f", "-o-"], 2, b"standard output, which is closed")],
)
def test_closed_output(file: Path, arguments: list[str], code: int, said: bytes) -> None:
    """A result would be lost, which is refused; a report may be."""
    ran = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, *arguments, str(file)], check=False, capture_output=True
    )
    assert ran.returncode == code
    assert said in ran.stderr
    assert said or not ran.stderr


def test_names_outside_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "ü.safetensors"
    save_file({"模型": np.ones((4, 4), np.float32)}, path)
    ran = run_started("inspect", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert r"\u6a21\u578b" in ran.stdout


@pytest.mark.parametrize("command", ["compress", "decompress"])
def test_interrupt(file: Path, command: str) -> None:
    source = file
    if command == "decompress":
        source = file.with_name("small.safetensors")
        assert run("compress", file, source).returncode == 0
    target = file.with_name("target.safetensors")
    arguments = [command, str(source), str(target)]
    ran = run(*arguments, first=interrupted)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr == "tensorwire: interrupted\n", "nothing is finished, so nothing is promised"
    assert not Path(f"{target}.partial").exists()
    assert not target.exists()
    assert run(*arguments).returncode == 0
    assert target.exists()
    assert not Path(f"{target}.partial").exists()


def test_interrupt_behind_a_finished_file(tmp_path: Path) -> None:
    model, target = tmp_path / "model", tmp_path / "target"
    model.mkdir()
    weights = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)  # 4 MiB: worth a journal entry
    for name in ("1.safetensors", "2.safetensors"):
        save_file({"layer.weight": weights}, model / name)
    arguments = ["compress", str(model), str(target)]
    ran = run(*arguments, first=interrupted)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr.splitlines() == [
        f"{target}.partial holds what is done: the same command goes on with it.",
        "tensorwire: interrupted",
    ]
    again = run(*arguments, "--json")
    resumed = {entry["path"] for entry in json.loads(again.stdout)["files"] if entry["resumed"]}
    assert resumed == {"1.safetensors"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["compress", "--help"]])
def test_start_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"import sys; from tensorwire.cli import main; main({arguments!r}); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in ran.stderr.split()}
    assert not loaded & {"numpy", "ml_dtypes", "torch", "rich", "matplotlib"}
    assert "tensorwire.codec.frame.core" not in ran.stderr.split()


def test_completion_offers_commands_and_options() -> None:
    def complete(words: str, index: int) -> str:
        asked = {"_TENSORWIRE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        return run(environment=asked).stdout

    asked = {"_TENSORWIRE_COMPLETE": "bash_complete", "COMP_WORDS": "tensorwire tr", "COMP_CWORD": "1"}
    assert "transcode" in run_started(env={**os.environ, **asked}).stdout
    assert "--profile" in complete("tensorwire compress --pr", 2)
    assert "compact" in complete("tensorwire compress --profile c", 3)
