"""A GPU, measured section by section: decoding, products, and models whose weights stay compressed, beside dense ones."""
