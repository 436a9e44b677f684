"""One safetensors file, plain or compressed: its header, its tensors, and how it is written."""
