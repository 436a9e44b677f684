"""The launcher, and what a process without torch leaves in its page."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.support.one_rank import left, run_rank
from job.tests.support.probe_jobs import PROBE, environment, run
from tensorwire_job.page import native, script_file
from tensorwire_job.page.control import ControlRequest, read_control, write_control
from tensorwire_job.page.directory import page_path

if TYPE_CHECKING:
    import subprocess

SLOW = pytest.mark.slow  # ends and names that the probe tells by the lines that it tells others by
SHOW = "import sys; print(__name__, __file__, sys.argv, sys.path[0], __spec__ and __spec__.name, __package__)"


def kind_of(exit_reason: str) -> str:
    if exit_reason.startswith(("SIG", "KeyboardInterrupt")):
        return "interruption"
    return "end" if exit_reason.startswith("exit") else "failure" * bool(exit_reason)


@pytest.mark.parametrize(
    ("text", "exit_reason"),
    [
        ("", "exit 0"),
        ("raise SystemExit", "exit 0"),
        ("import sys; sys.exit(7)", "exit 7"),
        ("import sys; sys.exit('no data')", "exit 1"),
        ("def f():\n    raise ValueError('bad\\n shape')\nf()", "ValueError: bad shape"),
        (
            "raise RuntimeError('[a.cc:7] Reset [::1]:9. This is typically caused by a remote worker crashing. Check')",
            "RuntimeError: Reset [::1]:9",
        ),
        ("def f(\n", "SyntaxError: '(' was never closed (train.py, line 1)"),
        pytest.param(
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(1) from e", "KeyError: 1", marks=SLOW
        ),
        ("import sys; sys.excepthook = lambda *a: print('mine')\n1 / 0", "exit"),
        pytest.param("raise KeyboardInterrupt", "KeyboardInterrupt", marks=SLOW),
        ("import os; os.kill(os.getpid(), 2)", "KeyboardInterrupt"),
        ("import os; os.kill(os.getpid(), 15)", "SIGTERM"),
        pytest.param("import os; os.kill(os.getpid(), 1)", "SIGHUP", marks=SLOW),
        (
            "import os\ntry:\n    os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt:\n    os.kill(os.getpid(), 15)",
            "SIGTERM",
        ),
        pytest.param("raise ValueError('x' * 300)", "ValueError: " + "x" * 240 + "...", marks=SLOW),
        ("raise ValueError('x' + '€' * 100)", "ValueError: x" + "€" * 79 + "..."),
        ("import os; os._exit(4)", ""),
        pytest.param("import os; os.kill(os.getpid(), 9)", "", marks=SLOW),
        ("import atexit; atexit.register(print, 'bye')", "exit 0"),
        (
            "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print(__name__))).start()",
            "exit 0",
        ),
        (SHOW, "exit 0"),
    ],
)
def test_scripts_run_as_without_the_launcher(text: str, exit_reason: str, directory: Path, script: Path) -> None:
    """Output, traceback and status are the same; the page tells the end where the process could."""
    done = run_rank(script, text, directory, "--lr", "1")
    alone = run([str(script), "--lr", "1"], environment(directory))
    assert (done.stdout, done.stderr, done.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    found = left(directory)
    assert found.exit_reason == exit_reason
    assert (found.header.exit_ns != 0) == bool(exit_reason)
    assert script_file.read(page_path(directory, 3, 0)) == script.name
    assert found.exit_kind == kind_of(exit_reason)
    sent = {2: "SIGINT", 15: "SIGTERM", 1: "SIGHUP"}
    assert found.signal == next((name for number, name in sent.items() if f"getpid(), {number})" in text), "")
    assert not found.is_alive
    assert (found.header.rank, found.header.world_size, found.header.restart_count) == (3, 8, 0)


def test_signals_that_the_script_handles_are_noted(directory: Path, script: Path) -> None:
    """Also where the handler was set after the probe came; what Python knows of handlers is as without it."""
    text = """
