"""Training programs that faults befall, and jobs with nothing wrong."""
