"""NCCL's RAS service as a source of findings, for jobs without a probe, and where the profiler plugin for NCCL lies
(job/docs/nccl.md).

Experimental: it may change or go with any version. Nothing else imports it but the command ``diagnose --ras``.
"""
