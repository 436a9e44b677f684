"""Tensors by name <-> files."""
