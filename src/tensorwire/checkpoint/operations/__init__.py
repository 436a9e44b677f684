"""What a caller asks for: convert, verify, inspect, compare checkpoints; save and load tensors."""
