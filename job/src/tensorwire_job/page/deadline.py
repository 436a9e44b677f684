"""A socket that is not held up by a peer which sends a byte now and then."""

from __future__ import annotations

import socket
import time
from typing import Any


class DeadlineSocket(socket.socket):
    """Raises TimeoutError where the data have not come by `deadline`, on the monotonic clock."""

    deadline = 0.0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it did not end in time")
        self.settimeout(left)
        return super().recv_into(buffer, nbytes, flags)
