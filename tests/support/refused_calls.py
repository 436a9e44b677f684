"""A process in which the kernel refuses some system calls, as containers have it that filter them."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading

_NUMBERS = {
    "x86_64": {"clone": 56, "clone3": 435, "renameat2": 316},
    "aarch64": {"clone": 220, "clone3": 435, "renameat2": 276},
}
_SET_SECCOMP, _SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
NO_THREADS = "clone=EAGAIN,clone3=EAGAIN"
"""As at the limit of processes (RLIMIT_NPROC, pids.max), which root has to have a container for."""


def refuse(calls: str) -> None:
    """Refuse these calls, CALL=ERRNO[,CALL=ERRNO], from here on, in this process and those that it starts."""
    assert threading.active_count() == 1, "the filter is of this thread and its children"
    program = struct.pack("=HBBI", _LOAD, 0, 0, 0)
    for name, _, code in (call.partition("=") for call in calls.split(",")):
        program += struct.pack("=HBBI", _JUMP_IF_EQUAL, 0, 1, _NUMBERS[platform.machine()][name])
        program += struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | getattr(errno, code))
    program += struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for arguments in ((_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, header, 0, 0)):
        if prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
