"""One interface over this package and every peer that pip installs, for ``tensorwire bench`` and for benchmarks/.

Peers are imported when a codec of theirs is made. A codec is made for one dtype and used from one thread at a time;
what it returns is valid until its next call. Memory is page-aligned and reused where the peer's interface lets us.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import memmove
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .._ground.allocation import new_buffer
from .._ground.version import __version__
from ..codec import compress, compress_bound, decompress, dtype_bits

if TYPE_CHECKING:
    from ..codec import Profile

__all__ = ["ADAPTERS", "Adapter", "Codec"]


@dataclass(frozen=True)
class Codec:
    """What is measured.

    Attributes:
        compress: what `prepare` gives becomes something that len() tells the size of.
        decompress: that becomes the content as a buffer: the second argument, or memory of the peer's own where it
            cannot write into ours.
        prepare: data becomes what `compress` takes, and may destroy. Not timed.
    """

    compress: Callable[[Any], Any]
    decompress: Callable[[Any, memoryview], Any]
    prepare: Callable[[memoryview], Any] = lambda data: data


def _memcpy(dtype: str, threads: int, verify: bool) -> Codec:
    """The yardstick: one copy for each thread, by the C library."""
    executor = ThreadPoolExecutor(threads)
    result = new_buffer(0)

    def copy(data: memoryview, out: memoryview) -> memoryview:
        nbytes = len(data)
        target, source = (_numbers(each, "U8").ctypes.data for each in (out, data))
        if threads == 1:
            memmove(target, source, nbytes)
            return out
        part = -(-nbytes // threads // 4096) * 4096
        starts = range(0, nbytes, part)
        list(executor.map(lambda i: memmove(target + i, source + i, min(part, nbytes - i)), starts))  # without the GIL
        return out

    def to_result(prepared: memoryview) -> memoryview:
        nonlocal result
        if len(result) != len(prepared):
            result = new_buffer(len(prepared))
        return copy(prepared, result)

    return Codec(to_result, copy)


def _tensorwire(dtype: str, threads: int, verify: bool, profile: Profile) -> Codec:
    """The public functions, into memory that is used again: what `out` is for."""
    frame = new_buffer(0)

    def to_frame(prepared: memoryview) -> memoryview:
        nonlocal frame
        bound = compress_bound(prepared, dtype=dtype, profile=profile)
        if len(frame) < bound:
            frame = new_buffer(bound)
        return compress(prepared, dtype=dtype, profile=profile, out=frame, threads=threads)

    return Codec(to_frame, lambda packed, out: decompress(packed, out=out, threads=threads, verify=verify))


def _zipnn(dtype: str, threads: int, verify: bool) -> Codec:
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    names |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
    if dtype not in names:
        raise ValueError(f"ZipNN does not take {dtype}")
    peer = import_module("zipnn").ZipNN(bytearray_dtype=names[dtype], threads=threads)
    return Codec(peer.compress, lambda packed, out: peer.decompress(packed), bytearray)  # it overwrites its input


class _OpenZL:
    """Splits floats as OpenZL's own nodes do; each byte plane of both parts goes through a graph."""

    _SAMPLES = 16
    _SAMPLE_NBYTES = 1 << 20

    def __init__(self, dtype: str, verify: bool) -> None:
        self.dtype = dtype
        self._zl = import_module("openzl.ext")
        self._checksum = 1 if verify else 2  # enable, disable
        if dtype_bits(dtype) not in (8, 16, 32, 64):
            raise ValueError(f"OpenZL does not take {dtype}")
        self._decoder = self._zl.DCtx()

    def prepare(self, data: memoryview) -> Any:
        return self._zl.Input(self._zl.Type.Numeric, _numbers(data, self.dtype))

    def decompress(self, packed: Any, out: memoryview) -> Any:
        return self._decoder.decompress(packed)[0].content.as_nparray()

    def new_context(self, plan: tuple[bool, str, str]) -> Any:
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

    def trained_context(self, data: memoryview) -> Any:
        """That of the smallest of many graphs on a sample of the data."""
        step = max(len(data) // self._SAMPLES // 64 * 64, self._SAMPLE_NBYTES)
        inputs = [self.prepare(data[i : i + self._SAMPLE_NBYTES]) for i in range(0, len(data), step)]
        graphs = ("Fse", "Huffman", "Compress", "Zstd")
        plans = [(True, rest, exponents) for rest in graphs for exponents in ("Fse", "Huffman")]
        plans += [(False, rest, "Fse") for rest in graphs]

        def nbytes(plan: tuple[bool, str, str]) -> int:
            context = self.new_context(plan)
            return sum(len(context.compress([part])) for part in inputs)

        return self.new_context(min(plans, key=nbytes))


def _openzl(dtype: str, threads: int, verify: bool, graph: str | None = None) -> Codec:
    """Without a graph it is trained on the first data that it prepares. OpenZL's own trainer is not in its package on
    PyPI."""
    openzl = _OpenZL(dtype, verify)
    context: Any = openzl.new_context((True, graph, graph)) if graph else None

    def prepare(data: memoryview) -> Any:
        nonlocal context
        if context is None:
            context = openzl.trained_context(data)
        return openzl.prepare(data)

    return Codec(lambda prepared: context.compress([prepared]), openzl.decompress, prepare)


def _zstandard(dtype: str, threads: int, verify: bool, level: int) -> Codec:
    zstandard = import_module("zstandard")
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=verify, threads=threads if threads > 1 else 0)
    decompressor = zstandard.ZstdDecompressor()
    return Codec(compressor.compress, lambda packed, out: decompressor.decompress(packed))


