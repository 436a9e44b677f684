"""Training traffic, compressed: codecs in the place of torch.distributed's own messages (docs/traffic.md).

Experimental: it may change or go with any version. Nothing else in tensorwire imports it.
"""

from . import torch_version  # noqa: F401 - raises where torch is too old
from .attach.all_to_all import all_to_all
from .attach.attachment import counters
from .attach.backend import register_backend
from .attach.ddp import attach_ddp
from .attach.fsdp import attach_fsdp
from .budget import Budget
from .codecs.bounded import Bounded
from .codecs.exact import Exact
from .codecs.float8 import Float8
from .codecs.grid import Grid
from .exchange import ExchangeError

__all__ = [
    "Bounded",
    "Budget",
    "Exact",
    "ExchangeError",
    "Float8",
    "Grid",
    "all_to_all",
    "attach_ddp",
    "attach_fsdp",
    "counters",
    "register_backend",
]
