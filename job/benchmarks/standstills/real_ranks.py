"""torchrun -m job.benchmarks.standstills.real_ranks FOLDER: one rank's part in many programs.

torch is imported once. For each script in the folder the process forks a child, which runs it as a rank of its own. The
parents live on in any case, so torchrun ends no rank. Once nothing has changed for a while, each notes how its
child stands, and all go on with the next script.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

_QUIET_SECONDS = 4.0  # without any change: a standstill
_MOST_SECONDS = 40.0


def main() -> None:
    folder, rank, size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    for path in sorted(folder.glob("*.py")):
        told = path.with_suffix("")
        (told / "pid").mkdir(parents=True, exist_ok=True)
        _meet(store, f"{path.stem} begins", size)
        child = os.fork()
        if child == 0:
            _run(path, told, rank)
            return
        (told / "pid" / str(rank)).write_text(str(child))
        _meet(store, f"{path.stem} has its ranks", size)
        (told / "go").touch()
        status = _watch(child, told, size)
        seen = {"status": status, "told": _text(told / str(rank)), "error": _text(told / f"{rank}.err")}
        (told / f"{rank}.json").write_text(json.dumps(seen))  # before others are ended
        _meet(store, f"{path.stem} is seen", size)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _run(path: Path, told: Path, rank: int) -> None:
    """As a process of its own would run it, down to its end: what is raised here is what ends it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    errors = os.open(told / f"{rank}.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    os.environ |= {"TOLD": str(told), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    keep = dist.init_process_group
    port = int(os.environ["MASTER_PORT"])

    def init_process_group(backend: str) -> None:
        """With keys that no other script has."""
        own = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
        keep(backend, store=dist.PrefixStore(path.stem, own), rank=rank, world_size=int(os.environ["WORLD_SIZE"]))

    dist.init_process_group = init_process_group
    while not (told / "go").exists():
        time.sleep(0.01)
    runpy.run_path(str(path), run_name="__main__")


def _meet(store: dist.TCPStore, name: str, size: int) -> None:
    if store.add(name, 1) == size:
        store.set(name + "!", "")
    store.wait([name + "!"])


def _watch(child: int, told: Path, size: int) -> int | None:
    """The exit status once nothing has changed for a while: as os.waitstatus_to_exitcode has it; None: it lives."""
    begin = since = time.monotonic()
    status, before = None, ""
    while time.monotonic() < begin + _MOST_SECONDS and time.monotonic() < since + _QUIET_SECONDS:
        time.sleep(0.1)
        if status is None:
            done, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
        now = f"{status} " + " ".join(_text(told / str(rank)) + _text(told / f"{rank}.err") for rank in range(size))
        if any(_is_runnable(_text(told / "pid" / str(rank))) for rank in range(size)):
            since = time.monotonic()  # it may wait for a CPU for long
        if now != before:
            before, since = now, time.monotonic()
    return status


def _is_runnable(pid: str) -> bool:
    """Whether a thread of this process is."""
    threads = (_text(path).rpartition(")")[2].split() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return any(fields[:1] == ["R"] for fields in threads)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
