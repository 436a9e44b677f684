"""Code that runs inside a training process: the probe and its sources."""
