"""Agents and the analyzer as processes of their own, as on a cluster: two nodes, each with half of the ranks."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from tensorwire_job.service.journal import STATE, read_state
from tests.support.ports import free_port

from .watch import THRESHOLDS, Watch

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tensorwire_job.model import Finding, Observation

    from .fork_server import ForkServer
    from .watch import Record


class Services(Watch):
    """Runs `tensorwire-job analyzer` and `tensorwire-job agent`, and reads what they find.

    Args:
        fork_server: starts them, and is what they die with.
        nodes: the directories of pages, one for each node.
        record: is given what the analyzer shows, once a second; nothing while it is away.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        nodes: list[Path],
        record: Record | None = None,
    ) -> None:
        self._fork_server, self._folder, self._nodes = fork_server, folder, nodes
        self._state = folder / "analyzer"
        self._key = folder / "key"
        self._key.write_bytes(secrets.token_bytes(32))
        self._key.chmod(0o600)
        self._port = free_port()
        self._pids: dict[str, int] = {}
        try:
            self.start("analyzer")
            for number in range(len(nodes)):
                self.start(f"node{number}")
            super().__init__(record)
        except BaseException:
            self._end()
            raise

    def start(self, name: str) -> None:
        """Start "analyzer", or the agent of "node0" and so on."""
        common = ["--key-file", str(self._key)]
        if name == "analyzer":
            limits = (("hang", "hang_seconds"), ("slow", "slow_seconds"), ("lost", "lost_seconds"))
            common += [part for key, field in limits for part in (f"--{key}-seconds", str(getattr(THRESHOLDS, field)))]
            own = ["job", "analyzer", "--port", str(self._port), "--analyzer-dir", str(self._state)]
        else:
            pages = self._nodes[int(name.removeprefix("node"))]
            own = ["job", "agent", "--analyzer", f"127.0.0.1:{self._port}", "--node", name, "--dir", str(pages)]
        self._pids[name] = self._fork_server.start(["tensorwire", *own, *common], {}, self._folder / f"{name}.txt")

    def kill(self, name: str) -> None:
        """With SIGKILL: it has no time to say good-bye."""
        self._fork_server.kill([self._pids.pop(name)])

    @property
    def trouble(self) -> str:
        ended = [name for name, pid in self._pids.items() if self._fork_server.status(pid) is not None]
        return super().trouble or (f"{', '.join(ended)} ended by itself" if ended else "")

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._end()

    def _end(self) -> None:
        for name in list(self._pids):
            self.kill(name)

    def observe(self) -> Generator[tuple[Observation, list[Finding]]]:
        path, seen = self._state / STATE, 0
        while True:
            self._over.wait(0.1)
            with suppress(FileNotFoundError):
                written = path.stat().st_mtime_ns
                if written != seen:
                    seen = written
                    yield read_state(self._state)[:2]
            if self._over.is_set():
                return
