"""Raises ImportError where torch is missing or too old for this package: import it first."""

from .._ground.packages import require

require("torch", (2, 5), "compressed tensors (tensorwire.torch) need PyTorch")
