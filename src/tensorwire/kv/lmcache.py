"""LMCache: keys and values that its second tier holds as frames.

LMCache imports this module where an adapter of its type ``plugin`` names it. That registers two serdes:

- ``tensorwire``: an object takes the length of its frames, so it needs an adapter that knows the length of what it
  loads. LMCache 0.5 has none; `Frames` is its adapter for files with that.
- ``tensorwire-fixed``: every object takes exactly the part of its size that the option ``max_ratio`` says, for S3,
  Valkey and all others. `Slots` makes such an adapter.

docs/lmcache.md says how to use them. Nothing of LMCache is patched.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from lmcache.logging import init_logger
from lmcache.v1.distributed import serde as lmcache_serde
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig
from lmcache.v1.distributed.serde import AsyncSerdeProcessor, Deserializer, Serializer, register_serde_factory

from .._ground.copies import not_copied
from ..codec import FROM_TORCH, dtype_bits
from ..errors import CorruptDataError, TensorwireError, UnsupportedVersionError
from .codec import KVCodec

_log = init_logger(__name__)

_OPTIONS = ("profile", "transposed", "threads")
_WORKERS = 2
"""Threads of LMCache's pool for each serde: a load need not wait until an object is stored."""
_UNIT = 4096
"""What lengths are multiples of. A file system takes whole ones anyway, `use_odirect` needs them, and LMCache keeps a
type of ctypes for each length that it has met."""
_LENGTH_NBYTES = 8
"""A number in front of the frames, the length of each but the last. So an object of one tensor begins with a frame."""
_LABEL_NBYTES = 32
"""So many bytes at the end of an object follow from its key: one that lies under another key is damaged."""


