"""Distributed checkpoints of torch whose shards are compressed safetensors files: docs/dcp.md."""

from .. import torch_version  # noqa: F401 - raises where torch is missing or too old
from .reader import TensorwireReader
from .writer import TensorwireWriter

__all__ = ["TensorwireReader", "TensorwireWriter"]
