"""What a caller asks for of whole checkpoints: convert, verify, inspect, compare."""
