"""A GPU, measured section by section: decoding, products, models whose weights stay compressed; dense ones beside."""
