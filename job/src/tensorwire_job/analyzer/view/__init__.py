"""A job at one moment, as an analyzer sees it: its ranks, their states, and what they say of each other."""
