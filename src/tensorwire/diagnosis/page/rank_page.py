"""Pages as their readers see them, the directory they lie in, and the control page.

core/probe/page.h is the layout. A directory belongs to one job on one node. It holds a page for each generation of a
rank, `rank-<rank>-<restart count>.page`, beside it `.sock` (the worker server of that rank), `.stack` (its stacks,
once asked for) and `.nccl.page` (of NCCL's plugin in the same process), and `control`, by which the node's agent asks
all its ranks at once to time their operations. Windows of so many rounds begin at a sequence number for each process
group that no rank has reached yet; every rank then times the same rounds and no clock is compared. Once a window is
whole the slot shows it: :attr:`Slot.first_sequence` and the sums. A rank that has seen the request says so in
:attr:`Page.control`.

Any process may read, from any thread. For `control` there is one writer, the agent (a lock keeps two apart).
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import native, process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_AGE_SECONDS = 24 * 3600.0
_CONTROL_NAME = "control"
_PAGE_NAME = re.compile(r"rank-\d+-\d+(\.nccl)?\.page")
_FILE_NAME = re.compile(r"rank-\d+-\d+(\.nccl)?\.(page|sock|stack)")


@dataclass(frozen=True, slots=True)
class Slot:
    """One process group of a rank, or (`pair`) the messages between two ranks, in one direction.

    Times are nanoseconds of CLOCK_MONOTONIC, None where unknown.
    """

    id: int  # the same on all ranks of the group
    name: str
    size: int
    pair: bool  # numbers count from the enabling of timing, apart on either side
    active: bool  # enter and completion are seen as they happen; else a thread polls now and then
    enqueued: int
    completed: int
    is_open: bool
    sequence: int  # of the operation: the oldest open one, else the last
    operation: str  # "" unknown
    dtype: str
    numel: int
    root: int  # within the group; for send and recv the peer's global rank; -1 unknown or none
    signature: int  # comparable between slots that are active, or between slots that are not; 0 unknown
    enter_ns: int | None
    completed_ns: int | None
    sent_nbytes: int  # -1: the transport does not tell
    received_nbytes: int
    baseline_rate: float | None
    first_sequence: int | None  # of the last whole window of timed rounds; None: the following are of no meaning
    num_rounds: int
    sum_seconds: float
    min_seconds: float
    max_seconds: float
    num_bytes: int
    rooted_or_pairwise: int


@dataclass(frozen=True, slots=True)
class Page:
    """What a rank is doing, or did when it died. Slots that were being written all the time are left out."""

    boot_id: bytes
    run: int  # hash of the run id
    pid: int
    start_time: int  # of the process, clock ticks since boot
    rank: int
    world_size: int
    restart_count: int
    timed: bool
    overflow: bool  # more process groups than slots
    has_socket: bool
    heartbeat_ns: int
    heartbeats: int
    control: int  # number of the last request acted on
    phase: str
    exit_reason: str
    exit_ns: int | None
    slots: tuple[Slot, ...]

    @property
    def is_alive(self) -> bool:
        """Whether the very process runs, on this machine since this boot."""
        if self.boot_id != process.boot_id():
            return False
        stat = process.read_stat(self.pid)
        return stat is not None and stat.is_alive and stat.start_ticks == self.start_time


@dataclass(frozen=True, slots=True)
class Control:
    """A request: `num_rounds` 0 ends timing."""

    number: int
    first: dict[int, int]  # sequence by process group
    num_rounds: int


def read_page(path: Path) -> Page | None:
    """None where there is no page, or none that can be believed."""
    try:
        page = native.read_page(str(path))
    except OSError:
        return None
    header = page.header
    if header.lock & 1:  # a process that died while it wrote a text
        header.phase = header.exit_reason = b""
    names = bytes(header)[native.Header.names.offset :]
    flags = header.flags
    return Page(
        boot_id=bytes(header.boot_id),
        run=header.run,
        pid=header.pid,
        start_time=header.start_time,
        rank=header.rank,
        world_size=header.world_size,
        restart_count=header.restart_count,
        timed=bool(flags & native.TIMING_ENABLED),
        overflow=bool(flags & native.OVERFLOW),
        has_socket=bool(flags & native.SOCKET),
        heartbeat_ns=header.heartbeat_ns,
        heartbeats=header.heartbeats,
        control=header.control,
        phase=_text(header.phase),
        exit_reason=_text(header.exit_reason),
        exit_ns=header.exit_ns or None,
        slots=tuple(_slot(slot, names) for slot in page.slots if slot.id and not slot.lock & 1),
    )


def _slot(slot: native.Slot, names: bytes) -> Slot:
    flags = slot.flags
    return Slot(
        id=slot.id,
        name="" if slot.name == native.NO_NAME else _text(names[slot.name :].split(b"\0")[0]),
        size=slot.size,
        pair=bool(flags & native.PAIR),
        active=bool(flags & native.ACTIVE),
        enqueued=slot.enqueued,
        completed=_whole(slot.enqueued, slot.completed),
        is_open=bool(flags & native.OPEN),
        sequence=_whole(slot.enqueued, slot.sequence),
        operation=_name(native.OPERATIONS, slot.operation),
        dtype=_name(native.DTYPES, slot.dtype),
        numel=slot.numel,
        root=-1 if slot.root == native.NO_ROOT else slot.root,
        signature=slot.signature,
        enter_ns=slot.enter_ns or None,
        completed_ns=slot.completed_ns or None,
        sent_nbytes=-1 if slot.sent_nbytes == native.UNKNOWN_NBYTES else slot.sent_nbytes,
        received_nbytes=-1 if slot.received_nbytes == native.UNKNOWN_NBYTES else slot.received_nbytes,
        baseline_rate=slot.baseline_rate or None,
        first_sequence=_whole(slot.enqueued, slot.first_sequence) if flags & native.TIMED else None,
        num_rounds=slot.num_rounds,
        sum_seconds=slot.sum_ns / 1e9,
        min_seconds=slot.min_us / 1e6,
        max_seconds=slot.max_us / 1e6,
        num_bytes=slot.num_nbytes,
        rooted_or_pairwise=slot.rooted_or_pairwise,
    )


def _whole(enqueued: int, low: int) -> int:
    """The number at most 2**32 - 1 below `enqueued` with these low bits."""
    return enqueued - ((enqueued - low) & 0xFFFFFFFF)


def _name(names: tuple[str, ...], code: int) -> str:
    return names[code] if code < len(names) else ""


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def read_control(directory: Path) -> Control | None:
    """The last request; None before there is one."""
    try:
        control = native.read_control(str(directory / _CONTROL_NAME))
    except OSError:
        return None
    first = {entry.id: entry.first_sequence for entry in control.entries[: control.num_entries]}
    return Control(control.number, first, control.num_rounds)


def write_control(directory: Path, first: Mapping[int, int], num_rounds: int) -> int:
    """Ask all ranks of this node to time their operations, or (`num_rounds` 0) to stop.

    Args:
        directory: of the pages.
        first: where windows begin, by process group: at most 253. Those of a group without an entry
            begin at 1.
        num_rounds: of a window, at most 65535.

    Returns:
        The request's number, which the pages show as `control` once their ranks have acted on it.

    Raises:
        OSError: the page cannot be written.
    """
    return native.write_control(str(directory / _CONTROL_NAME), first.items(), num_rounds)


def job_directory(run_id: str) -> Path:
    """Where the pages of a job lie on this node: TENSORWIRE_PROBE_DIR, or a directory below /dev/shm for the run."""
    given = os.environ.get("TENSORWIRE_PROBE_DIR")
    return Path(given) if given else root_directory() / re.sub(r"[^A-Za-z0-9_-]", "_", run_id)[:100]


def root_directory() -> Path:
    """Of all jobs of this user."""
    return Path(f"/dev/shm/tensorwire-{os.getuid()}")


def make_directory(path: Path) -> None:
    """Make it with mode 0700, or make sure that it is ours alone.

    Raises:
        OSError: it cannot be made, or others may enter it.
    """
    for folder in dict.fromkeys((root_directory(), path) if root_directory() in path.parents else (path,)):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
            raise OSError(errno.EPERM, "not a directory that is ours alone", str(folder))
        if facts.st_mode & 0o077:
            mode = stat.S_IMODE(facts.st_mode)
            raise OSError(errno.EPERM, f"others may enter this directory (mode {mode:04o}): chmod 700 it", str(folder))


def is_ours(folder: Path) -> bool:
    """Whether it is a directory of this user's that nobody else may enter."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def page_path(directory: Path, rank: int, restart_count: int) -> Path:
    """Where the rank's page of a generation is."""
    return directory / f"rank-{rank}-{restart_count}.page"


