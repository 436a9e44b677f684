"""Checkpoints of ranks, in stores and in directories: `make dcp`, `make directories` and `make remote`."""
