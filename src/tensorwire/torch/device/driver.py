"""What host code needs of a driver: compiled kernels, and launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import ctypes


class Kernel(NamedTuple):
    """An instance of a kernel: a header of the folder cuda, and the C++ expression that names the instance.

    Attributes:
        suffix: "a" if it has instructions that only the device's own architecture has, as sm_90a.
    """

    header: str
    expression: str
    suffix: str = ""


class Function(Protocol):
    """A compiled kernel."""

    def launch(
        self, grid: tuple[int, int, int], threads: int, shared_nbytes: int, stream: int,
        arguments: ctypes.Array[ctypes.c_void_p],
    ) -> None:  # fmt: skip
        """Run it on `stream`, and do not wait for it. `arguments` has the address of each argument."""


class Driver(Protocol):
    """Compiles and launches kernels on one device.

    Attributes:
        num_processors: how many of its processors run blocks at the same time.
        shared_nbytes: the most bytes of shared memory that a block may have.
        cache_nbytes: what the cache holds that all processors share.
        architecture: the device's capability without its point, 90 for 9.0.
    """

    num_processors: int
    shared_nbytes: int
    cache_nbytes: int
    architecture: int

    def __hash__(self) -> int:
        """Drivers are told apart by identity."""

    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> Function:
        """The compiled kernel, whose blocks may then have that much shared memory."""

    def stream(self) -> int:
        """The current stream of this thread."""