import os, signal, sys, time
from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import probe
def heartbeats():
    return read_page(probe._probe._path).header.heartbeats
probe.HEARTBEAT_SECONDS = 0.02
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
last = heartbeats() + probe._SIGNALS_EVERY + 1
while heartbeats() < last:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert run_rank(script, text, directory).returncode == 5
    found = left(directory)
    assert (found.signal, found.exit_reason, found.exit_kind) == ("SIGTERM", "exit 5", "end")


def test_a_rank_that_lives_on_has_said_its_error(directory: Path, script: Path) -> None:
    text = """
import threading, time
from tensorwire_job.rank import probe
def look():
    from tensorwire_job.page.rank_page import read_page
    while not (page := read_page(probe._probe._path)).exit_reason:
        time.sleep(0.01)
    print(page.exit_reason, page.exit_kind, page.is_alive)
threading.Thread(target=look).start()
raise ValueError("bad shape")
"""
    assert run_rank(script, text, directory).stdout == "ValueError: bad shape failure True\n"


@pytest.mark.parametrize(
    "name", ["train", "package", "package.inner", "nothing", pytest.param("package.nothing", marks=SLOW)]
)
def test_modules_run_as_without_the_launcher(name: str, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for path in ("train.py", "package/__main__.py", "package/inner.py"):
        (tmp_path / path).write_text(f"{SHOW}\n1 / 0\n")
    (tmp_path / "package/__init__.py").touch()
    env = environment(directory, RANK="3", PYTHONPATH=os.pathsep.join(sys.path))
    done = run([*PROBE, "-m", name, "x"], env, cwd=tmp_path)
    alone = run(["-m", name, "x"], env, cwd=tmp_path)
    if "nothing" in name:
        assert done.returncode == alone.returncode == 1
        assert f"No module named {name}" in done.stderr
        return
    assert (done.stdout, done.returncode) == (alone.stdout, alone.returncode)
    # Python's own shows how it came to run the module; ours begins in the module.
    assert done.stderr.splitlines()[1:] == [line for line in alone.stderr.splitlines()[1:] if "runpy" not in line]


def test_missing_script(directory: Path, tmp_path: Path) -> None:
    done = run([*PROBE, str(tmp_path / "none.py")], environment(directory, RANK="3"))
    alone = run([str(tmp_path / "none.py")], environment(directory))
    assert (done.stderr, done.returncode) == (alone.stderr, alone.returncode)


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--nproc-per-node"]])
def test_usage(arguments: list[str], directory: Path) -> None:
    done = run([*PROBE, *arguments], environment(directory))
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


def test_help_has_an_example(directory: Path) -> None:
    done = run([*PROBE, "--help"], environment(directory))
    assert (done.returncode, done.stderr) == (0, "")
    assert "torchrun --nproc-per-node 4 -m tensorwire_job train.py" in done.stdout.partition("Example:\n")[2]


def test_files_are_private(directory: Path, script: Path) -> None:
    run_rank(script, "", directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o710, 0o701])
def test_a_directory_that_others_may_enter_is_refused(mode: int, directory: Path, script: Path) -> None:
    directory.mkdir()
    directory.chmod(mode)
    done = run_rank(script, "print('trained')", directory)
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    assert f"(mode {mode:04o}): chmod 700 it" in done.stderr
    assert str(directory) in done.stderr
    assert not list(directory.iterdir())
    directory.chmod(0o700)
    run_rank(script, "", directory)
    assert left(directory).exit_reason == "exit 0"


def test_forked_children_do_not_write(directory: Path, script: Path) -> None:
    text = """
import os, sys
from tensorwire_job import phase
with phase("training"):
    if os.fork() == 0:
        with phase("child"):
            sys.exit(9)
    os.wait()
    os._exit(0)
"""
    run_rank(script, text, directory)
    found = left(directory)
    assert found.phase == "training"
    assert found.exit_reason == ""


