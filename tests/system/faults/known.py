"""Faults that an earlier analyzer was given once, when the matrix of cases.py did not have them."""

from __future__ import annotations

from .variants import Variant

KNOWN: list[Variant] = [
    Variant(
        "recv-chain",
        "recv_chain",
        "a rank of a chain of send and recv waits for a lock",
        ("TW-H1",),
        before="H1 R: 4 of 4",
    ),
]
