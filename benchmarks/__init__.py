"""Measures this package and its peers in one run; docs/benchmarks.md says how to read the results."""
