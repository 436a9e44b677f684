"""Frames and PyTorch: what decodes on an accelerator. Import the module you need; this one loads nothing."""
