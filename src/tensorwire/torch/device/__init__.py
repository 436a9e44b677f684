"""Frames on a device: kernels in Triton, and what the host prepares for them."""
