"""Lossless compression of tensors: smaller model files, bit for bit.

Names load on first use: importing this package loads neither NumPy nor torch, nor the compiled core.
"""

from ._ground.loaders import compressed_loaders
from ._ground.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .checkpoint import (
        apply_checkpoint,
        compress_checkpoint,
        convert_checkpoint,
        decompress_checkpoint,
        diff,
        estimate_ratio,
        inspect,
        load_file,
        open_file,
        replace_checkpoint,
        save_file,
        transcode_checkpoint,
        verify,
    )
    from .codec import (
        BlockInfo,
        FrameEncoder,
        FrameInfo,
        FrameReader,
        Layout,
        compose,
        compress,
        compress_bound,
        decompress,
        decompress_range,
        frame_info,
    )
    from .errors import (
        BaseMismatchError,
        CorruptDataError,
        DoesNotFit,
        FormatError,
        LimitExceededError,
        TensorwireError,
        TruncatedDataError,
        UnsupportedTensorError,
        UnsupportedVersionError,
    )

__all__ = [
    "BaseMismatchError",
    "BlockInfo",
    "CorruptDataError",
    "DoesNotFit",
    "FormatError",
    "FrameEncoder",
    "FrameInfo",
    "FrameReader",
    "Layout",
    "LimitExceededError",
    "TensorwireError",
    "TruncatedDataError",
    "UnsupportedTensorError",
    "UnsupportedVersionError",
    "__version__",
    "apply_checkpoint",
    "compose",
    "compress",
    "compress_bound",
    "compress_checkpoint",
    "convert_checkpoint",
    "decompress",
    "decompress_checkpoint",
    "decompress_range",
    "diff",
    "estimate_ratio",
    "frame_info",
    "inspect",
    "load_file",
    "open_file",
    "replace_checkpoint",
    "save_file",
    "transcode_checkpoint",
    "verify",
]

_CODEC = {
    *("BlockInfo", "FrameEncoder", "FrameInfo", "FrameReader", "Layout"),
    *("compose", "compress", "compress_bound", "decompress", "decompress_range", "frame_info"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "errors" if name.endswith("Error") or name == "DoesNotFit" else "codec" if name in _CODEC else "checkpoint"
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _load_compressed(device: object, resident_nbytes: int | None) -> object:
    from .torch.loading import CompressedLoader

    return CompressedLoader(device, resident_nbytes)


compressed_loaders["pt"] = _load_compressed
