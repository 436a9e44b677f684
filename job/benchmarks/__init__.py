"""What the diagnosis costs, and what it finds in simulated jobs."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
