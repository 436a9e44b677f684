"""Chunks of a key-value cache, and vLLM's tiers over a memory that a test owns; no model, no GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tensorwire.kv.vllm import CompressedTier

CHUNK_NBYTES = 128 << 10
ENTRY = {"type": "CompressedTier", "module_path": "tensorwire.kv.vllm"}
REQUEST = ReqContext("request")


def chunks(count: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """BF16 words as keys and values have them: normal, with a scale of each channel's own."""
    generator = np.random.default_rng(seed)
    scales = np.exp(generator.normal(size=64) / 4).astype(np.float32)
    values = generator.normal(size=(count, CHUNK_NBYTES // 128, 64)).astype(np.float32) * scales
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(count, CHUNK_NBYTES)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def key_of(number: int) -> OffloadKey:
    return make_offload_key(number.to_bytes(32, "big"), 0)


def config(*, model: str = "org/model", dtype: str = "bfloat16", **extra: Any) -> OffloadingConfig:
    parallel = dict.fromkeys(("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size", "data_parallel_size"), 1)
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer",), group_id=0),),
        worker_kv_bytes_per_block=CHUNK_NBYTES,
        enable_kv_cache_events=False,
        extra_config=extra,
        engine_id="tensorwire-test",
        model=OffloadingModelConfig(name=model, dtype=dtype),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0, data_parallel_index=0, data_parallel_rank_local=None, is_parallelism_agnostic=True, **parallel
        ),
    )


class Tier:
    """A tier that vLLM's factory has made, and the memory that it copies from and to."""

    def __init__(
        self,
        num_slots: int = 8,
        *,
        chunk_nbytes: int = CHUNK_NBYTES,
        given: OffloadingConfig | None = None,
        **options: Any,
    ) -> None:
        """`options`: those of the entry in ``secondary_tiers``."""
        self.memory = np.zeros((num_slots, chunk_nbytes), np.int8)  # as vLLM has it
        spec: Any = SimpleNamespace(config=given or config(), blocks_per_chunk=1)
        entry = {**ENTRY, "capacity_bytes": 1 << 20, **options}
        self.tier: CompressedTier = SecondaryTierFactory.create_secondary_tier(entry, memoryview(self.memory), spec)
        self._num_jobs = 0

    def job(self, numbers: Iterable[int], slots: Sequence[int], *, load: bool = False) -> TransferJob:
        self._num_jobs += 1
        keys = [key_of(number) for number in numbers]
        return TransferJob(self._num_jobs, keys, np.array(slots, np.int32), load, REQUEST)

    def result(self) -> Any:
        """That of the one job that is under way."""
        self.tier.drain_jobs()
        (result,) = self.tier.get_finished_jobs()
        assert result.job_id == self._num_jobs
        return result

    def store(self, given: NDArray[np.uint8], first: int = 0) -> Any:
        """Store chunks under the numbers from `first` on, through the slots from 0 on."""
        self.memory.view(np.uint8)[: len(given)] = given
        self.tier.submit_store(self.job(range(first, first + len(given)), range(len(given))))
        return self.result()

    def load(self, numbers: Sequence[int], slots: Sequence[int]) -> Any:
        self.tier.submit_load(self.job(numbers, slots, load=True))
        return self.result()

    def held(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if self.tier.lookup(key_of(number), REQUEST).name == "HIT"]

    def slots(self, numbers: Sequence[int]) -> NDArray[np.uint8]:
        return self.memory.view(np.uint8)[numbers]

    def counted(self, name: str) -> int:
        """A metric since it was last asked for; of all that are asked for at once, see `stats`."""
        return self.stats().get(name, 0)

    def stats(self) -> dict[str, int]:
        stats = self.tier.get_stats()
        prefix = "vllm:kv_offload_tensorwire_"
        return {name.removeprefix(prefix).partition(":")[0]: int(value) for name, value in stats.reduce().items()}
