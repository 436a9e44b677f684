"""Devices as memory that publishers and followers know. What works there is imported when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from ....codec import Profile
    from ....sync.copies import Copies
    from ....sync.elsewhere import Target

_OF_THE_HOST = ("cpu", "meta")


class DeviceMemory:
    """Implements Elsewhere, for all devices."""

    def takes(self, array: Any) -> bool:
        return isinstance(array, torch.Tensor) and array.device.type not in _OF_THE_HOST

    def copies(self, profile: Profile, threads: int) -> Copies:
        from .copies import DeviceCopies

        return DeviceCopies(profile, threads)

    def target(self, arrays: MutableMapping[str, Any], threads: int, *, verify: bool) -> Target:
        from .target import DeviceTarget

        return DeviceTarget(arrays, threads, verify=verify)
