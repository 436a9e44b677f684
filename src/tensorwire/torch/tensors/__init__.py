"""The tensor subclasses: a compressed tensor, and its views."""
