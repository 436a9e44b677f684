"""From observations to findings: no clock, no files, no chance, and memory that does not grow with time."""

from .analyzer import Analysis, Analyzer

__all__ = ["Analysis", "Analyzer"]
