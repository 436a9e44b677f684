"""Tensors by name <-> files, and whole checkpoints: safetensors files whose tensors are stored as frames.

docs/checkpoints.md describes what is written.
"""

from ..storage.progress import Progress
from .differences import ChangedWords, DeltaStats, DiffReport, DtypeStats, TensorDiff
from .operations.application import apply_checkpoint
from .operations.comparison import diff
from .operations.conversion import compress_checkpoint, decompress_checkpoint, transcode_checkpoint
from .operations.distributed_conversion import convert_checkpoint
from .operations.estimation import estimate_ratio
from .operations.inspection import inspect
from .operations.replacement import replace_checkpoint
from .operations.verification import verify
from .results import (
    ChangedFile,
    CheckpointReport,
    Estimate,
    FileReport,
    InspectReport,
    Problem,
    RecordedBase,
    TensorInfo,
    VerifyReport,
)
from .tensors.opening import load_file, open_file
from .tensors.saving import save_file
from .tensors.tensor_reader import TensorReader
from .tensors.tensor_slice import TensorSlice

__all__ = [
    "ChangedFile",
    "ChangedWords",
    "CheckpointReport",
    "DeltaStats",
    "DiffReport",
    "DtypeStats",
    "Estimate",
    "FileReport",
    "InspectReport",
    "Problem",
    "Progress",
    "RecordedBase",
    "TensorDiff",
    "TensorInfo",
    "TensorReader",
    "TensorSlice",
    "VerifyReport",
    "apply_checkpoint",
    "compress_checkpoint",
    "convert_checkpoint",
    "decompress_checkpoint",
    "diff",
    "estimate_ratio",
    "inspect",
    "load_file",
    "open_file",
    "replace_checkpoint",
    "save_file",
    "transcode_checkpoint",
    "verify",
]
