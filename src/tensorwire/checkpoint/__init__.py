"""Named tensors <-> files, and whole checkpoints: safetensors files whose tensors are stored as frames.

docs/checkpoints.md describes what is written.
"""

from .files import TensorFile, TensorSlice, load_file, open_file, save_file
from .operations import (
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    inspect,
    transcode_checkpoint,
    verify,
)
from .results import (
    CheckpointReport,
    DiffReport,
    FileReport,
    InspectReport,
    Problem,
    TensorDiff,
    TensorInfo,
    VerifyReport,
)

__all__ = [
    "CheckpointReport",
    "DiffReport",
    "FileReport",
    "InspectReport",
    "Problem",
    "TensorDiff",
    "TensorFile",
    "TensorInfo",
    "TensorSlice",
    "VerifyReport",
    "compress_checkpoint",
    "decompress_checkpoint",
    "diff",
    "inspect",
    "load_file",
    "open_file",
    "save_file",
    "transcode_checkpoint",
    "verify",
]
