"""The control page: there the agent asks all ranks of its node to time their operations, or to start worker servers.

A worker server has ten threads, which are not needed before there is trouble. Windows of so many rounds begin at a
sequence number for each process group that no rank has reached yet; every rank then times the same rounds and no clock
is compared. A rank that has acted on a request shows its number in its page (`control` of the header), and once a
window is whole its timing.

Any process may read, from any thread. One process writes, the agent (a lock keeps two apart).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import native

CONTROL_NAME: Final = "control"


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request: `num_rounds` 0 ends timing."""

    number: int
    first: dict[int, int]  # sequence by process group
    num_rounds: int
    servers: bool = False  # worker servers are wanted


def read_control(directory: Path) -> ControlRequest | None:
    """The last request; None before there is one."""
    try:
        control = native.read_control(str(directory / CONTROL_NAME))
    except OSError:
        return None
    first = {entry.id: entry.first_sequence for entry in control.entries[: control.num_entries]}
    return ControlRequest(control.number, first, control.num_rounds, bool(control.servers))


def write_control(directory: Path, first: Mapping[int, int], num_rounds: int) -> int:
    """Ask all ranks of this node to time their operations, or (`num_rounds` 0) to stop.

    Args:
        directory: of the pages.
        first: where windows begin, by process group: at most 509. Windows of a group without an entry begin at 1.
        num_rounds: of a window, at most 65535.

    Returns:
        The request's number, which the pages show as `control` once their ranks have acted on it.

    Raises:
        OSError: the page cannot be written.
    """
    return native.write_control(str(directory / CONTROL_NAME), first.items(), num_rounds)


def request_servers(directory: Path) -> None:
    """Ask all ranks of this node to start their worker servers, within a heartbeat or two and for good.

    Raises:
        OSError: the page cannot be written.
    """
    native.request_servers(str(directory / CONTROL_NAME))
