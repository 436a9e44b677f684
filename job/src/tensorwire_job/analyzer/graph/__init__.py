"""The theory of a standstill: who waits for whom, which ranks explain it, and where their histories part.

Nothing here knows what a rank, a page or a process is. job/docs/method.md is the same in words.
"""

from .graph import Explanation, Graph, Need, explain
from .history import Difference, Entry, first_differences, last_stray, unequal_exchanges

__all__ = [
    "Difference",
    "Entry",
    "Explanation",
    "Graph",
    "Need",
    "explain",
    "first_differences",
    "last_stray",
    "unequal_exchanges",
]
