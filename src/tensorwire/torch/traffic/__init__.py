"""Training traffic, compressed."""

from .attach.fsdp import attach_fsdp
from .codecs.exact import Exact

__all__ = ["Exact", "attach_fsdp"]
