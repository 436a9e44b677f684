"""Tensors that stay compressed in memory, under PyTorch.

Importing it needs PyTorch 2.5 or later. It registers the package with transformers, which it does not import: that
happens when transformers is imported, before or after. What opens and makes frames on a device is imported when the
first one is.
"""

from typing import TYPE_CHECKING

from .._ground.packages import is_older
from . import torch_version  # noqa: F401 - raises where torch is missing or too old
from .frames.new_frame import encode_on_devices_by
from .frames.open_frame import FrameThere, open_on_devices_by
from .installed import install, uninstall
from .integrations import training  # noqa: F401 - registers a hook
from .integrations.after_import import after_import
from .integrations.inductor import inductor
from .layers_ahead import DecodeAhead, decode_ahead
from .modules import MemoryReport, ModuleMemory, compress_module, decompress_module, memory_report, set_linear_mode
from .offloading import Offload, offload
from .prepared import Prepared, prepare
from .tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from torch import Tensor

    from ..codec import Profile

__all__ = [
    "CompressedTensor",
    "DecodeAhead",
    "MemoryReport",
    "ModuleMemory",
    "Offload",
    "Prepared",
    "compress_module",
    "decode_ahead",
    "decompress_module",
    "inductor",
    "install",
    "memory_report",
    "offload",
    "prepare",
    "set_linear_mode",
    "uninstall",
]


def _register_with_transformers() -> None:
    import warnings

    from transformers import __version__ as version

    if is_older(version, (5, 16)):
        warnings.warn(
            f"compressed checkpoints need transformers 5.16 or later to be loaded without tensorwire decompress, this "
            f"is {version}",
            stacklevel=2,
        )
    else:
        from .integrations import transformers  # noqa: F401 - registers


def _register_devices_with_sync() -> None:
    from ..sync.elsewhere import register
    from .device.sync.memory import DeviceMemory

    register(DeviceMemory())


after_import("transformers.quantizers", _register_with_transformers)
after_import("tensorwire.sync.elsewhere", _register_devices_with_sync)


def _open_on_device(frame: "Tensor") -> FrameThere:
    from .device.frame import DeviceFrame

    return DeviceFrame(frame)


def _encode_on_device(tensor: "Tensor", profile: "Profile") -> "Tensor | None":
    from .device.writing.dense import encode_dense

    return encode_dense(tensor, profile)


open_on_devices_by(_open_on_device)
encode_on_devices_by(_encode_on_device)
