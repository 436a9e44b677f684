"""What ranks say that fail because of others: torch's and gloo's words, as the probe keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from .acts import Act

_CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:{port}"
_RESET = "RuntimeError: Read error [127.0.0.1]:{port}: Connection reset by peer"
_MONITORED = (
    "RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
    "from rank 0. Please check rank 0 logs for faulty rank. Original exception: {words}"
)
_STORE = "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//{key}"
_TIMED_OUT = "RuntimeError: Timed out waiting 1800000ms for {name} operation to complete"
_STORE_SECONDS, _GLOO_SECONDS = 300.0, 1800.0  # torch's time-outs


def of_lost_peer(act: Act, peer: int, source: random.Random) -> str:
    """The error of an operation whose other end has gone."""
    words = source.choice((_CLOSED, _RESET)).format(port=20000 + peer)
    if act.call.name != "monitored_barrier":
        return words
    if act.rank == 0:
        return f"RuntimeError: [Rank 0]: Rank {peer} failed to pass monitoredBarrier in 1800000 ms"
    return _MONITORED.format(rank=act.rank, words=words)


def of_time_out(act: Act) -> tuple[float, str] | None:
    """After how many seconds an operation gives up, and its error; None where nothing is known to."""
    if act.call.name == "store_get":
        return _STORE_SECONDS, _STORE.format(key=act.call.key)
    if act.call.is_collective or act.call.is_message:
        return _GLOO_SECONDS, _TIMED_OUT.format(name="send" if act.call.name in ("send", "isend") else "recv")
    return None
