"""What is said of a job that stands still, has ended, or does nothing."""
