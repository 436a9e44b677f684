"""NCCL's RAS service as a source of findings, for jobs without a probe."""