class _Counts:
    """What became of objects in this process, where it was not what LMCache wanted. The first of a kind is logged."""

    __reduce_ex__ = not_copied("a lock", "use the one that the module has")

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = Counter(not_cached=0, not_loaded=0)

    def add(self, kind: str, key: Any, error: Exception) -> None:
        with self._lock:
            self._counts[kind] += 1
            first = self._counts[kind] == 1
        if first:
            name = f"{key.model_name}, chunk {key.chunk_hash.hex()}"  # without the user's salt
            _log.warning("tensorwire: %s: %s: %s; more of these are counted only", kind.replace("_", " "), name, error)

    def of_all(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


_counts = _Counts()
_loaded_by: WeakKeyDictionary[Any, Frames] = WeakKeyDictionary()
"""Memory objects that a `Frames` has filled, or is filling: where a damaged one came from."""


def _page(dtype: Any, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape by which a tensor is coded. The last two dimensions of all that have them are tokens and
    channels. Dtypes that frames do not know, or whose elements torch packs, travel as bytes."""
    name = FROM_TORCH.get(str(dtype).removeprefix("torch."), "")
    sizes = tuple(map(int, shape))
    if dtype_bits(name) % 8 or not name:
        name, sizes = "U8", (*sizes[:-1], (sizes[-1] if sizes else 1) * dtype.itemsize)
    return name, (1,) * (2 - len(sizes)) + sizes


class _Serde(Serializer, Deserializer):  # type: ignore[misc] # the checker does not see LMCache
    """Both directions. Threads of LMCache's pool call it at once; it has no state but the codec."""

    def __init__(self, codec: KVCodec) -> None:
        self._codec = codec

    def estimate_serialized_size(self, layout_desc: Any) -> int:
        pages = [_page(*each) for each in zip(layout_desc.dtypes, layout_desc.shapes, strict=True)]
        return _whole_units(
            _LENGTH_NBYTES * (len(pages) - 1) + _LABEL_NBYTES + sum(self._codec.nbytes(*page) for page in pages)
        )

    def serialize(self, src: Any, dst: Any, key: Any) -> int:
        """Raises, so that LMCache caches nothing of the batch: `DoesNotFit`."""
        out = memoryview(dst.byte_array).cast("B")
        room = out[: len(out) - _LABEL_NBYTES]
        pages = list(_pages_of(src))
        end = _LENGTH_NBYTES * (len(pages) - 1)
        try:
            for number, (tensor, dtype, shape) in enumerate(pages):
                nbytes = self._codec.encode(tensor, room[end:], dtype, shape)
                if number < len(pages) - 1:
                    out[_LENGTH_NBYTES * number :][:_LENGTH_NBYTES] = nbytes.to_bytes(_LENGTH_NBYTES, "little")
                end += nbytes
        except (TensorwireError, ValueError) as error:
            _counts.add("not_cached", key, error)
            raise
        stored = len(out) if self._codec.max_ratio is not None else min(_whole_units(end + _LABEL_NBYTES), len(out))
        out[end:stored] = bytes(stored - end - _LABEL_NBYTES) + _label(key)  # what was there before is another user's
        return stored

    def deserialize(self, src: Any, dst: Any, key: Any) -> None:
        """Raises, so that LMCache takes the batch as missed: `FormatError`, or `ValueError` for another layout."""
        stored = memoryview(src.byte_array).cast("B")
        pages = list(_pages_of(dst))
        start = _LENGTH_NBYTES * (len(pages) - 1)
        try:
            if stored[-_LABEL_NBYTES:] != _label(key):
                raise CorruptDataError("expected the object that was stored under this key, got a part, or another one")
            for number, (tensor, dtype, shape) in enumerate(pages):
                self._codec.decode(stored[start:], tensor, dtype, shape)
                start += int.from_bytes(stored[_LENGTH_NBYTES * number :][:_LENGTH_NBYTES], "little")
        except (TensorwireError, ValueError) as error:
            _counts.add("not_loaded", key, error)
            frames = _loaded_by.get(src)
            if frames and isinstance(error, ValueError) and not isinstance(error, UnsupportedVersionError):
                frames.delete([key])  # or it would be a miss for ever: LMCache stores no key that is there
            raise


def _label(key: Any) -> bytes:
    facts = (key.model_name, key.kv_rank, key.object_group_id, key.chunk_hash, key.cache_salt)
    return hashlib.blake2b(repr(facts).encode(), digest_size=_LABEL_NBYTES).digest()


def _whole_units(nbytes: int) -> int:
    return -(-nbytes // _UNIT) * _UNIT


def _pages_of(memory: Any) -> Iterator[tuple[Any, str, tuple[int, ...]]]:
    """The tensors of a memory object, with the dtype and the shape of each."""
    for number, (dtype, shape) in enumerate(zip(memory.get_dtypes(), memory.get_shapes(), strict=True)):
        yield (memory.get_tensor(number), *_page(dtype, shape))


class Frames(FSL2Adapter):  # type: ignore[misc]
    """LMCache's adapter for files, for objects whose length only the file knows: those of the serde ``tensorwire``.

    Its parameters are those of the adapter ``fs``. A damaged file is removed, so that its key can be stored anew.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__(FSL2AdapterConfig.from_dict(params))

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Load as ``fs`` does, each object at the length of its file: ``fs`` takes a file of any other as missing."""
        for key, memory in zip(keys, objects, strict=True):
            _loaded_by[memory] = self
            with suppress(OSError, ValueError):  # missing, or longer than any of ours: the load fails, or the decoder
                memory.set_used_size(self._key_to_path(key).stat().st_size)
        task: int = super().submit_load_task(keys, objects)
        return task

    def report_status(self) -> dict[str, Any]:
        """With the numbers of objects, in this process, that were not cached, because they did not fit, and that were
        not loaded, because they were damaged or of another layout."""
        return {**super().report_status(), "tensorwire": _counts.of_all()}


class Slots(L2AdapterInterface):  # type: ignore[misc]
    """Any other adapter of LMCache, for objects of a fixed size: those of the serde ``tensorwire-fixed``.

    It is made from the parameters, which are the adapter's own with its ``type``. All that this class adds is that
    LMCache imports this module.
    """

    def __new__(cls, params: dict[str, Any], l1_memory_desc: Any = None) -> Any:
        """
        Raises:
            ValueError: there is no adapter of this type, or it takes other parameters.
        """
        if not isinstance(kind := params.get("type"), str):
            raise ValueError(f'expected adapter_params with the "type" of an adapter, got {params}')
        return create_l2_adapter(get_l2_adapter_config_class(kind).from_dict(params), l1_memory_desc)


def _processor(options: dict[str, Any], *, fixed: bool) -> AsyncSerdeProcessor:
    """What LMCache calls for the ``serde`` of an adapter, with all its keys but ``type``.

    Raises:
        ValueError: an option is unknown or has a wrong value, or ``max_ratio`` is missing.
    """
    known = (*_OPTIONS, "max_ratio") if fixed else _OPTIONS
    if unknown := sorted(options.keys() - set(known)):
        raise ValueError(f"expected options of the serde among {', '.join(known)}, got {', '.join(unknown)}")
    if fixed and options.get("max_ratio") is None:
        raise ValueError("expected max_ratio, the part of its size that an object may take, such as 0.77; got none")
    serde = _Serde(KVCodec(**options))
    return AsyncSerdeProcessor(serde, serde, max_workers=_WORKERS)


def register() -> None:
    """Make both serdes known to LMCache; importing this module has done so.

    Releases behind 0.5.6 want to know whether estimates are exact, and take others for files only.
    """
    contracts = getattr(lmcache_serde, "SerdeSizeContract", None)
    for name, contract, fixed in (("tensorwire", "UPPER_BOUND", False), ("tensorwire-fixed", "EXACT", True)):
        known = {} if contracts is None else {"size_contract": contracts[contract]}
        register_serde_factory(name, partial(_processor, fixed=fixed), **known)


register()
