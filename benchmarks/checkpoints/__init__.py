"""Checkpoints that ranks share, and those in a store: `make dcp` and `make remote`."""
