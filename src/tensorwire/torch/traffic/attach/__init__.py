"""Where torch lets others move its tensors."""
