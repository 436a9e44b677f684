"""Raises ImportError where Triton is missing or too old for the kernels: import it before them."""

from ...._ground.packages import require

require("triton", (3, 2), "decoding on a device (tensorwire.torch.device) needs Triton")
