"""One interface over our frames relative to a base and the forms of a delta that others use, on BF16 words.

What projects use inside themselves is written anew here, in NumPy, with memory that is used again: a form's size is
exact, and its speed is that of NumPy and of the compressor behind it. A codec encodes and applies from one thread.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tensorwire import compress, compress_bound, decompress
from tensorwire._ground.allocation import new_buffer
from tensorwire._ground.version import __version__
from tensorwire.cli.peers import ADAPTERS as PLAIN


class Codec:
    """What is measured."""

    def __init__(self, verify: bool) -> None:
        self._verify = verify
        self._scratch: dict[str, np.ndarray] = {}

    def prepare(self, words: np.ndarray) -> Any:
        """`words` in the form that `encode` and `apply` take. Not timed."""
        return words

    def encode(self, old: Any, new: Any) -> Any:
        """Something that len() tells the size of; it is valid until the next call."""
        raise NotImplementedError

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        """The new words: in `out`, which may be `old` itself, or in memory of the codec's own."""
        raise NotImplementedError

    def scratch(self, name: str, count: int, dtype: Any) -> np.ndarray:
        """Page-aligned memory for `count` elements, the same in each call."""
        nbytes = count * np.dtype(dtype).itemsize
        if name not in self._scratch or self._scratch[name].nbytes < nbytes:
            self._scratch[name] = np.frombuffer(new_buffer(nbytes), np.uint8)
        return self._scratch[name][:nbytes].view(dtype)


class Relative(Codec):
    """Our frame, relative to the base."""

    def __init__(self, verify: bool, profile: Any) -> None:
        super().__init__(verify)
        self._profile = profile

    def prepare(self, words: np.ndarray) -> Any:
        return _view(words)

    def encode(self, old: Any, new: Any) -> Any:
        bound = compress_bound(new, dtype="BF16", profile=self._profile)
        out = self.scratch("frame", bound, np.uint8)
        return compress(new, base=old, dtype="BF16", profile=self._profile, out=_view(out), threads=1)

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        decompress(delta, base=old, out=_view(out), threads=1, verify=self._verify)
        return out


class Plain(Codec):
    """A codec of tensorwire.cli.peers that does not look at the base; memcpy is the yardstick."""

    def __init__(self, verify: bool, name: str) -> None:
        super().__init__(verify)
        self._codec = next(each for each in PLAIN if each.name == name).make("BF16", verify=verify)

    def encode(self, old: Any, new: Any) -> Any:
        return self._codec.compress(self._codec.prepare(_view(new)))

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        return np.frombuffer(self._codec.decompress(delta, _view(out)), np.uint16)


class Coo(Codec):
    """int32 position and new word of each change: verl, vLLM, UniRL."""

    def encode(self, old: Any, new: Any) -> Any:
        positions = np.flatnonzero(self._differs(old, new)).astype(np.int32)
        return positions.tobytes() + new[positions].tobytes()

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        count = len(delta) // 6
        _start_from(old, out)
        out[np.frombuffer(delta, np.int32, count)] = np.frombuffer(delta, np.uint16, count, 4 * count)
        return out

    def _differs(self, old: Any, new: Any) -> np.ndarray:
        return np.not_equal(old, new, out=self.scratch("differs", new.size, bool))


class _Zstandard(Codec):
    def __init__(self, verify: bool, level: int) -> None:
        super().__init__(verify)
        zstandard = import_module("zstandard")
        self._compressor = zstandard.ZstdCompressor(level=level)
        self._decompressor = zstandard.ZstdDecompressor()


class Xor(_Zstandard):
    """The XOR of both through zstd: slime, miles, SGLang and ModelExpress (level 1), SkyRL (level 3)."""

    def encode(self, old: Any, new: Any) -> Any:
        return self._compressor.compress(np.bitwise_xor(old, new, out=self.scratch("xor", new.size, np.uint16)))

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        return np.bitwise_xor(old, np.frombuffer(self._decompressor.decompress(delta), np.uint16), out=out)


class GapXor(_Zstandard):
    """Gaps between changes, in the fewest bytes that hold all of them, and the XOR of each, through zstd: NeMo-RL."""

    def encode(self, old: Any, new: Any) -> Any:
        differs = np.not_equal(old, new, out=self.scratch("differs", new.size, bool))
        positions = np.flatnonzero(differs)
        gaps = np.diff(positions, prepend=-1) - 1
        dtype = np.uint16 if gaps.max(initial=0) < 1 << 16 else np.uint32
        body = gaps.astype(dtype).tobytes() + np.bitwise_xor(old[positions], new[positions]).tobytes()
        return bytes([np.dtype(dtype).itemsize]) + self._compressor.compress(body)

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        width = delta[0]
        body = self._decompressor.decompress(memoryview(delta)[1:])
        count = len(body) // (width + 2)
        gaps = np.frombuffer(body, f"uint{8 * width}", count)
        positions = np.cumsum(gaps, dtype=np.int64) + np.arange(count)
        _start_from(old, out)
        out[positions] ^= np.frombuffer(body, np.uint16, count, width * count)
        return out


