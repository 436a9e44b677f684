"""Ship what a training step changed: a publisher writes versions to a store, followers apply them (docs/sync.md).

Versions of slime, miles and SGLang are for :mod:`tensorwire.sync.interchange`.
"""

from .changes import Changes, Patch
from .follower import Follower, Staged
from .publisher import Published, Publisher

__all__ = ["Changes", "Follower", "Patch", "Published", "Publisher", "Staged"]
