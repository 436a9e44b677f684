"""The calls of the package ``safetensors``, over plain and compressed files: a program changes its import lines.

They write compressed files, with profile "fast"; `tensorwire.save_file` has the other profiles.
"""

from ..checkpoint.tensors.as_safetensors import safe_open
from ..errors import TensorwireError as SafetensorError

__all__ = ["SafetensorError", "safe_open"]
