"""Raises ImportError where torch is too old for compressed traffic: import it first."""

from ..._ground.packages import require

# The hooks came with 2.9, and modules with several groups of parameters, which they refuse, with 2.12.
require("torch", (2, 12), "tensorwire.torch.traffic uses FSDPModule.set_custom_all_gather and needs PyTorch")
