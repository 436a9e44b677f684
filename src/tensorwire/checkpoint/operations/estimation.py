"""What compressing a checkpoint will give, from a sample of its data."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._ground.allocation import new_buffer
from ...codec import compress, dtype_bits, num_threads
from ...errors import ErrorContext
from ...files.files_before import MIN_BESIDE_NBYTES
from ...files.torch_file import open_stored, places
from ...files.writer import may_save, saves
from ...storage.inputs import open_input
from ...storage.locations import locate, said
from ...storage.pool import mapped
from ..directory.manifest import OF_TENSORS
from ..directory.order import in_order, rank
from ..directory.sources import check_original, originals
from ..results import Estimate

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ...codec import Profile
    from ...files.header import TensorEntry
    from ...files.reader import StoredFile

_NUM_SAMPLES = 64
_SAMPLE_NBYTES = 1 << 19
"""A whole block of BF16 in every profile."""


_PROBE_NBYTES, _MAX_LIKE = 256, 512
"""What of a sample is compared first, and with how many tensors."""


class Candidate(NamedTuple):
    """A tensor that may be sampled.

    Attributes:
        start: of its data in the file.
        like: tensors of its size in files that its own may be relative to.
    """

    path: Any
    start: int
    entry: TensorEntry
    like: Sequence[Candidate] = ()


class Share(NamedTuple):
    """What frames are expected to take of the bytes of tensors.

    Attributes:
        value: as a part of their size.
        error: its standard error; 0 if all was encoded.
        num_samples, sample_nbytes: samples that were encoded, and their size.
    """

    value: float
    error: float
    num_samples: int
    sample_nbytes: int


def estimate_ratio(
    src: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    exclude: Sequence[str] = (),
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Estimate:
    """Estimate what `compress_checkpoint` gives, from 64 samples of at most half a megabyte.

    The data is cut into as many equal parts, and a sample is taken at a random offset in each; the offsets are the same
    each time. A checkpoint that is smaller than the sample is encoded whole. A sample counts for nothing that another
    file has at the same place of a tensor of the same size, since that will be stored once. In a store that is not
    looked for.

    Raises:
        FormatError, OSError, ValueError: as `compress_checkpoint`.
    """
    started = time.monotonic()
    sources = originals(locate(src, storage_options), exclude)
    tensors: list[Candidate] = []
    by_size: defaultdict[int, list[Candidate]] = defaultdict(list)
    for source in in_order(sources.files):
        if source.kind in OF_TENSORS:
            with open_stored(source.open()) as stored:
                check_original(stored)
                found = tensors_of(stored)
            is_local = isinstance(source.location, Path)
            like: dict[int, tuple[Candidate, ...]] = {}
            if rank(source) and is_local:
                like = {size: tuple(others[:_MAX_LIKE]) for size, others in by_size.items()}
            tensors += [each._replace(like=like.get(each.entry.nbytes, ())) for each in found]
            for each in found:
                if each.entry.nbytes > MIN_BESIDE_NBYTES:
                    by_size[each.entry.nbytes].append(each)
    share = sampled_share(tensors, profile, threads)
    data_nbytes = sum(tensor.entry.nbytes for tensor in tensors)
    nbytes_in = sum(source.location.stat().st_size for source in sources.files)
    rest = nbytes_in - data_nbytes
    return Estimate(
        src=said(src),
        profile=profile,
        nbytes_in=nbytes_in,
        nbytes_out=rest + round(share.value * data_nbytes),
        lowest_nbytes_out=rest + round(max(0.0, share.value - 2 * share.error) * data_nbytes),
        highest_nbytes_out=rest + round(min(1.0, share.value + 2 * share.error) * data_nbytes),
        num_samples=share.num_samples,
        sample_nbytes=share.sample_nbytes,
        sample_share=share.sample_nbytes / data_nbytes if data_nbytes else 1.0,
        seconds=time.monotonic() - started,
        excluded=sources.excluded,
    )


def tensors_of(stored: StoredFile) -> list[Candidate]:
    """The tensors of an open plain file that have any bytes."""
    found = zip(places(stored), stored.header.entries, strict=True)
    return [Candidate(stored.path, start, entry) for start, entry in found if entry.nbytes]


def sampled_share(tensors: Sequence[Candidate], profile: Profile, threads: int | None) -> Share:
    """What compressing tensors is expected to give, from the samples that `estimate_ratio` describes."""
    samples = _samples([(tensor.entry.nbytes, _row_nbytes(tensor.entry)) for tensor in tensors])

    def encode(sample: tuple[int, int]) -> tuple[int, int]:
        index, start = sample
        return _encode(tensors[index], start, profile)

    sizes = list(mapped(encode, samples, num_threads(threads), "tensorwire-sample"))
    sample_nbytes = sum(nbytes for nbytes, _ in sizes)
    whole = sample_nbytes == sum(tensor.entry.nbytes for tensor in tensors)
    shares = [small / nbytes for nbytes, small in sizes]
    value = sum(small for _, small in sizes) / sample_nbytes if whole and sizes else fmean(shares) if sizes else 1.0
    error = 0.0 if whole or len(shares) < 2 else stdev(shares) / sqrt(len(shares))
    return Share(value, error, len(sizes), sample_nbytes)


def _row_nbytes(entry: TensorEntry) -> int:
    """Size of a row, since rows may share scales; 1 where it is not whole bytes, or more than a sample."""
    bits = entry.shape[-1] * dtype_bits(entry.dtype) if len(entry.shape) > 1 else 8
    return bits // 8 if bits % 8 == 0 and 0 < bits // 8 <= _SAMPLE_NBYTES else 1


def _samples(sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Index of a tensor and offset in it, for each sample. Sizes are those of a tensor and of its rows."""
    ends = list(accumulate(size for size, _ in sizes))
    total = ends[-1] if ends else 0
    if total <= _NUM_SAMPLES * _SAMPLE_NBYTES:
        steps = [_SAMPLE_NBYTES // row * row for _, row in sizes]
        return [(index, start) for index, (size, _) in enumerate(sizes) for start in range(0, size, steps[index])]
    generator = random.Random(0)
    samples = []
    for part in range(_NUM_SAMPLES):
        position = generator.randrange(total * part // _NUM_SAMPLES, total * (part + 1) // _NUM_SAMPLES)
        index = bisect_right(ends, position)
        # A sample that the end of its tensor would cut begins earlier.
        size, row = sizes[index]
        start = min(position - ends[index] + size, max(0, size - _SAMPLE_NBYTES))
        samples.append((index, start - start % row))
    return samples


def _encode(tensor: Candidate, start: int, profile: Profile) -> tuple[int, int]:
    """Size of the sample from `start` on, and what it takes: compressed, if a frame of it all would save enough."""
    entry, bits, row = tensor.entry, dtype_bits(tensor.entry.dtype), _row_nbytes(tensor.entry)
    start -= start % max(1, bits // 8)
    data = new_buffer(min(_SAMPLE_NBYTES // row * row, entry.nbytes - start))
    with ErrorContext(file=tensor.path, tensor=entry.name), open_input(tensor.path) as file:
        file.read_into(tensor.start + start, data)
        if any(_has(other, start, data) for other in tensor.like):
            return len(data), 0
        if not may_save(entry.dtype, entry.nbytes):
            return len(data), len(data)
        shape = (len(data) * 8 // bits,) if row == 1 else (len(data) // row, entry.shape[-1])
        nbytes = len(compress(data, profile=profile, dtype=entry.dtype, shape=shape, threads=1))
    return len(data), nbytes if saves(nbytes * entry.nbytes // len(data), entry.nbytes) else len(data)


def _has(tensor: Candidate, start: int, data: memoryview) -> bool:
    """Whether a tensor has these bytes from `start` on."""
    with open_input(tensor.path) as file:
        for size in (_PROBE_NBYTES, len(data)):
            found = new_buffer(min(size, len(data)))
            file.read_into(tensor.start + start, found)
            if found != data[: len(found)]:
                return False
    return True
