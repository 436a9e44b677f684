"""Training traffic, compressed."""

from .attach.attachment import Attachment, counters
from .attach.fsdp import attach_fsdp
from .codecs.exact import Exact
from .codecs.float8 import Float8
from .codecs.grid import Grid
from .exchange import ExchangeError

__all__ = ["Exact", "ExchangeError", "Float8", "Grid", "attach_fsdp", "counters"]
