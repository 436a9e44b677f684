"""Jobs that go on, and take longer than before."""
