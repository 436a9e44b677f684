"""Four hosts on one switch, made of network namespaces that vanish with the processes that hold them.

Needs root, and `ip` and `tc` of Debian's iproute2; packet loss needs its package iptables as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .launch import Nursery


class Network:
    """One namespace for each rank, joined by a bridge in a further one. Rank r has the address `addresses[r]`."""

    interface = "eth0"

    def __init__(self, nursery: Nursery, size: int) -> None:
        self._nursery = nursery
        self._shaped: set[int] = set()
        with tempfile.TemporaryDirectory() as folder:
            holders: list[int] = []
            try:
                holders += [nursery.hold_namespace(Path(folder) / str(number)) for number in range(size + 1)]
                self._hub, self.holders = holders[-1], holders[:-1]
                self.addresses = [f"10.77.0.{rank + 1}" for rank in range(size)]
                self._join()
            except BaseException:
                nursery.kill(holders)
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
        self._nursery.kill([*self.holders, self._hub])


class CpuQuota:
    """A cgroup that limits the CPU time of a process; both versions."""

    def __init__(self, pid: int, share: float) -> None:
        controller = _cpu_controller()
        assert controller is not None, "look at missing() first"
        _sweep(controller)
        self._parent = controller
        self._folder = controller / f"tensorwire-faults-{os.getpid()}"
        self._pid = pid
        self._folder.mkdir()
        period = 50_000
        quota = int(period * share)
        if (self._folder / "cpu.max").exists():
            (self._folder / "cpu.max").write_text(f"{quota} {period}")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(period))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota))
        (self._folder / "cgroup.procs").write_text(str(pid))

    def lift(self) -> None:
        with suppress(ProcessLookupError):
            (self._parent / "cgroup.procs").write_text(str(self._pid))
        self._folder.rmdir()


@cache
def _cpu_controller() -> Path | None:
    """Where cgroups that limit CPU time can be made."""
    for folder in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        made = folder / f"tensorwire-faults-{os.getpid()}-try"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            if any((made / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us")):
                return folder
        finally:
            made.rmdir()
    return None


def _sweep(controller: Path) -> None:
    """Remove what a killed process of ours has left."""
    for folder in controller.glob("tensorwire-faults-*"):
        if not Path(f"/proc/{folder.name.split('-')[2]}").exists():
            with suppress(OSError):
                folder.rmdir()


@cache
def missing(need: str) -> str:
    """Why this machine cannot do it: "links", "loss" or "quota"; "" if it can."""
    if need == "quota":
        return "" if _cpu_controller() else "no cgroup with a CPU quota may be made here"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = {"links": ("ip", "tc", "nsenter"), "loss": ("ip", "tc", "nsenter", "iptables")}[need]
    for tool in tools:
        if shutil.which(tool) is None:
            return f"{tool} is missing (Debian: iproute2, util-linux, iptables)"
    trial = {
        "links": "ip link add tw0 type veth peer name tw1 && "
        "tc qdisc add dev tw0 root tbf rate 1mbit burst 16kb latency 1s",
        "loss": "iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP",
    }[need]
    done = subprocess.run(["unshare", "--net", "sh", "-c", trial], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"the kernel refuses: {done.stderr.strip() or trial}"


def _run(holder: int, command: list[str], text: str = "") -> None:
    entered = ["nsenter", f"--net=/proc/{holder}/ns/net", *command]
    subprocess.run(entered, input=text, text=True, capture_output=True, check=True)
