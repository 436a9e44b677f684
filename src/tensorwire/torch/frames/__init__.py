"""Frames that torch's tensors hold: in memory, or in a file."""
