"""vLLM: a second tier for its key-value cache, in which chunks are kept as frames, in host memory or in a directory.

vLLM's `TieringOffloadingSpec` makes it from an entry of ``secondary_tiers`` that names this module; docs/vllm.md says
how. vLLM calls a tier on the thread that schedules requests, so nothing here waits but `drain_jobs` and `shutdown`:
threads of our own compress, decompress, read and write. vLLM's thread finds what they have done in
`get_finished_jobs`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import weakref
from collections import Counter, deque
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .._ground.copies import not_copied
from ..codec import dtype_bits
from .codec import KVCodec
from .kept_frames import BUFFER_NBYTES, FramesInDirectory, FramesInMemory, KeptFrames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_log = logging.getLogger(__name__)

_DTYPES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_inc", "fp8_ds_mla", "fp8_per_token_head"), "F8_E4M3"),
    "fp8_e5m2": "F8_E5M2",
}
"""vLLM's names for the dtypes of its cache. Some have scales or a few wider words beside FP8: those cost room, not
bits. Caches with another dtype are packed, and coded as bytes."""

_METRIC = "vllm:kv_offload_tensorwire_"  # vLLM takes back only metrics that begin with its name
_GAUGES = {
    "chunks": "Number of chunks that the compressed tier holds.",
    "dense_bytes": "Bytes of these chunks before they were compressed.",
    "bytes": "Bytes that these chunks take in the compressed tier.",
}
_COUNTERS = {
    "evicted": "Number of chunks that have gone to make room for others.",
    "refused": "Number of chunks that were not stored, because the compressed tier has no room for one of them.",
    "damaged": "Number of chunks that were dropped, because their frame was damaged.",
    "failed": "Number of chunks that were not stored, because of an error such as a full disk.",
}

_TIERS = weakref.WeakSet["CompressedTier"]()


class CompressedTier(SecondaryTierManager):  # type: ignore[misc] # the checker does not see vLLM
    """Chunks of a key-value cache, compressed; those that were used least recently go first, by compressed bytes.

    A chunk whose frame is damaged is a miss, and is dropped. Errors after the start, such as those of a full
    disk, are counted and logged once, and what could not be stored is a miss. `get_stats` tells the counts. After
    `shutdown`, and in a process that was forked from that of vLLM, all is a miss.
    """

    __reduce_ex__ = not_copied("threads and a lock", "have vLLM make another one")

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        capacity_bytes: int,
        directory: str | None = None,
        profile: Any = "fast",
        threads: int = 2,
        locality: str | None = None,
    ) -> None:
        """What vLLM passes, and the options of the entry.

        Args:
            capacity_bytes: how many bytes of frames are kept: in memory in units of 1 KiB, in files of 4 KiB. Memory
                is reserved at once, and used as it fills; each thread needs room for one chunk beside.
            directory: where frames are kept, in a folder for the model and the shape of its cache. By default memory.
            profile: that of `tensorwire.compress`.
            threads: so many compress, and as many others decompress.
            locality: "LOCAL" or "REMOTE", as for vLLM's own tiers.

        Raises:
            ValueError: an option has no such value.
            MemoryError: there is not so much memory.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        for name, value in (("capacity_bytes", capacity_bytes), ("threads", threads)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"expected {name} of a secondary tier to be a number from 1 on, got {value!r}")
        if not isinstance(directory, str | None):
            raise ValueError(f"expected directory of a secondary tier to be the name of one, got {directory!r:.60}")
        if locality not in (None, *Locality.__members__):
            raise ValueError(f"expected one of {', '.join(Locality.__members__)} as locality, got {locality!r:.60}")
        in_memory = directory is None
        self.medium = Medium.CPU if in_memory else Medium.STORAGE
        self.cache_hit_source = CacheHitSource.HOST if in_memory else CacheHitSource.DISK
        self.locality = None if locality is None else Locality(locality)
        self._codec = KVCodec(profile=profile)
        self._dtype, self._shape = self._elements()
        bound = self._codec.nbytes(self._dtype, self._shape)
        self._scratch_nbytes = -(-bound // BUFFER_NBYTES) * BUFFER_NBYTES
        self._counts, self._told = Counter[str](), Counter[str]()
        self._begin_anew(closed=False)
        self._frames: KeptFrames
        if directory is None:
            self._frames = FramesInMemory(capacity_bytes)
        else:
            folder, weights = _folder(directory, offloading_spec), _mark_of_weights(offloading_spec.config.model.name)
            self._frames = FramesInDirectory(folder, weights, capacity_bytes)
        self._stores, self._loads = SimpleQueue["_Job | None"](), SimpleQueue["_Job | None"]()
        self._num_threads = threads
        self._threads = [
            threading.Thread(target=self._serve, args=(queue,), name="tensorwire-kv", daemon=True)
            for queue in (self._stores, self._loads)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        _TIERS.add(self)

    def _elements(self) -> tuple[str, list[int]]:
        name = str(self._offloading_spec.config.model.dtype)
        dtype = _DTYPES.get(name, "U8")
        if name not in _DTYPES:
            _log.warning("vLLM's cache has the dtype %s, which tensorwire codes as bytes: expect a low ratio", name)
        return dtype, [8 * self.block_size_bytes // dtype_bits(dtype)]

    def _begin_anew(self, *, closed: bool) -> None:
        """No job is under way. In a forked process another thread may have held the lock."""
        self._changed = threading.Condition()
        self._closed = closed
        self._being_stored = set[bytes]()
        self._num_under_way = 0
        self._finished = list[JobResult]()

    # What vLLM calls.

    def lookup(self, key: bytes, req_context: Any) -> Any:
        with self._changed:
            if key in self._being_stored:
                return LookupResult.RETRY
        return LookupResult.HIT if key in self._frames else LookupResult.MISS

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        self._frames.touch(keys)

    def submit_store(self, job_metadata: Any) -> None:
        pairs = [pair for pair in _pairs(job_metadata) if pair[0] not in self._frames]
        with self._changed:
            pairs = [pair for pair in pairs if pair[0] not in self._being_stored]
            self._submit(_Job(job_metadata, pairs), self._stores)

    def submit_load(self, job_metadata: Any) -> None:
        with self._changed:
            self._submit(_Job(job_metadata, _pairs(job_metadata)), self._loads)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_under_way == 0)

    def shutdown(self) -> None:
        """Wait for the chunks that threads are at. Chunks that none has begun fail, and are told of as others are."""
        with self._changed:
            self._closed = True
            threads, self._threads = self._threads, []
        for queue in (self._stores, self._loads):
            for _ in threads:
                queue.put(None)
        for thread in threads:
            thread.join()
        self._frames = KeptFrames(0)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        kinds = ((OffloadingGaugeMetadata, _GAUGES), (OffloadingCounterMetadata, _COUNTERS))
        return {_METRIC + name: kind(text, ("medium",)) for kind, texts in kinds for name, text in texts.items()}

    def get_stats(self) -> Any:
        """What the tier holds, and what has happened since the last call."""
        num_chunks, nbytes = self._frames.size()
        gauges = {"chunks": num_chunks, "dense_bytes": num_chunks * self.block_size_bytes, "bytes": nbytes}
        with self._changed:
            self._counts["evicted"] = self._frames.num_evicted
            new, self._told = self._counts - self._told, self._counts.copy()
        stats = OffloadingConnectorStats()
        for name, value in gauges.items():
            stats.set_gauge(_METRIC + name, value, (self.medium.value,))
        for name, value in new.items():
            stats.increase_counter(_METRIC + name, value, (self.medium.value,))
        return stats

    # What threads do. All but the work itself is done under the lock.

    def _submit(self, job: _Job, queue: SimpleQueue[_Job | None]) -> None:
        self._num_under_way += 1
        if self._closed:
            job.pairs.clear()
        if not job.pairs:
            self._end(job)
            return
        if not job.is_load:
            self._being_stored.update(key for key, _ in job.pairs)
        for _ in range(min(len(job.pairs), self._num_threads)):
            queue.put(job)

    def _serve(self, queue: SimpleQueue[_Job | None]) -> None:
        scratch = memoryview(bytearray(self._scratch_nbytes))
        while (job := queue.get()) is not None:
            while True:
                with self._changed:
                    if not job.pairs:
                        break
                    key, chunk = job.next_pair()
                    closed = self._closed
                done = not closed and self._work(job, key, chunk, scratch)
                with self._changed:
                    job.num_left -= 1
                    if done:
                        job.successful_keys.append(key)
                    if not job.is_load:
                        self._being_stored.discard(key)
                    if not job.num_left:
                        self._end(job)

    def _work(self, job: _Job, key: bytes, chunk: int, scratch: memoryview) -> bool:
        """Store a chunk, or load it. Whether it was done; no error gets out."""
        first = chunk * self.block_size_bytes
        try:
            dense = self._primary_kv_view.cast("B")[first : first + self.block_size_bytes]
            if not job.is_load:
                nbytes = self._codec.encode(dense, scratch, self._dtype, self._shape)
                if not self._frames.add(key, scratch, nbytes):
                    self._count("refused")
                    return False
            else:
                found = self._frames.read(key, scratch)
                if found is None:
                    return False
                self._codec.decode(scratch[:found], dense, self._dtype, self._shape)
        except Exception as error:
            if job.is_load:
                self._frames.drop(key)
            self._count("damaged" if job.is_load else "failed", error)
            return False
        return True

    def _end(self, job: _Job) -> None:
        self._num_under_way -= 1
        success = len(job.successful_keys) == job.num_pairs
        self._finished.append(
            JobResult(
                job.job_id,
                success,
                job.successful_keys if job.is_load else None,
                time.monotonic() - job.begun if job.begun else 0.0,
                len(job.successful_keys) * self.block_size_bytes,
            )
        )
        self._changed.notify_all()

    def _count(self, what: str, error: Exception | None = None) -> None:
        with self._changed:
            is_first = what not in self._counts
            self._counts[what] += 1
        if is_first:
            # As text: the error itself would keep vLLM's memory mapped.
            found = "" if error is None else f" The first error: {type(error).__name__}: {error}"
            _log.warning("%s%s told once: %s%s", _METRIC, what, _COUNTERS[what], found)

    def _close_in_child(self) -> None:
        """In a forked process, which has none of the threads, and where one may have held a lock."""
        self._begin_anew(closed=True)
        self._threads = []
        self._frames = KeptFrames(0)


class _Job:
    """A job of vLLM, and what is left of it."""

    def __init__(self, given: Any, pairs: Iterable[tuple[bytes, int]]) -> None:
        """`pairs`: keys, and the chunks of vLLM's memory that go with them; those of a store that are kept already are
        left out."""
        self.job_id: int = given.job_id
        self.is_load: bool = given.is_promotion
        self.pairs = deque(pairs)
        self.num_pairs = self.num_left = len(self.pairs)
        self.successful_keys = list[bytes]()
        self.begun = 0.0

    def next_pair(self) -> tuple[bytes, int]:
        self.begun = self.begun or time.monotonic()
        return self.pairs.popleft()


def _pairs(job: Any) -> list[tuple[bytes, int]]:
    return [(key, int(chunk)) for key, chunk in zip(job.keys, job.chunk_ids, strict=True)]


def _folder(directory: str, offloading_spec: Any) -> Path:
    """That of vLLM's own files: its name follows from the model's name and from the shape of the cache."""
    blocks = offloading_spec.blocks_per_chunk
    files = FileMapper.from_offloading_spec(directory, offloading_spec, blocks_per_file=blocks, parallel_agnostic=True)
    return Path(f"{files.base_path}_r{files.rank}")


def _mark_of_weights(model: str) -> str:
    """What changes when the files of a local model do: a cache that was computed with other weights is of no use."""
    place = Path(model)
    try:
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError:  # a name on a hub
        return "named"
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _close_in_child() -> None:
    for tier in _TIERS:
        tier._close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
