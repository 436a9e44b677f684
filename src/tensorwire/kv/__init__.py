"""Keys and values of language models as frames: for engines that keep pages of them in host memory, on disks, or send
them.

No torch is needed: pages are buffers.
"""

from .codec import KVCodec
from .pages import page_shape

__all__ = ["KVCodec", "page_shape"]