def sweep(directory: Path, *, before_ns: int = 0) -> None:
    """Remove what dead jobs left: pages in `directory` whose last heartbeat was before the time (CLOCK_MONOTONIC) and
    whose process is gone, and directories of this user's other jobs that ended more than a day ago."""
    for path in _listing(directory):
        if _PAGE_NAME.fullmatch(path.name):
            page = read_page(path)
            if page is None or page.is_alive:
                continue
            if page.boot_id != process.boot_id() or page.heartbeat_ns < before_ns:
                remove_page(path)
    root = root_directory()
    for folder in _listing(root) if is_ours(root) else ():  # else who knows whose folders these are
        if folder != directory and not folder.is_symlink() and folder.is_dir() and _is_old(folder):
            _remove_job(folder)


def _remove_job(folder: Path) -> None:
    """With all that a job puts into its directory; anything else stays, and the directory with it."""
    with suppress(OSError):
        for path in _listing(folder):
            if path.name == _CONTROL_NAME or _FILE_NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)
        folder.rmdir()


def remove_page(path: Path) -> None:
    """With what stands beside it."""
    for suffix in (".sock", ".stack", ".page"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _listing(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _is_old(folder: Path) -> bool:
    """Whether no rank of it lives, or did, and nothing was made in it for a day."""
    paths = _listing(folder)
    try:
        newest = max(path.lstat().st_mtime for path in (folder, *paths))
    except OSError:
        return False
    if time.time() - newest < MAX_AGE_SECONDS:
        return False
    pages = (read_page(path) for path in paths if path.suffix == ".page")
    return not any(page is not None and (page.is_alive or _has_recent_heartbeat(page)) for page in pages)


def _has_recent_heartbeat(page: Page) -> bool:
    """Of a rank in another container nothing else shows that it lives; no write to shared memory dates its file."""
    age = time.monotonic() - page.heartbeat_ns / 1e9
    return page.boot_id == process.boot_id() and age < MAX_AGE_SECONDS
