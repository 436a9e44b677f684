"""Four hosts on one switch, made of network namespaces that vanish with the processes that hold them.

Needs root, and `ip` and `tc` of Debian's iproute2; packet loss needs its package iptables as well.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.system.faults.fork_server import ForkServer


class Network:
    """One namespace for each rank, joined by a bridge in a further one. Rank r has the address `addresses[r]`."""

    interface = "eth0"

    def __init__(self, fork_server: ForkServer, size: int) -> None:
        self._fork_server = fork_server
        self._shaped: set[int] = set()
        with tempfile.TemporaryDirectory() as folder:
            holders: list[int] = []
            try:
                holders += [fork_server.hold_namespace(Path(folder) / str(number)) for number in range(size + 1)]
                self._hub, self.holders = holders[-1], holders[:-1]
                self.addresses = [f"10.77.0.{rank + 1}" for rank in range(size)]
                self._join()
            except BaseException:
                fork_server.kill(holders)
                raise

    def _join(self) -> None:
        hub = ["link add br0 type bridge", "link set br0 up"]
        for rank, holder in enumerate(self.holders):
            hub += [
                f"link add port{rank} type veth peer name {self.interface} netns {holder}",
                f"link set port{rank} master br0 up",
            ]
        _run(self._hub, ["ip", "-batch", "-"], "\n".join(hub))
        for holder, address in zip(self.holders, self.addresses, strict=True):
            own = ["link set lo up", f"address add {address}/24 dev {self.interface}", f"link set {self.interface} up"]
            _run(holder, ["ip", "-batch", "-"], "\n".join(own))

    def cut(self, rank: int) -> None:
        """The link of a rank goes down, at the switch: its own host does not notice."""
        _run(self._hub, ["ip", "link", "set", f"port{rank}", "down"])

    def shape(self, rank: int, kilobits: int) -> None:
        """What a rank sends passes at this rate."""
        rate = ["tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "400ms"]
        _run(self.holders[rank], ["tc", "qdisc", "replace", "dev", self.interface, "root", *rate])
        self._shaped.add(rank)

    def lose(self, rank: int, share: float) -> None:
        """This share of the packets that come to a rank is lost."""
        rule = ["-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"]
        _run(self.holders[rank], ["iptables", "-A", "INPUT", *rule])

    def mend(self, rank: int) -> None:
        """Undo all that was done to a rank."""
        _run(self._hub, ["ip", "link", "set", f"port{rank}", "up"])
        if rank in self._shaped:
            _run(self.holders[rank], ["tc", "qdisc", "del", "dev", self.interface, "root"])
            self._shaped.discard(rank)
        if shutil.which("iptables"):
            _run(self.holders[rank], ["iptables", "-F"])

    def close(self) -> None:
        self._fork_server.kill([*self.holders, self._hub])


def _run(holder: int, command: list[str], text: str = "") -> None:
    entered = ["nsenter", f"--net=/proc/{holder}/ns/net", *command]
    subprocess.run(entered, input=text, text=True, capture_output=True, check=True)
