"""Hosts on one switch, made of network namespaces that vanish with the processes that hold them.

Needs root, and `ip`, `tc` and `nsenter` of Debian's iproute2 and util-linux; packet loss needs its package iptables as
well. A link has a rate and no delay: many kernels lack netem.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

# A burst that is smaller loses segments or has the kernel cut them in software, which doubles the CPU time of a sender;
# a larger one refills in each pause, and the link is faster than its rate.
TRAFFIC_BURST_KB = 96
_TRIAL = "ip link add tw0 type veth peer name tw1 && tc qdisc add dev tw0 root tbf rate 1mbit burst 16kb latency 1s"


@cache
def missing(*tools: str, trial: str = _TRIAL) -> str:
    """Why this machine has no links; "" if it has. With `tools` beside ip, tc and nsenter, and a `trial` of its own."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "nsenter", *tools):
        if shutil.which(tool) is None:
            return f"{tool} is missing (Debian: iproute2, util-linux, iptables)"
    done = subprocess.run(["unshare", "--net", "sh", "-c", trial], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"the kernel refuses: {done.stderr.strip() or trial}"


class Network:
    """One namespace for each rank, joined by a bridge in a further one. Rank r has the address `addresses[r]`.

    Attributes:
        holders: pids of processes that are in the namespaces of the ranks.
    """

    interface = "eth0"

    def __init__(self, size: int) -> None:
        self._shaped: set[int] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            *self.holders, self._hub = [self._hold() for _ in range(size + 1)]
            self.addresses = [f"10.77.0.{rank + 1}" for rank in range(size)]
            self._join()
        except BaseException:
            self.close()
            raise

    def _hold(self) -> int:
        """A process in a namespace of its own. It ends with its standard input, so with this process."""
        line = ["unshare", "--net", "sh", "-c", "echo ready; exec cat"]
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._processes.append(process)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise OSError(f"no network namespace could be made: {missing()}")
        return process.pid

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

    def inside(self, rank: int, command: list[str]) -> list[str]:
        """The command line that runs `command` on the host of a rank."""
        return _inside(self.holders[rank], command)

    def cut(self, rank: int) -> None:
        """The link of a rank goes down, at the switch: its own host does not notice."""
        _run(self._hub, ["ip", "link", "set", f"port{rank}", "down"])

    def shape(self, rank: int, kilobits: int, burst_kb: int = 16) -> None:
        """What a rank sends passes at this rate, from now on."""
        rate = ["tbf", "rate", f"{kilobits}kbit", "burst", f"{burst_kb}kb", "latency", "400ms"]
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

    def set_rates(self, megabits: float | None) -> None:
        """All links of ranks have this rate from now on, or none."""
        for rank in range(len(self.holders)):
            if megabits is not None:
                self.shape(rank, round(1000 * megabits), TRAFFIC_BURST_KB)
            elif rank in self._shaped:
                self.mend(rank)

    def sent_nbytes(self, rank: int) -> int:
        """Bytes that the interface of a rank has sent, headers of packets included."""
        for line in Path(f"/proc/{self.holders[rank]}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == self.interface:
                return int(numbers.split()[8])
        raise OSError(f"the host of rank {rank} has no interface {self.interface}")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()


def _inside(holder: int, command: list[str]) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder}/ns/net", *command]


def _run(holder: int, command: list[str], text: str = "") -> None:
    subprocess.run(_inside(holder, command), input=text, text=True, capture_output=True, check=True)
