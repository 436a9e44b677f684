"""Named tensors <-> files, and whole checkpoints: safetensors files whose tensors are stored as frames.

docs/checkpoints.md describes what is written.
"""

from .comparison import diff
from .convert import compress_checkpoint, decompress_checkpoint, transcode_checkpoint
from .files import TensorFile, TensorSlice, load_file, open_file, save_file
from .inspection import inspect
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
from .verification import verify

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
