"""Measurements of this package and its peers, a room for each subject; docs/benchmarks.md says how to read them."""
