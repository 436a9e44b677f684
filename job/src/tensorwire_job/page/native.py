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


class Members(ctypes.Structure):
    _fields_ = [("first", _u32), ("strides", _u32 * MAX_DIMENSIONS), ("extents", _u32 * MAX_DIMENSIONS)]


class Slot(ctypes.Structure):
    _fields_ = [
        ("lock", _u32),
        ("operation", _u8),
        ("dtype", _u8),
        ("flags", _u8),
        ("name", _u8),
        ("id", _u64),
        ("enqueued", _u64),
        ("signature", _u64),
        ("numel", _i64),
        ("enter_ns", _u64),
        ("completed_ns", _u64),
        ("sent_nbytes", _u64),
        ("received_nbytes", _u64),
        ("sum_ns", _u64),
        ("num_nbytes", _u64),
        ("completed", _u32),
        ("sequence", _u32),
        ("first_sequence", _u32),
        ("min_us", _u32),
        ("max_us", _u32),
        ("num_rounds", _u16),
        ("rooted_or_pairwise", _u16),
        ("size", _u16),
        ("root", _u16),
        ("baseline_rate", _float),
        ("members", Members),
        ("reserved", _u32),
    ]


class Header(ctypes.Structure):
    _fields_ = [
        ("magic", _u64),
        ("layout", _u32),
        ("lock", _u32),
        ("boot_id", _u8 * 16),
        ("run", _u64),
        ("start_time", _u64),
        ("pid", _u32),
        ("rank", _i32),
        ("world_size", _u32),
        ("restart_count", _u32),
        ("flags", _u32),
        ("control", _u32),
        ("heartbeat_ns", _u64),
        ("heartbeats", _u64),
        ("exit_ns", _u64),
        ("signal_ns", _u64),
        ("setup_ns", _u64),
        ("activity_ns", _u64),
        ("pulse_ns", _u64),
        ("exit_kind", _u32),
        ("signal", _u32),
        ("setup", _u32),
        ("crash", _u32),
        ("exit_reason", ctypes.c_char * 256),
        ("phase", ctypes.c_char * 24),
        ("activity", ctypes.c_char * 24),
        ("names", ctypes.c_char * 144),
    ]


class Page(ctypes.Structure):
    _fields_ = [("header", Header), ("slots", Slot * NUM_SLOTS)]


class ControlEntry(ctypes.Structure):
    _fields_ = [("id", _u64), ("first_sequence", _u64)]


class Control(ctypes.Structure):
    _fields_ = [
        ("magic", _u64),
        ("layout", _u32),
        ("lock", _u32),
        ("number", _u32),
        ("num_rounds", _u32),
        ("num_entries", _u32),
        ("servers", _u32),
        ("reserved", _u8 * 16),
        ("entries", ControlEntry * NUM_CONTROL_ENTRIES),
    ]


class Identity(ctypes.Structure):
    _fields_ = [
        ("run_id", ctypes.c_char_p),
        ("rank", _i32),
        ("world_size", _u32),
        ("restart_count", _u32),
    ]


class OperationInfo(ctypes.Structure):
    _fields_ = [
        ("sequence", _u64),
        ("signature", _u64),
        ("numel", _i64),
        ("nbytes", _u64),
        ("operation", _u8),
        ("dtype", _u8),
        ("root", _u16),
        ("pairwise", _u32),
    ]


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
    _check(
        _write_control(os.fsencode(path), (ControlEntry * len(array))(*array), len(array), num_rounds, number),
        path,
    )
    return number.value


def request_servers(path: str) -> None:
    """Have the ranks of this node start their worker servers. Raises OSError."""
    _check(_request_servers(os.fsencode(path)), path)
