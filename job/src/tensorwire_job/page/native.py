"""The ctypes binding of job/core/page.h, which documents the layout and the calls.

The writing calls take a few hundred nanoseconds and keep the GIL: giving it away would cost more than they do.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable

from tensorwire._ground.library import find_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TIMING_ENABLED = 1
OVERFLOW = 2
SOCKET = 8

OPEN = 1
TIMED = 4
ACTIVE = 8
PAIR = 16
WAITS = 32

END, FAILURE, INTERRUPTION, CRASH = 1, 2, 3, 4
BEFORE_INIT, IN_INIT, INITIALIZED, DESTROYED = 1, 2, 3, 4

NUM_SLOTS = 50
MAX_DIMENSIONS = 3
NUM_CONTROL_ENTRIES = 509
NO_NAME = 255
NO_ROOT = 65535
UNKNOWN_NBYTES = 2**64 - 1

_u8, _u16, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
_i32, _i64, _float = ctypes.c_int32, ctypes.c_int64, ctypes.c_float


def _fields(*runs: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Fields one behind the other: of each type those that are named with it."""
    return [(name, kind) for kind, names in runs for name in names.split()]


class Members(ctypes.Structure):
    _fields_ = _fields((_u32, "first"), (_u32 * MAX_DIMENSIONS, "strides extents"))


class Slot(ctypes.Structure):
    _fields_ = _fields(
        (_u32, "lock"),
        (_u8, "operation dtype flags name"),
        (_u64, "id enqueued signature"),
        (_i64, "numel"),
        (_u64, "enter_ns completed_ns sent_nbytes received_nbytes sum_ns num_nbytes"),
        (_u32, "completed sequence first_sequence min_us max_us"),
        (_u16, "num_rounds rooted_or_pairwise size root"),
        (_float, "baseline_rate"),
        (Members, "members"),
        (_u32, "reserved"),
    )


class Header(ctypes.Structure):
    _fields_ = _fields(
        (_u64, "magic"),
        (_u32, "layout lock"),
        (_u8 * 16, "boot_id"),
        (_u64, "run start_time"),
        (_u32, "pid"),
        (_i32, "rank"),
        (_u32, "world_size restart_count flags control"),
        (_u64, "heartbeat_ns heartbeats exit_ns signal_ns setup_ns activity_ns pulse_ns"),
        (_u32, "exit_kind signal setup exit_signal"),
        (ctypes.c_char * 256, "exit_reason"),
        (ctypes.c_char * 24, "phase activity"),
        (ctypes.c_char * 144, "names"),
    )


class Page(ctypes.Structure):
    _fields_ = _fields((Header, "header"), (Slot * NUM_SLOTS, "slots"))


class ControlEntry(ctypes.Structure):
    _fields_ = _fields((_u64, "id first_sequence"))


class Control(ctypes.Structure):
    _fields_ = _fields(
        (_u64, "magic"),
        (_u32, "layout lock number num_rounds num_entries servers"),
        (_u8 * 16, "reserved"),
        (ControlEntry * NUM_CONTROL_ENTRIES, "entries"),
    )


class Identity(ctypes.Structure):
    _fields_ = _fields((ctypes.c_char_p, "run_id"), (_i32, "rank"), (_u32, "world_size restart_count"))


class OperationInfo(ctypes.Structure):
    _fields_ = _fields(
        (_u64, "sequence signature"),
        (_i64, "numel"),
        (_u64, "nbytes"),
        (_u8, "operation dtype"),
        (_u16, "root"),
        (_u32, "pairwise"),
    )


_path = str(find_library("tensorwire_job", "_tensorwire_probe.so"))
_library, _quick_library = ctypes.CDLL(_path), ctypes.PyDLL(_path)


def _function(name: str, result: Any, *arguments: Any, library: Any = _quick_library) -> Callable[..., Any]:
    function = library[name]
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]


_handle, _text, _int = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_info = ctypes.POINTER(OperationInfo)

_create = _function("tw_probe_create", _int, _text, ctypes.POINTER(Identity), ctypes.POINTER(_handle), library=_library)
_read_page = _function("tw_probe_read_page", _int, _text, ctypes.POINTER(Page), library=_library)
_read_control = _function("tw_probe_read_control", _int, _text, ctypes.POINTER(Control), library=_library)
_write_control = _function(
    "tw_probe_write_control", _int, _text, ctypes.POINTER(ControlEntry), _u32, _u32, ctypes.POINTER(_u32),
    library=_library,
)  # fmt: skip
_request_servers = _function("tw_probe_request_servers", _int, _text, library=_library)
_hash = _function("tw_probe_hash", _u64, _text, ctypes.c_size_t)

