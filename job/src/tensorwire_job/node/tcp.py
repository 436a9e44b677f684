"""The TCP connections of processes, asked from the kernel by NETLINK_SOCK_DIAG (sock_diag(7)).

No privilege is needed for one's own processes. A process in another network namespace is seen if it may be entered.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from tensorwire._ground.copies import not_copied

from ..model import Edge

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2  # the attribute that holds struct tcp_info
_TCP_STATES = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 11))  # all that have a peer
_CLONE_NEWNET = 0x40000000
_RECEIVE_NBYTES = 1 << 17

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")  # inet_diag_req_v2 for every address
_MESSAGE = struct.Struct("=BBBB2s2s16s16s12xIIIII")  # inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")
# struct tcp_info: backoff, rtt, total_retrans, bytes_acked, bytes_received, busy_time (in microseconds, as rtt)
_TCP_INFO = struct.Struct("=4xB63xI28xI16xQQ32xQ")


class TcpReader:
    """Reads the connections of a set of processes, again and again. For one thread."""

    __reduce_ex__ = not_copied("sockets", "make another one")

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket | None] = {}  # by network namespace; None: not to be asked
        self._namespaces: dict[int, int] = {}  # of a process
        self._owners: dict[int, int | None] = {}  # rank by inode of a socket; None: of no rank
        self._pids: dict[int, int] = {}  # that this is true for

    def read(self, pids: Mapping[int, int]) -> list[Edge]:
        """The connections of the processes `pids` (by rank) that the kernel shows. The caller fills in the peers."""
        if pids != self._pids:
            self._owners.clear()
            self._pids = dict(pids)
        by_namespace: dict[int, dict[int, int]] = {}
        for rank, pid in pids.items():
            namespace = self._namespace(pid)
            if namespace is not None:
                by_namespace.setdefault(namespace, {})[rank] = pid
        self._namespaces = {pid: self._namespaces[pid] for group in by_namespace.values() for pid in group.values()}
        for namespace in self._sockets.keys() - by_namespace.keys():
            self._forget(namespace)
        found: list[Edge] = []
        owners: dict[int, int | None] = {}
        for namespace, group in by_namespace.items():
            entries = list(self._dump(namespace, next(iter(group.values()))))
            if any(inode not in self._owners for inode, _, _ in entries):
                self._owners.update(dict.fromkeys((inode for inode, _, _ in entries), None))
                for rank, pid in group.items():
                    self._owners.update(dict.fromkeys(_socket_inodes(pid), rank))
            for inode, message, attributes in entries:
                rank_of = owners[inode] = self._owners[inode]
                if rank_of in group:
                    found.append(_edge(rank_of, namespace, message, attributes))
        self._owners = owners
        return found

    def close(self) -> None:
        for namespace in list(self._sockets):
            self._forget(namespace)

    def _forget(self, namespace: int) -> None:
        connection = self._sockets.pop(namespace)
        if connection is not None:
            connection.close()

    def _namespace(self, pid: int) -> int | None:
        if pid not in self._namespaces:
            try:
                self._namespaces[pid] = os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116
            except OSError:
                return None
        return self._namespaces[pid]

    def _dump(self, namespace: int, pid: int) -> Iterator[tuple[int, tuple[bytes, ...], bytes]]:
        if namespace not in self._sockets:
            self._sockets[namespace] = _netlink_socket(namespace, pid)
        connection = self._sockets[namespace]
        if connection is None:
            return
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                yield from _ask(connection, family)
        except OSError as error:
            if error.errno == errno.EINTR:
                raise
            connection.close()  # half an answer may be left in it; a kernel without the module says ENOENT
            self._sockets[namespace] = None


def _ask(connection: socket.socket, family: int) -> Iterator[tuple[int, tuple[bytes, ...], bytes]]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _TCP_STATES)
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 0, 0)
    connection.send(header + request)
    while True:
        data = connection.recv(_RECEIVE_NBYTES)
        position = 0
        while position < len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, position)
            if kind == _NLMSG_DONE:
                return
            start = position + _HEADER.size
            if kind == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", data, start)[0]
                raise OSError(code, os.strerror(code))
            message = _MESSAGE.unpack_from(data, start)
            yield message[-1], message, _attribute(data, start + _MESSAGE.size, position + length)
            position += (length + 3) & ~3


def _attribute(data: bytes, position: int, end: int) -> bytes:
    """The tcp_info among the attributes of a message, filled up with zeros: older kernels know less of it."""
    while position + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if kind == _INET_DIAG_INFO:
            return data[position + _ATTRIBUTE.size : position + length].ljust(_TCP_INFO.size, b"\0")
        position += max((length + 3) & ~3, _ATTRIBUTE.size)
    return bytes(_TCP_INFO.size)


def _edge(rank: int, namespace: int, message: tuple[bytes, ...], info: bytes) -> Edge:
    family, _, _, _, source_port, peer_port, source, peer, _, receive_queue, send_queue, _, _ = message
    backoff, rtt, retransmits, acked, received, busy = _TCP_INFO.unpack_from(info)
    return Edge(
        rank=rank,
        peer=-1,
        acked_bytes=acked,
        received_bytes=received,
        busy_seconds=busy / 1e6,
        receive_queue=int(receive_queue),
        send_queue=int(send_queue),
        backoff=backoff,
        retransmits=retransmits,
        rtt_seconds=rtt / 1e6,
        local=_endpoint(namespace, int(family), source, source_port),
        remote=_endpoint(namespace, int(family), peer, peer_port),
    )


@lru_cache(maxsize=1 << 14)
def _endpoint(namespace: int, family: int, address: bytes, port: bytes) -> str:
    ip: IPv4Address | IPv6Address
    if family == socket.AF_INET:
        ip = IPv4Address(address[:4])
    else:
        ip = IPv6Address(address)
        ip = ip.ipv4_mapped or ip
    number = int.from_bytes(port, "big")
    text = f"[{ip}]:{number}" if ip.version == 6 else f"{ip}:{number}"
    return f"{namespace}/{text}" if ip.is_loopback or ip.is_link_local else text


def _socket_inodes(pid: int) -> Iterator[int]:
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208 - one call for thousands of names
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{folder}/{descriptor}")  # noqa: PTH115
        except OSError:
            continue  # closed since
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _netlink_socket(namespace: int, pid: int) -> socket.socket | None:
    """A socket that stays in the namespace it is made in; None where that may not be entered."""

    def make() -> None:
        try:
            connection = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        except OSError:
            return
        connection.settimeout(1.0)
        made.append(connection)

    def enter() -> None:
        try:
            descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if libc.setns(descriptor, _CLONE_NEWNET) == 0:
                make()
        finally:
            os.close(descriptor)

    made: list[socket.socket] = []
    if os.stat("/proc/self/ns/net").st_ino == namespace:  # noqa: PTH116
        make()
    else:
        libc = ctypes.CDLL(None)
        thread = threading.Thread(target=enter)  # entering is for a thread, and this one ends at once
        thread.start()
        thread.join()
    return made[0] if made else None
