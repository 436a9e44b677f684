"""verl: weights go from the trainer to the rollouts as versions of a store, of which a node fetches what changed.

verl imports this module by ``checkpoint_engine.custom_backend_module`` in each of its processes, which registers the
checkpoint engine ``tensorwire``. docs/sync-engines.md says how to use it. Nothing of verl is patched.

Rank 0 of the trainer publishes; the workers of a node that roll out share one directory, which follows. verl goes
through `prepare`, `build_topology` and `init_process_group` before each update: so rollouts know which version is
theirs before it is there.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from ..._ground.filesystem import unlock
from ...checkpoint import open_file
from ...sync import Follower, Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    from torch import Tensor

_LOCK = ".tensorwire-verl"
"""In a directory: the file that its workers lock in turn."""
_LOCK_PERIOD = 0.05
"""Seconds between two tries for it."""

_FIRST = 10**9
"""A trainer begins with one of so many numbers, by chance: no version of another run, in a store or in a directory that
a run has left, has the number that rollouts wait for."""


@CheckpointEngineRegistry.register("tensorwire")
class TensorwireCheckpointEngine(CheckpointEngine):  # type: ignore[misc] # the checker does not see verl
    """Sends weights in one process of verl, and receives them in others. verl makes one in each worker, and calls it
    from one thread.

    Every update yields all tensors, those that did not change too: a rollout that began late, or that failed in the
    middle of an update, is whole after the next one.

    Args:
        bucket_size: verl's own, in bytes; frames have sizes of their own.
        is_master: whether this is rank 0 of the trainer.
        store: the directory or URL that the trainer writes versions to, and all rollouts read. One trainer a store.
        directory: where a node keeps the weights that its rollouts load, in plain files; on a disk of the node, or in
            its memory (``/dev/shm``). It takes the weights once, and what changed once more while a version is made.
        rollout_dtype: what floating tensors are cast to before they are published, such as "bfloat16"; by default they
            are sent as they are.
        timeout: how many seconds a rollout waits for a version.
        storage_options: of a URL: docs/remote.md.

    Raises:
        ValueError: `rollout_dtype` is no floating dtype.
        FormatError, OSError: rank 0 cannot read the newest index of the store.
    """

    wire_format = "named_tensors"  # servers get ready for "delta_flush" if the backend has the name "delta_sharded"

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        store: str | os.PathLike[str],
        directory: str | os.PathLike[str],
        rollout_dtype: str | None = None,
        timeout: float = 600.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._store, self._directory, self._timeout = store, Path(directory), timeout
        self._storage_options = None if storage_options is None else dict(storage_options)
        self._dtype = None if rollout_dtype is None else _floating(rollout_dtype)
        self._publisher = Publisher(store, storage_options=self._storage_options) if is_master else None
        self._number = secrets.randbelow(_FIRST)
        self._version: int | None = None

    def prepare(self) -> dict[str, Any]:
        """On rank 0 of the trainer the number of the next version, which was given to no other one; else nothing."""
        if self._publisher is None:
            return {}
        self._number = max(self._number, self._publisher.version or 0) + 1
        return {"version": self._number}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell all workers the number.

        Raises:
            ValueError: rank 0 of the trainer is not the master.
        """
        version = metadata[0].get("version")
        if version is None:
            raise ValueError("expected is_master=True on rank 0 of the trainer, got a rank without a version")
        return {"version": [version] * actor_wg_world_size}, {"version": [version] * rollout_world_size}

    def init_process_group(self, version: int) -> None:
        """Note the number. There is no group: the store is all that processes have in common."""
        self._version = version

    def finalize(self) -> None:
        self._version = None

    async def send_weights(
        self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None
    ) -> dict[str, float] | None:
        """Publish a version; on other ranks take part in gathering its tensors.

        Nothing else runs in this process meanwhile, as with verl's own engines: tensors are gathered by the thread that
        has set the device.

        Returns:
            Figures for verl's log: the MiB that were written, how many tensors changed, and whether all were sent.

        Raises:
            RuntimeError: verl has not called `init_process_group`.
            ValueError, UnsupportedTensorError, FormatError, OSError: as `Publisher.publish`; the next version has all
                tensors.
        """
        version = self._known()
        rest = iter(weights)
        try:
            if self._publisher is None:
                return None
            published = self._publisher.publish(self._on_host(rest), version)
        finally:
            for _ in rest:  # all ranks gather each tensor, and would wait for this one for ever
                pass
        return {
            "checkpoint_engine/payload_mbytes": published.nbytes / (1 << 20),
            "checkpoint_engine/changed_tensors": float(published.num_changed),
            "checkpoint_engine/anchor": float(published.is_anchor),
        }

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """All tensors of the version, on the device of this worker if it has one.

        Raises:
            RuntimeError: verl has not called `init_process_group`.
            TimeoutError: the version has not come.
            FormatError, OSError: the version is damaged, or cannot be read or written. The directory has the weights
                that it had.
        """
        await asyncio.to_thread(self._follow, self._known())
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        with open_file(self._directory, framework="pt") as reader:
            for name in reader:
                yield name, reader.get_tensor(name).to(device)

    def _known(self) -> int:
        if self._version is None:
            raise RuntimeError("expected init_process_group before weights are sent or received, once for each update")
        return self._version

    def _on_host(self, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            given = tensor.detach()
            cast = given.to(self._dtype) if self._dtype is not None and given.is_floating_point() else given
            yield name, cast.cpu()

    def _follow(self, version: int) -> None:
        """Have the directory hold a version. One worker of a node makes it; the others wait, and find it there."""
        deadline = time.monotonic() + self._timeout
        self._directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._lock(descriptor, deadline)
            follower = Follower(self._store, self._directory, storage_options=self._storage_options)
            if follower.version == version:
                return
            if follower.stage(version, timeout=max(0.0, deadline - time.monotonic())) is None:
                raise TimeoutError(
                    f"version {version} has not come within {self._timeout:g} s to {follower!r}; the trainer's own "
                    "error says why, or this node does not have the trainer's store under that name"
                )
            follower.commit()
        finally:
            unlock(descriptor)

    def _lock(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another worker of this node has held {self._directory / _LOCK} for {self._timeout:g} s: it "
                        "fetches the version, or hangs"
                    ) from None
            time.sleep(_LOCK_PERIOD)


def _floating(name: str) -> torch.dtype:
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"expected a floating dtype as rollout_dtype, such as 'bfloat16', got {name!r:.60}")
    return dtype
