"""What an analyzer sees of a job at one moment: its ranks, their states, and what they say of each other."""
