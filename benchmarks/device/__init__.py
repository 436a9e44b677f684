"""Kernels on a GPU: decoding, products, and a model whose weights stay compressed, beside dense weights and torch."""
