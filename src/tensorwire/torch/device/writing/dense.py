"""The frame of one tensor on a device, for what keeps it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ....codec import compress_bound
from ..nvidia import driver_for
from .encoding import PROFILES
from .new_frames import Known, NewFrames
from .operands import CODINGS, placed

if TYPE_CHECKING:
    from ....codec import Profile
    from ..driver import Driver


def encode_dense(tensor: torch.Tensor, profile: Profile, driver: Driver | None = None) -> torch.Tensor | None:
    """Its frame, in memory of exactly its size on the same device; None if the core has to make it: in other profiles
    than "fast" and "resident", of other dtypes than BF16, F16 and F8, and where NVRTC is missing.

    Takes as much memory besides as the tensor, for a moment. Waits for the device, since the host needs the size.
    """
    driver = driver or driver_for(tensor.device)
    if driver is None or profile not in PROFILES or tensor.dtype not in CODINGS or tensor.layout != torch.strided:
        return None
    if is_traceable_wrapper_subclass(tensor) or tensor.is_neg():  # its words do not lie at its address
        return None
    bound = compress_bound(dtype=CODINGS[tensor.dtype].name, shape=tensor.shape, profile=profile)
    slot = torch.empty(bound, dtype=torch.uint8, device=tensor.device)
    sizes = torch.empty(1, dtype=torch.int64, device=tensor.device)
    source = placed(tensor)
    NewFrames(driver, [source], None, [slot], profile, Known(False, False)).encode(sizes, None, None)
    return slot[: int(sizes)].clone()
