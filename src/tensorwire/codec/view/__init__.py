"""Tensors as memory: the bytes of arrays, what their dtypes mean, and memory of our own."""