class BitX(_Zstandard):
    """Exponents and the rest of the XOR apart, each through zstd: ZipLLM."""

    def encode(self, old: Any, new: Any) -> Any:
        xor = np.bitwise_xor(old, new, out=self.scratch("xor", new.size, np.uint16))
        exponents, rest = (self.scratch(name, new.size, np.uint8) for name in ("exponents", "rest"))
        np.right_shift(xor, 7, out=exponents, casting="unsafe")
        np.right_shift(xor, 8, out=rest, casting="unsafe")
        np.bitwise_and(rest, 0x80, out=rest)
        np.bitwise_or(rest, np.bitwise_and(xor, 0x7F, out=xor), out=rest, casting="unsafe")
        first = self._compressor.compress(exponents)
        return len(first).to_bytes(4, "little") + first + self._compressor.compress(rest)

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        stop = 4 + int.from_bytes(delta[:4], "little")
        planes = [
            self._decompressor.decompress(memoryview(delta)[part]) for part in (slice(4, stop), slice(stop, None))
        ]
        exponents, rest = (np.frombuffer(plane, np.uint8) for plane in planes)
        xor, part = self.scratch("xor", old.size, np.uint16), self.scratch("part", old.size, np.uint16)
        np.left_shift(exponents, 7, out=xor, dtype=np.uint16)
        np.bitwise_or(xor, np.bitwise_and(rest, 0x7F, out=part, dtype=np.uint16), out=xor)
        np.bitwise_or(xor, np.left_shift(rest & 0x80, 8, out=part, dtype=np.uint16), out=xor)
        return np.bitwise_xor(old, xor, out=out)


class ZipNNXor(Codec):
    """The XOR through ZipNN, as its own script for deltas does."""

    def __init__(self, verify: bool) -> None:
        super().__init__(verify)
        self._codec = next(each for each in PLAIN if each.name == "zipnn").make("BF16")

    def encode(self, old: Any, new: Any) -> Any:
        xor = bytearray(new.nbytes)  # it overwrites its input
        np.bitwise_xor(old, new, out=np.frombuffer(xor, np.uint16))
        return self._codec.compress(xor)

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        return np.bitwise_xor(old, np.frombuffer(self._codec.decompress(delta, _view(out)), np.uint16), out=out)


class HDiffPatch(Codec):
    """A binary diff of any files, its parts through zstd."""

    def __init__(self, verify: bool) -> None:
        super().__init__(verify)
        self._peer = import_module("hdiffpatch")

    def prepare(self, words: np.ndarray) -> Any:
        return words.tobytes()

    def encode(self, old: Any, new: Any) -> Any:
        return self._peer.diff(old, new, compression="zstd", validate=False)

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        return np.frombuffer(self._peer.apply(old, delta), np.uint16)


class XDelta3(Codec):
    """A binary diff of any files, by a command."""

    def encode(self, old: Any, new: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            self._run(folder, "-e", old=old, source=new)
            return Path(folder, "target").read_bytes()

    def apply(self, delta: Any, old: Any, out: np.ndarray) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            self._run(folder, "-d", old=old, source=delta)
            return np.fromfile(Path(folder, "target"), np.uint16)

    def _run(self, folder: str, mode: str, **files: Any) -> None:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        window = str(max(1 << 20, files["old"].nbytes))
        line = ["xdelta3", mode, "-9", "-B", window, "-s", "old", "source", "target"]
        subprocess.run(line, cwd=folder, check=True)


@dataclass(frozen=True)
class Adapter:
    """How to get a codec.

    Attributes:
        name: of the form.
        package: the distribution of the compressor behind it, as pip names it.
        factory, options: the class, and what it takes besides verify.
        checksums: whether it has checksums that can be left unchecked.
        in_memory: whether its speed says something; a command's time is that of its start and its files.
        in_place: whether `out` may be the base.
    """

    name: str
    package: str
    factory: type[Codec]
    options: tuple[Any, ...] = ()
    checksums: bool = False
    in_memory: bool = True
    in_place: bool = True

    @property
    def installed(self) -> bool:
        if self.package == "xdelta3":
            return shutil.which("xdelta3") is not None
        return find_spec(self.package) is not None

    @property
    def version(self) -> str:
        if self.package == "xdelta3":
            line = subprocess.run(["xdelta3", "-V"], capture_output=True, text=True, check=False)
            return (line.stdout + line.stderr).split()[2].rstrip(",")
        return __version__ if self.package == "tensorwire" else metadata.version(self.package)

    def make(self, *, verify: bool = True) -> Codec:
        return self.factory(verify, *self.options)


ADAPTERS = (
    Adapter("memcpy", "numpy", Plain, ("memcpy",), in_place=False),
    Adapter("relative fast", "tensorwire", Relative, ("fast",), checksums=True),
    Adapter("relative compact", "tensorwire", Relative, ("compact",), checksums=True),
    Adapter("plain fast", "tensorwire", Plain, ("tensorwire fast",), checksums=True, in_place=False),
    Adapter("plain compact", "tensorwire", Plain, ("tensorwire compact",), checksums=True, in_place=False),
    Adapter("index + value", "numpy", Coo),
    Adapter("XOR, zstd 1", "zstandard", Xor, (1,)),
    Adapter("XOR, zstd 3", "zstandard", Xor, (3,)),
    Adapter("gap + XOR, zstd 1", "zstandard", GapXor, (1,)),
    Adapter("BitX", "zstandard", BitX, (3,)),
    Adapter("XOR, ZipNN", "zipnn", ZipNNXor),
    Adapter("hdiffpatch", "hdiffpatch", HDiffPatch, in_place=False),
    Adapter("xdelta3", "xdelta3", XDelta3, in_memory=False, in_place=False),
)


def _start_from(old: np.ndarray, out: np.ndarray) -> None:
    if not np.shares_memory(out, old):
        out[:] = old


def _view(words: np.ndarray) -> memoryview:
    return memoryview(words).cast("B")
