"""Section "Entropy stream": static rANS over byte symbols, 32 interleaved states.

One NumPy step handles 32 symbols, one of each state.
"""

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from .errors import require
from .planes import U64, Reader, pack_plane

STATES = 32
TOTAL = 4096
LOWEST = 1 << 16
MAX_Q = 12
_SLOT, _SLOT_BITS, _UNIT_BITS, _LOWEST = map(np.int64, (TOTAL - 1, 12, 16, LOWEST))


def _zigzag(d: int) -> int:
    return 2 * d if d >= 0 else -2 * d - 1


def _unzigzag(z: int) -> int:
    return z // 2 if z % 2 == 0 else -((z + 1) // 2)


class _Bits:
    """Reads bits from a block's reader, lowest bit of each byte first."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._byte = 0
        self._left = 0

    def next(self) -> int:
        if self._left == 0:
            self._byte, self._left = self._reader.take(1)[0], 8
        bit = self._byte & 1
        self._byte >>= 1
        self._left -= 1
        return bit

    def finish(self) -> None:
        require(self._byte == 0, "frequency table: unused bits of the last byte are set")


def read_frequencies(reader: Reader) -> list[int]:
    """One table: the frequency of each of the 256 symbols."""
    first, last, implied = reader.take(3)
    require(first <= implied <= last, f"frequency table: implied symbol {implied} is outside {first}..{last}")
    frequencies = [0] * 256
    bits = _Bits(reader)
    q = 0
    for symbol in range(first, last + 1):
        if symbol == implied:
            continue
        z = 0
        while bits.next() == 0:
            z += 1
            require(z <= 2 * MAX_Q, "frequency table: a step between bit lengths is too long")
        q += _unzigzag(z)
        require(0 <= q <= MAX_Q, f"frequency table: bit length {q} of symbol {symbol} is not 0..{MAX_Q}")
        if q == 0:
            continue
        top = min(q - 1, 3)
        mantissa = sum(bits.next() << i for i in range(top))
        frequencies[symbol] = (1 << (q - 1)) | (mantissa << (q - 1 - top))
    bits.finish()
    frequencies[implied] = TOTAL - sum(frequencies)
    require(1 <= frequencies[implied] < TOTAL, f"frequency table: implied frequency is {frequencies[implied]}")
    return frequencies


def _write_frequencies(frequencies: list[int], implied: int) -> bytes:
    present = [s for s in range(256) if frequencies[s]]
    first, last = present[0], present[-1]
    bits: list[int] = []
    prev = 0
    for symbol in range(first, last + 1):
        if symbol == implied:
            continue
        frequency = frequencies[symbol]
        q = frequency.bit_length()
        bits += [0] * _zigzag(q - prev) + [1]
        prev = q
        top = min(q - 1, 3) if q else 0
        mantissa = frequency >> (q - 1 - top) if q else 0
        bits += [(mantissa >> i) & 1 for i in range(top)]
    return bytes([first, last, implied]) + np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()


def _starts(frequencies: list[int]) -> list[int]:
    return [*accumulate(frequencies, initial=0)][:256]


def _padding(nbytes: int) -> int:
    return -nbytes % 4


def _tables(frequencies: list[list[int]]) -> tuple[U64, U64]:
    """By class and symbol, the frequencies and their sums below each symbol."""
    return np.array(frequencies, np.uint64), np.array([_starts(table) for table in frequencies], np.uint64)


def read_symbols(reader: Reader, n: int, classes: U64 | None = None, num_tables: int = 1) -> U64:
    """Decode an entropy stream of `n` symbols; `classes` gives the table of each. Raises `CorruptDataError`."""
    begin_of_stream = reader.position
    num_units = int.from_bytes(reader.take(4), "little")
    tables = [read_frequencies(reader) for _ in range(num_tables)]
    require(not any(reader.take(_padding(reader.position - begin_of_stream))), "entropy stream: padding is set")
    states = np.frombuffer(reader.take(4 * STATES), "<u4").astype(np.int64)
    units = reader.field(num_units, 16).astype(np.int64)
    require(bool((states >= LOWEST).all()), "entropy stream: a first state is below 2^16")
    frequency, start = _tables(tables)
    symbol_of_slot = np.array([np.repeat(np.arange(256, dtype=np.uint64), table) for table in tables])
    class_of_row = np.arange(num_tables)[:, None]
    # By slot, those of all tables in one row. All numbers of a step are below 2^33, and signed ones make quick indices.
    frequency_of_slot = frequency[class_of_row, symbol_of_slot].reshape(-1).astype(np.int64)
    within_symbol = (np.arange(TOTAL) - start[class_of_row, symbol_of_slot].astype(np.int64)).reshape(-1)
    rows = None if classes is None else classes.astype(np.int64) * TOTAL
    slots = np.empty(n, np.int64)
    position = 0
    for begin in range(0, n, STATES):
        x, slot = states[: n - begin], slots[begin : begin + STATES]
        np.bitwise_and(x, _SLOT, out=slot)
        if rows is not None:
            slot += rows[begin : begin + STATES]
        x >>= _SLOT_BITS
        x *= frequency_of_slot[slot]
        x += within_symbol[slot]
        hungry = (x < _LOWEST).nonzero()[0]
        more = units[position : position + len(hungry)]
        require(len(more) == len(hungry), "entropy stream: the units end early")
        x[hungry] = (x[hungry] << _UNIT_BITS) + more
        position += len(hungry)
    require(position == num_units, f"entropy stream: {num_units - position} units are left over")
    require(bool((states == LOWEST).all()), "entropy stream: a last state is not 2^16")
    symbols: U64 = symbol_of_slot.reshape(-1).take(slots)
    return symbols


def _round_down(frequency: int) -> int:
    """The largest number of at most four significant bits that is not above `frequency`."""
    shift = max(frequency.bit_length() - 4, 0)
    return frequency >> shift << shift


def choose_frequencies(symbols: U64) -> tuple[list[int], int]:
    """A legal table for `symbols`, which may be none, and its implied symbol: the most frequent one."""
    counts = np.bincount(symbols.astype(np.int64), minlength=256).tolist()
    implied = counts.index(max(counts))
    frequencies = [max(_round_down(c * TOTAL // len(symbols)), 1) if c else 0 for c in counts]
    frequencies[implied] = 0
    if not any(frequencies):  # the implied symbol may not have all 4096
        frequencies[implied ^ 1] = 1
    while sum(frequencies) >= TOTAL:
        largest = frequencies.index(max(frequencies))
        frequencies[largest] = _round_down(frequencies[largest] - 1)
    frequencies[implied] = TOTAL - sum(frequencies)
    return frequencies, implied


def write_symbols(symbols: U64, classes: U64 | None = None, num_tables: int = 1) -> bytes:
    """Encode symbols below 256 (at least one) as an entropy stream; `classes` gives the table of each."""
    classes = np.zeros(len(symbols), np.uint64) if classes is None else classes
    chosen = [choose_frequencies(symbols[classes == c]) for c in range(num_tables)]
    frequency, start = _tables([table for table, _ in chosen])
    of_all, below_all = frequency[classes, symbols], start[classes, symbols]
    states = np.full(STATES, LOWEST, np.uint64)
    steps: list[npt.NDArray[np.uint64]] = []
    for begin in reversed(range(0, len(symbols), STATES)):
        f, below = of_all[begin : begin + STATES], below_all[begin : begin + STATES]
        x = states[: len(f)]
        full = x >= f * np.uint64(LOWEST * LOWEST // TOTAL)
        steps.append(x[full] % LOWEST)
        x[full] //= LOWEST
        quotient, remainder = np.divmod(x, f)
        x[:] = quotient * TOTAL + remainder + below
    units = np.concatenate(steps[::-1])
    head = len(units).to_bytes(4, "little") + b"".join(_write_frequencies(*table) for table in chosen)
    return head + bytes(_padding(len(head))) + states.astype("<u4").tobytes() + pack_plane(units, 16)
