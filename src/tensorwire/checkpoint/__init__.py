"""Named tensors <-> files, and whole checkpoints: safetensors files whose tensors are stored as frames.

docs/checkpoints.md describes what is written.
"""

from .operations.comparison import diff
from .operations.conversion import compress_checkpoint, decompress_checkpoint, transcode_checkpoint
from .operations.inspection import inspect
from .operations.tensor_file import TensorFile, TensorSlice, load_file, open_file, save_file
from .operations.verification import verify
from .results import (
    ChangedFile,
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
    "ChangedFile",
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
