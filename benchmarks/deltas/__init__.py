"""Frames relative to a base, on pairs of checkpoints of a real training run."""
