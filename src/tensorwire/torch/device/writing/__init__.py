"""Frames written on a device, and what reads those that were written for it: pages, tensors, changes of tensors."""