close = _function("tw_probe_close", None, _handle)
start_pulse = _function("tw_probe_start_pulse", _int, _handle)
stop_pulse = _function("tw_probe_stop_pulse", None, _handle)
now = _function("tw_probe_now", _u64)
heartbeat = _function("tw_probe_heartbeat", None, _handle)
set_flag = _function("tw_probe_set_flag", None, _handle, _u32, _int)
phase = _function("tw_probe_phase", None, _handle, _text)
activity = _function("tw_probe_activity", None, _handle, _text)
setup = _function("tw_probe_setup", None, _handle, _u32)
exit_reason = _function("tw_probe_exit_reason", None, _handle, _u32, _text)
watch_signals = _function("tw_probe_watch_signals", ctypes.c_void_p, _handle, ctypes.c_void_p)
is_look_wanted = _function("tw_probe_is_look_wanted", _int, _handle)
look_taken = _function("tw_probe_look_taken", None, _handle)
slot = _function("tw_probe_slot", _int, _handle, _u64, _text, _u64)
pair = _function("tw_probe_pair", _int, _handle, _u64, _text)
retire = _function("tw_probe_retire", None, _handle, _int)
outlive_signal = _function("tw_probe_outlive_signal", None, _handle, _u64)
members = _function("tw_probe_members", None, _handle, _int, ctypes.POINTER(Members))
counts = _function("tw_probe_counts", None, _handle, _int, _u64, _u64)
describe = _function("tw_probe_describe", None, _handle, _int, _info, _u64)
messages = _function("tw_probe_messages", None, _handle, _int, _u64, _u64, _info, _u64)
baseline = _function("tw_probe_baseline", None, _handle, _int, _float)
enter = _function("tw_probe_enter", _u64, _handle, _int, ctypes.c_void_p)  # an address: the quickest way
complete = _function("tw_probe_complete", None, _handle, _int, _u64, _u64)
window = _function("tw_probe_window", None, _handle, _int, _u64, _u32)
enable_timing = _function("tw_probe_enable_timing", None, _handle, _int, _u32)


def _names(function: str) -> tuple[str, ...]:
    name = _function(function, _text, _u32)
    names: list[str] = []
    while (text := name(len(names))) is not None:
        names.append(text.decode())
    return tuple(names)


OPERATIONS = _names("tw_probe_operation_name")
"""The names by code; the first is the unknown one, without a name. The same holds for dtypes."""
DTYPES = _names("tw_probe_dtype_name")


def hash64(data: bytes) -> int:
    """FNV-1a."""
    value: int = _hash(data, len(data))
    return value


def line_hash(path: str, function: str, line: int) -> int:
    """32 bits that stand for a line of a script: the same on all ranks, wherever the script lies on their nodes."""
    name = path.rpartition("/")[2]
    return hash64(f"{name}|{function}|{line}".encode()) & 0xFFFFFFFF


def _check(status: int, path: str) -> None:
    if status != 0:
        raise OSError(status, os.strerror(status), path)


def create(path: str, run_id: str, rank: int, world_size: int, restart_count: int) -> int:
    """Make a page; returns the handle that the writing calls take. Raises OSError."""
    identity = Identity(run_id.encode(), rank, world_size, restart_count)
    handle = _handle()
    _check(_create(os.fsencode(path), identity, handle), path)
    return handle.value or 0


def read_page(path: str) -> Page:
    """A copy. Raises OSError."""
    page = Page()
    _check(_read_page(os.fsencode(path), page), path)
    return page


def read_control(path: str) -> Control:
    """A consistent copy. Raises OSError."""
    control = Control()
    _check(_read_control(os.fsencode(path), control), path)
    return control


def write_control(path: str, entries: Iterable[tuple[int, int]], num_rounds: int) -> int:
    """Write a request of (process group, first sequence) entries; returns its number. Raises OSError."""
    array = [ControlEntry(*entry) for entry in entries]
    number = _u32()
    written = _write_control(os.fsencode(path), (ControlEntry * len(array))(*array), len(array), num_rounds, number)
    _check(written, path)
    return number.value


def request_servers(path: str) -> None:
    """Have the ranks of this node start their worker servers. Raises OSError."""
    _check(_request_servers(os.fsencode(path)), path)
