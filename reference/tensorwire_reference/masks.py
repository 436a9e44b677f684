"""A mask of the words of a block, at the end of section "Bit strings": in levels, or in gaps."""

import numpy as np

from .bits import BitReader, BitWriter
from .errors import require
from .planes import Reader

GAPS = 6
LEVELS = range(6)


def read_mask(variant: int, reader: Reader, n: int) -> np.ndarray:
    """Which of `n` words belong to the set."""
    if variant == GAPS:
        bits = BitReader(reader)
        members = bits.subset(n)
        bits.finish()
        return members
    groups = np.arange(-(-n // 4**variant))  # of the level, those that have a bit
    for level in range(variant, -1, -1):
        bits = BitReader(reader)
        marked = bits.array(len(groups)) == 1
        bits.finish()
        beyond = groups * 4**level >= n
        require(not marked[beyond].any(), f"mask: level {level} has a bit of a group behind the last word")
        if level:
            groups = (groups[marked][:, None] * 4 + np.arange(4)).reshape(-1)
    members = np.zeros(n, np.bool_)
    members[groups[marked]] = True
    return members


def write_mask(variant: int, members: np.ndarray) -> bytes:
    """Inverse of `read_mask`: levels mark no group without a word of the set."""
    if variant == GAPS:
        bits = BitWriter()
        bits.subset(members)
        return bits.finish()
    n, streams = len(members), []
    groups = np.arange(-(-n // 4**variant))
    for level in range(variant, -1, -1):
        size = 4**level
        marks = np.logical_or.reduceat(members, np.arange(0, n, size))
        marked = np.append(marks, np.zeros(3, np.bool_))[groups]  # up to three groups lie behind the last word
        bits = BitWriter()
        bits.array(marked)
        streams.append(bits.finish())
        groups = (groups[marked][:, None] * 4 + np.arange(4)).reshape(-1)
    return b"".join(streams)
