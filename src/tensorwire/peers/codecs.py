"""One interface over this package and every peer that pip installs, for ``tensorwire bench`` and for benchmarks/.

Peers are imported when a codec of theirs is made. A codec is made for one dtype and used from one thread at a time;
what it returns is valid until its next call. Memory is page-aligned and reused where the peer's interface lets us.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .._ground.version import __version__
from ..codec import compress, compress_bound, decompress, dtype_bits, new_buffer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..codec import Profile

__all__ = ["ADAPTERS", "Adapter", "Codec"]


class Codec:
    """What is measured. The base class copies: as memcpy it is the yardstick."""

    def __init__(self, dtype: str, threads: int, verify: bool) -> None:
        """As for `Adapter.make`."""
        self.dtype = dtype
        self._threads = threads
        self._copy = new_buffer(0)
        self._executor: Executor | None = None

    def prepare(self, data: memoryview) -> Any:
        """`data` in the form that `compress` takes, and which that may destroy. Not timed."""
        return data

    def compress(self, prepared: Any) -> Any:
        """Something that len() tells the size of."""
        if len(self._copy) != len(prepared):
            self._copy = new_buffer(len(prepared))
        self._memcpy(self._copy, prepared)
        return self._copy

    def decompress(self, packed: Any, out: memoryview) -> Any:
        """The content as a buffer: `out`, or memory of the peer's own where it cannot write into ours."""
        self._memcpy(out, packed)
        return out

    def _memcpy(self, out: memoryview, data: memoryview) -> None:
        """One copy for each thread, by the C library."""
        from ctypes import memmove  # releases the GIL

        target, source, nbytes = _address(out), _address(data), len(data)
        if self._threads == 1:
            memmove(target, source, nbytes)
            return
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._threads)
        part = -(-nbytes // self._threads // 4096) * 4096
        starts = range(0, nbytes, part)
        list(self._executor.map(lambda i: memmove(target + i, source + i, min(part, nbytes - i)), starts))


class _Tensorwire(Codec):
    """The public functions, into memory that is used again: what `out` is for."""

    def __init__(self, dtype: str, threads: int, verify: bool, profile: Profile) -> None:
        super().__init__(dtype, threads, verify)
        self._verify = verify
        self._profile: Profile = profile
        self._frame = new_buffer(0)

    def compress(self, prepared: Any) -> Any:
        bound = compress_bound(prepared, dtype=self.dtype, profile=self._profile)
        if len(self._frame) < bound:
            self._frame = new_buffer(bound)
        return compress(prepared, dtype=self.dtype, profile=self._profile, out=self._frame, threads=self._threads)

    def decompress(self, packed: Any, out: memoryview) -> Any:
        return decompress(packed, out=out, threads=self._threads, verify=self._verify)


class _ZipNN(Codec):
    def __init__(self, dtype: str, threads: int, verify: bool) -> None:
        super().__init__(dtype, threads, verify)
        names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
        names |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
        if dtype not in names:
            raise ValueError(f"ZipNN does not take {dtype}")
        self._peer = import_module("zipnn").ZipNN(bytearray_dtype=names[dtype], threads=threads)

    def prepare(self, data: memoryview) -> Any:
        return bytearray(data)  # it overwrites its input

    def compress(self, prepared: Any) -> Any:
        return self._peer.compress(prepared)

    def decompress(self, packed: Any, out: memoryview) -> Any:
        return self._peer.decompress(packed)


class _OpenZL(Codec):
    """Splits floats as OpenZL's own nodes do; each byte plane of both parts goes through `graph`."""

    def __init__(self, dtype: str, threads: int, verify: bool, graph: str) -> None:
        super().__init__(dtype, threads, verify)
        self._zl = import_module("openzl.ext")
        self._checksum = 1 if verify else 2  # enable, disable
        if dtype_bits(dtype) not in (8, 16, 32, 64):
            raise ValueError(f"OpenZL does not take {dtype}")
        self._decoder = self._zl.DCtx()
        self._context = self._new_context((True, graph, graph))

    def prepare(self, data: memoryview) -> Any:
        return self._zl.Input(self._zl.Type.Numeric, _numbers(data, self.dtype))

    def compress(self, prepared: Any) -> Any:
        return self._context.compress([prepared])

    def decompress(self, packed: Any, out: memoryview) -> Any:
        return self._decoder.decompress(packed)[0].content.as_nparray()

    def _new_context(self, plan: tuple[bool, str, str]) -> Any:
        """`plan`: whether floats are split, the graph of sign and mantissa (or of all planes), that of exponents."""
        zl = self._zl
        compressor = zl.Compressor()
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        compressor.set_parameter(zl.CParam.ContentChecksum, self._checksum)
        compressor.set_parameter(zl.CParam.CompressedChecksum, self._checksum)
        compressor.select_starting_graph(self._starting_graph(compressor, *plan))
        context = zl.CCtx()
        context.set_parameter(zl.CParam.StickyParameters, 1)
        context.ref_compressor(compressor)
        return context

    def _starting_graph(self, compressor: Any, split: bool, rest: str, exponents: str) -> Any:
        zl = self._zl
        nodes = {"BF16": "BFloat16Deconstruct", "F16": "Float16Deconstruct", "F32": "Float32Deconstruct"}
        plane = getattr(zl.graphs, rest)()
        if _item_nbytes(self.dtype) == 1:
            return plane(compressor) if rest == "Compress" else zl.nodes.ConvertNumToSerialLE()(compressor, plane)
        if not split or self.dtype not in nodes:
            if rest == "Compress":
                return plane(compressor)
            return zl.nodes.ConvertNumToStructLE()(compressor, zl.nodes.TransposeSplit()(compressor, plane))
        # In BF16 it is one plane, flat in all weights that we know.
        planes = zl.graphs.Store() if self.dtype == "BF16" else zl.nodes.TransposeSplit()(compressor, plane)
        node = getattr(zl.nodes, nodes[self.dtype])()
        return node(compressor, sign_frac=planes, exponent=getattr(zl.graphs, exponents)())


class _OpenZLTrained(_OpenZL):
    """The smallest of many graphs on a sample of the data itself. OpenZL's trainer is not in its package on PyPI."""

    _SAMPLES = 16
    _SAMPLE_NBYTES = 1 << 20

    def __init__(self, dtype: str, threads: int, verify: bool) -> None:
        super().__init__(dtype, threads, verify, "Fse")
        self._trained = False

    def prepare(self, data: memoryview) -> Any:
        if not self._trained:
            self._train(data)
        return super().prepare(data)

    def _train(self, data: memoryview) -> None:
        step = max(len(data) // self._SAMPLES // 64 * 64, self._SAMPLE_NBYTES)
        inputs = [super(_OpenZLTrained, self).prepare(data[i : i + self._SAMPLE_NBYTES])
                  for i in range(0, len(data), step)]  # fmt: skip
        graphs = ("Fse", "Huffman", "Compress", "Zstd")
        plans = [(True, rest, exponents) for rest in graphs for exponents in ("Fse", "Huffman")]
        plans += [(False, rest, "Fse") for rest in graphs]
        best = None
        for plan in plans:
            context = self._new_context(plan)
            nbytes = sum(len(context.compress([part])) for part in inputs)
            if best is None or nbytes < best:
                best, self._context = nbytes, context
        self._trained = True


class _Zstandard(Codec):
    def __init__(self, dtype: str, threads: int, verify: bool, level: int) -> None:
        super().__init__(dtype, threads, verify)
        zstandard = import_module("zstandard")
        workers = 0 if threads == 1 else threads
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=verify, threads=workers)
        self._decompressor = zstandard.ZstdDecompressor()

    def compress(self, prepared: Any) -> Any:
        return self._compressor.compress(prepared)

    def decompress(self, packed: Any, out: memoryview) -> Any:
        return self._decompressor.decompress(packed)


class _Blosc2(Codec):
    def __init__(self, dtype: str, threads: int, verify: bool, filter_name: str, codec_name: str) -> None:
        super().__init__(dtype, threads, verify)
        self._blosc2 = blosc2 = import_module("blosc2")
        self._parameters = blosc2.CParams(
            typesize=_item_nbytes(dtype),
            filters=[getattr(blosc2.Filter, filter_name)],
            filters_meta=[0],
            codec=getattr(blosc2.Codec, codec_name),
            clevel=1,
            nthreads=threads,
        )
        self._decoding = blosc2.DParams(nthreads=threads)

    def compress(self, prepared: Any) -> Any:
        return self._blosc2.compress2(prepared, cparams=self._parameters)

    def decompress(self, packed: Any, out: memoryview) -> Any:
        self._blosc2.decompress2(packed, dst=out, dparams=self._decoding)
        return out


class _Pcodec(Codec):
    def __init__(self, dtype: str, threads: int, verify: bool, kind: str, level: int) -> None:
        super().__init__(dtype, threads, verify)
        if kind == "float" and dtype not in ("F16", "F32", "F64"):
            raise ValueError(f"pcodec has no float mode for {dtype}")
        self._view = f"{kind}{8 * _item_nbytes(dtype)}"
        pcodec = import_module("pcodec")
        self._standalone = pcodec.standalone
        self._config = pcodec.ChunkConfig(compression_level=level, enable_8_bit=self._view == "uint8")

    def prepare(self, data: memoryview) -> Any:
        return _numbers(data, self.dtype).view(self._view)

    def compress(self, prepared: Any) -> Any:
        return self._standalone.simple_compress(prepared, self._config)

    def decompress(self, packed: Any, out: memoryview) -> Any:
        self._standalone.simple_decompress_into(packed, _numbers(out, self.dtype).view(self._view))
        return out


class _LZ4(Codec):
    def __init__(self, dtype: str, threads: int, verify: bool) -> None:
        super().__init__(dtype, threads, verify)
        self._verify = verify
        self._frame = import_module("lz4.frame")

    def compress(self, prepared: Any) -> Any:
        return self._frame.compress(prepared, content_checksum=self._verify)

    def decompress(self, packed: Any, out: memoryview) -> Any:
        return self._frame.decompress(packed)


@dataclass(frozen=True)
class Adapter:
    """How to get a codec.

    Attributes:
        name: of the codec and its setting.
        package: the distribution that it comes from, as pip names it; "memcpy" for the yardstick.
        module: what is imported; None for what is always there.
        factory, options: the class, and what it takes besides dtype, threads and verify.
        threaded: whether it has threads of its own.
        checksums: whether it has checksums that can be left out.
    """

    name: str
    package: str
    module: str | None
    factory: type[Codec]
    options: tuple[Any, ...] = ()
    threaded: bool = False
    checksums: bool = False

    @property
    def installed(self) -> bool:
        return self.module is None or find_spec(self.module) is not None

    @property
    def version(self) -> str:
        """The version of the package; empty for memcpy."""
        if self.package == "memcpy":
            return ""
        return __version__ if self.package == "tensorwire" else metadata.version(self.package)

    def make(self, dtype: str, *, threads: int = 1, verify: bool = True) -> Codec:
        """A codec for one dtype.

        Args:
            threads: how many, itself included.
            verify: with checksums, checked when decompressing, where the peer has any.

        Raises:
            ValueError: the peer does not take the dtype, or has no threads.
            ImportError: the peer is not installed.
        """
        if threads != 1 and not self.threaded:
            raise ValueError(f"{self.name} runs on one thread only")
        return self.factory(dtype, threads, verify, *self.options)


ADAPTERS = (
    Adapter("memcpy", "memcpy", None, Codec, threaded=True),
    Adapter("tensorwire fast", "tensorwire", None, _Tensorwire, ("fast",), threaded=True, checksums=True),
    Adapter("tensorwire compact", "tensorwire", None, _Tensorwire, ("compact",), threaded=True, checksums=True),
    Adapter("tensorwire resident", "tensorwire", None, _Tensorwire, ("resident",), threaded=True, checksums=True),
    Adapter("tensorwire enec", "tensorwire", None, _Tensorwire, ("enec",), threaded=True, checksums=True),
    Adapter("zipnn", "zipnn", "zipnn", _ZipNN, threaded=True),
    Adapter("openzl huffman", "openzl", "openzl", _OpenZL, ("Huffman",), checksums=True),
    Adapter("openzl fse", "openzl", "openzl", _OpenZL, ("Fse",), checksums=True),
    Adapter("openzl trained", "openzl", "openzl", _OpenZLTrained, checksums=True),
    Adapter("zstandard 3", "zstandard", "zstandard", _Zstandard, (3,), threaded=True, checksums=True),
    Adapter("blosc2 shuffle zstd 1", "blosc2", "blosc2", _Blosc2, ("SHUFFLE", "ZSTD"), threaded=True),
    Adapter("blosc2 bitshuffle lz4 1", "blosc2", "blosc2", _Blosc2, ("BITSHUFFLE", "LZ4"), threaded=True),
    Adapter("pcodec 8 int", "pcodec", "pcodec", _Pcodec, ("uint", 8)),
    Adapter("pcodec 8 float", "pcodec", "pcodec", _Pcodec, ("float", 8)),
    Adapter("pcodec 12 int", "pcodec", "pcodec", _Pcodec, ("uint", 12)),
    Adapter("pcodec 12 float", "pcodec", "pcodec", _Pcodec, ("float", 12)),
    Adapter("lz4", "lz4", "lz4", _LZ4, checksums=True),
)
"""Ours first, then the peers, the nearest rivals first."""


def _item_nbytes(dtype: str) -> int:
    return max(1, dtype_bits(dtype) // 8)


def _numbers(data: memoryview, dtype: str) -> Any:
    """`data` as unsigned integers of the dtype's size."""
    import numpy

    return numpy.frombuffer(data, f"uint{8 * _item_nbytes(dtype)}")


def _address(data: memoryview) -> int:
    address: int = _numbers(data, "U8").ctypes.data
    return address
