"""diagnose, watch, agent and analyzer on real pages, as processes, on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.support.frozen_job import pages as pages
from job.tests.support.hung_job import write_state
from tensorwire_job.service.journal import read_state
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.command_line import Run


PROGRAM = [sys.executable, "-m", "tensorwire_job.cli"]


def test_real_pages_are_diagnosed(pages: Path, run: Run, tmp_path: Path) -> None:
    """The whole way on one node: pages, what the kernel knows, the analyzer, the words."""
    code, out, err = run("diagnose", "--dir", pages)
    assert (code, err) == (3, "")
    assert re.match(
        r".*pages, started \d\d:\d\d, running, 4 ranks\n\n"
        r"rank 1 has not entered all_reduce #8 of default_pg; 3 ranks wait for it\n  for [\w. ]+; high confidence",
        out,
    )
    assert "stack of rank 1:" in out
    assert run("diagnose", "--dir", pages, "--hang-seconds", 300, "--for", 0).code == 0
    assert run("report", "--dir", pages, "--for", 0, "-o", tmp_path / "x.html").code == 3
    assert "rank 1 has not entered all_reduce #8 of default_pg" in (tmp_path / "x.html").read_text()


def test_agent_and_analyzer(pages: Path, key: str, run: Run, tmp_path: Path) -> None:
    """The same way with a network in it, and a command that is told."""
    state, told = str(tmp_path / "state"), tmp_path / "told"
    pytest.importorskip("prometheus_client")
    options = ["--key-file", key, "--port", "0", "--hang-seconds", "30", "--analyzer-dir", state, "--json"]
    options += ["--metrics-port", "0", "--on-finding", f"sh -c 'cat > {told}.part && mv {told}.part {told}'"]
    with contextlib.ExitStack() as stack:
        analyzer = stack.enter_context(service([*PROGRAM, "analyzer", *options]))
        assert analyzer.stderr is not None
        assert analyzer.stdout is not None
        metrics, address = (analyzer.stderr.readline().rpartition(" at ")[2].strip() for _ in range(2))
        options = ["--key-file", key, "--analyzer", address, "--dir", str(pages), "--node", "node7"]
        agent = stack.enter_context(service([*PROGRAM, "agent", *options]))
        finding = json.loads(analyzer.stdout.readline())
        assert (finding["code"], finding["suspects"]) == ("TW-H1", [1])
        wait_for(lambda: told.exists() and has_findings(Path(state)), 30)
        code, out, err = run("diagnose", "--analyzer-dir", state, "--json", "--for", 0)
        assert (code, err) == (3, "")
        assert json.loads(out)["jobs"][0]["findings"][0]["summary"] == finding["summary"]
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as served:
            assert b'tensorwire_findings{code="TW-H1"} 1.0' in served.read()
        document = json.loads(told.read_text())
        assert (document["job"], document["code"], document["suspects"]) == (state, "TW-H1", [1])
        for process, number, code in ((agent, signal.SIGINT, 0), (analyzer, signal.SIGTERM, 3)):
            process.send_signal(number)
            assert process.wait(timeout=20) == code
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


def test_an_agent_may_start_before_the_job(pages: Path, key: str, tmp_path: Path) -> None:
    directory = tmp_path / "later"
    options = ["--key-file", key, "--analyzer", "127.0.0.1:1", "--dir", str(directory)]
    with service([*PROGRAM, "agent", *options]) as agent:
        assert agent.stderr is not None
        assert "no pages of ranks in" in agent.stderr.readline()
        pages.rename(directory)
        assert "no analyzer at 127.0.0.1:1" in agent.stderr.readline()
        agent.send_signal(signal.SIGINT)
        assert agent.wait(timeout=20) == 0


def has_findings(state: Path) -> bool:
    """Whether the analyzer has written what it found."""
    with contextlib.suppress(FileNotFoundError):
        return bool(read_state(state)[1])
    return False


@contextlib.contextmanager
def service(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_example_prints_what_the_manual_shows(repository: Path) -> None:
    pytest.importorskip("torch")
    example = repository / "job/examples/hang.py"
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")

    def normal(text: str) -> str:
        text = re.sub(r"\b\d+(\.\d)? s\b", "6.1 s", text.replace(str(example), "job/examples/hang.py"))
        text = re.sub(r"(?<=started )\d\d:\d\d|(?<=--pid )\d+", "N", text)
        return re.sub(r" +|\u2500+", " ", text).strip()

    printed = iter([normal(line) for line in ran.stdout.splitlines()])
    (shown,) = re.findall(
        r"^```console\n(.*?)^```", (repository / "job/docs/index.md").read_text(), re.DOTALL | re.MULTILINE
    )
    for line in shown.splitlines():
        beginning = normal(line).removesuffix("...").strip()
        assert any(each.startswith(beginning) for each in printed), line


def test_ctrl_c_gives_the_terminal_back(tmp_path: Path) -> None:
    write_state(tmp_path)
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 50, 0, 0))
    command = [*PROGRAM, "watch", "--analyzer-dir", str(tmp_path), "--interval", "0.2"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    watch = subprocess.Popen(command, stdin=secondary, stdout=secondary, stderr=secondary, env=environment)
    os.close(secondary)
    shown = b""
    try:
        while b"waits in" not in shown:
            shown += os.read(primary, 1 << 16)
        watch.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(primary, 1 << 16):
                shown += data
        assert watch.wait(timeout=20) == 3
    finally:
        watch.kill()
        watch.wait()
        os.close(primary)
    screen, _, after = shown.partition(b"\x1b[?1049l")
    assert b"\x1b[?1049h" in screen
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor is back"
    assert b"Traceback" not in after
    assert after.index(b"high confidence") < after.index(b": 4 ranks, 4 running"), "findings stay to be read"
