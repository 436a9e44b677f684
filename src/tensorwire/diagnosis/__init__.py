"""Naming the slow or hung rank of a training job."""