def test_a_forked_child_that_fails_takes_no_lock_of_its_parent(directory: Path, script: Path) -> None:
    """A thread that is gone in the child may have held it."""
    text = """
import os
from tensorwire_job.rank import probe
class Sampler:
    def poll(self): pass
    def poll_closely(self): print("polled", os.getpid() == parent, flush=True)
parent = os.getpid()
probe._probe._sampler = Sampler()
if os.fork() != 0:
    os.wait()
raise ValueError
"""
    assert run_rank(script, text, directory).stdout == "polled True\n"


def test_phases_nest_without_a_probe() -> None:
    from tensorwire_job import phase

    with phase("a"), phase("b"), phase("a"):
        pass


def test_control(directory: Path) -> None:
    directory.mkdir()
    assert read_control(directory) is None
    assert write_control(directory, {5: 100, 2**64 - 1: 2**63}, 20) == 1
    assert read_control(directory) == ControlRequest(1, {5: 100, 2**64 - 1: 2**63}, 20)
    assert write_control(directory, {}, 7) == 2
    assert read_control(directory) == ControlRequest(2, {}, 7)
    with pytest.raises(OSError, match="Invalid"):
        write_control(directory, dict.fromkeys(range(native.NUM_CONTROL_ENTRIES + 1), 1), 20)
    with pytest.raises(OSError, match="No such"):
        write_control(directory / "none", {}, 1)


@pytest.mark.xdist_group("probe")
def test_what_a_rank_is_in_is_seen_while_it_completes_nothing(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    text = """
import sys, time
import torch
from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import probe
class Slow:
    def write(self, data):
        wait_until(seen)
        print(seen())
        return len(data)
    def flush(self): pass
def seen():
    return read_page(probe._probe._path).activity
def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
torch.save({"weight": torch.ones(4)}, Slow())
wait_until(lambda: not seen())
print(seen() or "nothing")
"""
    ran = run_script(text)
    assert ran.stdout.splitlines()[0] == "torch.save", ran.stderr
    assert ran.stdout.splitlines()[-1] == "nothing"


@pytest.mark.xdist_group("probe")
def test_a_torch_that_lacks_something_gives_one_line(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    text = """
import torch
import torch.distributed as dist
from tensorwire_job.rank import probe
del torch.library.Library
torch.__version__ = "9.9.9"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
probe._probe._thread.join(20)  # it ends with that line
print("trained")
"""
    ran = run_script(text, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    lines = [line for line in ran.stderr.splitlines() if line.startswith("tensorwire")]
    assert (ran.stdout, ran.returncode, len(lines)) == ("trained\n", 0, 1), ran.stderr
    assert lines[0].startswith(
        "tensorwire-job: the probe is off (UnknownTorchError: torch 9.9.9 is not one of those tested, "
    )
    assert "Traceback" not in ran.stderr


def test_a_training_process_loads_page_and_model_only(directory: Path, script: Path) -> None:
    """Nothing of nodes, of the protocol or of the analyzer runs inside of a rank."""
    text = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
from tensorwire_job.page.control import request_servers
from tensorwire_job.rank import probe
while probe._probe._sampler is None:
    time.sleep(0.02)
assert len(os.listdir("/proc/self/task")) < 10
request_servers(probe._probe._path.parent)
deadline = time.monotonic() + 20
while "tensorwire_job.page.worker_server" not in sys.modules and time.monotonic() < deadline:
    time.sleep(0.02)
print(*(name for name in sys.modules if name.startswith(("tensorwire.", "tensorwire_job."))))
"""
    ran = run_rank(script, text, directory, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    names = [name.split(".") for name in ran.stdout.split()]
    got = {name[1] for name in names if name[0] == "tensorwire_job"}
    assert {"rank", "page"} <= got <= {"rank", "page", "model", "members"}, ran.stderr
    assert {name[1] for name in names if name[0] == "tensorwire"} <= {"errors", "_ground"}
