"""Jobs of real ranks on this machine, in network namespaces of their own if wanted, and none that outlives its use."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import child

if TYPE_CHECKING:
    import signal

    from .network import Network

WORLD_SIZE = 4
_START_SECONDS = 60.0


class ForkServer:
    """The process that forks ranks; see fork_server.py. `environment` is of all that it forks."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="", **environment),
            start_new_session=True,  # Ctrl-C is for us, who clean up
        )
        self._buffered = b""
        self._gone: dict[int, int] = {}
        self._answer("ready")

    def start(self, arguments: list[str], environment: dict[str, str], output: Path, network: int | None = None) -> int:
        """Fork a process that runs a module as `python -m` does; gives its pid."""
        request = {"arguments": arguments, "environment": environment, "output": str(output), "network": network}
        return self._ask(request)

    def hold_namespace(self, marker: Path) -> int:
        """Fork a process that holds a network namespace; gives its pid once there is one."""
        pid = self._ask({"holder": str(marker)})
        deadline = time.monotonic() + _START_SECONDS
        while not marker.exists():
            if time.monotonic() > deadline or self.status(pid) is not None:
                raise OSError("no network namespace could be made")
            time.sleep(0.002)
        return pid

    def status(self, pid: int) -> int | None:
        """The exit status, negative for a signal; None while it lives."""
        while b"\n" in self._buffered or select.select([self._process.stdout], [], [], 0)[0]:
            self._read()
        return self._gone.get(pid)

    def kill(self, pids: list[int]) -> None:
        """End processes and wait for it."""
        for pid in pids:
            self._send({"kill": pid})
        deadline = time.monotonic() + _START_SECONDS
        while any(self.status(pid) is None for pid in pids):
            if time.monotonic() > deadline:
                raise TimeoutError("processes do not end")
            time.sleep(0.002)

    def close(self) -> None:
        """Ends everything that was started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the ranks die with it
            self._process.wait()
        self._process.stdout.close()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _ask(self, request: dict[str, Any]) -> int:
        self._send(request)
        return self._answer("pid")

    def _answer(self, name: str) -> int:
        while True:
            answer = self._read()
            if answer is not None and name in answer:
                return int(answer[name])

    def _read(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        while b"\n" not in self._buffered:
            if not select.select([self._process.stdout], [], [], _START_SECONDS)[0]:
                raise TimeoutError("the process that starts ranks does not answer")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise OSError("the process that starts ranks has ended")
            self._buffered += data
        line, self._buffered = self._buffered.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "gone" in answer:
            self._gone[answer["gone"]] = answer["status"]
            return None
        return answer


class TrainingJob:
    """A run of job.py with the probe attached.

    Args:
        settings: of job.py.
        network: the namespaces its ranks live in; None: this one.
        num_nodes: directories that the ranks' pages are spread over.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        settings: dict[str, Any],
        *,
        network: Network | None = None,
        num_nodes: int = 1,
        modules: tuple[str, ...] = ("tensorwire.probe", "-m", "benchmarks.diagnosis.faults.job"),
        **environment: str,
    ) -> None:
        self._fork_server = fork_server
        self.folder = Path(tempfile.mkdtemp(prefix="tensorwire-faults-"))
        self.network = network
        self.nodes = [self.folder / f"node{number}" for number in range(num_nodes)]
        for pages in self.nodes:
            pages.mkdir(mode=0o700)
        self._modules = list(modules)
        self._environment = {
            "MASTER_ADDR": network.addresses[0] if network else "127.0.0.1",
            "WORLD_SIZE": str(WORLD_SIZE),
            "LOCAL_WORLD_SIZE": str(WORLD_SIZE // num_nodes),
            "TORCHELASTIC_RUN_ID": self.folder.name,
            "TW_FAULTS_DIR": str(self.folder),
            "TW_FAULTS_SETTINGS": json.dumps(settings),
            "GLOO_SOCKET_IFNAME": network.interface if network else "lo",
            **environment,
        }
        self.generation = -1
        self.pids: list[int] = []
        try:
            self.restart()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Start all ranks, as the elastic launcher does: again where they were started before."""
        self.end()
        for path in self.folder.glob("rank-*"):
            path.unlink()
        self.generation += 1
        self.pids = []
        common = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_RESTART_COUNT": str(self.generation)}
        for rank in range(WORLD_SIZE):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank % (WORLD_SIZE // len(self.nodes)))}
            own["TENSORWIRE_PROBE_DIR"] = str(self.nodes[rank * len(self.nodes) // WORLD_SIZE])
            holder = self.network.holders[rank] if self.network else None
            environment = self._environment | common | own
            self.pids.append(self._fork_server.start(self._modules, environment, self.output(rank), holder))

    def output(self, rank: int) -> Path:
        return self.folder / f"output-{rank}.txt"

    def rounds(self) -> list[int]:
        """How many rounds each rank has begun."""
        return [_read_round(self.folder / f"rank-{rank}.round") for rank in range(WORLD_SIZE)]

    def wait_for_round(self, number: int, seconds: float = _START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while min(self.rounds()) < number:
            dead = [rank for rank in range(WORLD_SIZE) if self.status(rank) is not None]
            if dead or time.monotonic() > deadline:
                texts = [self.output(rank).read_text()[-2000:] for rank in dead or [0]]
                raise RuntimeError("the job does not reach round " + str(number) + ":\n" + "\n".join(texts))
            time.sleep(0.005)

    def command(self, ranks: list[int], do: str, *, at: int = 0, **arguments: Any) -> None:
        """Have ranks do something before round `at`, or their next one."""
        data = json.dumps({"do": do, "at": at, **arguments}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for rank in ranks:
                sender.sendto(data, str(self.folder / f"rank-{rank}.sock"))

    def next_round(self) -> int:
        """One that no rank will have begun before a command reaches it."""
        return max(self.rounds()) + 5

    def status(self, rank: int) -> int | None:
        return self._fork_server.status(self.pids[rank])

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids[rank], number)

    @property
    def is_whole(self) -> bool:
        """All ranks live."""
        return all(self.status(rank) is None for rank in range(WORLD_SIZE))

    def end(self) -> None:
        """End the ranks, leave what they wrote."""
        self._fork_server.kill(self.pids)

    def close(self) -> None:
        try:
            self.end()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def _read_round(path: Path) -> int:
    try:
        return int.from_bytes(path.read_bytes(), "little")
    except FileNotFoundError:
        return 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
