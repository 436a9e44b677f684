"""LMCache with a second tier, as its server makes it of the command line, on the CPU and without an engine."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import add_l2_adapters_args, parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

MODULE = "tensorwire.kv.lmcache"
MEMORY_NBYTES = 256 << 20


def frames(folder: Path, **serde: Any) -> dict[str, Any]:
    """The adapter for files, with the serde ``tensorwire`` and its options."""
    plugin = {"type": "plugin", "module_path": MODULE, "class_name": "Frames"}
    return {**plugin, "adapter_params": {"base_path": str(folder)}, "serde": {"type": "tensorwire", **serde}}


def slots(folder: Path, **serde: Any) -> dict[str, Any]:
    """LMCache's own adapter for files, with the serde ``tensorwire-fixed`` and its options."""
    plugin = {"type": "plugin", "module_path": MODULE, "class_name": "Slots"}
    return {**plugin, "adapter_params": dense(folder), "serde": {"type": "tensorwire-fixed", **serde}}


def dense(folder: Path) -> dict[str, Any]:
    return {"type": "fs", "base_path": str(folder)}


def keys(numbers: Sequence[int], model: str = "model") -> list[ObjectKey]:
    return [ObjectKey(chunk_hash=number.to_bytes(32, "big"), model_name=model, kv_rank=0) for number in numbers]


def layout(*tensors: Tensor) -> MemoryLayoutDesc:
    """What LMCache is told of an object of these tensors."""
    return MemoryLayoutDesc(shapes=[tensor.shape for tensor in tensors], dtypes=[tensor.dtype for tensor in tensors])


class Tiers:
    """Host memory, and behind it what ``--l2-adapter`` names.

    An object is a list of tensors, or one tensor.
    """

    def __init__(self, adapter: dict[str, Any]) -> None:
        parser = argparse.ArgumentParser()
        add_l2_adapters_args(parser)
        parsed = parse_args_to_l2_adapters_config(parser.parse_args(["--l2-adapter", json.dumps(adapter)]))
        memory = L1MemoryManagerConfig(size_in_bytes=MEMORY_NBYTES, use_lazy=False, init_size_in_bytes=MEMORY_NBYTES)
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(memory_config=memory),
                eviction_config=EvictionConfig(eviction_policy="LRU"),
                l2_adapter_config=parsed,
            )
        )

    def __enter__(self) -> Tiers:
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.close()

    def store(self, names: list[ObjectKey], objects: Sequence[Any], until: Callable[[], bool]) -> None:
        """Write objects to the memory, which has them stored in the second tier, and wait `until` they are."""
        objects = [_tensors(each) for each in objects]
        reserved = self.manager.reserve_write(names, layout(*objects[0]))
        assert len(reserved) == len(names)
        for name, tensors in zip(names, objects, strict=True):
            for number, tensor in enumerate(tensors):
                reserved[name].get_tensor(number).copy_(tensor)
        self.manager.finish_write(names)
        wait_for(lambda: until() and not self.status("store_controller")["in_flight_task_count"])

    def forget(self) -> None:
        """What the memory holds."""
        self.manager.clear()

    def load(self, names: list[ObjectKey], like: Any) -> list[list[Tensor]]:
        """The objects at the front of `names` that were found, each of the layout of `like`."""
        described = layout(*_tensors(like))
        group = GroupedObjectKeys(keys=names, object_group_id=0, layout_desc=described)
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec(key_groups=[group]))
        found = names[: self._result(handle).hit_cells[0].count_leading_ones()]
        if not found:
            return []
        with self.manager.read_prefetched_results(found) as memory:
            objects = [[each.get_tensor(index).clone() for index in range(len(described.shapes))] for each in memory]
        self.manager.finish_read_prefetched(found)
        return objects

    def _result(self, handle: Any) -> Any:
        """What a prefetch has found, once it is done. LMCache tells it once."""
        results = []

        def is_done() -> bool:
            results.append(self.manager.query_prefetch_status(handle))
            return results[-1] is not None

        wait_for(is_done)
        return results[-1]

    def status(self, part: str) -> dict[str, Any]:
        found: dict[str, Any] = self.manager.report_status()[part]
        return found

    def adapter(self) -> dict[str, Any]:
        """What the adapter says of itself."""
        (found,) = self.manager.report_status()["l2_adapters"]
        return dict(found)


def _tensors(of_object: Any) -> list[Tensor]:
    return [of_object] if isinstance(of_object, torch.Tensor) else list(of_object)