def _blosc2(dtype: str, threads: int, verify: bool, filter_name: str, codec_name: str) -> Codec:
    blosc2 = import_module("blosc2")
    encoding = blosc2.CParams(
        typesize=_item_nbytes(dtype),
        filters=[getattr(blosc2.Filter, filter_name)],
        filters_meta=[0],
        codec=getattr(blosc2.Codec, codec_name),
        clevel=1,
        nthreads=threads,
    )
    decoding = blosc2.DParams(nthreads=threads)

    def to_out(packed: Any, out: memoryview) -> memoryview:
        blosc2.decompress2(packed, dst=out, dparams=decoding)
        return out

    return Codec(lambda prepared: blosc2.compress2(prepared, cparams=encoding), to_out)


def _pcodec(dtype: str, threads: int, verify: bool, kind: str, level: int) -> Codec:
    if kind == "float" and dtype not in ("F16", "F32", "F64"):
        raise ValueError(f"pcodec has no float mode for {dtype}")
    view = f"{kind}{8 * _item_nbytes(dtype)}"
    pcodec = import_module("pcodec")
    config = pcodec.ChunkConfig(compression_level=level, enable_8_bit=view == "uint8")

    def prepare(data: memoryview) -> Any:
        return _numbers(data, dtype).view(view)

    def to_out(packed: Any, out: memoryview) -> memoryview:
        pcodec.standalone.simple_decompress_into(packed, prepare(out))
        return out

    return Codec(lambda numbers: pcodec.standalone.simple_compress(numbers, config), to_out, prepare)


def _lz4(dtype: str, threads: int, verify: bool) -> Codec:
    lz4 = import_module("lz4.frame")
    return Codec(partial(lz4.compress, content_checksum=verify), lambda packed, out: lz4.decompress(packed))


@dataclass(frozen=True)
class Adapter:
    """How to get a codec.

    Attributes:
        name: of the codec and its setting.
        package: the distribution that it comes from, as pip names it; "memcpy" for the yardstick.
        module: what is imported; None for what is always there.
        factory, options: what makes the codec, and what that takes besides dtype, threads and verify.
        threaded: whether it has threads of its own.
        checksums: whether it has checksums that can be left out.
    """

    name: str
    package: str
    module: str | None
    factory: Callable[..., Codec]
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
        """A codec for one dtype; with `verify` it has checksums, checked when decompressing, where the peer has any.

        Raises:
            ValueError: the peer does not take the dtype, or has no threads.
        """
        if threads != 1 and not self.threaded:
            raise ValueError(f"{self.name} runs on one thread only")
        return self.factory(dtype, threads, verify, *self.options)


ADAPTERS = (
    Adapter("memcpy", "memcpy", None, _memcpy, threaded=True),
    Adapter("tensorwire fast", "tensorwire", None, _tensorwire, ("fast",), threaded=True, checksums=True),
    Adapter("tensorwire compact", "tensorwire", None, _tensorwire, ("compact",), threaded=True, checksums=True),
    Adapter("tensorwire resident", "tensorwire", None, _tensorwire, ("resident",), threaded=True, checksums=True),
    Adapter("tensorwire enec", "tensorwire", None, _tensorwire, ("enec",), threaded=True, checksums=True),
    Adapter("zipnn", "zipnn", "zipnn", _zipnn, threaded=True),
    Adapter("openzl huffman", "openzl", "openzl", _openzl, ("Huffman",), checksums=True),
    Adapter("openzl fse", "openzl", "openzl", _openzl, ("Fse",), checksums=True),
    Adapter("openzl trained", "openzl", "openzl", _openzl, checksums=True),
    Adapter("zstandard 3", "zstandard", "zstandard", _zstandard, (3,), threaded=True, checksums=True),
    Adapter("blosc2 shuffle zstd 1", "blosc2", "blosc2", _blosc2, ("SHUFFLE", "ZSTD"), threaded=True),
    Adapter("blosc2 bitshuffle lz4 1", "blosc2", "blosc2", _blosc2, ("BITSHUFFLE", "LZ4"), threaded=True),
    Adapter("pcodec 8 int", "pcodec", "pcodec", _pcodec, ("uint", 8)),
    Adapter("pcodec 8 float", "pcodec", "pcodec", _pcodec, ("float", 8)),
    Adapter("pcodec 12 int", "pcodec", "pcodec", _pcodec, ("uint", 12)),
    Adapter("pcodec 12 float", "pcodec", "pcodec", _pcodec, ("float", 12)),
    Adapter("lz4", "lz4", "lz4", _lz4, checksums=True),
)
"""Ours first, then the peers, the nearest rivals first."""


def _item_nbytes(dtype: str) -> int:
    return max(1, dtype_bits(dtype) // 8)


def _numbers(data: memoryview, dtype: str) -> Any:
    """`data` as unsigned integers of the dtype's size."""
    import numpy

    return numpy.frombuffer(data, f"uint{8 * _item_nbytes(dtype)}")
