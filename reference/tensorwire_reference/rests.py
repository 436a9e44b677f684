"""Section "The rest": what is left of a word when its exponent is taken out.

A coder turns `n` rests of R bits into a stream and the parameters that stand in the descriptor.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .errors import CorruptDataError, UnfitError, require
from .planes import U64, Reader, ones, pack_field, pack_plane, runs_of
from .rans import read_symbols, write_symbols

PER_RUN = 255
MODES = ("verbatim", "constant", "entropy")


@dataclass(frozen=True)
class Verbatim:
    """All R bits of every rest."""

    code: ClassVar[int] = 0


@dataclass(frozen=True)
class Trimmed:
    """Without the highest and lowest bits that are zero everywhere, or, for the lowest, everywhere in a run."""

    per_run: bool = False
    code: ClassVar[int] = 1


@dataclass(frozen=True)
class Bytes:
    """In slices of 8 bits, one of `MODES` for each, lowest slice first. None takes the smallest of each."""

    modes: tuple[str, ...] | None = None
    code: ClassVar[int] = 2


Rest = Verbatim | Trimmed | Bytes


def params_nbytes(code: int, width: int) -> int:
    """Size of the parameters of rest coder `code` for rests of `width` bits."""
    return (0, 2, len(slice_widths(width)))[code]


def slice_widths(width: int) -> list[int]:
    """Bits of each slice, lowest slice first."""
    return [min(8, width - start) for start in range(0, width, 8)]


def decode_rest(code: int, params: bytes, reader: Reader, n: int, width: int) -> tuple[U64, str]:
    """Read `n` rests of `width` bits. Also returns the name of the coding."""
    if code == Verbatim.code:
        return reader.field(n, width), "verbatim"
    if code == Trimmed.code:
        return _decode_trimmed(params, reader, n, width)
    return _decode_bytes(params, reader, n, width)


def encode_rest(rest: Rest, rests: U64, width: int) -> tuple[bytes, bytes]:
    """The stream and the parameters. Raises `UnfitError`."""
    if isinstance(rest, Verbatim):
        return pack_field(rests, width), b""
    if isinstance(rest, Trimmed):
        return _encode_trimmed(rest, rests, width)
    return _encode_bytes(rest, rests, width)


def _decode_trimmed(params: bytes, reader: Reader, n: int, width: int) -> tuple[U64, str]:
    lead, trail = params
    if trail != PER_RUN:
        require(lead + trail <= width, f"trimmed rest: {lead} + {trail} of {width} bits")
        return reader.field(n, width - lead - trail) << np.uint64(trail), "trimmed"
    rests = np.empty(n, np.uint64)
    runs = list(runs_of(n))
    for run, t in zip(runs, reader.field(len(runs), 8).tolist(), strict=True):
        require(lead + t <= width, f"trimmed rest: {lead} + {t} of {width} bits")
        rests[run] = reader.field(run.stop - run.start, width - lead - t) << np.uint64(t)
    return rests, "trimmed-run"


def _encode_trimmed(rest: Trimmed, rests: U64, width: int) -> tuple[bytes, bytes]:
    used = int(np.bitwise_or.reduce(rests))
    lead = width - used.bit_length()
    if not rest.per_run:
        trail = _trailing_zeros(used, width - lead)
        return pack_field(rests >> np.uint64(trail), width - lead - trail), bytes([lead, trail])
    trails, fields = [], []
    for run in runs_of(len(rests)):
        t = _trailing_zeros(int(np.bitwise_or.reduce(rests[run])), width - lead)
        trails.append(t)
        fields.append(pack_field(rests[run] >> np.uint64(t), width - lead - t))
    return pack_plane(np.array(trails, np.uint64), 8) + b"".join(fields), bytes([lead, PER_RUN])


def _trailing_zeros(bits: int, most: int) -> int:
    return (bits & -bits).bit_length() - 1 if bits else most


def _decode_bytes(params: bytes, reader: Reader, n: int, width: int) -> tuple[U64, str]:
    rests = np.zeros(n, np.uint64)
    for i, (mode, bits) in enumerate(zip(params, slice_widths(width), strict=True)):
        if mode >= len(MODES):
            raise CorruptDataError(f"bytes rest: slice {i} has mode {mode}")
        if MODES[mode] == "verbatim":
            values = reader.field(n, bits)
        elif MODES[mode] == "constant":
            values = np.repeat(reader.field(1, 8), n)
        else:
            values = read_symbols(reader, n)
        require(bool((values <= ones(bits)).all()), f"bytes rest: slice {i} has a value of more than {bits} bits")
        rests |= values << np.uint64(8 * i)
    return rests, "bytes[" + ",".join(MODES[mode] for mode in params) + "]"


def _encode_bytes(rest: Bytes, rests: U64, width: int) -> tuple[bytes, bytes]:
    widths = slice_widths(width)
    if rest.modes is not None and len(rest.modes) != len(widths):
        raise ValueError(f"{len(widths)} slices need as many modes, not {rest.modes}")
    streams, params = [], []
    for i, bits in enumerate(widths):
        values = (rests >> np.uint64(8 * i)) & ones(bits)
        if rest.modes is None:
            modes: tuple[str, ...] = ("constant",) if (values == values[0]).all() else ("verbatim", "entropy")
        else:
            modes = (rest.modes[i],)
        stream, mode = min(((_encode_slice(values, bits, m), m) for m in modes), key=lambda pair: len(pair[0]))
        streams.append(stream)
        params.append(MODES.index(mode))
    return b"".join(streams), bytes(params)


def _encode_slice(values: U64, bits: int, mode: str) -> bytes:
    if mode == "verbatim":
        return pack_field(values, bits)
    if mode == "entropy":
        return write_symbols(values)
    if (values != values[0]).any():
        raise UnfitError("the slice is not constant")
    return pack_plane(values[:1], 8)
