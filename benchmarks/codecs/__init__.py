"""Codecs on tensors in memory."""
