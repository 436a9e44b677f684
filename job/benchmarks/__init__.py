"""What the diagnosis costs, and what it finds in simulated jobs."""
