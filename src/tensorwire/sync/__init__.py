"""Ship what a training step changed: a publisher writes versions to a store, followers apply them (docs/sync.md).

Versions of slime, miles and SGLang are read and written as well (docs/sync-versions.md).
"""

from .follower import Follower, Staged
from .interchange import read_version, write_version
from .publisher import Published, Publisher

__all__ = ["Follower", "Published", "Publisher", "Staged", "read_version", "write_version"]
