"""Jobs of real ranks on this machine, in network namespaces of their own if wanted, and none that outlives its use."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.ports import free_port

if TYPE_CHECKING:
    import signal

    from tests.support.links import Network

    from .fork_server import ForkServer

WORLD_SIZE = 4
WORLD = list(range(WORLD_SIZE))
_START_SECONDS = 60.0


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
        modules: tuple[str, ...] = ("tensorwire_job", "-m", "job.tests.faults.job"),
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
